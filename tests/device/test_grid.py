"""A fixed rate's instants: absolute, exact over days, and never behind."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.grid import NS, Grid

S = NS


def test_it_is_absolute():
    grid = Grid(10, 0)
    assert grid.deliver(S // 20)
    assert grid.due_ns == S // 10
    assert not grid.deliver(35 * S // 100)  # the instants at 0.2 and 0.3 s have passed
    assert (grid.overruns, grid.skipped, grid.due_ns, grid.number) == (1, 2, 4 * S // 10, 4)
    assert grid.deliver(41 * S // 100)


def test_it_begins_anew_after_what_is_no_step():
    grid = Grid(10, 0)
    grid.deliver(0)
    grid.pause(7 * S)
    assert (grid.due_ns, grid.number) == (7 * S, 0)
    assert grid.deliver(7 * S + S // 20)
    assert grid.due_ns == 7 * S + S // 10


def test_what_is_left_out_counts_nowhere():
    grid = Grid(10, 0)
    grid.deliver(0)
    grid.leave_out(55 * S // 100)
    assert (grid.number, grid.due_ns, grid.overruns, grid.skipped) == (6, 6 * S // 10, 0, 0)
    grid.leave_out(0)
    assert grid.number == 6


def test_a_step_that_ends_when_the_next_is_due_is_in_time():
    grid = Grid(3, 5)
    assert grid.deliver(5 + round(S / 3))
    assert grid.number == 1


def test_no_rounding_adds_up_over_a_day():
    grid = Grid(3, 0)
    for _ in range(3 * 3600):
        grid.deliver(grid.due_ns)
    assert grid.due_ns == 3600 * S


@settings(deadline=None)
@given(
    hz=st.floats(0.001, 10_000),
    start_ns=st.integers(0, 10**18),
    takes_ns=st.lists(st.integers(0, 50 * S), min_size=1, max_size=30),
)
def test_it_never_lags_behind_and_skips_no_instant_that_is_still_to_come(hz, start_ns, takes_ns):
    grid, now_ns, period_ns = Grid(hz, start_ns), start_ns, S / hz
    for taken_ns in takes_ns:
        before, due_ns = grid.number, grid.due_ns
        now_ns = max(now_ns, due_ns) + taken_ns
        in_time = grid.deliver(now_ns)
        assert in_time == (taken_ns <= period_ns) or abs(taken_ns - period_ns) <= 1 + 1e-6 * (now_ns - start_ns)
        assert now_ns <= grid.due_ns <= now_ns + period_ns + 1 + 1e-6 * (now_ns - start_ns) or in_time
        assert grid.number > before
    assert grid.number == len(takes_ns) + grid.skipped


@pytest.mark.parametrize("hz", [1, 3, 7, 333, 9_999])
def test_every_instant_is_the_first_at_its_own_time(hz):
    for number in (0, 1, 2, 10**3, 10**6, 10**9):
        grid = Grid(hz, 123)
        grid.leave_out(123 + round(number * S / hz))
        assert grid.number == number
