"""tflite-runtime 2.14 with numpy 1, in an environment of its own: the conformance suite, and files that agree."""

from pathlib import Path

import numpy as np
import pytest
from tflite_environment import run_there

from quarl_device.evaluate import evaluate
from quarl_device.policy_file import read_policy_path

DATA = Path(__file__).parent.parent / "data"
FILES = ("cartpole", "acrobot")

CONFORM = """
import json, sys, traceback
from pathlib import Path
from quarl_device.policy_file import read_policy_path
from quarl_device.runtime import find_runtime
from quarl_device.testing.runtime_conformance import RUNTIME_CHECKS, RuntimeCase
file = read_policy_path(Path(sys.argv[1]))
case = RuntimeCase(
    model=file.data, source=file.contract.observations[0].tensor, sink=file.contract.head.outputs["q_values"],
    observations=file.golden.observations["observation"], answers=file.golden.outputs["q_values"],
    tolerance=file.golden.lsb["q_values"] * 3.01,
)
said = {}
for check in RUNTIME_CHECKS:
    try:
        check(find_runtime("tflite-runtime"), case)
        said[check.__name__] = ""
    except Exception:
        said[check.__name__] = traceback.format_exc()
print(json.dumps(said))
"""

PLAY = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from quarl_device.evaluate import evaluate
from quarl_device.policy_file import read_policy_path
print(json.dumps(asdict(evaluate(read_policy_path(Path(sys.argv[1])), episodes=5, seed=3))))
"""

IMPORTS = """
import json, sys
import quarl_device.cli, quarl_device.actor.agent, numpy
print(json.dumps({"numpy": numpy.__version__, "litert": "ai_edge_litert" in sys.modules}))
"""


@pytest.mark.parametrize("name", FILES)
def test_it_conforms(name):
    said = run_there(CONFORM, DATA / f"{name}.tflite")
    assert len(said) >= 7
    assert not any(said.values()), "\n".join(said.values())


@pytest.mark.parametrize("name", FILES)
def test_it_plays_as_litert_does(name):
    """The same actions but for near ties: its int8 kernels round differently (2-3 steps of the output)."""
    path = DATA / f"{name}.tflite"
    there, here = run_there(PLAY, path), evaluate(read_policy_path(path), episodes=5, seed=3)
    assert there["runtime"] == "tflite-runtime 2.14.0"
    assert there["sha256"] == here.sha256
    assert np.isclose(there["return_mean"], here.return_mean, rtol=0.1)


def test_the_device_part_imports_with_numpy_1_and_without_litert():
    said = run_there(IMPORTS)
    assert said["numpy"].startswith("1.")
    assert said["litert"] is False
