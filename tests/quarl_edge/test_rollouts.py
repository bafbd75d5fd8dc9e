"""Rounds of rollouts: whole or not at all, of one policy, with nothing flowing over an unknown border."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from block_factory import SPEC, World, boot_id
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.wire.block_spec import BlockSpec, ExtraSpec
from quarl_edge.replay.rollouts import RolloutStore

EPOCH = 1


def store(round_steps=4, streams=1, spec=SPEC):
    made = RolloutStore(spec, round_steps=round_steps, streams=streams)
    made.begin(EPOCH, 1)
    return made


def block(world, steps, sequence=0, *, version=1, **changes):
    made = world.block(steps, sequence, **changes)
    return dataclasses.replace(made, policy_version=np.full(steps, version, np.uint32))


def test_a_round_is_whole_with_all_rows_of_all_streams():
    rounds, one, other = store(streams=2), World(2, seed=1), World(3, seed=2)
    assert rounds.push("b", block(one, 4)) == 8
    assert not rounds.whole
    assert rounds.why_blocked() == "1 of 2 rollouts of version 1 are here"
    assert rounds.push("a", block(other, 3)) == 9
    assert rounds.push("a", block(other, 1, 1)) == 3
    assert rounds.whole
    assert rounds.why_blocked() == ""
    taken = rounds.take()
    assert taken.reward.shape == (4, 5)
    assert taken.steps == rounds.inserted == 20
    np.testing.assert_array_equal(taken.observation[0, :, 0], [0, 1, 2, 0, 1])  # "a" before "b"
    with pytest.raises(ValueError, match="not whole"):
        rounds.take()


def test_what_was_done_follows_what_was_seen():
    world = World(2, end_chance=0.5, seed=3)
    rounds = store(round_steps=40)
    rounds.push("a", block(world, 40))
    taken = rounds.take()
    for env, rows in enumerate(world.rows):
        for t, row in enumerate(rows):
            assert taken.observation[t, env, 1] == row.obs
            assert taken.next_observation[t, env, 1] == row.after
            assert taken.action[t, env] == row.action
            assert taken.reward[t, env] == np.float32(row.reward)
            assert taken.terminated[t, env] == row.terminated
            assert taken.ended[t, env] == (row.terminated or row.truncated)


def test_dummy_rows_are_no_steps_and_nothing_flows_over_them():
    world = World(2, next_step=True, end_chance=0.5, seed=4)
    rounds = store(round_steps=40)
    rounds.push("a", block(world, 40))
    taken = rounds.take()
    assert taken.steps < 80
    assert taken.ended[:-1][~taken.valid[1:]].all()
    assert taken.ended[:-1][~taken.valid[:-1]].all()


def test_rows_of_an_older_policy_are_late():
    rounds, world = store(), World(1)
    mixed = block(world, 6)
    mixed.policy_version[2:] = 2
    rounds.begin(EPOCH, 2)
    rounds.push("a", mixed)
    assert rounds.whole
    assert rounds.late == 2
    np.testing.assert_array_equal(rounds.take().observation[0, :, 1], mixed.observation["observation"][2, :, 1])


def test_another_epochs_version_of_the_same_number_is_late():
    rounds = store()
    rounds.begin(EPOCH + 1, 1)
    assert rounds.push("a", block(World(1), 4)) == 0
    assert rounds.late == 4


def test_rows_beyond_the_round_are_late():
    rounds = store()
    assert rounds.push("a", block(World(1), 7)) == 4
    assert rounds.late == 3
    assert rounds.push("a", block(World(1), 2, 1)) == 0
    assert rounds.late == 5


@pytest.mark.parametrize("changes", [{"boot": boot_id(9)}, {}])
def test_a_new_life_or_a_gap_begins_the_streams_round_anew(changes):
    rounds, world = store(), World(1)
    rounds.push("a", block(world, 3))
    rounds.push("a", block(world, 3, 0 if changes else 2, **changes))
    assert not rounds.whole
    assert rounds.late == 3
    rounds.push("a", block(world, 1, 1 if changes else 3, **changes))
    assert rounds.whole


def test_a_new_round_forgets_the_rows_of_the_last():
    rounds = store()
    rounds.push("a", block(World(1), 3))
    rounds.begin(EPOCH, 2)
    assert rounds.late == 3
    rounds.push("a", block(World(1), 4, 1, version=2))
    assert rounds.whole


def test_extras_come_along():
    spec = BlockSpec(observations=SPEC.observations, action=SPEC.action, extras=(ExtraSpec(name="log_prob"),))
    rounds, made = store(spec=spec), block(World(2), 4)
    log_prob = np.arange(8, dtype=np.float32).reshape(4, 2)
    rounds.push("a", dataclasses.replace(made, extra={"log_prob": log_prob}))
    np.testing.assert_array_equal(rounds.take().extra["log_prob"], log_prob)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 12))
def test_however_it_is_cut_into_blocks_the_round_is_the_same(cuts, round_steps):
    """And every step is either in a round or late."""
    total = sum(cuts)
    whole, parts = store(round_steps=round_steps), store(round_steps=round_steps)
    whole.push("a", block(World(2, seed=5), total))
    world = World(2, seed=5)
    for sequence, steps in enumerate(cuts):
        parts.push("a", block(world, steps, sequence))
    assert whole.whole == parts.whole == (total >= round_steps)
    assert whole.inserted + whole.late == parts.inserted + parts.late == 2 * total
    if whole.whole:
        one, other = whole.take(), parts.take()
        np.testing.assert_array_equal(one.observation, other.observation)
        np.testing.assert_array_equal(one.next_observation, other.next_observation)
        # A start may follow a block's last row unseen: only its own episode's end is known there.
        np.testing.assert_array_equal(one.terminated, other.terminated)
