"""The recorder: rows in, blocks of views out, the last observation carried over."""

import numpy as np
import pytest

from quarl_device.actor.recorder import Recorder
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import UnsupportedSpace
from quarl_device.wire.block import BlockCodec, BlockSpec

SPEC = BlockSpec(
    observations=(ObservationSpec(key="observation", shape=(2,)),), action=ActionSpec(kind="discrete", n=3)
)
BOOT = "0123456789abcdef"


def filled(recorder, rows, first):
    """Write `rows` rows whose observations count up from `first`."""
    recorder.begin()
    recorder.acted_by(0, 1, first)
    for row in range(rows):
        recorder.observation[row + 1] = first + row + 1
        recorder.action[row] = row % 3
        recorder.reward[row] = row
    recorder.end(rows)
    return recorder.block(boot_id=BOOT, sequence=0, base=0)


def test_what_follows_a_block_begins_the_next():
    recorder = Recorder(SPEC, num_envs=2, max_rows=4)
    recorder.restart(np.zeros((2, 2)))
    block = filled(recorder, 3, 0)
    assert block.observation["observation"][:, 0, 0].tolist() == [0, 1, 2, 3]
    assert block.start[:, 0].tolist() == [True, False, False]
    block = filled(recorder, 4, 3)
    assert block.observation["observation"][:, 1, 1].tolist() == [3, 4, 5, 6, 7]
    assert not block.start.any()
    assert block.policy_version.tolist() == [3] * 4


def test_a_start_at_the_seam_belongs_to_the_next_block():
    recorder = Recorder(SPEC, num_envs=1, max_rows=3)
    recorder.restart(np.zeros((1, 2)))
    filled(recorder, 2, 0)
    recorder.start[2, 0] = True
    assert filled(recorder, 3, 2).start[:, 0].tolist() == [True, False, False]
    assert not filled(recorder, 3, 2).start.any()


def test_flags_and_finals_of_one_block_do_not_leak_into_the_next():
    recorder = Recorder(SPEC, num_envs=1, max_rows=3)
    recorder.restart(np.zeros((1, 2)))
    recorder.begin()
    recorder.terminated[0] = recorder.truncated[1] = True
    recorder.valid[2] = False
    recorder.final_index.extend([(0, 0), (1, 0)])
    recorder.final_observation.extend([np.float32([1, 2]), np.float32([[3, 4]])])
    recorder.end(3)
    block = recorder.block(boot_id=BOOT, sequence=0, base=0)
    assert block.final_index.tolist() == [[0, 0], [1, 0]]
    assert block.final_observation["observation"].tolist() == [[1, 2], [3, 4]]
    assert block.transitions == 2
    block = filled(recorder, 3, 0)
    assert not (block.terminated | block.truncated).any()
    assert block.valid.all()
    assert block.final_index.shape == (0, 2)
    assert block.final_observation["observation"].shape == (0, 2)


def test_a_swap_inside_a_block_is_recorded_from_its_row_on():
    recorder = Recorder(SPEC, num_envs=1, max_rows=4)
    recorder.restart(np.zeros((1, 2)))
    recorder.begin()
    recorder.acted_by(0, 1, 7)
    recorder.acted_by(2, 2, 1)
    recorder.end(3)
    block = recorder.block(boot_id=BOOT, sequence=0, base=0)
    assert block.policy_epoch.tolist() == [1, 1, 2]
    assert block.policy_version.tolist() == [7, 7, 1]


def test_what_is_recorded_survives_the_wire():
    recorder, codec = Recorder(SPEC, num_envs=2, max_rows=4), BlockCodec(SPEC)
    recorder.restart(np.zeros((2, 2)))
    block = filled(recorder, 3, 0)
    back = codec.decode(codec.encode(block))
    assert back.observation["observation"].tolist() == block.observation["observation"].tolist()
    assert back.action.tolist() == block.action.tolist()
    assert back.reward.tolist() == block.reward.tolist()


def test_several_keys_cannot_be_recorded_and_are_refused_by_name():
    observations = (ObservationSpec(key="a", shape=(2,)), ObservationSpec(key="b", shape=(2,)))
    spec = BlockSpec(observations=observations, action=SPEC.action)
    with pytest.raises(UnsupportedSpace, match="found a, b"):
        Recorder(spec, num_envs=1, max_rows=2)


def test_frames_before_a_block_are_set_from_outside_and_travel_first():
    spec = BlockSpec(observations=(ObservationSpec(key="a", shape=(1,), stack=3),), action=SPEC.action)
    recorder = Recorder(spec, num_envs=2, max_rows=4)
    assert (recorder.before.shape, recorder.observation.shape) == ((2, 2, 1), (5, 2, 1))
    recorder.restart(np.full((2, 1), 7.0))
    recorder.begin()
    recorder.before[:, :, 0] = [[1, 2], [3, 4]]
    recorder.observation[1:4, :, 0] = [[8, 8], [9, 9], [10, 10]]
    recorder.end(3)
    block = recorder.block(boot_id="0123456789abcdef", sequence=0, base=0)
    assert block.observation["a"][:, 0, 0].tolist() == [1, 3, 7, 8, 9, 10]
    recorder.begin()
    assert recorder.observation[0, :, 0].tolist() == [10, 10]
