"""Reading TFLite files: equal to the schema's own reader on good ones, a ModelFileError on every other."""

import contextlib
import struct
import time
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from quarl_device import flatbuffer, flatbuffer_table
from quarl_device.errors import ModelFileError
from quarl_device.flatbuffer import operator_name, read_graph

DATA = Path(__file__).parent.parent / "data"
CARTPOLE = (DATA / "cartpole.tflite").read_bytes()
FILES = {name: (DATA / f"{name}.tflite").read_bytes() for name in ("cartpole", "acrobot")}


def unpack(data=CARTPOLE):
    return schema.ModelT.InitFromPackedBuf(data, 0)


def pack(model):
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def changed(change):
    model = unpack()
    change(model)
    return pack(model)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("name", FILES)
def test_tensors_are_those_of_the_schema(name):
    graph, model = read_graph(FILES[name]), unpack(FILES[name])
    wanted = model.subgraphs[0].tensors
    assert len(graph.tensors) == len(wanted)
    for tensor, other in zip(graph.tensors, wanted, strict=True):
        assert tensor.name == text(other.name)
        assert tensor.shape == tuple(other.shape)
        assert tensor.buffer == other.buffer
        assert flatbuffer.TENSOR_TYPES[other.type] == tensor.dtype
        assert tensor.plain
        content = model.buffers[other.buffer].data
        assert tensor.size == (0 if content is None else len(content))
        if tensor.size:
            assert graph.constant(tensor).tobytes() == np.asarray(content, np.uint8).tobytes()
        if tensor.quantization is None:
            assert other.quantization is None or other.quantization.scale is None
        else:
            np.testing.assert_array_equal(tensor.quantization.scales, other.quantization.scale)
            np.testing.assert_array_equal(tensor.quantization.zero_points, other.quantization.zeroPoint)


@pytest.mark.parametrize("name", FILES)
def test_operators_and_ends_are_those_of_the_schema(name):
    graph, model = read_graph(FILES[name]), unpack(FILES[name])
    subgraph = model.subgraphs[0]
    assert graph.inputs == tuple(subgraph.inputs)
    assert graph.outputs == tuple(subgraph.outputs)
    for operator, other in zip(graph.operators, subgraph.operators, strict=True):
        code = model.operatorCodes[other.opcodeIndex]
        assert (operator.code, operator.version) == (code.builtinCode, code.version)
        assert operator.inputs == tuple(other.inputs)
        assert operator.outputs == tuple(other.outputs)
        assert operator.options_type == other.builtinOptionsType
    assert [operator.name for operator in graph.operators] == [
        "QUANTIZE",
        "FULLY_CONNECTED",
        "FULLY_CONNECTED",
        "DEQUANTIZE",
    ]


def test_metadata_is_that_of_the_schema():
    graph, model = read_graph(CARTPOLE), unpack()
    assert set(graph.metadata) == {text(entry.name) for entry in model.metadata}
    for entry in model.metadata:
        content = np.asarray(model.buffers[entry.buffer].data, np.uint8).tobytes()
        assert bytes(graph.metadata_bytes(text(entry.name))) == content
    assert graph.metadata_bytes("absent") is None


def test_constants_are_read_only_views():
    graph = read_graph(CARTPOLE)
    [weights] = [t for t in graph.tensors if t.shape == (16, 4)]
    values = graph.constant(weights)
    assert values.shape == (16, 4)
    assert values.dtype == np.int8
    assert not values.flags.writeable
    with pytest.raises(ModelFileError, match="no constant"):
        graph.constant(graph.tensors[graph.inputs[0]])


def test_operator_options():
    hidden, last = read_graph(CARTPOLE).operators[1:3]
    assert hidden.options[0] == 1  # fused ReLU
    assert last.options[0] is None


@pytest.mark.parametrize(
    ("code", "name"), [(9, "FULLY_CONNECTED"), (34, "PAD"), (39, "TRANSPOSE"), (9999, "operator-9999")]
)
def test_operator_names(code, name):
    assert operator_name(code) == name


def test_known_operator_names_and_options_are_those_of_the_schema():
    codes = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
    assert {code: codes[code] for code in flatbuffer._NAMES} == flatbuffer._NAMES
    options = {v: k for k, v in vars(schema.BuiltinOptions).items() if isinstance(v, int)}
    for number, layout in flatbuffer._OPTIONS.items():
        fields = [
            f
            for f in vars(getattr(schema, options[number]))
            if f[0].isupper() and not f.startswith(("GetRoot", "Init"))
        ]
        fields = [
            f for f in fields if not f.endswith(("AsNumpy", "Length", "IsNone")) and "BufferHasIdentifier" not in f
        ]
        # A newer schema may append fields, which the reader refuses.
        assert len(fields) >= len(layout), options[number]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"TFL3",
        b"\0\0\0\0TFL3",
        b"\xff\xff\xff\xffTFL3" + b"\xff" * 100,
        b"\x08\0\0\0TFL3" + b"\0" * 100,
        b"\x08\0\0\0TFL2" + CARTPOLE[8:],
        b"PK\x03\x04" + b"\0" * 100,
        b"\x89HDF\r\n\x1a\n" + b"\0" * 100,
        b"<html>Not found</html>",
    ],
)
def test_what_is_no_model(data):
    with pytest.raises(ModelFileError):
        read_graph(data)


