"""Exploration noise: the asked share and spread, and decisions with names in lockstep."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.actor.draws import (
    CounterDraws,
    LockstepDraws,
    StreamDraws,
    fractions,
    lockstep_env_seed,
    normals,
    stream_env_seed,
)
from quarl_device.actor.exploration import OU_THETA, BoxNoise, DiscreteNoise
from quarl_device.contract import ActionSpec
from quarl_device.wire.exploration import Exploration

ROWS = 50
BOX = ActionSpec(kind="box", shape=(2, 3), low=(-1.0,) * 3 + (0.0,) * 3, high=(1.0,) * 3 + (10.0,) * 3)
HALF = np.array([[1.0] * 3, [5.0] * 3])


def stream(seed=1, actor_index=0, actions=5, envs=4, rows=ROWS):
    draws = StreamDraws(seed=seed, actor_index=actor_index, num_envs=envs, max_rows=rows)
    return DiscreteNoise(draws, num_actions=actions)


def lockstep(seed=1, actions=5, envs=2, rows=ROWS):
    return DiscreteNoise(LockstepDraws(seed=seed, num_envs=envs, max_rows=rows), num_actions=actions)


def box_stream(envs=4, rows=ROWS):
    return BoxNoise(StreamDraws(seed=1, actor_index=0, num_envs=envs, max_rows=rows, width=6), action=BOX)


def box_lockstep(envs=2, rows=ROWS):
    return BoxNoise(LockstepDraws(seed=1, num_envs=envs, max_rows=rows, width=6), action=BOX)


def by(epsilon):
    return Exploration(kind="epsilon", values=(epsilon,))


def of(kind, *values):
    return Exploration(kind=kind, values=values)


@pytest.mark.parametrize("make", [stream, lockstep])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0])
def test_epsilon_is_the_share_of_random_actions_and_those_are_uniform(make, epsilon):
    noise = make(envs=100, rows=400)
    noise.begin_block(400, by(epsilon))
    share = noise.explore.mean()
    assert share == epsilon if epsilon in (0.0, 1.0) else abs(share - epsilon) < 0.01
    counts = np.bincount(noise.action.ravel(), minlength=5)
    assert len(counts) == 5
    assert abs(counts / counts.sum() - 0.2).max() < 0.01


@pytest.mark.parametrize("make", [stream, lockstep])
@pytest.mark.parametrize(("epsilon", "share"), [(-1.0, 0.0), (1e6, 1.0)])
def test_epsilon_out_of_range_is_held_inside(make, epsilon, share):
    noise = make()
    noise.begin_block(ROWS, by(epsilon))
    assert noise.explore.mean() == share


@pytest.mark.parametrize("make", [stream, lockstep])
def test_a_new_epsilon_inside_a_block_keeps_the_draws(make):
    noise, other = make(), make()
    noise.begin_block(ROWS, by(0.0))
    noise.change(20, by(1.0))
    assert not noise.explore[:20].any()
    assert noise.explore[20:].all()
    other.begin_block(ROWS, by(1.0))
    assert (noise.action == other.action).all()


def test_a_stream_repeats_by_seed_and_differs_by_actor():
    def actions(**kwargs):
        noise = stream(**kwargs)
        noise.begin_block(ROWS, by(0.5))
        return noise.action.tolist(), noise.explore.tolist()

    assert actions() == actions()
    assert actions() != actions(actor_index=1)
    assert actions() != actions(seed=2)
    assert actions(seed=-1) == actions(seed=2**64 - 1)


def play(noise, cuts, ends):
    """Return what consecutive blocks decide by; `ends` are the (global row, env) before which an episode begins."""
    decisions, row = [], 0
    for cut in cuts:
        noise.begin_block(cut, of("gaussian", 1.0) if isinstance(noise, BoxNoise) else by(0.5))
        for at in range(row, row + cut):
            for env in (env for when, env in ends if when == at + 1):
                noise.begin_episode(at + 1 - row, env)
        numbers = [noise.number[:cut]] if isinstance(noise, BoxNoise) else [noise.explore[:cut], noise.action[:cut]]
        decisions.append(np.stack(numbers, axis=-1).copy())
        noise.end_block(cut)
        row += cut
    return np.concatenate(decisions)


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sets(st.tuples(st.integers(1, 47), st.integers(0, 1))),
)
def test_lockstep_decisions_do_not_depend_on_how_rows_are_cut(cuts, others, ends):
    rows = min(sum(cuts), sum(others))
    for make in (lockstep, box_lockstep):
        noise, other = make(), make()
        for one in (noise, other):
            one.restart(3)
        assert (play(noise, cuts, ends)[:rows] == play(other, others, ends)[:rows]).all()


def test_lockstep_decisions_are_named_by_seed_version_episode_step_and_environment():
    def first(seed=1, version=3, episodes=0):
        noise = lockstep(seed=seed)
        noise.restart(version)
        noise.begin_block(ROWS, by(0.5))
        for _ in range(episodes):
            noise.begin_episode(0, 0)
        return noise.action[:, 0].tolist()

    seen = [first(), first(seed=2), first(version=4), first(episodes=1), first(episodes=2)]
    assert len({tuple(actions) for actions in seen}) == len(seen)
    assert first() == seen[0]
    noise = lockstep()
    noise.restart(3)
    noise.begin_block(ROWS, by(0.5))
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


def test_normals_follow_their_stated_transform():
    raw = np.array([0, 2**64 - 1, 2**63, (2**31 << 32) | 2**31, (7 << 32) | 2**30], np.uint64)

    def number(draw):
        high, low = divmod(int(draw), 2**32)
        return math.sqrt(-2 * math.log((high + 0.5) / 2**32)) * math.cos(2 * math.pi * low / 2**32)

    np.testing.assert_allclose(normals(raw), [number(draw) for draw in raw], rtol=1e-12, atol=1e-12)
    assert normals(raw)[0] == pytest.approx(6.7637, abs=1e-4)
    assert fractions(raw)[:3].tolist() == [0.0, 1.0 - 2.0**-53, 0.5]


def test_normals_are_standard_normal():
    drawn = normals(CounterDraws(5, 6).draw(200_000, step=0, episode=0, version=0, env=0))
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1.0) < 0.01
    # Of a normal 4.55 % lie beyond two sigma, 0.27 % beyond three.
    assert abs((np.abs(drawn) > 2).mean() - 0.0455) < 0.002
    assert abs((np.abs(drawn) > 3).mean() - 0.0027) < 0.0006
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01


@pytest.mark.parametrize("make", [box_stream, box_lockstep])
def test_gaussian_noise_is_sigma_halves_of_the_range(make):
    noise = make(envs=50, rows=400)
    noise.begin_block(400, of("gaussian", 0.3))
    spread = noise.number.std(axis=(0, 1))
    np.testing.assert_allclose(spread, 0.3 * HALF, rtol=0.03)
    assert abs(noise.number.mean(axis=(0, 1)) / HALF).max() < 0.01
    other = make(envs=50, rows=400)
    other.begin_block(400, of("sample"))
    np.testing.assert_allclose(noise.number, other.number * 0.3 * HALF, rtol=1e-12)


@pytest.mark.parametrize("make", [box_stream, box_lockstep])
def test_a_new_sigma_inside_a_block_keeps_the_draws(make):
    noise, other = make(), make()
    for one in (noise, other):
        one.begin_block(ROWS, of("gaussian", 0.5))
    noise.change(20, of("ornstein_uhlenbeck", 1.0))
    assert (noise.number[:20] == other.number[:20]).all()
    np.testing.assert_allclose(noise.number[20:], 2 * other.number[20:], rtol=1e-12)


def test_drift_ends_with_its_episode_and_at_a_restart():
    noise = box_stream()
    noise.drift[:] = 1.0
    noise.begin_episode(3, 2)
    assert noise.drift.sum(axis=(1, 2)).tolist() == [6.0, 6.0, 0.0, 6.0]
    noise.restart(2)
    assert not noise.drift.any()
    assert 0 < OU_THETA < 1


def test_the_widest_box_there_is_overflows_nowhere():
    top = float(np.finfo(np.float32).max)
    action = ActionSpec(kind="box", shape=(1,), low=(-top,), high=(top,))
    noise = BoxNoise(StreamDraws(seed=1, actor_index=0, num_envs=1, max_rows=ROWS), action=action)
    noise.begin_block(ROWS, of("gaussian", 1e6))
    assert np.isfinite(noise.number).all()
