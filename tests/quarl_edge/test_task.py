"""What an environment and a configuration cannot do together is refused before anything starts."""

from __future__ import annotations

import importlib
import re

import gymnasium
import numpy as np
import pytest

from quarl_device.environments import spaces_to_specs
from quarl_device.errors import EnvironmentMisbehaved, MissingExtra, UnsupportedSpace, UsageError
from quarl_edge.algorithms import ALGORITHMS
from quarl_edge.configure import make_config, preset_names
from quarl_edge.task import look_at


def test_cartpole_as_a_learner_sees_it():
    task = look_at(make_config("CartPole-v1"))
    assert task.observation.shape == (4,)
    assert task.action.n == 2
    assert task.golden_observations.shape == (8, 4)


@pytest.mark.parametrize(
    ("env_id", "algorithm", "message"),
    [
        ("Pendulum-v1", "dqn", "Pendulum-v1 has continuous actions; dqn takes discrete ones.*--algorithm d4pg"),
        ("CartPole-v1", "ddpg", "CartPole-v1 has discrete actions; ddpg takes continuous ones.*--algorithm dqn"),
    ],
)
def test_an_algorithm_that_does_not_fit_the_actions_is_refused_with_one_that_does(env_id, algorithm, message):
    with pytest.raises(UnsupportedSpace, match=message):
        look_at(make_config(env_id, algorithm=algorithm))


def test_a_continuous_task():
    task = look_at(make_config("Pendulum-v1"))
    assert task.action.kind == "box"
    assert (task.action.low, task.action.high) == ((-2.0,), (2.0,))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
@pytest.mark.parametrize("hidden", ["8192,8192", "6000,6000,6000", "2500," * 16, "4096," * 7])
def test_a_network_over_the_push_cap_is_refused_with_one_that_fits(env_id, hidden):
    with pytest.raises(UsageError, match=r"a push carries at most 67,108,864") as refused:
        look_at(make_config(env_id, settings=[f"hidden={hidden}"]))
    found = re.fullmatch(r"--set (hidden=[\d,]+)", refused.value.hint)
    assert found
    assert found[1].count(",") == hidden.strip(",").count(",")
    look_at(make_config(env_id, settings=[found[1]]))


@pytest.mark.parametrize("hidden", ["256,256", "2048,2048,2048", "8192"])
def test_a_network_that_fits_is_not_refused(hidden):
    look_at(make_config("CartPole-v1", settings=[f"hidden={hidden}"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["envs_per_actor=4096", "steps=2000"], "a block of 4 rows of 4,096 environments is 16,384 steps, more than"),
        (["block_steps=5000", "steps=2000"], "a block of 5,000 rows of 1 environments"),
        (
            ["updates_per_call=100000", "steps=40000"],
            "updates_per_call = 100,000: one call follows 50,000 steps.*whole budget",
        ),
        (["updates_per_call=8192", "steps=4000"], "one call follows 4,096 steps"),
        (["learning_starts=3000", "steps=2000"], "nothing would be learned"),
    ],
)
def test_a_unit_over_the_whole_budget_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        look_at(make_config("CartPole-v1", settings=settings))


PRESETS = [(name, preset) for name in ALGORITHMS for preset in preset_names(name) if preset != "default"]


@pytest.mark.parametrize(("algorithm", "env_id"), PRESETS)
def test_every_preset_fits_its_environment(algorithm, env_id):
    importlib.import_module("quarl_device.testing.identity")  # registers environments that have presets
    config = make_config(env_id, algorithm=algorithm)
    try:
        task = look_at(config)
    except MissingExtra as error:
        pytest.skip(error.message)
    size = task.observation.shape[0]
    for constants in (config.observation_offset, config.observation_scale):
        assert constants is None or len(constants) == size


# Environments of a user's own


