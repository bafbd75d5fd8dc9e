"""A fixed rate by an absolute clock: lateness never adds up, what overruns is counted. All in simulated time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.actor.control_rate import MonotonicClock, hold_rate, rate_of
from quarl_device.errors import UsageError

MS = 1_000_000


class Simulated:
    """A clock that wakes late by what it is told, and on which work takes what it is told."""

    def __init__(self, *, work_ns=0, late_ns=0, busy=()):
        self.now, self.work_ns, self.late_ns = 5_000_000_123, work_ns, late_ns
        self.busy, self.calls, self.begun = dict(busy), 0, []

    def now_ns(self):
        return self.now

    def sleep_until(self, when_ns):
        self.now = max(self.now, when_ns) + self.late_ns

    def work(self):
        self.begun.append(self.now)
        self.now += self.busy.get(self.calls, self.work_ns)
        self.calls += 1


def hold(clock, hz=100, duration_s=1.0, **options):
    return hold_rate(clock.work, hz=hz, duration_s=duration_s, clock=clock, **options)


def test_a_good_board_is_never_late():
    clock = Simulated(work_ns=2 * MS)
    rate = hold(clock)
    assert (rate.periods, rate.overruns, rate.skipped) == (100, 0, 0)
    assert (rate.late_us_p50, rate.late_us_max) == (0.0, 0.0)
    assert {later - earlier for earlier, later in zip(clock.begun, clock.begun[1:], strict=False)} == {10 * MS}


def test_late_wake_ups_and_work_do_not_add_up():
    clock = Simulated(work_ns=3 * MS, late_ns=MS)
    rate = hold(clock, hz=50, duration_s=10)
    assert (rate.periods, rate.overruns) == (500, 0)
    assert rate.late_us_p50 == rate.late_us_p99 == rate.late_us_max == 1000.0
    assert clock.begun[-1] - clock.begun[0] == 499 * 20 * MS


def test_one_long_period_overruns_once_and_those_that_are_past_are_left_out():
    clock = Simulated(busy={10: 35 * MS})
    rate = hold(clock)
    assert (rate.overruns, rate.skipped, rate.periods) == (1, 3, 97)
    # The next one that began was on the grid again.
    assert rate.late_us_max == 0.0
    assert clock.begun[11] - clock.begun[0] == 140 * MS


def test_a_board_that_is_too_slow_overruns_always():
    rate = hold(Simulated(work_ns=25 * MS))
    assert rate.overruns == rate.periods == 34
    assert rate.periods + rate.skipped == 100


def test_a_period_that_ends_when_the_next_is_due_has_not_overrun():
    rate = hold(Simulated(work_ns=10 * MS))
    assert (rate.periods, rate.overruns, rate.skipped) == (100, 0, 0)


@settings(max_examples=200, deadline=None)
@given(
    hz=st.integers(1, 2000),
    busy=st.dictionaries(st.integers(0, 200), st.integers(0, 2_000_000_000), max_size=10),
    late_ns=st.integers(0, 1_000_000),
)
def test_every_period_begins_on_the_grid_or_is_left_out(hz, busy, late_ns):
    clock = Simulated(busy=busy, late_ns=late_ns)
    start = clock.now
    rate = hold(clock, hz=hz, duration_s=min(1.0, 300 / hz))
    wanted = max(1, round(hz * min(1.0, 300 / hz)))
    assert rate.periods + rate.skipped == wanted
    assert 0 <= rate.overruns <= rate.periods
    # Whatever was slow, what follows it is on the grid of the first period again: late by the wake-up alone.
    period_ns = 1e9 / hz
    off = [(begun - start - late_ns) % period_ns for number, begun in enumerate(clock.begun) if number - 1 not in busy]
    assert all(min(rest, period_ns - rest) <= 2 for rest in off) or late_ns > period_ns / 2
    assert rate.late_us_max >= late_ns // 1000 - 1


def test_meters_are_read_about_once_a_second():
    asked = []
    hold(Simulated(), hz=10, duration_s=3.5, between=lambda: asked.append(1))
    assert len(asked) == 3


@pytest.mark.parametrize("takes_ns", [0, 3 * MS, 10 * MS, 37 * MS, 700 * MS])
def test_what_the_meters_take_is_not_charged_to_the_board(takes_ns):
    clock = Simulated(work_ns=2 * MS)
    first_ns, read = clock.now + 10 * MS, []

    def between():
        read.append(clock.now)
        clock.now += takes_ns

    rate = hold(clock, duration_s=3.0, between=between)
    assert (rate.overruns, rate.skipped, rate.late_us_max) == (0, 0, 0.0)
    # Those that were due meanwhile are left out, and no other; at the very end nothing is due any more.
    left_out = sum(any(at < first_ns + k * 10 * MS < at + takes_ns for at in read) for k in range(300))
    assert rate.periods == len(clock.begun) == 300 - left_out
    assert {(begun - first_ns) % (10 * MS) for begun in clock.begun} == {0}


def test_meters_that_take_longer_than_all_the_rest_end_it():
    clock = Simulated()

    def between():
        clock.now += 60_000 * MS

    rate = hold(clock, duration_s=3.0, between=between)
    assert (rate.periods, rate.overruns, rate.skipped) == (100, 0, 0)


def test_an_overrun_before_the_meters_are_read_still_counts():
    clock = Simulated(busy={98: 35 * MS})

    def between():
        clock.now += 25 * MS

    rate = hold(clock, duration_s=1.5, between=between)
    assert (rate.overruns, rate.skipped, rate.late_us_max) == (1, 3, 0.0)


def test_statistics():
    rate = rate_of([n * 1000 for n in range(101)], hz=5.0, overruns=1, skipped=2)
    assert (rate.late_us_p50, rate.late_us_p99, rate.late_us_max) == (50.0, 99.0, 100.0)
    assert (rate.periods, rate.hz) == (101, 5.0)


@pytest.mark.parametrize(("hz", "duration_s"), [(0, 1), (-1, 1), (10_001, 1), (float("nan"), 1), (10, 0), (10, 3601)])
def test_senseless_rates_are_refused(hz, duration_s):
    with pytest.raises(UsageError, match="cannot hold"):
        hold(Simulated(), hz=hz, duration_s=duration_s)


def test_the_systems_clock_never_returns_early():
    clock = MonotonicClock()
    for delay in (0, 200_000, 3 * MS):
        when = clock.now_ns() + delay
        clock.sleep_until(when)
        assert clock.now_ns() >= when
    clock.sleep_until(clock.now_ns() - 10**12)
