"""`quarl-edge inspect` and `quarl-edge compare`, as a person or a program calls them."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from quarl_device.policy_file import read_policy
from quarl_edge import cli
from quarl_export.metadata import attach

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


def test_inspect_of_a_source_lists_the_layers_that_keep_float_takes(capsys):
    data = result(capsys, "inspect", DATA / "keras3" / "elu.keras")
    assert [(row["name"], row["kind"]) for row in data["layers"]] == [
        ("hidden", "dense"), ("hidden_elu", "elu"), ("q_values", "dense"),
    ]  # fmt: skip
    assert data["layers"][0]["parameters"] == 4 * 8 + 8
    assert data["keep_float"] == ["hidden_elu"]
    status, out, _ = run(capsys, "inspect", DATA / "keras3" / "elu.keras")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines() if "needs --keep-float" in line] == ["hidden_elu"]


def test_inspect_of_an_agent_shows_what_is_doubtful(capsys):
    trained = DATA / "trained"
    words = ["inspect", trained / "sac_pendulum.zip", "--vecnormalize", trained / "ppo_pendulum.vecnormalize.pkl"]
    assert "another agent's" in result(capsys, *words)["warnings"][0]
    assert "! the statistics do not make" in run(capsys, *words)[1]


def test_layers_of_a_float_file_are_listed_on_demand(capsys):
    assert "ops" in result(capsys, "inspect", FLOAT, "--no-load")
    layers = result(capsys, "inspect", FLOAT, "--layers")["layers"]
    assert {"dense", "mean"} <= {row["kind"] for row in layers}


def test_compare_notices_swapped_files_and_gives_the_command(capsys):
    status, _, err = run(capsys, "compare", INT8, FLOAT)
    assert status == 2
    assert f"{INT8} is int8 and {FLOAT} is float32: the float file comes first" in err
    assert f"quarl-edge compare {FLOAT} {INT8}" in err


@pytest.fixture
def forced_file(tmp_path):
    """The int8 file as --force would have marked it."""
    data = INT8.read_bytes()
    policy = read_policy(data)
    marked = attach(data, policy.contract, policy.golden, {**policy.provenance, "forced": ["Q10", "Q11"]})
    path = tmp_path / "forced.tflite"
    path.write_bytes(marked)
    return path


def test_a_forced_file_says_so_wherever_it_is_looked_at(capsys, tmp_path, forced_file):
    assert result(capsys, "inspect", forced_file, "--no-load")["forced"] == ["Q10", "Q11"]
    assert run(capsys, "inspect", forced_file, "--no-load")[1].startswith("! FORCED: written with --force although")
    words = ["compare", FLOAT, forced_file, "--rows", "8"]
    compared = result(capsys, *words, "--report", tmp_path / "page")
    assert (compared["int8"]["forced"], compared["float"]["forced"]) == (["Q10", "Q11"], [])
    assert compared["findings"][0]["code"] == "R10"
    assert "! R10" in run(capsys, *words)[1]
    page = (tmp_path / "page" / "index.html").read_text()
    assert "written with --force although these checks failed: Q10, Q11" in page
    assert str(forced_file) in page


def test_a_file_that_was_not_forced_does_not_say_so(capsys):
    assert result(capsys, "inspect", INT8, "--no-load")["forced"] == []
    assert "R10" not in run(capsys, "compare", FLOAT, INT8, "--rows", "8")[1]


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
        (["inspect", DATA], 10, "no policy that is known in the directory"),
        (["inspect", DATA / "keras3" / "lambda.keras"], 18, "Lambda"),
        (["inspect", DATA / "sb3" / "a2c_narrow.zip"], 2, "--vecnormalize FILE"),
        (["inspect", INT8, "--layers"], 16, "quantized"),
        (["compare", FLOAT, "none.tflite"], 10, "not found"),
        (["compare", FLOAT, DATA / "cartpole.tflite"], 2, "observe different things"),
        (["compare", FLOAT, INT8, "--env", "Nowhere-v0"], 20, "Nowhere-v0"),
        (["compare", FLOAT, INT8, "--env", "CartPole-v1"], 22, "CartPole-v1 is"),
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
