"""The examples run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stub_delegate import install_compiler, stub_library

from quarl_device.delegate_spec import LIBRARY_VARIABLE

ROOT = Path(__file__).parent.parent.parent


def test_acting_with_a_file():
    model = ROOT / "tests" / "data" / "cartpole.tflite"
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "act_with_a_file.py", model],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "return" in done.stdout


def test_a_deployed_policy():
    model = ROOT / "tests" / "data" / "cartpole.tflite"
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "deployed_policy.py", model],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "version 1 acted, settled" in done.stdout
    assert "version 2 acted, settled" in done.stdout
    assert "previous  version 1" in done.stdout


def run(name, **env):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        capture_output=True, text=True, timeout=240, check=False, env={**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.e2e
@pytest.mark.parametrize(("name", "device"), [("pi_actor.py", "pi-1"), ("custom_environment.py", "robot")])
def test_an_actor_of_its_own(name, device):
    done = run(name)
    # CartPole may be solved before its budget is used up.
    assert re.search(rf"{device}: [12],\d{{3}} steps, .* 0 dropped.* ended: the learner is gone", done.stdout)
    assert "warning" not in done.stderr.lower()


@pytest.mark.e2e
def test_a_coral_actor_where_compiler_and_library_are_there(tmp_path):
    install_compiler(tmp_path)
    done = run("coral_actor.py", PATH=f"{tmp_path}:{os.environ['PATH']}", **{LIBRARY_VARIABLE: stub_library()})
    assert "acts on the Edge TPU" in done.stderr
    assert "compiled pushes" in done.stdout
