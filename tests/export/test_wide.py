"""Why int16 outputs need what `quarl_export.wide` does, in every runtime that there is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from graph_factory import make_policy, mlp, random_inputs, shaped_values

from quarl_device.flatbuffer import read_graph
from quarl_device.inspect.op_versions import loadability
from quarl_device.runtime import find_runtime
from quarl_export.graph import view
from quarl_export.quantized import convert_narrow, convert_planned, policy_values
from quarl_export.range_plan import QuantizationOptions, plan_ranges
from quarl_export.wide import FINER, widened

HEAD = "dense_2"
TFLITE_PYTHON = Path(__file__).parents[2] / ".venv-tflite" / "bin" / "python"
PROGRAM = """
import json, sys
import numpy as np
from tflite_runtime.interpreter import Interpreter
model, inputs = open(sys.argv[1], "rb").read(), np.load(sys.argv[2])
rows = []
try:
    interpreter = Interpreter(model_content=model)
    interpreter.allocate_tensors()
    for row in inputs:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], row[None])
        interpreter.invoke()
        rows.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"])[0].tolist())
    print(json.dumps({"rows": rows}))
except RuntimeError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.fixture(scope="module")
def files():
    """The converter's own file and the widened one, inputs, and what an int8 head computes."""
    graph = mlp(8, head="")
    weights, ranges = shaped_values(graph, "trained", 3)
    policy = make_policy(graph, weights=weights)
    inputs = random_inputs(graph, 50, seed=1)["observation"]
    made = []
    for wide in (frozenset({HEAD}), frozenset()):
        plan = plan_ranges(graph, QuantizationOptions(wide_outputs=wide))
        made.append((plan, policy_values(policy, plan, ranges)))
    narrow = convert_narrow(*made[0])
    return narrow, convert_planned(*made[0]), inputs, run_litert(convert_planned(*made[1]), inputs)


def run_litert(model, inputs):
    loaded = find_runtime("litert").load(model, inputs=["observation"], outputs=["action"])
    return np.concatenate([np.array(loaded.run({"observation": row[None]})["action"]) for row in inputs])


def run_tflite(model, inputs, folder):
    if not TFLITE_PYTHON.exists():
        if sys.version_info >= (3, 12):
            pytest.skip("tflite-runtime's last wheels are for Python 3.11")
        pytest.fail("the environment of tflite-runtime is missing: make tflite")
    (folder / "model.tflite").write_bytes(model)
    np.save(folder / "inputs.npy", inputs)
    words = [str(TFLITE_PYTHON), "-c", PROGRAM, str(folder / "model.tflite"), str(folder / "inputs.npy")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_what_the_converter_makes_of_an_int16_output_computes_nonsense(files, tmp_path):
    narrow, _, inputs, int8 = files
    spread = np.ptp(int8)
    assert np.abs(run_litert(narrow, inputs) - int8).max() > spread
    there = run_tflite(narrow, inputs, tmp_path)
    assert np.abs(np.array(there["rows"]) - int8).max() > spread


def test_widened_it_computes_what_int8_does_in_finer_steps(files):
    _, wide, inputs, int8 = files
    step = np.ptp(int8) / 100
    outputs = run_litert(wide, inputs)
    # Where the int8 head does not clip: the int16 range is as wide on both sides.
    inside = (int8 > int8.min()) & (int8 < int8.max())
    assert np.abs(outputs - int8)[inside].max() < step
    assert len(np.unique(outputs)) > len(np.unique(int8))


def test_tflite_runtime_has_no_kernel_for_it(files, tmp_path):
    """The reason why an int16 head is refused for that runtime."""
    _, wide, inputs, _ = files
    assert "QUANTIZE" in run_tflite(wide, inputs, tmp_path)["error"]
    graph = read_graph(wide)
    told = {found.runtime: found for found in loadability(graph.operators, graph.tensors)}
    assert told["tflite-runtime"].loads is False
    assert "int8 to int16" in told["tflite-runtime"].reason
    assert told["ai-edge-litert"].loads is True


def test_nothing_is_lost_on_the_way_to_int16(files):
    """Scales and bias steps are the same numbers, a power of two finer, and old tensors keep their places."""
    narrow, wide, _, _ = files
    before, after = view(narrow), view(wide)
    assert [t.name for t in after.tensors[: len(before.tensors)]] == [t.name for t in before.tensors]
    (copy,) = after.tensors[len(before.tensors) :]
    dense = next(op for op in after.operators if copy.index in op.inputs)
    source = next(op for op in after.operators if copy.index in op.outputs).inputs[0]
    assert copy.scale * FINER == after.tensors[source].scale
    bias, old = after.tensors[dense.inputs[2]], before.tensors[dense.inputs[2]]
    assert bias.dtype is np.int64
    np.testing.assert_array_equal(bias.data, old.data.astype(np.int64) * FINER)
    np.testing.assert_array_equal(bias.scale * FINER, old.scale)


def test_a_file_without_int16_outputs_has_nothing_to_widen(files):
    _, wide, _, _ = files
    assert [op.name for op in view(widened(wide)).operators] == [op.name for op in view(wide).operators]
