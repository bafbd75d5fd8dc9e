"""The whole loop as a user runs it: real broker, real processes, real files."""

import subprocess
import sys
from pathlib import Path

import pytest
from runs_helper import edge, last_json

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

DEMO_KEYS = {
    "env", "algorithm", "solved", "wall_s", "train_s", "env_steps", "updates", "updates_per_s", "actor_steps_per_s",
    "pushes", "push_ms_p50", "int8_return_mean", "float_return_mean", "episodes", "policy_bytes", "float_bytes",
    "act_us_p50", "runtime", "model",
}  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One demo, whose files the other tests use."""
    folder = tmp_path_factory.mktemp("demo")
    done = edge("demo", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, last_json(done), done.stderr


def test_the_demo_solves_cartpole_with_the_exported_int8_file(demo):
    folder, report, _ = demo
    assert set(report) >= DEMO_KEYS
    assert report["solved"] is True
    assert report["int8_return_mean"] >= 475
    assert report["episodes"] == 20
    assert report["env_steps"] > 0
    assert report["updates"] > 0
    assert (folder / "model.tflite").stat().st_size == report["policy_bytes"] < report["float_bytes"]


def test_int8_is_within_five_percent_of_float_on_the_same_starts(demo):
    _, report, _ = demo
    assert report["int8_return_mean"] >= 0.95 * report["float_return_mean"]


def test_progress_is_plain_lines_where_there_is_no_terminal(demo):
    _, _, log = demo
    assert "int8 return" in log
    assert "\x1b" not in log


def test_evaluate_plays_the_file_and_repeats_exactly(demo):
    folder, report, _ = demo
    first = last_json(edge("evaluate", "model.tflite", "--format", "json", cwd=folder))
    assert set(first) >= {"env", "episodes", "seed", "return_mean", "return_std", "returns", "runtime", "sha256"}
    assert first["return_mean"] == report["int8_return_mean"]
    assert len(first["returns"]) == 20
    again = last_json(edge("evaluate", "model.tflite", "--format", "json", cwd=folder))
    assert again["returns"] == first["returns"]


def test_export_writes_the_latest_run_with_contract_and_goldens(demo):
    folder, _, _ = demo
    done = edge("export", "again.tflite", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    exported = last_json(done)
    assert set(exported) >= {"model", "bytes", "sha256", "scheme", "env", "golden_vectors", "max_lsb_error"}
    assert exported["env"] == "CartPole-v1"
    assert exported["scheme"] == "int8"
    assert exported["golden_vectors"] >= 4
    assert exported["max_lsb_error"] == 0
    assert (folder / "again.tflite").read_bytes() == (folder / "model.tflite").read_bytes()


def test_the_run_directory_holds_what_the_readme_says(demo):
    folder, report, _ = demo
    run = folder / report["run"]
    for part in ("config.json", "checkpoints", "policy/policy.json", "journal", "tb", "logs"):
        assert (run / part).exists(), part
    assert list((run / "tb").glob("events.*"))


def test_no_secret_of_the_demo_is_left_behind(demo):
    folder, report, log = demo
    texts = [log] + [path.read_text(errors="replace") for path in (folder / report["run"] / "logs").iterdir()]
    assert not any("password" in text.lower() for text in texts)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["train", "CartPol-v1"], 20, "CartPole-v1"),
        (["train", "Pendulum-v1", "--algorithm", "dqn"], 21, "continuous"),
        (["train", "CartPole-v1", "--set", "learning_rat=1"], 2, "learning_rate"),
        (["train", "CartPole-v1", "--fleet", "My Fleet"], 2, "my-fleet"),
        (["train", "CartPole-v1", "--actors", "0", "--broker", "mqtt://127.0.0.1:9"], 30, "127.0.0.1:9"),
        (["train", "CartPole-v1", "--broker", "http://x"], 2, "mqtt"),
        (["train", "CartPole-v1", "--broker", "mqtt://a:secret@h"], 2, "QUARL_MQTT_PASSWORD"),
        (["export", "model.tflite"], 72, "quarl-edge demo"),
        (["export", "model.tflite", "--from", "nowhere"], 72, "nowhere"),
        (["evaluate", "missing.tflite"], 10, "missing.tflite"),
        (["evaluate", "."], 10, "directory"),
        (["nonsense"], 2, "nonsense"),
        (["train"], 2, "CartPole-v1"),
        (["train", "--resume"], 2, "--run"),
    ],
)
def test_bad_input_is_one_clear_line_and_its_code(tmp_path, words, code, says):
    done = edge(*words, cwd=tmp_path, timeout=60)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "no contract"])
def test_a_damaged_model_file_is_one_clear_line(tmp_path, demo, damage):
    whole = (demo[0] / "model.tflite").read_bytes()
    bad = {
        "empty": b"",
        "text": b"not a model at all" * 100,
        "truncated": whole[: len(whole) // 2],
        "no contract": whole.replace(b"quarl.policy.v1", b"other.policy.v1"),
    }[damage]
    path = tmp_path / "bad.tflite"
    path.write_bytes(bad)
    done = edge("evaluate", str(path), "--format", "json", cwd=tmp_path, timeout=60)
    assert done.returncode == (11 if damage == "no contract" else 10), done.stderr
    assert "Traceback" not in done.stderr
    assert last_json(done)["error"]["code"] == done.returncode


def test_export_without_the_learner_extra_names_the_command_that_adds_it(tmp_path):
    """An interpreter in which TensorFlow cannot be found stands in for a venv without it."""
    run = tmp_path / "runs" / "x"
    (run / "policy").mkdir(parents=True)
    (run / "policy" / "policy.json").write_text("{}")
    program = (
        "import importlib.util, sys; real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda n, *a: None if n.split('.')[0] == 'tensorflow' else real(n, *a)\n"
        f"from quarl_edge.cli import main; sys.exit(main(['export', 'm.tflite', '--from', {str(run)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 80, done.stderr
    assert "pip install 'quarl-edge[learner]'" in done.stderr
    assert not Path(tmp_path / "m.tflite").exists()
