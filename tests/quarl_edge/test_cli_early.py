"""What a typo costs: commands refuse it before TensorFlow is loaded, with the command that was meant."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quarl_edge import cli
from quarl_edge.cli.source_options import _FORMS
from quarl_export.importers.options import ROLES

DATA = Path(__file__).parents[1] / "data"
ZIP = DATA / "sb3" / "dqn_cartpole.zip"
KERAS = DATA / "keras3" / "elu.keras"
FLOAT, INT8 = DATA / "reports" / "dueling_float.tflite", DATA / "reports" / "dueling_int8.tflite"

# Every command line in turn, in a process that has not loaded TensorFlow; stops at the first that does.
CHILD = """
import contextlib, io, json, sys
from quarl_edge import cli
found = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words)
    found.append({"code": code, "err": err.getvalue(), "tensorflow": "tensorflow" in sys.modules})
    if found[-1]["tensorflow"]:
        break
print(json.dumps(found))
"""


def test_what_can_be_judged_without_tensorflow_is_judged_without_it(tmp_path):
    (tmp_path / "text.keras").write_text("no model\n")
    (tmp_path / "rows.npz").write_text("no archive\n")
    export = ["export", str(tmp_path / "m.tflite"), "--from"]
    cases = [
        ([*export, ZIP, "--env", "CartPol-v1"], 20, "did you mean CartPole-v1"),
        ([*export, KERAS, "--env", "CartPol-v1"], 20, "did you mean CartPole-v1"),
        ([*export, tmp_path / "none.keras"], 72, "there is nothing"),
        ([*export, tmp_path / "text.keras"], 10, "no known kind"),
        ([*export, ZIP, "--head", "logits"], 2, "--head says nothing of"),
        ([*export, KERAS, "--output", "value=q"], 2, "q_values, logits"),
        ([*export, KERAS, "--stack", "99"], 2, "stack 99 is not in 1..16"),
        ([*export, ZIP, "--vecnormalize", tmp_path / "none.pkl"], 2, "no such file"),
        ([*export, ZIP, "--calibrate", tmp_path / "none.npz"], 2, "no such file"),
        ([*export, ZIP, "--calibrate", tmp_path / "rows.npz"], 2, "not an .npz"),
        ([*export, ZIP, "--scheme", "float16", "--io", "int8"], 2, "float32 ends"),
        ([*export, ZIP, "--head-output", "int16", "--runtime", "tflite-2.14"], 2, "int16 head needs LiteRT"),
        ([*export, ZIP, "--range", "percentile", "--percentile", "3"], 2, "not in (50, 100]"),
        (["export", tmp_path / "m.tflite", "--runs", tmp_path], 72, "--runs DIR"),
        (["inspect", KERAS, "--env", "CartPol-v1"], 20, "did you mean CartPole-v1"),
        (["inspect", tmp_path / "none.keras", "--env", "CartPole-v1"], 10, "not found"),
        (["compare", FLOAT, INT8, "--env", "CartPol-v1"], 20, "did you mean CartPole-v1"),
        (["compare", FLOAT, tmp_path / "none.tflite"], 10, "not found"),
        (["compare", FLOAT, INT8, "--observations", tmp_path / "none.npz"], 2, "not found"),
        (["evaluate", DATA / "cartpole.tflite", "--env", "CartPol-v1"], 20, "did you mean CartPole-v1"),
        (["evaluate", tmp_path / "none.tflite"], 10, "not found"),
        (["bench", "act", "--runtime", "nope"], 2, "nope"),
        (["bench", "act", "--hidden", "0"], 2, "1..16,384"),
        (["bench", "push", "--hidden", "8,99999"], 2, "1..16,384"),
        (["bench", "push", "--pushes", "3", "--conversions", "4"], 2, "only 3 pushes"),
    ]
    lines = [[str(word) for word in words] for words, _, _ in cases]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(lines)], capture_output=True, text=True, timeout=120, check=False
    )
    assert child.returncode == 0, child.stderr[-2000:]
    found = json.loads(child.stdout)
    told = [
        (words, answer["code"], answer["tensorflow"], says in answer["err"])
        for (words, _, says), answer in zip(cases, found, strict=False)
    ]
    assert told == [(words, code, False, True) for words, code, _ in cases]
    assert not (tmp_path / "m.tflite").exists()


def test_options_that_a_run_takes_pass_the_look(tmp_path, capsys):
    """The look refuses nothing that the command itself would take."""
    np.savez(tmp_path / "rows.npz", observation=np.random.default_rng(0).normal(size=(200, 4)))
    words = ["--env", "CartPole-v1", "--calibrate", str(tmp_path / "rows.npz"), "--episodes", "0"]
    assert cli.main(["export", str(tmp_path / "m.tflite"), "--from", str(ZIP), *words, "--force"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["evaluate"], ["compare", FLOAT], ["compare", INT8]])
def test_a_source_where_a_policy_file_belongs_names_the_command_that_reads_it(capsys, command):
    assert cli.main([*map(str, command), str(KERAS)]) == 10
    err = capsys.readouterr().err
    assert f"quarl-edge export model.tflite --from {KERAS}" in err


def test_an_output_without_a_role_is_told_the_roles(tmp_path, capsys):
    assert cli.main(["export", str(tmp_path / "m.tflite"), "--from", str(KERAS), "--output", "out"]) == 2
    err = capsys.readouterr().err
    assert all(role in err for role in ROLES)
    assert all(role in _FORMS["--output"] for role in ROLES)


@pytest.mark.parametrize("figure", ["act", "push"])
def test_a_file_where_a_figure_wants_sizes_is_sent_to_the_command_that_times_files(capsys, figure):
    assert cli.main(["bench", figure, "my model.tflite"]) == 2
    err = capsys.readouterr().err
    assert "--hidden 64,64" in err
    assert "quarl-device bench 'my model.tflite'" in err
