"""Evaluation: greedy episodes of the file itself, on stated seeds, with faults named."""

import dataclasses
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from quarl_device import evaluate as module
from quarl_device.environments import EnvSpec
from quarl_device.errors import (
    EnvironmentMisbehaved,
    SpaceMismatch,
    UnknownEnvironment,
    UnsupportedSpace,
    UsageError,
)
from quarl_device.evaluate import evaluate
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path

DATA = Path(__file__).parent.parent / "data"
CARTPOLE = read_policy_path(DATA / "cartpole.tflite")


class Faulty(gymnasium.Env):
    """Four numbers to see, two actions, and one fault at step 2."""

    observation_space = Box(-9, 9, (4,), np.float32)
    action_space = Discrete(2)

    def __init__(self, fault=""):
        self.fault, self.count = fault, 0

    def observation(self):
        return np.full(4, self.np_random.uniform(), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        if self.fault == "reset":
            raise OSError("cable out")
        return self.observation(), {}

    def step(self, action):
        self.count += 1
        observation, reward = self.observation(), 1.5
        if self.count == 3:
            if self.fault == "reward":
                reward = float("nan")
            if self.fault == "observation":
                observation[1] = np.inf
            if self.fault == "shape":
                observation = observation[:3]
            if self.fault == "raise":
                raise OSError("cable out")
            if self.fault == "none":
                reward = None
        return observation, reward, self.fault != "endless" and self.count >= 5, False, {}


class Anything(gymnasium.Env):
    """Samples of any space to see, any space to act in; the reward is the action's sum, five steps long."""

    def __init__(self, seen="vector", action="discrete", fault=""):
        self.observation_space, self.action_space, self.fault, self.count = SEEN[seen], ACTIONS[action], fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count, self.actions = 0, []
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.count += 1
        observation = self.observation_space.sample()
        if self.count == 2 and self.fault == "key":
            del observation["vector"]
        if self.count == 2 and self.fault == "list":
            observation = list(observation)
        if self.count == 2 and self.fault == "nan":
            observation["vector"][0] = np.nan
        if self.count == 2 and self.fault == "shape":
            observation["image"] = observation["image"][:3]
        if self.count == 2 and self.fault == "text":
            observation["vector"] = np.array(["a", "b", "c"])
        return observation, float(np.sum(action)), self.count >= 5, False, {}


SEEN = {
    "vector": Box(-1, 1, (3,), np.float32),
    "alone": Dict({"observation": Box(-1, 1, (3,), np.float32)}),
    "named": Dict({"state": Box(-1, 1, (3,), np.float32)}),
    "dict": Dict({"vector": Box(-3, 3, (3,), np.float64), "image": Box(0, 255, (6, 6, 3), np.uint8)}),
    "frames": Box(0, 255, (6, 6), np.uint8),
}
ACTIONS = {
    "discrete": Discrete(2),
    "three": Discrete(3, start=1),
    "box": Box(-2, 2, (1,), np.float32),
    "box64": Box(-2, 2, (1,), np.float64),
    "integers": Box(-2, 2, (1,), np.int32),
    "multi": MultiDiscrete([2, 3]),
    "bits": MultiBinary(3),
}


def anything(seen, action, fault=""):
    return EnvSpec(env_id="QuarlAny-v0", kwargs={"seen": seen, "action": action, "fault": fault})


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register("QuarlFaulty-v0", entry_point=Faulty)
    gymnasium.register("QuarlAny-v0", entry_point=Anything)
    yield
    del gymnasium.registry["QuarlFaulty-v0"]
    del gymnasium.registry["QuarlAny-v0"]


def faulty(fault=""):
    return EnvSpec(env_id="QuarlFaulty-v0", kwargs={"fault": fault})


def test_a_good_policy_balances_the_pole():
    result = evaluate(CARTPOLE, episodes=3, seed=0)
    assert result.returns == (500.0, 500.0, 500.0)
    assert (result.return_mean, result.return_std, result.steps, result.episodes) == (500.0, 0.0, 1500, 3)
    assert (result.env_id, result.seed, result.sha256) == ("CartPole-v1", 0, CARTPOLE.sha256)
    assert result.runtime.startswith("ai-edge-litert ")
    assert 0 < result.act_us_p50 < 1000


def test_episodes_are_those_of_their_seeds():
    """Each return is what gymnasium itself gives for this seed and the policy's actions."""
    policy, wanted = Policy.load(CARTPOLE), []
    spec = EnvSpec(env_id="CartPole-v1", kwargs={"sutton_barto_reward": True})
    for seed in (11, 12):
        env = gymnasium.make("CartPole-v1", sutton_barto_reward=True)
        observation, total, done = env.reset(seed=seed)[0], 0.0, False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total, done = total + float(reward), terminated or truncated
        wanted.append(total)
    assert evaluate(CARTPOLE, episodes=2, seed=11, env=spec).returns == tuple(wanted)


def test_statistics():
    result = evaluate(CARTPOLE, episodes=4, seed=3, env=faulty())
    assert result.returns == (7.5,) * 4
    assert result.steps == 20


def test_repeating_gives_the_same():
    first, second = (evaluate(CARTPOLE, episodes=3, seed=5, env=faulty()) for _ in range(2))
    assert dataclasses.replace(first, act_us_p50=0.0) == dataclasses.replace(second, act_us_p50=0.0)


def test_progress_and_stop():
    seen = []
    result = evaluate(CARTPOLE, episodes=10, seed=0, env=faulty(), progress=seen.append, stop=lambda: len(seen) >= 4)
    assert seen == [1, 2, 3, 4]
    assert result.episodes == 4


def test_stopped_at_once():
    result = evaluate(CARTPOLE, episodes=10, seed=0, stop=lambda: True)
    assert (result.episodes, result.returns, result.return_mean, result.return_std) == (0, (), 0.0, 0.0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("reward", "reward is nan in episode 0, step 2"),
        ("observation", "observation in episode 0, step 3 holds NaN or Inf, or no numbers"),
        ("shape", r"observation in episode 0, step 3 has shape \(3,\), its space says \(4,\)"),
        ("raise", r"raised in step\(\) in episode 0, step 2: OSError: cable out"),
        ("none", r"raised in step\(\) in episode 0, step 2: TypeError"),
        ("reset", r"raised in reset\(seed=7\) in episode 0"),
    ],
)
def test_faults_name_their_place(fault, message):
    with pytest.raises(EnvironmentMisbehaved, match=message):
        evaluate(CARTPOLE, episodes=2, seed=7, env=faulty(fault))


