"""Environments that go wrong under the real command: before a run, and as late as under an actor that trains."""

import pytest
from runs_helper import edge

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
MODULE = """
import os
import gymnasium
import numpy as np
from quarl_device.testing.identity import IdentityDiscrete

FAULT, AT = os.environ["FAULT"], int(os.environ["AT"])

class Faulty(IdentityDiscrete):
    count = 0

    def reset(self, **named):
        if FAULT == "spaces":
            self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (5,), np.float32)
        return super().reset(**named)

    def step(self, action):
        self.count += 1
        observation, reward, *rest = super().step(action)
        if self.count == AT:
            if FAULT == "package":
                raise gymnasium.error.DependencyNotInstalled("pygame is not installed, run `pip install pygame`")
            if FAULT == "reward":
                reward = float("nan")
            if FAULT == "observation":
                observation[1] = np.inf
        return observation, reward, *rest

gymnasium.register("QuarlFaulty-v0", entry_point=Faulty)
"""
ENV = "quarl_faulty:QuarlFaulty-v0"


def train(folder, fault, at, *words):
    (folder / "quarl_faulty.py").write_text(MODULE)
    done = edge("train", ENV, "--run", "r", *words, cwd=folder, env={"FAULT": fault, "AT": str(at)})
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("reward", 23, "step 101 of random play: the reward is nan"),
        ("observation", 23, "step 101 of random play: the observation"),
        ("spaces", 23, "changed its spaces with reset()"),
        ("package", 80, "pip install pygame"),
    ],
)
def test_what_goes_wrong_in_random_play_is_one_line_before_anything_starts(tmp_path, fault, code, says):
    done = train(tmp_path, fault, 101)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("fault", ["reward", "observation"])
def test_an_environment_that_misbehaves_under_a_learner_is_told_with_the_step(tmp_path, fault):
    """At step 300 of each life of the actor, which is behind the 256 of the random play that a run begins with."""
    never = ["--actors", 1, "--set", "learning_starts=4000", "--set", "goal_return=none"]
    done = train(tmp_path, fault, 300, *never)
    assert done.returncode == 51, done.stderr
    assert "actor actor-0 ended 4 times" in done.stderr
    assert "step 300" in done.stderr
    assert {"reward": "nan", "observation": "inf"}[fault] in done.stderr
