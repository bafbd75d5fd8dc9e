from __future__ import annotations

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from export_factory import make_spec, random_snapshot

from quarl_device.flatbuffer import read_graph
from quarl_export.converter import convert_float, convert_snapshot
from quarl_export.graph import operator_version, output_scale, repack, view, with_fixed_batch


def test_views_write_into_a_bytearray(patcher):
    buffer = bytearray(patcher.data)
    tensor = next(t for t in view(buffer).tensors if t.name == "hidden_0/kernel")
    tensor.data[...] = 7
    again = next(t for t in view(bytes(buffer)).tensors if t.name == "hidden_0/kernel")
    assert (again.data == 7).all()
    assert not again.data.flags.writeable


def test_constants_that_shared_a_buffer_get_their_own():
    """Two kernels of one weight are both 127; the converter gives them one buffer."""
    spec = make_spec(inputs=1, hidden=(1,), actions=1)
    snapshot = random_snapshot(spec, seed=3)
    snapshot.kernels[0][...], snapshot.kernels[1][...] = 0.5, 0.25
    converted = convert_snapshot(spec, snapshot)
    kernels = [t for t in read_graph(converted).tensors if t.dtype == "int8" and t.size]
    assert len({t.start for t in kernels}) == 1, "the converter no longer shares: the guard is moot"
    kernels = [t for t in read_graph(repack(converted)).tensors if t.dtype == "int8" and t.size]
    assert len({t.start for t in kernels}) == 2


def test_metadata_is_added_and_replaced(patcher):
    once = repack(patcher.data, metadata={"note": b"one", "other": b"x"})
    twice = repack(once, metadata={"note": b"two, longer"})
    assert bytes(read_graph(once).metadata_bytes("note")) == b"one"
    assert bytes(read_graph(twice).metadata_bytes("note")) == b"two, longer"
    assert bytes(read_graph(twice).metadata_bytes("other")) == b"x"
    assert repack(once, metadata={"note": b"two, longer"}) == twice


def test_output_scale_is_the_heads(patcher, spec):
    snapshot = random_snapshot(spec, seed=4)
    low, high = snapshot.head_range.astype(np.float64)
    assert output_scale(patcher.patch(snapshot), "q_values") == np.float32((high - low) / 255)


def test_output_of_a_float_file_has_no_scale(spec):
    model = convert_float(spec, random_snapshot(spec, seed=5))
    graph = view(model)
    assert output_scale(model, graph.tensors[graph.outputs[0]].name) is None
    assert output_scale(model, "no such tensor") is None


def test_an_operator_version_is_a_view(patcher):
    buffer = bytearray(patcher.data)
    version = operator_version(buffer, "FULLY_CONNECTED")
    before = {operator.version for operator in view(buffer).operators if operator.name == "FULLY_CONNECTED"}
    assert before == {int(version[0])}
    version[0] = 9
    assert {operator.version for operator in view(buffer).operators if operator.name == "FULLY_CONNECTED"} == {9}
    assert operator_version(buffer, "QUANTIZE") is None
    assert operator_version(buffer, "TANH") is None


def test_only_a_free_batch_is_stated(spec):
    stated = convert_float(spec, random_snapshot(spec, seed=5))
    free = bytearray(stated)
    tensor = schema.Model.GetRootAsModel(free, 0).Subgraphs(0).Tensors(0)
    tensor.ShapeSignatureAsNumpy()[:] = -1
    assert read_graph(bytes(free)).tensors[0].shape_signature == (-1, -1)
    assert read_graph(with_fixed_batch(bytes(free))).tensors[0].shape_signature == (1, -1)
    assert with_fixed_batch(stated) == stated
