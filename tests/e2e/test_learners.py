"""Learners on the whole path: real processes, a real broker, the int8 file acting and judged."""

import json

import pytest
from runs_helper import edge, last_json
from test_run_lifecycle import NO_GOAL

from quarl_device.testing.identity import OPTIMUM
from quarl_edge.algorithms import ALGORITHMS
from quarl_edge.configure import make_config

pytestmark = [pytest.mark.e2e, pytest.mark.learning, pytest.mark.timeout(280)]
IDENTITY = "quarl_device.testing.identity"
PIXELS = f"{IDENTITY}:IdentityPixels-v0"
IDENTITIES = [
    ("dqn", "IdentityDiscrete-v0"),
    ("dqn", "IdentityDict-v0"),
    ("ddpg", "IdentityBox-v0"),
    ("d4pg", "IdentityBox-v0"),
    ("ppo", "IdentityBox-v0"),
    ("a2c", "IdentityDiscrete-v0"),
]


@pytest.mark.parametrize(("algorithm", "env_id"), IDENTITIES)
def test_every_learner_finds_the_identity_in_seconds(tmp_path, algorithm, env_id):
    """As the first check of a user: the presets, no setting of its own."""
    done = edge("train", f"{IDENTITY}:{env_id}", "--algorithm", algorithm, "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = last_json(done)
    assert result["reason"] == "solved", result
    assert result["int8_return_mean"] >= 0.9 * OPTIMUM
    assert result["refused"] == {}
    assert (result["audit_failures"], result["conversion_reason"]) == (0, "")


@pytest.mark.parametrize(
    ("env_id", "algorithm", "goal", "steps", "settings"),
    [
        ("Pendulum-v1", "d4pg", -250, 12_000, ()),
        ("CartPole-v1", "ppo", 400, 60_000, ()),
        ("CartPole-v1", "dqn", 400, 30_000, ("dueling=true", "priority_exponent=0.6")),
        (PIXELS, "dqn", 4.8, 8_000, ()),
    ],
)
def test_it_learns_with_the_int8_file_acting_and_the_run_exports_it(tmp_path, env_id, algorithm, goal, steps, settings):
    words = ["train", env_id, "--algorithm", algorithm, "--steps", steps, "--run", "r"]
    for setting in (f"goal_return={goal}", *settings):
        words += ["--set", setting]
    done = edge(*words, "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = last_json(done)
    assert result["reason"] == "solved", result
    assert env_id != PIXELS or result["int8_return_mean"] > 4.5, "one frame alone comes to 2"
    named = ("--env", env_id) if ":" in env_id else ()
    exported = edge("export", "m.tflite", "--from", "r", *named, "--format", "json", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    words = ("--episodes", 20, "--seed", 1_000, *named, "--format", "json")
    judged = edge("evaluate", "m.tflite", *words, cwd=tmp_path)
    assert judged.returncode == 0, judged.stderr
    # The same file on the same starts: what training was judged by.
    assert last_json(judged)["return_mean"] == pytest.approx(result["int8_return_mean"], abs=1e-6)


def test_a_checkpoint_of_another_algorithm_and_one_without_its_normaliser_are_refused(tmp_path):
    """PPO's and A2C's variables have the same names and shapes."""
    env_id = f"{IDENTITY}:IdentityDiscrete-v0"
    done = edge("train", env_id, "--algorithm", "ppo", *NO_GOAL, "--steps", 512, "--run", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = tmp_path / "r" / "config.json"
    own = config.read_text()
    config.write_text(json.dumps(make_config(env_id, algorithm="a2c", settings=["goal_return=none"]).to_json()))
    other = edge("train", env_id, "--resume", "--run", "r", "--steps", 2_000, cwd=tmp_path)
    assert other.returncode == 71, other.stderr
    assert "the checkpoint is of ppo, the run r learns with a2c" in other.stderr
    assert "Traceback" not in other.stderr
    config.write_text(own)
    checkpoint = max((tmp_path / "r" / "checkpoints").glob("ckpt-*"))
    (checkpoint / "normalizer.npz").unlink()
    missing = edge("train", env_id, "--resume", "--run", "r", "--steps", 2_000, cwd=tmp_path)
    assert missing.returncode == 71, missing.stderr
    assert "normalizer.npz" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_every_algorithm_is_in_these_tests():
    assert {algorithm for algorithm, *_ in IDENTITIES} == set(ALGORITHMS)
