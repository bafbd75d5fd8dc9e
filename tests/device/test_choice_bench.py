"""The figure of an explored action: of the actor's own choice, beside the policy's greedy one."""

import dataclasses
from pathlib import Path

import pytest

from quarl_device.actor import choice_bench as module
from quarl_device.actor.choice_bench import ROWS, choice_speed
from quarl_device.errors import UnsupportedSpace, UsageError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path
from quarl_device.wire.exploration import Exploration

DATA = Path(__file__).parents[1] / "data"
SAMPLE = Exploration(kind="sample", values=())
GAUSSIAN = Exploration(kind="gaussian", values=(0.1,))


def load(name):
    return Policy.load(read_policy_path(DATA / f"{name}.tflite"))


def test_every_call_of_both_kinds_is_made_and_every_block_draws_noise_of_its_own(monkeypatch):
    policy, chosen, numbers = load("pendulum"), [], []
    real = module.choose_one

    def choose_one(acting, noise, recorder, row, action):
        numbers.append(noise.number.tobytes())
        choose = real(acting, noise, recorder, row, action)
        return lambda observation: chosen.append(float(choose(observation)[0]))

    monkeypatch.setattr(module, "choose_one", choose_one)
    speed = choice_speed(policy, GAUSSIAN, calls=4 * ROWS)
    assert len(chosen) == 5 * ROWS, "a block to warm up, then those that count"
    assert len(set(numbers)) == 5
    assert len(set(chosen)) > ROWS
    assert speed.exploration == "gaussian"
    assert speed.ratio == pytest.approx(speed.explored_us_p50 / speed.greedy_us_p50, rel=0.01)


def test_a_sampled_action_has_its_log_probability_recorded(monkeypatch):
    recorders = []
    real = module.Recorder

    def record(*args, **named):
        recorders.append(real(*args, **named))
        return recorders[-1]

    monkeypatch.setattr(module, "Recorder", record)
    choice_speed(load("pendulum_gaussian"), dataclasses.replace(SAMPLE, values=(-0.5,)), calls=ROWS)
    [recorder] = recorders
    assert set(recorder.extra) == {"log_prob", "sample"}
    assert len(set(recorder.extra["log_prob"][:, 0].tolist())) > ROWS // 2


def test_what_cannot_be_timed_is_refused():
    with pytest.raises(UsageError, match="expected 256 or more"):
        choice_speed(load("pendulum"), GAUSSIAN, calls=100)
    with pytest.raises(UsageError, match="not of epsilon"):
        choice_speed(load("cartpole"), Exploration(kind="epsilon", values=(0.1,)))
    with pytest.raises(UnsupportedSpace, match="no distribution"):
        choice_speed(load("pendulum"), SAMPLE)