def test_an_endless_episode(monkeypatch):
    monkeypatch.setattr(module, "MAX_EPISODE_STEPS", 100)
    with pytest.raises(EnvironmentMisbehaved, match="episode 0 has not ended after 100 steps") as caught:
        evaluate(CARTPOLE, episodes=1, seed=0, env=faulty("endless"))
    assert "time limit" in caught.value.hint


def test_another_environment_must_have_the_same_spaces():
    with pytest.raises(SpaceMismatch, match=r"float32\[6\], expected float32\[4\]"):
        evaluate(CARTPOLE, episodes=1, seed=0, env=EnvSpec(env_id="Acrobot-v1"))


@pytest.mark.parametrize(("episodes", "seed"), [(0, 0), (-1, 0), (1, -1), (1, 2**31)])
def test_senseless_numbers(episodes, seed):
    with pytest.raises(UsageError, match="cannot evaluate"):
        evaluate(CARTPOLE, episodes=episodes, seed=seed)


def with_env(env_id):
    return dataclasses.replace(CARTPOLE, contract=dataclasses.replace(CARTPOLE.contract, env_id=env_id))


def test_a_file_that_names_no_environment():
    with pytest.raises(UsageError, match="names no environment"):
        evaluate(with_env(""), episodes=1, seed=0)


def test_a_file_never_imports_a_module():
    with pytest.raises(UnknownEnvironment, match="module"):
        evaluate(with_env("antigravity:CartPole-v1"), episodes=1, seed=0)


def test_the_environment_is_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(Faulty, "close", lambda self: closed.append(True))
    with pytest.raises(EnvironmentMisbehaved):
        evaluate(CARTPOLE, episodes=1, seed=0, env=faulty("raise"))
    assert closed == [True]


