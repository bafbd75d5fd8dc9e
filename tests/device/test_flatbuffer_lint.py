"""The lint: what converters write passes, what an interpreter could die of does not."""

import subprocess
import sys
from pathlib import Path

import flatbuffers
import pytest
from ai_edge_litert import schema_py_generated as schema

from quarl_device import lint, lint_rules
from quarl_device.errors import ModelFileError
from quarl_device.flatbuffer import read_graph
from quarl_device.lint import check_runnable

DATA = Path(__file__).parent.parent / "data"
CARTPOLE = (DATA / "cartpole.tflite").read_bytes()
QUANTIZED, HIDDEN, LAST = 5, 6, 7  # tensors of cartpole.tflite: the int8 input, the hidden layer, the int8 output


def changed(change):
    model = schema.ModelT.InitFromPackedBuf(CARTPOLE, 0)
    change(model, model.subgraphs[0])
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return read_graph(bytes(builder.Output()))


def weights_of(subgraph):
    return next(t for t in subgraph.tensors if list(t.shape) == [16, 4])


@pytest.mark.parametrize("path", sorted(DATA.glob("*.tflite")), ids=lambda path: path.stem)
def test_good_files_pass(path):
    check_runnable(read_graph(path.read_bytes()))


def test_the_good_files_have_every_scheme_and_operator():
    """Except those that no exported policy of ours uses."""
    files = [read_graph(path.read_bytes()) for path in DATA.glob("*.tflite")]
    used = {operator.name for graph in files for operator in graph.operators}
    assert set(lint_rules.KINDS) - used == {"SUM", "RELU6", "LEAKY_RELU", "GELU", "LOG_SOFTMAX", "RSQRT"}
    assert {"float16", "int8", "uint8", "int16", "int64"} <= {t.dtype for graph in files for t in graph.tensors}


def scale(tensor, value):
    def change(_, subgraph):
        subgraph.tensors[tensor].quantization.scale = [value]

    return change


def zero_point(value):
    def change(_, subgraph):
        subgraph.tensors[HIDDEN].quantization.zeroPoint = [value]

    return change


def shape(tensor, value):
    def change(_, subgraph):
        subgraph.tensors[tensor].shape = value
        subgraph.tensors[tensor].shapeSignature = None

    return change


def kind(tensor, value):
    def change(_, subgraph):
        subgraph.tensors[tensor].type = value

    return change


def operator(number, name, value):
    def change(_, subgraph):
        setattr(subgraph.operators[number], name, value)

    return change


def short_weights(model, subgraph):
    buffer = model.buffers[weights_of(subgraph).buffer]
    buffer.data = buffer.data[:-1]


def fewer_weights(_, subgraph):
    weights_of(subgraph).shape = [16, 2]


def two_scales(_, subgraph):
    weights = weights_of(subgraph)
    weights.quantization.scale, weights.quantization.zeroPoint = [0.1, 0.1], [0, 0]


def wrong_axis(_, subgraph):
    weights_of(subgraph).quantization.quantizedDimension = 9
    weights_of(subgraph).quantization.scale = [0.1] * 16
    weights_of(subgraph).quantization.zeroPoint = [0] * 16


def variable(_, subgraph):
    subgraph.tensors[HIDDEN].isVariable = True


def sparse(_, subgraph):
    subgraph.tensors[HIDDEN].sparsity = schema.SparsityParametersT()


def constant_input(model, subgraph):
    subgraph.inputs = [subgraph.tensors.index(weights_of(subgraph))]


def backwards(_, subgraph):
    subgraph.operators.reverse()


def written_twice(_, subgraph):
    subgraph.operators[2].outputs = subgraph.operators[1].outputs


def no_bias_slot(_, subgraph):
    subgraph.operators[1].inputs = list(subgraph.operators[1].inputs)[:2]


def no_weights(_, subgraph):
    inputs = list(subgraph.operators[1].inputs)
    subgraph.operators[1].inputs = [inputs[0], -1, inputs[2]]


def weights_as_activation(_, subgraph):
    subgraph.operators[1].inputs = [QUANTIZED, QUANTIZED, -1]


def unused_operator(model, _):
    for code in model.operatorCodes:
        if code.builtinCode == 9:
            code.builtinCode = code.deprecatedBuiltinCode = 36  # GATHER


def wrong_options(_, subgraph):
    subgraph.operators[1].builtinOptionsType = schema.BuiltinOptions.AddOptions
    subgraph.operators[1].builtinOptions = schema.AddOptionsT()


def shuffled(_, subgraph):
    subgraph.operators[1].builtinOptions.weightsFormat = 1


def output_computed_by_none(_, subgraph):
    subgraph.operators.pop()


