"""Exploration noise: the asked share, uniform actions, and decisions with names in lockstep."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.actor.exploration import CounterDraws, LockstepNoise, StreamNoise, lockstep_env_seed, stream_env_seed

ROWS = 50


def stream(seed=1, actor_index=0, actions=5, envs=4, rows=ROWS):
    return StreamNoise(seed=seed, actor_index=actor_index, num_actions=actions, num_envs=envs, max_rows=rows)


def lockstep(seed=1, actions=5, envs=2, rows=ROWS):
    return LockstepNoise(seed=seed, num_actions=actions, num_envs=envs, max_rows=rows)


@pytest.mark.parametrize("make", [stream, lockstep])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0])
def test_epsilon_is_the_share_of_random_actions_and_those_are_uniform(make, epsilon):
    noise = make(envs=100, rows=400)
    noise.begin_block(400, epsilon)
    share = noise.explore.mean()
    assert share == epsilon if epsilon in (0.0, 1.0) else abs(share - epsilon) < 0.01
    counts = np.bincount(noise.action.ravel(), minlength=5)
    assert len(counts) == 5
    assert abs(counts / counts.sum() - 0.2).max() < 0.01


@pytest.mark.parametrize("make", [stream, lockstep])
@pytest.mark.parametrize(("epsilon", "share"), [(-1.0, 0.0), (1e6, 1.0)])
def test_epsilon_out_of_range_is_held_inside(make, epsilon, share):
    noise = make()
    noise.begin_block(ROWS, epsilon)
    assert noise.explore.mean() == share


@pytest.mark.parametrize("make", [stream, lockstep])
def test_a_new_epsilon_inside_a_block_keeps_the_draws(make):
    noise, other = make(), make()
    noise.begin_block(ROWS, 0.0)
    noise.set_epsilon(20, 1.0)
    assert not noise.explore[:20].any()
    assert noise.explore[20:].all()
    other.begin_block(ROWS, 1.0)
    assert (noise.action == other.action).all()


def test_a_stream_repeats_by_seed_and_differs_by_actor():
    def actions(**kwargs):
        noise = stream(**kwargs)
        noise.begin_block(ROWS, 0.5)
        return noise.action.tolist(), noise.explore.tolist()

    assert actions() == actions()
    assert actions() != actions(actor_index=1)
    assert actions() != actions(seed=2)
    assert actions(seed=-1) == actions(seed=2**64 - 1)


def play(noise, cuts, ends):
    """Return the decisions of consecutive blocks; `ends` are the (global row, env) before which an episode begins."""
    decisions, row = [], 0
    for cut in cuts:
        noise.begin_block(cut, 0.5)
        for at in range(row, row + cut):
            for env in (env for when, env in ends if when == at + 1):
                noise.begin_episode(at + 1 - row, env)
        decisions.append(np.stack([noise.explore[:cut], noise.action[:cut]], axis=-1).copy())
        noise.end_block(cut)
        row += cut
    return np.concatenate(decisions)


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sets(st.tuples(st.integers(1, 47), st.integers(0, 1))),
)
def test_lockstep_decisions_do_not_depend_on_how_rows_are_cut(cuts, others, ends):
    noise, other = lockstep(), lockstep()
    for one in (noise, other):
        one.restart(3)
    rows = min(sum(cuts), sum(others))
    assert (play(noise, cuts, ends)[:rows] == play(other, others, ends)[:rows]).all()


def test_lockstep_decisions_are_named_by_seed_version_episode_step_and_environment():
    def first(seed=1, version=3, episodes=0):
        noise = lockstep(seed=seed)
        noise.restart(version)
        noise.begin_block(ROWS, 0.5)
        for _ in range(episodes):
            noise.begin_episode(0, 0)
        return noise.action[:, 0].tolist()

    seen = [first(), first(seed=2), first(version=4), first(episodes=1), first(episodes=2)]
    assert len({tuple(actions) for actions in seen}) == len(seen)
    assert first() == seen[0]
    noise = lockstep()
    noise.restart(3)
    noise.begin_block(ROWS, 0.5)
    assert noise.action[:, 0].tolist() != noise.action[:, 1].tolist()


def test_a_restart_forgets_what_was_before():
    used, fresh = lockstep(), lockstep()
    used.restart(1)
    play(used, [7, 5], {(3, 0), (9, 1)})
    used.restart(2)
    fresh.restart(2)
    assert (play(used, [9], set()) == play(fresh, [9], set())).all()


@given(st.integers(0, 1000), st.integers(1, 20), st.integers(0, 20))
def test_a_draw_is_the_same_whatever_was_drawn_with_it(step, count, more):
    draws = CounterDraws(5, 6)
    whole = draws.draw(count + more, step=step, episode=1, version=2, env=3)
    draws.draw(3, step=1, episode=9, version=9, env=9)
    assert draws.draw(more, step=step + count, episode=1, version=2, env=3).tolist() == whole[count:].tolist()


def test_environment_seeds_have_30_bits_and_differ():
    seeds = [lockstep_env_seed(s, version=v) for s in range(4) for v in range(4)]
    seeds += [stream_env_seed(s, i) for s in range(4) for i in range(4)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**30 for seed in seeds)
    assert lockstep_env_seed(7, version=1) == lockstep_env_seed(7, version=1)
