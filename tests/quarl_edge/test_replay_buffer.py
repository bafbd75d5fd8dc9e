from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import CheckpointError, UnsupportedSpace
from quarl_edge.replay.buffer import ReplayBuffer
from quarl_edge.replay.transitions import Transitions, single_observation, spread

OBSERVATION = ObservationSpec(key="observation", shape=(3,))
ACTION = ActionSpec(kind="discrete", n=4)


def transitions(first: int, count: int) -> Transitions:
    """Transition i has its number in every field."""
    number = np.arange(first, first + count)
    observation = np.repeat(number[:, None], 3, axis=1).astype(np.float32)
    return Transitions(
        observation,
        (number % 4).astype(np.uint8),
        number.astype(np.float32),
        (number / 1e6).astype(np.float32),
        observation + 0.5,
    )


def make(capacity: int = 100, seed: int = 0) -> ReplayBuffer:
    return ReplayBuffer(capacity, observation=OBSERVATION, action=ACTION, seed=seed)


@settings(max_examples=60, deadline=None)
@given(capacity=st.integers(1, 20), counts=st.lists(st.integers(0, 45), max_size=8), seed=st.integers(0, 99))
def test_holds_exactly_the_newest(capacity, counts, seed):
    replay = make(capacity, seed)
    total = 0
    for count in counts:
        replay.insert(transitions(total, count))
        total += count
    assert replay.inserted == total
    assert len(replay) == min(total, capacity)
    newest = list(range(max(0, total - capacity), total))
    assert replay.recent_observations(capacity)[:, 0].tolist() == newest
    if newest:
        batch = replay.sample(4, 50)
        assert set(batch.reward.ravel().tolist()) <= set(newest)


@pytest.mark.parametrize("held", [700, 1_000, 8_192, 10_000])
def test_places_are_spread_evenly_and_in_step_with_nothing(held):
    places = spread(256, held)
    assert (places.min() >= 0, places.max() < held, len(set(places.tolist()))) == (True, True, 256)
    gaps = np.diff(np.sort(np.concatenate(([-1], places, [held]))))
    assert gaps.max() <= 2.7 * held / 256
    # Whatever the period of episodes, blocks or environments, their phases are all met.
    for period in (2, 8, 32):
        assert np.bincount(places % period, minlength=period).min() >= 0.4 * 256 / period


def test_where_less_is_held_than_asked_for_all_of_it_is_taken():
    assert spread(5, 3).tolist() == spread(3, 3).tolist() == [0, 1, 2]
    assert spread(5, 0).size == 0


def test_spread_observations_are_of_all_that_a_full_ring_holds():
    replay = make(1_000)
    for first in range(0, 1_700, 170):
        replay.insert(transitions(first, 170))
    seen = np.sort(replay.spread_observations(50)[:, 0])
    assert seen.min() >= 700
    assert np.diff(seen).max() < 60
    assert (seen[0] < 760, seen[-1] >= 1_640) == (True, True)
    np.testing.assert_array_equal(np.sort(replay.spread_observations(50)[:, 0]), seen)


def test_spread_observations_forget_what_is_long_past():
    replay = make(30_000)
    replay.insert(transitions(0, 25_000))
    assert replay.spread_observations(256)[:, 0].min() >= 15_000


def test_fields_stay_together():
    replay = make(7)
    replay.insert(transitions(0, 5))
    replay.insert(transitions(5, 6))
    batch = replay.sample(3, 40)
    assert batch.observation.shape == (3, 40, 3)
    assert batch.action.dtype == np.uint8
    np.testing.assert_array_equal(batch.observation[..., 2], batch.reward)
    np.testing.assert_array_equal(batch.next_observation, batch.observation + 0.5)
    np.testing.assert_array_equal(batch.action, batch.reward % 4)
    np.testing.assert_allclose(batch.discount, batch.reward / 1e6)