def read(name, **observation):
    file = read_policy_path(DATA / f"{name}.tflite")
    specs = (dataclasses.replace(file.contract.observations[0], **observation), *file.contract.observations[1:])
    contract = dataclasses.replace(file.contract, observations=specs)
    golden = file.golden
    if "key" in observation:
        arrays = {observation["key"]: golden.observations["observation"]}
        golden = dataclasses.replace(golden, observations=arrays)
    return dataclasses.replace(file, contract=contract, golden=golden)


def played(file, spec, episodes, seed):
    """Returns by a plain loop with gymnasium itself."""
    policy, returns = Policy.load(file), []
    env = gymnasium.make(spec.env_id, **spec.kwargs)
    for number in range(episodes):
        observation, total, done = env.reset(seed=seed + number)[0], 0.0, False
        policy.begin_episode()
        while not done:
            action = policy.act(observation)
            if isinstance(env.action_space, Box):
                action = action.astype(env.action_space.dtype)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return tuple(returns)


@pytest.mark.parametrize("name", ["pendulum", "pendulum_gaussian"])
def test_a_continuous_space(name):
    file = read(name)
    result = evaluate(file, episodes=2, seed=21)
    assert result.returns == played(file, EnvSpec(env_id="Pendulum-v1"), 2, 21)
    assert result.returns == evaluate(file, episodes=2, seed=21).returns
    assert (result.env_id, result.steps) == ("Pendulum-v1", 400)
    assert all(-2000 < value < 0 for value in result.returns)


@pytest.mark.parametrize(
    ("file", "seen", "action"),
    [
        (read("dict_logits"), "dict", "three"),
        (read("frames"), "frames", "discrete"),
        (read("pendulum"), "vector", "box"),
        (read("pendulum"), "vector", "box64"),
        (read("pendulum", key="state"), "named", "box"),
    ],
    ids=["dict", "frames", "box", "float64 box", "one key"],
)
def test_any_space_of_the_contract(file, seen, action):
    spec = anything(seen, action)
    result = evaluate(file, episodes=3, seed=4, env=spec)
    assert result.returns == played(file, spec, 3, 4)
    assert len(set(result.returns)) > 1


def test_a_dict_space_of_one_key_called_observation():
    plain = evaluate(read("pendulum"), episodes=2, seed=4, env=anything("vector", "box"))
    keyed = evaluate(read("pendulum"), episodes=2, seed=4, env=anything("alone", "box"))
    assert len(keyed.returns) == len(plain.returns) == 2


@pytest.mark.parametrize(
    ("action", "message"), [("multi", "MultiDiscrete"), ("bits", "MultiBinary"), ("integers", "Box of int32")]
)
def test_action_spaces_that_no_policy_has(action, message):
    with pytest.raises(UnsupportedSpace, match=message):
        evaluate(read("pendulum"), episodes=1, seed=0, env=anything("vector", action))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("key", "observation in episode 0, step 2 is no dict with the keys of its space: 'vector'"),
        ("list", "observation in episode 0, step 2 is no dict"),
        ("nan", "observation 'vector' in episode 0, step 2 holds NaN"),
        ("shape", r"observation 'image' in episode 0, step 2 has shape \(3, 6, 3\), its space says \(6, 6, 3\)"),
        ("text", "observation 'vector' in episode 0, step 2 holds NaN or Inf, or no numbers"),
    ],
)
def test_faults_of_dict_observations_name_their_key(fault, message):
    with pytest.raises(EnvironmentMisbehaved, match=message):
        evaluate(read("dict_logits"), episodes=1, seed=0, env=anything("dict", "three", fault))


def test_who_watches_sees_every_reset_and_step_and_may_refuse():
    seen = []
    result = evaluate(CARTPOLE, episodes=2, seed=5, watch=lambda episode, world: seen.append((episode, world)))
    assert [sum(episode == number for episode, _ in seen) for number in (0, 1)] == [
        int(mean) + 1 for mean in result.returns
    ]  # CartPole rewards every step with 1
    assert result.returns == evaluate(CARTPOLE, episodes=2, seed=5).returns

    def refuse(episode, world):
        raise UsageError("nothing to see")

    with pytest.raises(UsageError, match="nothing to see"):
        evaluate(CARTPOLE, episodes=1, seed=5, watch=refuse)
