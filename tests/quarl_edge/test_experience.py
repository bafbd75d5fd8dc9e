"""Both kinds of experience behind the one seam that ingest and loop know."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from block_factory import ACTION, SPEC, World

from quarl_device.errors import CheckpointError
from quarl_edge.config import RolloutConfig
from quarl_edge.configure import make_config
from quarl_edge.replay.experience import ReplayExperience, RoundExperience, make_experience

SMALL = {"batch_size": 4, "updates_per_call": 2, "samples_per_insert": 1.0, "learning_starts": 8, "n_step": 1}
ROUND = {"round_steps": 8, "actors": 1, "envs_per_actor": 2, "minibatches": 1}


def replay(**changes):
    config = make_config("CartPole-v1", asked={**SMALL, "replay_capacity": 64, **changes})
    return make_experience(config, SPEC, unit=8)


def rounds(**changes):
    made = make_experience(make_config("CartPole-v1", algorithm="ppo", asked={**ROUND, **changes}), SPEC, unit=8)
    made.begin(1, 1)
    return made


def block(world, steps, sequence=0, version=1):
    return dataclasses.replace(world.block(steps, sequence), policy_version=np.full(steps, version, np.uint32))


@pytest.fixture(params=[replay, rounds])
def experience(request):
    return request.param()


def test_what_came_in_is_there_and_can_be_taken_once_it_is_enough(experience):
    assert (experience.inserted, len(experience), experience.samples) == (0, 0, 0)
    assert experience.room() > 0
    assert not experience.ready()
    assert experience.why_blocked()
    assert experience.waits_for() in ("first transitions", "rollouts")
    assert experience.insert("a", block(World(2, end_chance=0.0), 8)) == experience.inserted == 16
    assert experience.ready()
    assert experience.why_blocked() == ""
    taken = experience.take()
    assert experience.samples > 0
    experience.learned(taken, None)
    seen = experience.recent_observations(4)
    assert seen.shape == (4, 2)
    assert experience.spread_observations(4).shape == (4, 2)
    everything = {tuple(row) for row in experience.recent_observations(16)}
    assert {tuple(row) for row in experience.spread_observations(16)} == everything


def test_observations_are_handed_out_once_each_in_order(experience):
    world = World(2, end_chance=0.0)
    handed, number = [], 0
    for sequence in range(3):
        if isinstance(experience, RoundExperience):
            experience.begin(1, sequence + 1)
        experience.insert("a", block(world, 8, sequence, version=sequence + 1))
        experience.take()
        number, fresh = experience.observations_since(number)
        handed.append(fresh)
        assert experience.observations_since(number)[1].shape == (0, 2)
    np.testing.assert_array_equal(np.concatenate(handed), all_observations(experience, handed))
    assert number == experience.inserted == sum(map(len, handed)) == 48


def all_observations(experience, handed):
    """Return what came in by another way: the ring's content, or of rounds the newest behind what was handed out."""
    if isinstance(experience, ReplayExperience):
        return experience.recent_observations(48)
    return np.concatenate([*handed[:-1], experience.recent_observations(16)])


def test_observations_that_have_left_the_ring_are_not_handed_out():
    made, world = replay(replay_capacity=16), World(2, end_chance=0.0)
    for sequence in range(3):
        made.insert("a", block(world, 8, sequence))
    number, fresh = made.observations_since(0)
    assert (number, len(fresh)) == (48, 16)
    np.testing.assert_array_equal(fresh, made.recent_observations(16))


def test_its_state_goes_on_from_a_checkpoint(experience):
    experience.insert("a", block(World(2), 8))
    experience.take()
    other = replay() if isinstance(experience, ReplayExperience) else rounds()
    other.insert("a", block(World(2), 8))
    other.rebuilt()
    other.restore(experience.state(), experience.arrays())
    assert other.samples == experience.samples
    # What the next push's ranges come from.
    np.testing.assert_array_equal(other.recent_observations(8), experience.recent_observations(8))
    np.testing.assert_array_equal(other.spread_observations(8), experience.spread_observations(8))
    if isinstance(experience, ReplayExperience):
        np.testing.assert_array_equal(other.replay.sample(2, 4).place, experience.replay.sample(2, 4).place)


def test_counting_goes_on_behind_a_shortened_journal(experience):
    experience.seek(1_000)
    experience.insert("a", block(World(2, end_chance=0.0), 8))
    assert experience.inserted == 1_016


def test_kinds_follow_the_configuration():
    assert isinstance(replay(), ReplayExperience)
    assert isinstance(rounds(), RoundExperience)
    config = make_config("CartPole-v1", algorithm="a2c")
    assert isinstance(config, RolloutConfig)


def test_errors_change_what_is_drawn():
    made = replay(priority_exponent=1.0)
    made.insert("a", block(World(1, end_chance=0.0), 16))
    taken = made.take()
    errors = np.zeros(taken.reward.shape, np.float32)
    made.replay.learned(taken, errors)
    loud = int(taken.place[0, 0])
    errors[taken.place == loud] = 1_000.0
    made.learned(taken, errors)
    drawn = made.replay.sample(8, 32).place
    assert (drawn == loud).mean() > 0.9
    assert (made.replay.sample(1, 32).weight <= 1.0).all()


def test_priorities_are_part_of_a_checkpoint():
    made, other, plain = (replay(priority_exponent=alpha) for alpha in (1.0, 1.0, 0.0))
    for each in (made, other, plain):
        each.insert("a", block(World(1, end_chance=0.0), 16))
    taken = made.take()
    made.learned(taken, np.arange(8, dtype=np.float32).reshape(2, 4))
    other.restore(made.state(), made.arrays())
    np.testing.assert_array_equal(other.replay.sample(2, 4).place, made.replay.sample(2, 4).place)
    with pytest.raises(CheckpointError, match="priorities"):
        plain.restore(made.state(), made.arrays())
    with pytest.raises(CheckpointError, match="priorities"):
        made.restore(plain.state(), plain.arrays())


def test_a_round_of_an_older_version_is_over():
    made = rounds()
    made.insert("a", block(World(2), 4))
    made.begin(1, 2)
    assert made.dropped == 8
    made.insert("a", block(World(2), 4, 1))
    assert not made.ready()
    assert made.dropped == 16
    assert ACTION.n == 3
