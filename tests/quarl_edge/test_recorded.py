"""A journal gives back the observations that were acted on, newest kept, dummies left out."""

import contextlib
import dataclasses

import numpy as np
import pytest
from block_factory import ACTION, OBSERVATION, SPEC, World, boot_id

from quarl_device.contract import Head, PolicyContract
from quarl_device.errors import JournalError
from quarl_device.wire.block import BlockCodec
from quarl_device.wire.block_spec import extras_for, extras_of
from quarl_edge.replay.journal import Journal
from quarl_edge.replay.recorded import recorded_observations

CONTRACT = PolicyContract(
    env_id="", algorithm="dqn", scheme="int8", observations=(OBSERVATION,), action=ACTION,
    head=Head(kind="q_values", outputs={"q_values": ""}),
)  # fmt: skip


def write(directory, world, blocks, steps=10):
    """Journal so many blocks; return the observations acted on, in order of arrival."""
    journal = Journal(directory, segment_bytes=2_000)
    codec = BlockCodec(SPEC)
    expected = []
    for sequence in range(blocks):
        block = world.block(steps, sequence)
        journal.append("pi-1", codec.encode(block))
        expected.append(block.observation["observation"][:steps][block.valid])
    journal.close()
    return np.concatenate(expected)


@pytest.mark.parametrize("next_step", [False, True])
def test_gives_back_what_was_acted_on(tmp_path, next_step):
    expected = write(tmp_path / "journal", World(num_envs=3, next_step=next_step), 7)
    found = recorded_observations(tmp_path / "journal", CONTRACT).observations["observation"]
    assert np.array_equal(found, expected)


def test_keeps_the_newest(tmp_path):
    expected = write(tmp_path / "journal", World(num_envs=2), 9)
    found = recorded_observations(tmp_path / "journal", CONTRACT, most=50).observations["observation"]
    assert np.array_equal(found, expected[-50:])


def test_nothing_recorded_is_nothing(tmp_path):
    assert recorded_observations(tmp_path / "journal", CONTRACT) is None


@pytest.mark.parametrize("next_step", [False, True])
@pytest.mark.parametrize("most", [10_000, 40])
def test_observations_of_one_episode_have_one_number_across_blocks(tmp_path, next_step, most):
    world = World(num_envs=3, next_step=next_step)
    write(tmp_path / "journal", world, 7)
    found = recorded_observations(tmp_path / "journal", CONTRACT, most=most)
    by_row = dict(zip(map(tuple, found.observations["observation"].tolist()), found.episodes.tolist(), strict=True))
    told = {}
    for env, happened in enumerate(world.rows):
        episode = 0
        for row in happened:
            episode += row.start
            if row.valid and (float(env), row.obs) in by_row:
                told.setdefault((env, episode), set()).add(by_row[float(env), row.obs])
    assert all(len(numbers) == 1 for numbers in told.values())
    assert len(set.union(*told.values())) == len(told) > 3


def test_streams_of_two_actors_are_no_one_episode(tmp_path):
    journal = Journal(tmp_path / "journal", segment_bytes=2_000)
    codec = BlockCodec(SPEC)
    for boot in range(2):
        world = World(num_envs=1, end_chance=0.0)
        journal.append("pi-1", codec.encode(world.block(5, 0, boot=boot_id(boot))))
    journal.close()
    assert recorded_observations(tmp_path / "journal", CONTRACT).episodes.tolist() == [1] * 5 + [3] * 5


def test_a_stochastic_policys_blocks_carry_more_and_are_read_too(tmp_path):
    spec = dataclasses.replace(SPEC, extras=extras_for(extras_of("logits"), ACTION))
    block = World(num_envs=2).block(10, 0)
    likely = {"log_prob": np.zeros((10, 2), np.float32)}
    with contextlib.closing(Journal(tmp_path / "journal")) as journal:
        journal.append("pi-1", BlockCodec(spec).encode(dataclasses.replace(block, extra=likely)))
    contract = dataclasses.replace(CONTRACT, head=Head(kind="logits", outputs={"logits": ""}))
    found = recorded_observations(tmp_path / "journal", contract).observations["observation"]
    assert np.array_equal(found, block.observation["observation"][:10][block.valid])


def test_another_environments_journal_is_refused(tmp_path):
    write(tmp_path / "journal", World(num_envs=2), 1)
    other = dataclasses.replace(CONTRACT, observations=(dataclasses.replace(OBSERVATION, shape=(5,)),))
    with pytest.raises(JournalError, match="does not fit the policy"):
        recorded_observations(tmp_path / "journal", other)
