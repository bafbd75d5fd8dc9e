"""Restacking against what the environments themselves say of every stack."""

import dataclasses

import numpy as np
import pytest
from frames_factory import FRAMES, MODES, Fleet, split
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.contract import ObservationSpec
from quarl_device.frame_stack import input_shape
from quarl_device.preprocess import InputBinding, to_tensor
from quarl_device.wire.block import BlockSpec
from quarl_edge.replay.nstep import true_next
from quarl_edge.replay.rollouts import RolloutStore
from quarl_edge.replay.stacking import as_seen, is_restacked, restacked, stack_places


@settings(max_examples=80, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    frame=st.sampled_from(FRAMES),
    depth=st.integers(2, 5),
    envs=st.integers(1, 3),
    rows=st.integers(1, 9),
    lost=st.integers(0, 3),
    seed=st.integers(0, 2**16),
)
def test_every_stack_is_what_the_policy_saw_even_behind_a_gap(mode, frame, depth, envs, rows, lost, seed):
    dtype, shape = frame
    fleet = Fleet(depth, shape=shape, dtype=dtype, seed=seed)
    make = fleet.device(1, envs=envs, mode=mode, rows=rows)
    for number in range(4):
        block = make()
        if number == lost:
            continue
        whole = restacked(block, fleet.seen)
        steps, count = block.start.shape
        seen, after = whole.observation["observation"], true_next(whole, "observation")
        assert seen.shape == (steps + 1, count, *input_shape(fleet.seen))
        assert seen.dtype == dtype
        # A dummy row only resets: what it is shown is nobody's stack.
        acted_on = fleet.numbers(seen[:-1][block.valid])
        followed = fleet.numbers(after[block.valid])
        assert [numbers[-1] for numbers in acted_on] == block.reward[block.valid].tolist()
        continued = ~(block.terminated | block.truncated)[block.valid]
        for now, then, goes_on in zip(acted_on, followed, continued, strict=True):
            assert then[-2] == now[-1]
            assert not goes_on or then[:-1] == now[1:]
        assert len(fleet.numbers(whole.final_observation["observation"])) == len(block.final_index)


def test_places_are_of_the_frames_laid_end_to_end():
    fleet = Fleet(3, end_chance=0.0)
    make = fleet.device(1, envs=2, mode="same_step", rows=4)
    make()
    rows, finals = stack_places(make(), fleet.seen)
    assert rows.shape == (5, 2, 3)
    assert finals.shape == (0, 3)
    assert rows[0].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert rows[4].tolist() == [[8, 10, 12], [9, 11, 13]]


@pytest.mark.parametrize("frame", FRAMES)
def test_stacks_lie_as_a_device_writes_them_into_a_tensor(frame):
    dtype, shape = frame
    seen = ObservationSpec(key="observation", shape=shape, dtype=dtype, stack=3)
    observations = np.random.default_rng(0).integers(0, 256, (5, 3, *shape)).astype(dtype)
    found = as_seen(observations, seen)
    binding = InputBinding(
        spec=seen, shape=input_shape(seen), dtype=np.dtype(np.float32),
        layout="new_axis" if len(shape) == 2 else "joined",
    )  # fmt: skip
    np.testing.assert_array_equal(found, to_tensor(binding, observations))
    np.testing.assert_array_equal(split(found, seen), observations)


def test_what_needs_no_restacking_is_left_as_it_is():
    vector = ObservationSpec(key="observation", shape=(4,))
    image = ObservationSpec(key="observation", shape=(8, 8, 1), dtype="uint8")
    assert not is_restacked(vector)
    assert not is_restacked(image)
    assert is_restacked(ObservationSpec(key="observation", shape=(8, 8), dtype="uint8"))
    block, rows = object(), np.ones((2, 4), np.float32)
    assert restacked(block, image) is block
    assert as_seen(rows, vector) is rows


@pytest.mark.parametrize("mode", MODES)
def test_rollouts_hold_stacks(mode):
    fleet = Fleet(4, seed=3)
    store = RolloutStore(fleet.spec, round_steps=12, streams=2)
    store.begin(1, 1)
    devices = [fleet.device(name, envs=2, mode=mode, rows=4) for name in (1, 2)]
    for _ in range(3):
        for name, make in enumerate(devices):
            store.push(str(name), make())
    rollout = store.take()
    fleet.numbers(rollout.observation[rollout.valid])
    fleet.numbers(rollout.next_observation[rollout.valid])
    assert rollout.observation.shape == (12, 2 if mode == "single" else 4, 1, 3, 4)


def test_a_round_of_plain_vectors_is_as_it_was():
    fleet = Fleet(1, shape=(4,), dtype="float32")
    store = RolloutStore(fleet.spec, round_steps=4, streams=1)
    store.begin(1, 1)
    block = fleet.device(1, rows=4)()
    store.push("1", block)
    np.testing.assert_array_equal(store.take().observation, block.observation["observation"][:-1])
    assert isinstance(dataclasses.replace(fleet.spec), BlockSpec)