def custom_options(_, subgraph):
    subgraph.operators[1].customOptions = [1, 2, 3]


HOSTILE = [
    (scale(HIDDEN, 0.0), "scale outside"),
    (scale(HIDDEN, -1.0), "scale outside"),
    (scale(HIDDEN, float("nan")), "scale outside"),
    (scale(HIDDEN, float("inf")), "scale outside"),
    (scale(HIDDEN, 6e-45), "scale outside"),  # crashed XNNPACK
    (scale(QUANTIZED, 1e6), "times its output's"),  # aborted XNNPACK
    (zero_point(128), "zero point outside"),
    (zero_point(2**40), "zero point outside"),
    (shape(HIDDEN, [1, 17]), "does not fit"),
    (shape(HIDDEN, [1, 0]), "allowed are 1 to"),
    (shape(HIDDEN, [-1, 16]), "allowed are 1 to"),
    (shape(HIDDEN, [2**30, 2**30]), "allowed are 1 to"),
    (shape(HIDDEN, [4096, 4096]), "does not fit"),
    (shape(QUANTIZED, []), "does not fit"),
    (kind(HIDDEN, schema.TensorType.STRING), "type that policies do not use"),
    (kind(HIDDEN, schema.TensorType.RESOURCE), "type that policies do not use"),
    (kind(HIDDEN, schema.TensorType.FLOAT32), "zero point outside"),
    (kind(QUANTIZED, schema.TensorType.UINT8), "does not fit|zero point"),
    (short_weights, "holds 63 bytes"),
    (fewer_weights, "holds 64 bytes"),
    (two_scales, "2 scales on axis"),
    (wrong_axis, "16 scales on axis 9"),
    (variable, "variable"),
    (sparse, "sparse"),
    (constant_input, "is a constant"),
    (backwards, "before it is computed"),
    (written_twice, "must compute one new tensor"),
    (no_bias_slot, "has 2 inputs"),
    (no_weights, "expected 2 to 3"),
    (weights_as_activation, "not constant"),
    (unused_operator, "not among the operators"),
    (wrong_options, "options of another operator"),
    (shuffled, "shuffled"),
    (output_computed_by_none, "computed by no operator"),
    (custom_options, "not among the operators"),
    (operator(0, "outputs", [5, 6]), "must compute one new tensor"),
    (operator(0, "outputs", []), "must compute one new tensor"),
    (operator(0, "inputs", []), "has 0 inputs"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_refused(change, message):
    graph = changed(change)
    with pytest.raises(ModelFileError, match=message):
        check_runnable(graph)


def test_a_giant_graph_is_refused(monkeypatch):
    monkeypatch.setattr(lint, "MAX_ACTIVATION_BYTES", 40)
    with pytest.raises(ModelFileError, match="bytes of activations"):
        check_runnable(read_graph(CARTPOLE))


# One operator at a time, for those that the small policies do not use.


CHILD = """
import random, sys
import numpy as np
from quarl_device.errors import ModelFileError
from quarl_device.flatbuffer import read_graph
from quarl_device.lint import check_runnable, takes_batches
from quarl_device.runtime import find_runtime

rng, runtime, ran = random.Random(int(sys.argv[1])), find_runtime(), 0
for path in sys.argv[3:]:
    good = open(path, "rb").read()
    for _ in range(int(sys.argv[2])):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 4))):
            place = rng.randrange(len(data))
            data[place] = rng.choice((0, 1, 2, 4, 127, 128, 255, data[place] ^ (1 << rng.randrange(8))))
        try:
            graph = read_graph(bytes(data))
            check_runnable(graph)
            inputs = {graph.tensors[n].name: graph.tensors[n] for n in graph.inputs}
            outputs = [graph.tensors[n].name for n in graph.outputs]
            for rows in (1, 3) if takes_batches(graph, 3) else (1,):
                model = runtime.load(graph.data, inputs=list(inputs), outputs=outputs, batch_size=rows)
                model.run({name: np.ones((rows, *t.shape[1:]), t.dtype) for name, t in inputs.items()})
            ran += 1
        except ModelFileError:
            pass
sys.stdout.write(str(ran))
"""


@pytest.mark.parametrize(
    ("count", "pattern"), [(1200, "cartpole*"), (120, "ops_*"), (250, "dict_*"), (250, "pendulum*"), (250, "frames*")]
)
def test_no_damaged_file_that_passes_kills_the_interpreter(count, pattern):
    """In a child, since the failure to catch is a dead process."""
    paths = [str(path) for path in sorted(DATA.glob(f"{pattern}.tflite"))]
    command = [sys.executable, "-c", CHILD, "5", str(count), *paths]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) > count // 10
