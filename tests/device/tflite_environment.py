"""The environment of its own in which tflite-runtime lives with numpy 1: `make tflite`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / ".venv-tflite" / "bin" / "python"


def run_there(program, *arguments, timeout=120):
    """Run a program in that environment and return the object that it prints last."""
    if not PYTHON.exists():
        if sys.version_info >= (3, 12):
            pytest.skip("tflite-runtime's last wheels are for Python 3.11")
        pytest.fail("the environment of tflite-runtime is missing: make tflite")
    done = subprocess.run(
        [str(PYTHON), "-W", "error", "-c", program, *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
