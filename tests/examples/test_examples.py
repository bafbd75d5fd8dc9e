"""The examples run as they stand."""

import subprocess
import sys
from pathlib import Path

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
