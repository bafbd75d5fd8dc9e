"""Environments in vectors: every way to reset gives the same episodes."""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from counter_environment import Counter, registered_counters
from gymnasium.spaces import Box, Dict

from quarl_device.environments import (
    EnvSpec,
    VectorAdapter,
    make_single,
    make_vector,
)
from quarl_device.errors import (
    EnvironmentMisbehaved,
)

CARTPOLE = EnvSpec(env_id="CartPole-v1")


@pytest.fixture(autouse=True)
def registered():
    with registered_counters():
        yield


def rollout(adapter, steps, actions):
    """Return, per environment, the list of complete episodes as (observations, rewards, ended by)."""
    current = adapter.reset(seed=0)
    episodes = [[] for _ in range(adapter.num_envs)]
    running = [([row.copy()], []) for row in current]
    for t in range(steps):
        step = adapter.step(actions(t))
        finals = dict(
            zip(step.final_rows.tolist(), step.final_observation if len(step.final_rows) else [], strict=True)
        )
        for n in range(adapter.num_envs):
            observations, rewards = running[n]
            done = step.terminated[n] or step.truncated[n]
            if step.valid[n]:
                rewards.append(float(step.reward[n]))
                observations.append(finals[n].copy() if n in finals else step.observation[n].copy())
                if done:
                    episodes[n].append((np.stack(observations), rewards, "T" if step.terminated[n] else "t"))
            if step.start[n]:
                running[n] = ([step.observation[n].copy()], [])
    return episodes


def test_the_mode_follows_the_registration():
    assert make_vector(CARTPOLE, 3).mode == "next_step"
    assert make_vector(EnvSpec(env_id="Acrobot-v1"), 3).mode == "same_step"
    assert make_vector(CARTPOLE, 3).num_envs == 3


@pytest.mark.parametrize("num_envs", [1, 3])
def test_next_step_episodes_are_those_of_single_environments(num_envs):
    adapter = make_vector(CARTPOLE, num_envs)
    rng = np.random.default_rng(1)
    table = rng.integers(0, 2, (300, num_envs)).astype(np.uint8)
    for episodes in rollout(adapter, 300, lambda t: table[t]):
        assert len(episodes) > 3
        for observations, rewards, _ in episodes:
            assert len(observations) == len(rewards) + 1
            assert set(rewards) == {1.0}
            assert np.abs(observations[0]).max() <= 0.05
            assert abs(observations[-1][0]) > 2.4 or abs(observations[-1][2]) > 0.2


def test_next_step_dummy_rows():
    adapter = make_vector(CARTPOLE, 2)
    adapter.reset(seed=0)
    ended = np.zeros(2, bool)
    for _ in range(200):
        step = adapter.step(np.ones(2, np.uint8))
        np.testing.assert_array_equal(step.valid, ~ended)
        np.testing.assert_array_equal(step.start, ended)
        assert step.final_observation is None
        assert step.final_rows.size == 0
        ended = step.terminated | step.truncated
    assert step.reward.dtype == np.float32


def test_a_reset_forgets_dummy_rows():
    adapter = make_vector(CARTPOLE, 2)
    adapter.reset(seed=0)
    while not adapter.step(np.ones(2, np.uint8)).terminated.any():
        pass
    adapter.reset(seed=1)
    assert adapter.step(np.ones(2, np.uint8)).valid.all()


def test_same_step_episodes_and_start_of_actions():
    adapter = make_vector(EnvSpec(env_id="QuarlCounter-v0"), 2)
    for episodes in rollout(adapter, 12, lambda _: np.array([0, 2], np.uint8)):
        assert len(episodes) == 4
        for observations, rewards, end in episodes:
            assert observations.ravel().tolist() == [0, 1, 2, 3]
            assert rewards == [1.0] * 3
            assert end == "T"


def test_same_step_seeds_each_environment():
    adapter = make_vector(EnvSpec(env_id="Acrobot-v1"), 3)
    observations = adapter.reset(seed=10)
    for n in range(3):
        single = make_single(EnvSpec(env_id="Acrobot-v1"))
        np.testing.assert_array_equal(observations[n], single.reset(seed=10 + n)[0])
    assert not np.array_equal(observations[0], observations[1])


def test_same_step_dicts():
    class Pair(Counter):
        observation_space = Dict({"a": Box(0, 9, (1,), np.float32), "b": Box(0, 255, (2,), np.uint8)})

        def reset(self, **options):
            super().reset(**options)
            return {"a": np.zeros(1, np.float32), "b": np.zeros(2, np.uint8)}, {}

        def step(self, action):
            observation, *rest = super().step(action)
            return {"a": observation, "b": np.full(2, self.count, np.uint8)}, *rest

    gymnasium.register("QuarlPair-v0", entry_point=Pair)
    try:
        adapter = make_vector(EnvSpec(env_id="QuarlPair-v0"), 2)
        adapter.reset(seed=0)
        steps = [adapter.step(np.zeros(2, np.uint8)) for _ in range(3)]
    finally:
        del gymnasium.registry["QuarlPair-v0"]
    assert steps[2].final_rows.tolist() == [0, 1]
    assert steps[2].final_observation["a"].tolist() == [[3], [3]]
    assert steps[2].final_observation["b"].tolist() == [[3, 3], [3, 3]]
    assert steps[2].observation["a"].tolist() == [[0], [0]]
    assert steps[1].final_observation is None


def test_observations_are_not_overwritten_later():
    for spec in (CARTPOLE, EnvSpec(env_id="Acrobot-v1")):
        adapter = make_vector(spec, 2)
        first = adapter.reset(seed=0)
        kept = first.copy()
        second = adapter.step(np.zeros(2, np.uint8)).observation
        kept_second = second.copy()
        adapter.step(np.zeros(2, np.uint8))
        np.testing.assert_array_equal(first, kept)
        np.testing.assert_array_equal(second, kept_second)


@pytest.mark.parametrize(("fault", "message"), [("step", "ZeroDivisionError"), ("reset", "stuck")])
def test_a_vector_that_fails(fault, message):
    adapter = make_vector(EnvSpec(env_id="QuarlCounter-v0", kwargs={"fault": fault}), 2)

    def use():
        adapter.reset(seed=0)
        adapter.step(np.zeros(2, np.uint8))

    with pytest.raises(EnvironmentMisbehaved, match=rf"raised in {fault}\(\).*{message}"):
        use()


def test_a_vector_entry_point_with_another_way_to_reset_is_not_used(monkeypatch):
    closed = []

    class Odd:
        metadata: ClassVar = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}

        def close(self):
            closed.append(True)

    monkeypatch.setattr(gymnasium, "make_vec", lambda *_, **__: Odd())
    adapter = make_vector(CARTPOLE, 2)
    assert isinstance(adapter, VectorAdapter)
    assert adapter.mode == "same_step"
    assert closed == [True]
    adapter.close()


class Engines(gymnasium.Env):
    """Pays the direction of its action, -1 to 1, as LunarLander computes it."""

    observation_space, action_space = Box(-1, 1, (1,), np.float32), gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action - 1), False, False, {}


def test_an_environment_may_subtract_from_the_action_that_travels_as_a_byte(monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("QuarlEngines-v0", entry_point=Engines)
    monkeypatch.setitem(gymnasium.registry, "QuarlEngines-v0", spec)
    adapter = make_vector(EnvSpec(env_id="QuarlEngines-v0"), 3)
    adapter.reset(seed=0)
    np.testing.assert_array_equal(adapter.step(np.array([0, 1, 2], np.uint8)).reward, [-1.0, 0.0, 1.0])
