"""Learners on the whole path: real processes, a real broker, the int8 file acting and judged."""

import pytest
from runs_helper import edge, last_json
from test_run_lifecycle import NO_GOAL, weights

pytestmark = [pytest.mark.e2e, pytest.mark.learning, pytest.mark.timeout(280)]


@pytest.mark.parametrize(
    ("env_id", "algorithm", "goal", "steps", "settings"),
    [
        ("Pendulum-v1", "d4pg", -250, 12_000, ()),
        ("CartPole-v1", "ppo", 400, 60_000, ()),
        ("CartPole-v1", "dqn", 400, 30_000, ("dueling=true", "priority_exponent=0.6")),
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
    exported = edge("export", "m.tflite", "--from", "r", "--format", "json", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    judged = edge("evaluate", "m.tflite", "--episodes", 20, "--seed", 1_000, "--format", "json", cwd=tmp_path)
    assert judged.returncode == 0, judged.stderr
    # The same file on the same starts: what training was judged by.
    assert last_json(judged)["return_mean"] == pytest.approx(result["int8_return_mean"], abs=1e-6)


@pytest.mark.parametrize(("env_id", "algorithm", "block"), [("Pendulum-v1", "ddpg", 32), ("CartPole-v1", "a2c", 16)])
def test_lockstep_is_bit_identical_on_resume(tmp_path, env_id, algorithm, block):
    def run(name, steps):
        words = ["train", env_id, "--algorithm", algorithm, "--lockstep", "--actors", 1, "--seed", 5, "--steps", steps]
        settings = ["--set", f"block_steps={block}", "--set", "checkpoint_period_steps=512"]
        more = ["--set", "learning_starts=256"] if algorithm == "ddpg" else ["--set", f"round_steps={block}"]
        done = edge(*words, "--run", name, *NO_GOAL, *settings, *more, "--envs-per-actor", 1, cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    run("whole", 1_536)
    # This one ends between two checkpoints, and makes what came after the last one again.
    run("broken", 800)
    done = edge("train", "--resume", "--run", "broken", "--steps", 1_536, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = weights(tmp_path / "whole")
    assert set(whole) == {1_024, 1_536}
    assert weights(tmp_path / "broken") == whole
