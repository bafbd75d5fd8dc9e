"""`quarl-edge evaluate` shows what the device's evaluation gives, for any head."""

import dataclasses
import json
import tomllib
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from quarl_device.environments.families import FAMILIES
from quarl_device.evaluate import evaluate
from quarl_device.policy_file import read_policy_path
from quarl_edge.cli import main
from quarl_export.metadata import attach

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize("name", ["pendulum", "pendulum_gaussian"])
def test_a_continuous_policy_as_json(name, capsys):
    path = DATA / f"{name}.tflite"
    assert main(["evaluate", str(path), "--episodes", "2", "--seed", "5", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    played = evaluate(read_policy_path(path), episodes=2, seed=5)
    assert shown["returns"] == list(played.returns)
    assert shown["return_mean"] == pytest.approx(sum(played.returns) / 2)
    assert (shown["env"], shown["seed"], shown["sha256"]) == ("Pendulum-v1", 5, played.sha256)
    assert shown["act_us_p50"] > 0


def test_a_continuous_policy_as_text(capsys):
    assert main(["evaluate", str(DATA / "pendulum.tflite"), "--episodes", "1"]) == 0
    shown = capsys.readouterr().out
    assert "Pendulum-v1" in shown
    assert "greedy" in shown


def test_a_policy_of_another_space_is_one_line(capsys):
    assert main(["evaluate", str(DATA / "pendulum.tflite"), "--env", "MountainCarContinuous-v0"]) == 22
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_without_an_environment_is_told_the_next_command(capsys, tmp_path):
    policy = read_policy_path(DATA / "pendulum.tflite")
    path = tmp_path / "nameless.tflite"
    contract = dataclasses.replace(policy.contract, env_id="", env_kwargs={})
    path.write_bytes(attach(policy.data, contract, policy.golden, policy.provenance))
    assert main(["evaluate", str(path)]) == 2
    assert f"quarl-edge evaluate {path} --env ID" in capsys.readouterr().err
    assert main(["evaluate", str(path), "--env", "Pendulum-v1", "--episodes", "1"]) == 0


@pytest.mark.parametrize(
    ("env", "shapes"),
    [
        ("Acrobot-v1", ("float32[6]", "3 actions")),
        ("Pendulum-v1", ("float32[3]", "box[1]")),
        ("MountainCar-v0", ("float32[2]", "3 actions")),
    ],
)
def test_a_wrong_environment_is_refused_alike_by_evaluate_and_compare(capsys, env, shapes):
    path = str(DATA / "cartpole.tflite")
    for words in (["evaluate", path], ["compare", path, path]):
        assert main([*words, "--env", env]) == 22
        err = capsys.readouterr().err
        assert f"the policy was made for CartPole-v1, and {env} is another environment" in err
        assert all(part in err for part in ("float32[4]", "2 actions", *shapes))
        assert "--env CartPole-v1" in err


def test_an_environment_that_differs_in_its_actions_alone_is_refused_by_compare_too(capsys):
    path = str(DATA / "pendulum.tflite")
    for words in (["evaluate", path], ["compare", path, path]):
        assert main([*words, "--env", f"{__name__}:QuarlWide-v0"]) == 22
        assert "action: the environment has box[2]" in capsys.readouterr().err


class Wide(gymnasium.Env):
    """What Pendulum shows, with two joints to move."""

    observation_space = gymnasium.spaces.Box(-8.0, 8.0, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)


gymnasium.register("QuarlWide-v0", Wide)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.extra], ids=lambda family: family.extra)
def test_the_command_that_adds_a_family_is_one_and_the_same(family):
    """README, guide and error name it: a user who meets one of them gets no further than the other."""
    root = DATA.parents[1]
    for page in ("README.md", "docs/guides/environments.md"):
        assert family.command in (root / page).read_text()
    for project in ("pyproject.toml", "device/pyproject.toml"):
        extras = tomllib.loads((root / project).read_text())["project"]["optional-dependencies"]
        assert family.extra in extras
