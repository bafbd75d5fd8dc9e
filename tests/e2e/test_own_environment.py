"""An environment of a module of the user's own, from training to its file: a Dict, two in a batch, real processes."""

import json

import pytest
from runs_helper import edge, last_json

from quarl_device.policy_file import read_policy_path
from quarl_device.testing.identity import OPTIMUM

pytestmark = [pytest.mark.e2e, pytest.mark.learning, pytest.mark.timeout(240)]
MODULE = """
import gymnasium
from quarl_device.testing.identity import IdentityDict

class MyEnv(IdentityDict):
    pass

gymnasium.register("QuarlMine-v0", entry_point=MyEnv)
"""
ENV = "quarl_mine:QuarlMine-v0"


def test_a_module_of_the_users_own_trains_is_exported_judged_and_resumed_where_it_is_named(tmp_path):
    (tmp_path / "quarl_mine.py").write_text(MODULE)
    # What it is trained behind is in the file, and around the environment wherever that is played.
    behind = ["--wrapper", "ClipReward(max_reward=0.5)"]
    size = [*behind, "--actors", 1, "--envs-per-actor", 2, "--steps", 3000, "--set", "learning_starts=200"]
    trained = edge("train", ENV, *size, "--run", "r", "--format", "json", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    result = last_json(trained)
    assert 0.45 * OPTIMUM <= result["int8_return_mean"] <= 0.5 * OPTIMUM
    assert result["refused"] == {}

    made = edge("export", "m.tflite", "--from", "r", "--env", ENV, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert f"quarl-edge evaluate m.tflite --env {ENV}" in made.stdout
    contract = read_policy_path(tmp_path / "m.tflite").contract
    assert (contract.env_id, contract.wrappers) == ("QuarlMine-v0", ("ClipReward(max_reward=0.5)",))
    assert [(spec.key, spec.shape) for spec in contract.observations] == [("observation", (5,))]

    judged = edge("evaluate", "m.tflite", "--env", ENV, "--episodes", 5, "--format", "json", cwd=tmp_path)
    assert judged.returncode == 0, judged.stderr
    assert 0.45 * OPTIMUM <= last_json(judged)["return_mean"] <= 0.5 * OPTIMUM
    # Nothing of a file or a run is imported by itself.
    unnamed = edge("evaluate", "m.tflite", cwd=tmp_path)
    assert unnamed.returncode == 20
    assert "MODULE:QuarlMine-v0" in unnamed.stderr
    (tmp_path / "quarl_mine.py").write_text("raise SystemExit('imported')")
    resumed = edge("train", "--resume", "--run", "r", "--steps", 4000, "--format", "json", cwd=tmp_path)
    assert resumed.returncode == 2
    assert f"quarl-edge train {ENV} --resume --run r" in json.dumps(last_json(resumed))
