"""A file is loaded in a child process: whatever becomes of the child, the answer is plain."""

import sys

import numpy as np
import pytest
from inspect_factory import DATA, REPORTS, changed, deadly_runtime, without_weights
from tflite_environment import run_there

from quarl_device.inspect import probe as probing
from quarl_device.inspect.probe import probe

LITERT = "ai-edge-litert"
MODEL = (DATA / "cartpole.tflite").read_bytes()


def python(code):
    return [sys.executable, "-c", code]


def test_a_good_file_loads():
    answer = probe(MODEL, LITERT)
    assert answer.loads is True
    assert answer.detail == ""
    assert answer.version


def test_row_24_an_interpreter_that_dies_is_told_and_takes_nothing_else_along(tmp_path, monkeypatch):
    """tensorflow #62371, pycoral #85: a segmentation fault where file and runtime do not fit."""
    monkeypatch.syspath_prepend(deadly_runtime(tmp_path))
    answer = probe(MODEL, "tflite-runtime")
    assert (answer.loads, answer.version) == (False, "2.14.0")
    assert answer.detail == "its interpreter died of SIGSEGV"


def test_a_file_that_the_real_runtime_may_die_of():
    answer = probe(changed(DATA / "cartpole.tflite", without_weights), LITERT)
    assert answer.loads is False
    assert answer.detail


def test_a_file_that_is_refused_says_why():
    def change(model):
        model.subgraphs[0].tensors[7].quantization.scale = np.array([0], np.float32)

    answer = probe(changed(DATA / "cartpole.tflite", change), LITERT)
    assert answer.loads is False
    assert "RuntimeError" in answer.detail


def test_a_runtime_that_is_not_installed():
    answer = probe(MODEL, "tflite-runtime")
    assert (answer.loads, answer.version, answer.detail) == (None, "", "not installed here")


def test_a_child_that_hangs_is_killed():
    answer = probe(MODEL, LITERT, deadline_s=0.5, command=python("import time; time.sleep(60)"))
    assert answer.loads is False
    assert "0.5 s" in answer.detail


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("raise SystemExit(3)", "ended with 3: silent"),
        ("print('hello')", "ended with 0"),
        ("print('{}')", "ended with 0"),
        ("import sys; sys.exit('cannot import name')", "cannot import name"),
        ("import os, signal; os.kill(os.getpid(), 40)", "signal 40"),
    ],
)
def test_a_child_that_ends_otherwise(code, says):
    answer = probe(MODEL, LITERT, command=python(code))
    assert answer.loads is False
    assert says in answer.detail


def test_a_child_that_cannot_be_started():
    answer = probe(MODEL, LITERT, command=["/nowhere/python"])
    assert answer.loads is None
    assert "no child process" in answer.detail


def test_the_child_answers_even_for_an_import_that_fails(monkeypatch, capsys):
    monkeypatch.setitem(probing.MODULES, "broken", "no_such_module_of_ours")
    monkeypatch.setattr(probing, "_limit", lambda: None)
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": type("B", (), {"read": staticmethod(bytes)})}))
    probing.main("broken")
    assert "ModuleNotFoundError" in capsys.readouterr().out


def test_tflite_runtime_with_numpy_2_says_so():
    assert "numpy<2" in probing._run_once("tflite_runtime.interpreter", MODEL)


INSPECT_THERE = """
import json, sys
from pathlib import Path
from quarl_device.inspect.model import inspect_path
rows = {}
for name in sys.argv[1:]:
    data = inspect_path(Path(name)).to_json()
    rows[Path(name).stem] = next(row for row in data["runtimes"] if row["runtime"] == "tflite-runtime")
print(json.dumps(rows))
"""


def test_row_9_the_table_says_what_tflite_runtime_itself_says():
    """Every file, by the table of operator versions and by loading it in tflite-runtime 2.14 for real."""
    paths = sorted(REPORTS.glob("*.tflite"))
    rows = run_there(INSPECT_THERE, *paths)
    assert {row["installed"] for row in rows.values()} == {"2.14.0"}
    for name, row in rows.items():
        assert row["loads_by_table"] is row["loads_here"], (name, row)
    assert "version '12'" in rows["dynamic"]["detail"]
    assert sum(not row["loads_here"] for row in rows.values()) == 1
