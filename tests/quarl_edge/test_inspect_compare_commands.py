"""`quarl-edge inspect` and `quarl-edge compare`, as a person or a program calls them."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from quarl_edge import cli

DATA = Path(__file__).parents[1] / "data"
FLOAT, INT8 = DATA / "reports" / "dueling_float.tflite", DATA / "reports" / "dueling_int8.tflite"
LOG = DATA / "edgetpu_logs" / "partly.txt"


def run(capsys, *words):
    status = cli.main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def result(capsys, *words):
    status, out, _ = run(capsys, *words, "--format", "json")
    assert status == 0
    return json.loads(out.splitlines()[-1])


def test_inspect_json(capsys):
    data = result(capsys, "inspect", INT8)
    assert set(data) >= {"sha256", "bytes", "contract", "inputs", "outputs", "ops", "edge_tpu", "runtimes"}
    assert set(data["edge_tpu"]) >= {"compatible", "findings"}
    assert {row["runtime"] for row in data["runtimes"]} == {"tflite-runtime", "ai-edge-litert"}


def test_inspect_text(capsys):
    status, out, _ = run(capsys, "inspect", INT8, "--no-load")
    assert status == 0
    assert "edge tpu: compatible" in out


def test_inspect_without_the_compiler_says_so(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert result(capsys, "inspect", INT8, "--no-load", "--edge-tpu")["edge_tpu"]["compiler"] is None
    assert "not on the PATH" in run(capsys, "inspect", INT8, "--no-load", "--edge-tpu")[1]


def test_inspect_with_a_compiler_shows_what_stays_on_the_cpu(capsys, monkeypatch, tmp_path):
    script = tmp_path / "edgetpu_compiler"
    script.write_text(f'#!/bin/sh\necho compiled > "$3/model_edgetpu.tflite"\ncat {LOG}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    model = tmp_path / "policy.tflite"
    model.write_bytes(INT8.read_bytes())
    compiler = result(capsys, "inspect", model, "--no-load", "--edge-tpu")["edge_tpu"]["compiler"]
    assert (compiler["on_tpu"], compiler["on_cpu"]) == (8, 4)
    out = run(capsys, "inspect", model, "--no-load", "--edge-tpu")[1]
    assert "1 × ELU: Operation not supported" in out
    assert (tmp_path / "policy_edgetpu.tflite").exists()


def test_compare_json(capsys):
    data = result(capsys, "compare", FLOAT, INT8, "--rows", "40")
    assert set(data) >= {"action_agreement", "max_abs_error", "mean_abs_error", "layers", "saturation"}
    assert data["rows"] == 40
    assert data["report"] is None


def test_compare_text_and_report(capsys, tmp_path):
    status, out, _ = run(capsys, "compare", FLOAT, INT8, "--rows", "20", "--report", tmp_path / "report")
    assert status == 0
    assert "value_hidden" in out
    assert str(tmp_path / "report" / "index.html") in out
    assert (tmp_path / "report" / "index.html").exists()


def test_compare_with_recorded_observations(capsys, tmp_path):
    path = tmp_path / "seen.npz"
    np.savez(path, observation=np.zeros((6, 6), np.float32))
    data = result(capsys, "compare", FLOAT, INT8, "--observations", path)
    assert data["rows"] == 6
    assert data["recorded"] is True


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["inspect", "none.tflite"], 10, "not found"),
        (["inspect"], 2, "issing argument 'model'"),
        (["compare", FLOAT, "none.tflite"], 10, "not found"),
        (["compare", FLOAT, DATA / "cartpole.tflite"], 2, "observe different things"),
        (["compare", FLOAT, INT8, "--env", "Nowhere-v0"], 20, "Nowhere-v0"),
        (["compare", FLOAT, INT8, "--env", "CartPole-v1"], 2, "CartPole-v1 shows"),
        (["compare", FLOAT, INT8, "--observations", DATA], 2, "is a directory"),
        (["compare", FLOAT, INT8, "--rows", "0"], 2, "rows"),
        (["compare", FLOAT, INT8, "--rows", "8", "--report", INT8], 2, "expected a directory"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, words, code, says):
    status, out, err = run(capsys, *words)
    assert status == code
    assert says in err + out
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["inspect", "compare"])
def test_help_has_examples(capsys, command):
    assert run(capsys, command, "--help")[0] == 0
    cli.main([command, "--help"])
    assert f"quarl-edge {command} " in capsys.readouterr().out