class Faulty(gymnasium.Env):
    """Misbehaves in one way, at one step of all that it makes."""

    action_space = gymnasium.spaces.Discrete(2)
    dtype = np.float32

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-9, 9, (3,), self.dtype)
        self.count = 0

    def reset(self, *, seed=None, options=None):
        if HOW["fault"] == "spaces":
            self.observation_space = gymnasium.spaces.Box(-9.0, 9.0, (4,), np.float32)
        if HOW["fault"] == "reset":
            raise OSError("no display")
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.count += 1
        observation, reward = np.full(3, self.count % 7, np.float32), 1.0
        if self.count == 5:
            if HOW["fault"] == "step":
                raise ZeroDivisionError("division by zero")
            if HOW["fault"] == "draws":
                raise gymnasium.error.DependencyNotInstalled("pygame is not installed, run `pip install pygame`")
            if HOW["fault"] == "reward":
                reward = float("nan")
            if HOW["fault"] == "text":
                reward = "much"
            if HOW["fault"] == "observation":
                observation[1] = np.inf
            if HOW["fault"] == "shape":
                observation = np.zeros(2, np.float32)
        return observation, reward, self.count % 7 == 0, False, {}


HOW = {"fault": ""}
gymnasium.register("QuarlSpoilt-v0", entry_point=Faulty)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (
            "spaces",
            EnvironmentMisbehaved,
            r"changed its spaces with reset\(\): .*float32\[4\]",
        ),
        ("reset", EnvironmentMisbehaved, "failed at step 0 of random play: OSError: no display"),
        ("step", EnvironmentMisbehaved, "failed at step 5 of random play: ZeroDivisionError"),
        ("draws", MissingExtra, "needs a package: pygame is not installed, run `pip install pygame`"),
        ("reward", EnvironmentMisbehaved, "step 5 of random play: the reward is nan"),
        ("text", EnvironmentMisbehaved, "failed at step 5 of random play: TypeError"),
        ("observation", EnvironmentMisbehaved, r"step 5 of random play: the observation .*inf.* is not finite"),
        ("shape", EnvironmentMisbehaved, r"step 5 of random play: the observation has shape \(2,\), its space \(3,\)"),
    ],
)
def test_an_environment_that_misbehaves_is_told_before_a_run_begins(monkeypatch, fault, error, message):
    monkeypatch.setitem(HOW, "fault", fault)
    with pytest.raises(error, match=message) as caught:
        look_at(make_config("QuarlSpoilt-v0"))
    assert "\n" not in str(caught.value)
    assert "'QuarlSpoilt-v0'" in str(caught.value)


def test_the_same_environment_without_a_fault_is_taken():
    assert look_at(make_config("QuarlSpoilt-v0")).golden_observations.shape == (7, 3)


def test_an_environment_of_a_module_that_the_user_named():
    task = look_at(make_config("quarl_device.testing.identity:IdentityBox-v0", algorithm="ddpg"))
    assert (task.observation.shape, task.action.shape) == ((2,), (2,))


def test_a_dict_is_one_vector_to_the_learner():
    task = look_at(make_config("quarl_device.testing.identity:IdentityDict-v0"))
    assert (task.observation.key, task.observation.shape) == ("observation", (5,))
    assert task.golden_observations.shape == (8, 5)
    # gymnasium sorts the keys of a Dict: what is left of the episode, then which action is right.
    assert set(np.unique(task.golden_observations[:, 1:])) == {0.0, 1.0}
    assert len(np.unique(task.golden_observations[:, 0])) > 2


def test_integers_are_refused_with_what_makes_floats_of_them(monkeypatch):
    monkeypatch.setattr(Faulty, "dtype", np.int64)
    with pytest.raises(UnsupportedSpace, match="observes a vector of int64; dqn takes float32 or float64") as caught:
        look_at(make_config("QuarlSpoilt-v0"))
    assert "DtypeObservation" in caught.value.hint


def test_images_of_floats_are_refused(monkeypatch):
    image = gymnasium.spaces.Box(0.0, 1.0, (6, 6, 1), np.float32)
    monkeypatch.setattr("quarl_edge.task.spaces_to_specs", lambda _, action: spaces_to_specs(image, action))
    with pytest.raises(UnsupportedSpace, match=r"'observation', \(6, 6, 1\)\)\]; dqn takes one vector, or one image"):
        look_at(make_config("CartPole-v1"))


def test_presets_and_names_of_runs_go_by_the_name_without_its_module():
    own = make_config("gymnasium.envs:CartPole-v1")
    assert own.replace(env_id="CartPole-v1") == make_config("CartPole-v1")
