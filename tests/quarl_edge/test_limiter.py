from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import CheckpointError, UsageError
from quarl_edge.replay.limiter import SampleToInsertRatio, default_error_buffer, smallest_error_buffer


class Reverb:
    """The rule as Reverb states it, `deletes` left out."""

    def __init__(self, spi: float, min_size: int, error_buffer: float) -> None:
        self.spi, self.min_size = spi, min_size
        self.min_diff, self.max_diff = spi * min_size - error_buffer, spi * min_size + error_buffer
        self.inserts = self.samples = 0

    def can_insert(self, n: int) -> bool:
        if self.inserts + n <= self.min_size:
            return True
        return (self.inserts + n) * self.spi - self.samples <= self.max_diff

    def can_sample(self, n: int) -> bool:
        return self.inserts >= self.min_size and self.inserts * self.spi - self.samples - n >= self.min_diff


@settings(max_examples=200, deadline=None)
@given(
    spi=st.sampled_from([0.25, 0.5, 1.0, 2.0, 8.0, 32.0]),
    min_size=st.integers(1, 200),
    wider=st.floats(0, 500),
    actions=st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=80),
)
def test_agrees_with_reverb_at_every_step(spi, min_size, wider, actions):
    buffer = smallest_error_buffer(spi) + round(wider * 4) / 4
    ours, theirs = SampleToInsertRatio(spi, min_size, buffer), Reverb(spi, min_size, buffer)
    for inserting, count in actions:
        assert (count <= ours.insert_room()) == theirs.can_insert(count)
        assert ours.can_sample(count) == theirs.can_sample(count)
        assert (ours.why_blocked(count) == "") == ours.can_sample(count)
        if inserting and count <= ours.insert_room():
            ours.insert(count)
            theirs.inserts += count
        elif ours.can_sample(count):
            ours.sample(count)
            theirs.samples += count


@settings(max_examples=200, deadline=None)
@given(
    spi=st.sampled_from([0.25, 1.0, 4.0, 32.0, 128.0]),
    min_size=st.integers(1, 2_000),
    insert_unit=st.integers(1, 700),
    sample_unit=st.integers(1, 20_000),
)
def test_the_smallest_window_never_deadlocks_and_holds_the_ratio(spi, min_size, insert_unit, sample_unit):
    buffer = smallest_error_buffer(spi, insert_unit=insert_unit, sample_unit=sample_unit)
    limiter = SampleToInsertRatio(spi, min_size, buffer, insert_unit=insert_unit, sample_unit=sample_unit)
    for _ in range(300):
        insert, sample = insert_unit <= limiter.insert_room(), limiter.can_sample(sample_unit)
        assert insert or sample, "both sides wait for each other"
        if sample:
            limiter.sample(sample_unit)
        else:
            limiter.insert(insert_unit)
    if limiter.samples:
        off = limiter.inserts * spi - limiter.samples - spi * min_size
        assert abs(off) <= buffer + spi * insert_unit + sample_unit


def test_nothing_is_sampled_before_min_size():
    limiter = SampleToInsertRatio(8.0, 100, 1e6)
    limiter.insert(99)
    assert not limiter.can_sample(1)
    assert limiter.why_blocked() == "99 of 100 first transitions are in replay"
    limiter.insert(1)
    assert limiter.can_sample(1)
    assert limiter.why_blocked() == ""


def test_says_how_much_is_missing():
    limiter = SampleToInsertRatio(2.0, 10, 100.0)
    limiter.insert(10)
    limiter.sample(90)
    assert "next update needs 5 more transitions" in limiter.why_blocked(20)


def test_room_is_what_may_be_inserted():
    limiter = SampleToInsertRatio(2.0, 10, 20.0)
    assert limiter.insert_room() == 20
    limiter.insert(20)
    assert limiter.insert_room() == 0
    limiter.sample(7)
    assert limiter.insert_room() == 3


def test_overshoot_only_lets_sampling_go_on():
    limiter = SampleToInsertRatio(1.0, 10, 10.0)
    limiter.insert(500)
    assert limiter.insert_room() == 0
    assert limiter.can_sample(490)


@pytest.mark.parametrize(
    ("spi", "min_size", "buffer"),
    [(0, 1, 10), (-1, 1, 10), (float("nan"), 1, 10), (float("inf"), 1, 10), (1, 0, 10), (1, 1, 0.5), (8, 1, 7.9)],
)
def test_refuses_nonsense(spi, min_size, buffer):
    with pytest.raises(UsageError, match="expected"):
        SampleToInsertRatio(spi, min_size, buffer)


def test_refuses_a_window_that_the_units_can_deadlock():
    for insert_unit, sample_unit, smallest in ((256, 8_192, 8_192.0), (128, 8_192, 6_144.0), (256, 64, 8_192.0)):
        with pytest.raises(UsageError, match=r"wait for each other for ever"):
            SampleToInsertRatio(32.0, 1_000, smallest - 1, insert_unit=insert_unit, sample_unit=sample_unit)
        SampleToInsertRatio(32.0, 1_000, smallest, insert_unit=insert_unit, sample_unit=sample_unit)


def test_the_default_window_keeps_two_blocks_ahead_of_every_actor():
    spi, unit, samples, actors = 32.0, 256, 8_192, 4
    buffer = default_error_buffer(spi, insert_unit=unit, sample_unit=samples, actors=actors)
    limiter = SampleToInsertRatio(spi, 1_000, buffer, insert_unit=unit, sample_unit=samples)
    limiter.insert(1_000)
    while limiter.can_sample(samples):
        limiter.sample(samples)
    assert limiter.insert_room() >= 2 * unit * actors


def test_counters_come_back():
    limiter = SampleToInsertRatio(1.0, 10, 10.0)
    limiter.restore(inserts=40, samples=30)
    limiter.restore_samples(35)
    assert (limiter.inserts, limiter.samples) == (40, 35)
    with pytest.raises(CheckpointError):
        limiter.restore_samples(-1)
