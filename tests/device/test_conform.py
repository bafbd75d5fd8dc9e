"""One command holds a runtime of a user's own against the conformance suite."""

import json

import pytest

from quarl_device.runtime.litert import LiteRTRuntime
from quarl_device.testing import conform
from quarl_device.testing.runtime_conformance import RUNTIME_CHECKS, built_in_case


def test_the_built_in_case_has_different_answers():
    case = built_in_case()
    assert len(case.observations) == len(case.answers) >= 2
    assert case.tolerance > 0
    assert conform.conformance(LiteRTRuntime(), case) == {check.__name__: "" for check in RUNTIME_CHECKS}


@pytest.mark.parametrize("name", ["litert", "quarl_device.runtime.litert:LiteRTRuntime"])
def test_a_good_runtime_passes(name, capsys):
    assert conform.main([name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(RUNTIME_CHECKS)
    assert all(line.startswith("ok ") for line in lines)


BROKEN = """
import numpy
from quarl_device.runtime.litert import LiteRTRuntime

class Wrong(LiteRTRuntime):
    def load(self, *arguments, **options):
        model = super().load(*arguments, **options)
        infer = model.infer
        model.infer = lambda *inputs: infer(*inputs) + numpy.float32(1)
        return model

class Raises:
    def __init__(self):
        raise OSError("no such device")
"""


def test_a_bad_one_of_the_current_directory_fails_by_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_runtime.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    assert conform.main(["own_runtime:Wrong", "--format", "json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert {name for name, wrong in checks.items() if wrong} == {"check_answers", "check_batches", "check_threads"}
    assert conform.main(["own_runtime:Raises"]) == 81
    assert "no such device" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["no_such_module:X", "quarl_device.runtime.litert:Nothing", ":X", "none-such"])
def test_a_name_that_is_none(name, capsys):
    assert conform.main([name]) == 2
    assert capsys.readouterr().err.startswith("conform: error: ")


def test_a_model_that_is_none(capsys):
    assert conform.main(["litert", "--model", "/no/such/file"]) == 10
