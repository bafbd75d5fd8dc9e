"""What an environment and a configuration cannot do together is refused before anything starts."""

from __future__ import annotations

import re

import pytest

from quarl_device.errors import UnsupportedSpace, UsageError
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


@pytest.mark.parametrize("name", [name for name in preset_names() if name not in ("default", "LunarLander-v3")])
def test_every_preset_fits_its_environment(name):
    look_at(make_config(name))
