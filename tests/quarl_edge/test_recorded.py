"""A journal gives back the observations that were acted on, newest kept, dummies left out."""

import dataclasses

import numpy as np
import pytest
from block_factory import ACTION, OBSERVATION, SPEC, World

from quarl_device.contract import Head, PolicyContract
from quarl_device.errors import JournalError
from quarl_device.wire.block import BlockCodec
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
    found = recorded_observations(tmp_path / "journal", CONTRACT)["observation"]
    assert np.array_equal(found, expected)


def test_keeps_the_newest(tmp_path):
    expected = write(tmp_path / "journal", World(num_envs=2), 9)
    found = recorded_observations(tmp_path / "journal", CONTRACT, most=50)["observation"]
    assert np.array_equal(found, expected[-50:])


def test_nothing_recorded_is_empty(tmp_path):
    assert recorded_observations(tmp_path / "journal", CONTRACT) == {}


def test_another_environments_journal_is_refused(tmp_path):
    write(tmp_path / "journal", World(num_envs=2), 1)
    other = dataclasses.replace(CONTRACT, observations=(dataclasses.replace(OBSERVATION, shape=(5,)),))
    with pytest.raises(JournalError, match="does not fit the policy"):
        recorded_observations(tmp_path / "journal", other)
