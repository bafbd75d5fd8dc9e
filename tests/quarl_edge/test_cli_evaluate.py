"""`quarl-edge evaluate` shows what the device's evaluation gives, for any head."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quarl_device.evaluate import evaluate
from quarl_device.policy_file import read_policy_path
from quarl_edge.cli import app

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize("name", ["pendulum", "pendulum_gaussian"])
def test_a_continuous_policy_as_json(name):
    path = DATA / f"{name}.tflite"
    result = CliRunner().invoke(app, ["evaluate", str(path), "--episodes", "2", "--seed", "5", "--format", "json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    played = evaluate(read_policy_path(path), episodes=2, seed=5)
    assert shown["returns"] == list(played.returns)
    assert shown["return_mean"] == pytest.approx(sum(played.returns) / 2)
    assert (shown["env"], shown["seed"], shown["sha256"]) == ("Pendulum-v1", 5, played.sha256)
    assert shown["act_us_p50"] > 0


def test_a_continuous_policy_as_text():
    result = CliRunner().invoke(app, ["evaluate", str(DATA / "pendulum.tflite"), "--episodes", "1"])
    assert result.exit_code == 0, result.output
    assert "Pendulum-v1" in result.stdout
    assert "greedy" in result.stdout