def test_samples_everything_equally_often():
    replay = make(10)
    replay.insert(transitions(0, 25))
    counts = np.bincount(replay.sample(100, 100).reward.astype(int).ravel(), minlength=25)
    assert not counts[:15].any()
    # 10,000 draws over 10: a standard deviation of 30.
    assert np.abs(counts[15:] - 1_000).max() < 200


def test_same_inserts_and_seed_give_the_same_samples():
    one, two, other = make(50, 7), make(50, 7), make(50, 8)
    for replay in (one, two, other):
        replay.insert(transitions(0, 30))
    first = [one.sample(2, 8).reward.copy() for _ in range(5)]
    second = [two.sample(2, 8).reward.copy() for _ in range(5)]
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, [other.sample(2, 8).reward.copy() for _ in range(5)])


def test_random_state_goes_on_where_it_was():
    replay = make()
    replay.insert(transitions(0, 30))
    replay.sample(1, 8)
    state = replay.random_state()
    wanted = replay.sample(3, 8).reward.copy()
    again = make(seed=99)
    again.insert(transitions(0, 30))
    again.set_random_state(state)
    np.testing.assert_array_equal(again.sample(3, 8).reward, wanted)


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"bit_generator": "MT19937"}', "null"])
def test_a_foreign_random_state_is_refused(state):
    with pytest.raises(CheckpointError, match="random state"):
        make().set_random_state(state)


def test_a_batch_lives_until_the_next_call_but_one():
    replay = make()
    replay.insert(transitions(0, 30))
    first = replay.sample(1, 16)
    kept = first.reward.copy()
    second = replay.sample(1, 16)
    np.testing.assert_array_equal(first.reward, kept)
    assert replay.sample(1, 16).reward is first.reward
    assert second.reward is not first.reward


def test_a_rebuilt_ring_lies_as_the_lost_one_did():
    lost, rebuilt = make(16, 3), make(16, 3)
    for first in range(0, 60, 6):
        lost.insert(transitions(first, 6))
    rebuilt.seek(36)
    for first in range(36, 60, 6):
        rebuilt.insert(transitions(first, 6))
    assert rebuilt.inserted == lost.inserted
    np.testing.assert_array_equal(rebuilt.sample(2, 32).reward, lost.sample(2, 32).reward)


def test_empty():
    replay = make()
    assert replay.recent_observations(5).shape == (0, 3)
    with pytest.raises(ValueError, match="empty"):
        replay.sample(1, 1)
    with pytest.raises(ValueError, match="capacity"):
        make(0)


def test_inserts_are_whole_while_another_thread_samples():
    replay = make(64)
    replay.insert(transitions(0, 64))
    stop = threading.Event()

    def insert() -> None:
        first = 64
        while not stop.is_set():
            replay.insert(transitions(first, 10))
            first += 10

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        for _ in range(200):
            batch = replay.sample(2, 32)
            np.testing.assert_array_equal(batch.next_observation[..., 0], batch.reward + 0.5)
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()


def test_box_actions_and_pixels_keep_shape_and_dtype():
    replay = ReplayBuffer(
        4,
        observation=ObservationSpec(key="observation", shape=(2, 2, 1), dtype="uint8"),
        action=ActionSpec(kind="box", shape=(2,), low=(-1, -1), high=(1, 1)),
        seed=0,
    )
    frames = np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1)
    scalar = np.ones(3, np.float32)
    replay.insert(Transitions(frames, np.ones((3, 2), np.float32), scalar, scalar, frames))
    batch = replay.sample(2, 5)
    assert batch.observation.shape == (2, 5, 2, 2, 1)
    assert batch.observation.dtype == np.uint8
    assert batch.action.shape == (2, 5, 2)
    assert replay.nbytes == 4 * (4 + 8 + 4 + 4 + 4)
    assert replay.capacity == 4


def test_only_one_key():
    assert single_observation([OBSERVATION]) is OBSERVATION
    with pytest.raises(UnsupportedSpace, match="2: 'observation', 'b'"):
        single_observation([OBSERVATION, ObservationSpec(key="b", shape=(1,))])
    assert single_observation([ObservationSpec(key="a", shape=(1,), stack=4)]).stack == 4
