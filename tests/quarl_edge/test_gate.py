"""Pushes with ranges that do not fit are held back, but never for ever."""

import numpy as np
from learner_factory import policy

from quarl_edge.learner.gate import MAX_HELD_BACK, PushGate
from quarl_export.snapshot import initial_snapshot


class Replay:
    def __init__(self, rows=64):
        self.rows = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def spread_observations(self, count):
        return self.rows[-count:]


def fitted(replay):
    network = policy()
    network.calibrate(replay.rows)
    return network.snapshot()


def unset():
    return initial_snapshot(policy().spec, seed=0, normalized=True)


def test_what_fits_goes_out_and_is_measured():
    replay = Replay()
    gate = PushGate(replay)
    assert gate.passes(fitted(replay), updates=5)
    assert gate.health.healthy
    assert gate.held_back == 0


def test_before_anything_was_learned_nothing_is_judged():
    gate = PushGate(Replay())
    assert gate.passes(unset(), updates=0)
    assert PushGate(Replay(rows=0)).passes(unset(), updates=3)
    assert gate.health is None


def test_what_does_not_fit_is_held_back_but_not_for_ever(caplog):
    gate = PushGate(Replay())
    answers = [gate.passes(unset(), updates=5) for _ in range(2 * (MAX_HELD_BACK + 1))]
    assert answers == ([False] * MAX_HELD_BACK + [True]) * 2
    assert gate.held_back == 2 * MAX_HELD_BACK
    assert len(caplog.records) == 3
    assert "held back" in caplog.records[0].message
    assert "never set" in caplog.text


def test_one_that_fits_ends_the_row():
    replay = Replay()
    gate = PushGate(replay)
    good = fitted(replay)
    for _ in range(3):
        assert not gate.passes(unset(), updates=5)
        assert gate.passes(good, updates=5)
    assert gate.held_back == 3


def test_measuring_alone_holds_nothing_back():
    gate = PushGate(Replay())
    assert not gate.judge(unset(), updates=5).healthy
    assert gate.held_back == 0


def test_both_ends_of_every_range_are_told():
    replay = Replay()
    gate = PushGate(replay)
    assert gate.bounds == {}
    snapshot = fitted(replay)
    gate.passes(snapshot, updates=5)
    assert list(gate.bounds) == ["input_low", "input_high", "hidden_1_low", "hidden_1_high", "head_low", "head_high"]
    assert list(gate.bounds.values()) == [*snapshot.ranges.ravel().tolist(), *snapshot.head_range.tolist()]