def test_every_truncation_is_refused_or_whole():
    for size in range(len(CARTPOLE)):
        with contextlib.suppress(ModelFileError):
            graph = read_graph(CARTPOLE[:size])
            assert all(t.start + t.size <= size for t in graph.tensors)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.integers(0, len(CARTPOLE) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=8,
    )
)
@example([(0, 255), (1, 255), (2, 255), (3, 127)])
def test_flipped_bytes_are_refused_or_read(changes):
    data = bytearray(CARTPOLE)
    for place, value in changes:
        data[place] = value
    with contextlib.suppress(ModelFileError):
        graph = read_graph(bytes(data))
        assert all(t.start + t.size <= len(data) for t in graph.tensors)
        assert all(start + size <= len(data) for start, size in graph.metadata.values())


@settings(max_examples=300)
@given(
    st.integers(0, len(CARTPOLE) // 4 - 1), st.sampled_from([0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF])
)
def test_hostile_words_are_refused_or_read(place, word):
    data = bytearray(CARTPOLE)
    struct.pack_into("<I", data, 4 * place, word)
    with contextlib.suppress(ModelFileError):
        read_graph(bytes(data))


@given(st.binary(max_size=400))
def test_random_bytes_behind_the_identifier(tail):
    with contextlib.suppress(ModelFileError):
        read_graph(b"\x10\0\0\0TFL3" + tail)


def test_overlapping_tables_do_not_multiply_work():
    """Ten thousand signature entries that all point at the same few bytes: refused by count, soon."""
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = "x", 0
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.inputs, signature.outputs = "s", [entry], [entry]
    model = unpack()
    model.signatureDefs = [signature]
    data = bytearray(pack(model))
    # Make vectors of tables claim the largest count that fits: all their elements then lead somewhere, or nowhere.
    start = time.monotonic()
    for place in range(8, min(len(data) - 4, 2000), 4):
        broken = bytearray(data)
        struct.pack_into("<I", broken, place, 4096)
        with contextlib.suppress(ModelFileError):
            read_graph(bytes(broken))
    assert time.monotonic() - start < 20


def test_the_number_of_elements_is_bounded(monkeypatch):
    monkeypatch.setattr(flatbuffer_table, "MAX_ELEMENTS", 50)
    with pytest.raises(ModelFileError, match="names more than 50"):
        read_graph(CARTPOLE)


def set_field(path, value):
    def change(model):
        target = model
        for part in path[:-1]:
            target = target[part] if isinstance(part, int) else getattr(target, part)
        setattr(target, path[-1], value)

    return change


SUBGRAPH = ("subgraphs", 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 2, "schema version 2"),
        ((*SUBGRAPH, "inputs"), [], "inputs"),
        ((*SUBGRAPH, "inputs"), [-1], "inputs"),
        ((*SUBGRAPH, "inputs"), [99], "inputs"),
        ((*SUBGRAPH, "outputs"), [0, 0], "outputs"),
        ((*SUBGRAPH, "tensors", 0, "buffer"), 1000, "names buffer 1000"),
        ((*SUBGRAPH, "tensors", 0, "name"), "x" * 2000, "expected at most 1024"),
        ((*SUBGRAPH, "tensors", 0, "shape"), [1] * 9, "expected at most 8"),
        ((*SUBGRAPH, "operators", 0, "opcodeIndex"), 99, "names operator code 99"),
        ((*SUBGRAPH, "operators", 0, "inputs"), [77], "names no tensor"),
        ((*SUBGRAPH, "operators", 0, "inputs"), [-2], "names no tensor"),
        ((*SUBGRAPH, "operators", 0, "outputs"), [-1], "names no tensor"),
        (("metadata", 0, "buffer"), 4000, "metadata names buffer 4000"),
        (("buffers", 1, "offset"), 4096, "outside of the flatbuffer"),
        (("signatureDefs", 0, "subgraphIndex"), 3, "another subgraph"),
    ],
    ids=str,
)
def test_what_cannot_be_read(path, value, message):
    with pytest.raises(ModelFileError, match=message):
        read_graph(changed(set_field(path, value)))


def test_more_than_one_subgraph():
    with pytest.raises(ModelFileError, match="2 subgraphs"):
        read_graph(changed(lambda model: model.subgraphs.append(model.subgraphs[0])))


def test_a_signature_of_no_tensor():
    def change(model):
        model.signatureDefs[0].inputs[0].tensorIndex = 500

    with pytest.raises(ModelFileError, match="names tensor 500"):
        read_graph(changed(change))


def test_custom_operators_are_marked():
    def change(model):
        model.operatorCodes[0].builtinCode = 32
        model.operatorCodes[0].deprecatedBuiltinCode = 32
        model.operatorCodes[0].customCode = "EdgeTPU-Custom-Op"

    graph = read_graph(changed(change))
    names = {operator.name: operator.plain for operator in graph.operators}
    assert names["edgetpu-custom-op"] is False
