"""tflite-runtime 2.14 with numpy 1, in an environment of its own: the conformance suite, and files that agree."""

from pathlib import Path

import numpy as np
import pytest
from stub_delegate import compiled_cartpole, stub_library
from tflite_environment import run_there

from quarl_device.evaluate import evaluate
from quarl_device.policy import Policy
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


ACT = """
import json, sys
import numpy as np
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path
said = {}
for path in sys.argv[1:]:
    file = read_policy_path(path)
    policy = Policy.load(file)
    golden = file.golden.observations
    rows = [{key: array[n] for key, array in golden.items()} for n in range(file.golden.rows)]
    said[path] = [np.asarray(policy.act(row if len(row) > 1 else row["observation"])).tolist() for row in rows]
print(json.dumps({"runtime": policy.runtime_name, "said": said}))
"""
HEADS = ("pendulum", "pendulum_gaussian", "dict_logits", "ops_float16", "ops_int8", "ops_int16x8")


def test_every_head_and_input_type_acts_there():
    """Each passes its own golden self-test, and acts as in LiteRT: the same action, or torques within 5 %."""
    paths = {name: str(DATA / f"{name}.tflite") for name in HEADS}
    there = run_there(ACT, *paths.values())
    assert there["runtime"] == "tflite-runtime 2.14.0"
    for path in paths.values():
        file = read_policy_path(path)
        policy, golden = Policy.load(file), file.golden.observations
        for number, said in enumerate(there["said"][path]):
            row = {key: array[number] for key, array in golden.items()}
            wanted = policy.act(row if len(row) > 1 else row["observation"])
            assert np.abs(np.asarray(said) - wanted).max() <= (0.2 if isinstance(said, list) else 0), path


def test_a_dynamic_file_of_a_newer_converter_is_refused_with_its_operator():
    """FULLY_CONNECTED version 12 came with TensorFlow 2.17 (tensorflow #80736)."""
    said = run_there(REFUSED, DATA / "ops_dynamic.tflite")
    assert "FULLY_CONNECTED" in said["error"]
    assert "12" in said["error"]


REFUSED = """
import json, sys
from quarl_device.errors import ModelFileError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path
try:
    Policy.load(read_policy_path(sys.argv[1]))
except ModelFileError as error:
    print(json.dumps({"error": str(error)}))
"""


DELEGATE = """
import json, sys
from pathlib import Path
from quarl_device.delegate_spec import DelegateSpec
from quarl_device.runtime import find_runtime
from quarl_device.runtime.delegated import DelegatedRuntime, with_delegate
import numpy as np
spec = DelegateSpec(device="usb", library=sys.argv[1])
runtime = with_delegate(find_runtime("tflite-runtime"), spec, required=True)
model = runtime.load(Path(sys.argv[2]).read_bytes(), inputs=[sys.argv[3]], outputs=[sys.argv[4]])
result = model.infer(np.zeros((1, 4), np.float32))
print(json.dumps({"name": f"{runtime.name} {runtime.version}", "shape": result.shape}))
"""


def test_a_compiled_file_runs_through_a_delegate_there(tmp_path):
    file, compiled = read_policy_path(DATA / "cartpole.tflite"), tmp_path / "compiled.tflite"
    compiled.write_bytes(compiled_cartpole())
    names = file.contract.observations[0].tensor, file.contract.head.outputs["q_values"]
    said = run_there(DELEGATE, stub_library(), compiled, *names)
    assert said == {"name": "tflite-runtime 2.14.0 with edgetpu:usb", "shape": [1, 2]}
