"""The oracle of patching is the converter itself."""

from __future__ import annotations

import dataclasses
import itertools
import time

import numpy as np
import pytest
from export_factory import make_spec, random_snapshot
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st

from quarl_device.errors import NonFiniteError, PatchError
from quarl_device.flatbuffer import read_graph
from quarl_export.compare import difference
from quarl_export.converter import convert, convert_snapshot
from quarl_export.graph import view
from quarl_export.patcher import Patcher
from quarl_export.qat_graph import snapshot_values, values_snapshot
from quarl_export.snapshot import PolicySnapshot, for_export, initial_snapshot

_PATCHERS: dict[object, Patcher] = {}
# Shrinking would convert for minutes, and every example is small already.
_PHASES = (Phase.explicit, Phase.generate)
_KINDS = ["trained", "zero kernel", "zero biases", "equal biases", "huge", "tiny", "symmetric ranges", "floors"]


def patcher_of(spec, normalized):
    key = (spec, normalized)
    if key not in _PATCHERS:
        _PATCHERS[key] = Patcher.build(spec, normalized=normalized)
    return _PATCHERS[key]


def shaped(snapshot: PolicySnapshot, kind: str) -> PolicySnapshot:
    """Bend a random snapshot to one of the corners in which converters take shortcuts."""
    kernels, biases, ranges = list(snapshot.kernels), list(snapshot.biases), snapshot.ranges.copy()
    head_range = snapshot.head_range
    if kind == "zero kernel":
        kernels[0] = np.zeros_like(kernels[0])
    elif kind == "zero biases":
        biases = [np.zeros_like(bias) for bias in biases]
    elif kind == "equal biases":
        biases = [np.full_like(bias, 0.125) for bias in biases]
    elif kind == "huge":
        kernels, biases, ranges = [k * 1e6 for k in kernels], [b * 1e6 for b in biases], ranges * np.float32(1e5)
        head_range = head_range * np.float32(1e10)
    elif kind == "tiny":
        kernels, biases, ranges = [k * 1e-4 for k in kernels], [b * 1e-7 for b in biases], ranges * np.float32(1e-3)
        head_range = head_range * np.float32(1e-2)
    elif kind == "symmetric ranges":
        ranges[0] = -2.5, 2.5
        head_range = np.array([-7.0, 7.0], np.float32)
    elif kind == "floors":
        ranges[:, 0], ranges[:, 1] = 0.0, 1e-3
        biases = [bias * 1e-4 for bias in biases]
    arrays = [np.asarray(value, np.float32) for value in (*kernels, *biases)]
    return dataclasses.replace(
        snapshot,
        kernels=tuple(arrays[: len(kernels)]),
        biases=tuple(arrays[len(kernels) :]),
        ranges=ranges,
        head_range=head_range,
    )


# A conversion takes a second: few examples, over few architectures whose templates are kept. The corners by name are
# those in which a network in training differs; `test_template` has all of them for any network, by the same writer.
@given(
    shape=st.sampled_from([((8, 5), 4, 2, True), ((1,), 1, 1, False), ((13,), 7, 5, False)]),
    kind=st.sampled_from(_KINDS),
    center_q=st.booleans(),
    seed=st.integers(0, 2**20),
)
@example(shape=((8, 5), 4, 2, True), kind="zero biases", center_q=False, seed=2)
@example(shape=((8, 5), 4, 2, True), kind="equal biases", center_q=True, seed=3)
@example(shape=((8, 5), 4, 2, True), kind="floors", center_q=False, seed=6)
@example(shape=((1,), 1, 1, False), kind="symmetric ranges", center_q=False, seed=7)
@settings(max_examples=1, deadline=None, phases=_PHASES, suppress_health_check=[HealthCheck.too_slow])
def test_patched_file_is_the_converted_file(shape, kind, center_q, seed):
    hidden, inputs, actions, normalized = shape
    # One action, centred, is a network of zeros; between such constants the converter picks scales at will.
    assume(actions > 1 or not center_q)
    plain = make_spec(hidden=hidden, inputs=inputs, actions=actions)
    spec = make_spec(hidden=hidden, inputs=inputs, actions=actions, center_q=center_q)
    snapshot = for_export(spec, shaped(random_snapshot(spec, seed=seed, normalized=normalized), kind))
    patched = patcher_of(plain, normalized).patch(snapshot)
    assert difference(patched, convert_snapshot(plain, snapshot)) == ""


@pytest.mark.parametrize(
    "quantization",
    [
        *({"weight_bits": bits, "activation_bits": 10 - bits} for bits in range(2, 9)),
        {"head_output": "float32"},
        {"head_output": "int16"},
        {"head_output": "float32", "weight_bits": 3},
        {"head_output": "int16", "activation_bits": 4, "weight_bits": 5},
    ],
)
def test_a_file_of_any_bits_and_head_is_the_converted_file(quantization):
    spec = make_spec(hidden=(8, 5), actions=3, **quantization)
    patcher = Patcher.build(spec, normalized=True, verify=False)
    snapshot = random_snapshot(spec, seed=3, normalized=True)
    assert difference(patcher.patch(snapshot), convert_snapshot(spec, snapshot)) == ""


def test_a_file_of_other_bits_or_another_head_is_another_file():
    """What the comparison above would not see could not fail it."""
    snapshot = random_snapshot(make_spec(), seed=3)
    files = {}
    for name, quantization in (
        ("int8", {}),
        ("weights", {"weight_bits": 7}),
        ("activations", {"activation_bits": 7}),
        ("float32", {"head_output": "float32"}),
        ("int16", {"head_output": "int16"}),
    ):
        spec = make_spec(**quantization)
        files[name] = Patcher.build(spec, verify=False).patch(snapshot)
    for one, other in itertools.combinations(files, 2):
        assert difference(files[one], files[other]) != "", (one, other)


@given(
    hidden=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    inputs=st.integers(1, 20),
    actions=st.integers(1, 12),
    normalized=st.booleans(),
)
@settings(max_examples=1, deadline=None, phases=_PHASES, suppress_health_check=[HealthCheck.too_slow])
def test_any_architecture_has_a_template(hidden, inputs, actions, normalized):
    """`build` itself converts a second fingerprint and compares."""
    spec = make_spec(hidden=tuple(hidden), inputs=inputs, actions=actions)
    patched = Patcher.build(spec, normalized=normalized).patch(random_snapshot(spec, seed=1, normalized=normalized))
    graph = read_graph(patched)
    assert [graph.tensors[i].name for i in (*graph.inputs, *graph.outputs)] == ["observation", "q_values"]


def test_identity_normaliser_is_folded_by_the_converter_and_still_equal(policy, spec):
    policy.set_normalizer([0.0] * 4, [1.0] * 4)
    patched = patcher_of(spec, True).patch(policy.snapshot())
    converted = convert(policy)
    assert len(view(converted).operators) < len(view(patched).operators)
    assert difference(patched, converted) == ""


def test_without_a_normaliser_there_is_no_prologue(patcher):
    names = [operator.name for operator in view(patcher.data).operators]
    assert names == ["QUANTIZE", "FULLY_CONNECTED", "FULLY_CONNECTED", "FULLY_CONNECTED", "DEQUANTIZE"]


def test_normaliser_stays_in_float_before_quantization(spec):
    graph = view(patcher_of(spec, True).data)
    assert [operator.name for operator in graph.operators[:3]] == ["SUB", "MUL", "QUANTIZE"]
    for operator in graph.operators[:2]:
        assert all(graph.tensors[i].dtype is np.float32 for i in (*operator.inputs, *operator.outputs))


def test_patching_depends_on_the_snapshot_alone(patcher, spec):
    one, two = random_snapshot(spec, seed=1), random_snapshot(spec, seed=2)
    first = patcher.patch(one)
    assert patcher.patch(two) != first
    assert patcher.patch(one) == first
    assert len(patcher.patch(two)) == len(first)


def test_building_twice_gives_the_same_bytes(patcher, spec):
    snapshot = random_snapshot(spec, seed=3)
    assert Patcher.build(spec).patch(snapshot) == patcher.patch(snapshot)


@pytest.mark.parametrize("name", ["kernel_1", "bias_0", "ranges", "head_range"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_are_refused_and_leave_no_trace(patcher, spec, name, bad):
    good = random_snapshot(spec, seed=4)
    before = patcher.patch(good)
    arrays = {key: value.copy() for key, value in good.arrays().items()}
    arrays[name].flat[0] = bad
    with pytest.raises(NonFiniteError, match=name):
        patcher.patch(PolicySnapshot.from_arrays(spec, arrays))
    assert patcher.patch(good) == before


def test_another_architecture_is_refused(patcher):
    for spec, normalized in ((make_spec(hidden=(16, 13)), False), (make_spec(hidden=(16,)), False)):
        with pytest.raises(PatchError, match="kernels"):
            patcher.patch(random_snapshot(spec, seed=0, normalized=normalized))
    with pytest.raises(PatchError, match="normaliser"):
        patcher.patch(random_snapshot(patcher.spec, seed=0, normalized=True))


@pytest.mark.parametrize("bad", [(0.0, 0.0), (1.0, 2.0), (-2.0, -1.0), (2.0, -2.0)])
def test_degenerate_ranges_are_refused(patcher, spec, bad):
    good = random_snapshot(spec, seed=5)
    ranges = good.ranges.copy()
    ranges[1] = bad
    for snapshot in (
        dataclasses.replace(good, ranges=ranges),
        dataclasses.replace(good, head_range=np.array(bad, np.float32)),
    ):
        with pytest.raises(PatchError, match="range"):
            patcher.patch(snapshot)


def test_bias_beyond_int32_is_refused(patcher, spec):
    good = random_snapshot(spec, seed=6)
    kernels = (good.kernels[0] * np.float32(0), *good.kernels[1:])
    ranges = good.ranges.copy()
    ranges[0] = -0.0005, 0.0005
    with pytest.raises(PatchError, match="int32"):
        patcher.patch(dataclasses.replace(good, kernels=kernels, ranges=ranges))


def test_weights_beyond_float32_arithmetic_are_refused(patcher, spec):
    good = random_snapshot(spec, seed=6)
    with pytest.raises(PatchError, match="weights"):
        patcher.patch(dataclasses.replace(good, kernels=(good.kernels[0] * np.float32(1e38), *good.kernels[1:])))


def test_snapshots_and_values_of_the_graph_are_the_same_thing(spec):
    for normalized in (False, True):
        snapshot = random_snapshot(spec, seed=8, normalized=normalized)
        again = values_snapshot(spec, snapshot_values(spec, snapshot))
        for name, array in snapshot.arrays().items():
            if name != "range_updates":
                np.testing.assert_array_equal(again.arrays()[name], array)


def test_patching_is_far_faster_than_converting(policy, spec):
    patcher, snapshot = patcher_of(spec, True), policy.snapshot()
    patcher.patch(snapshot)
    start = time.perf_counter()
    convert(policy)
    converting = time.perf_counter() - start
    times = []
    for _ in range(20):
        start = time.perf_counter()
        patcher.patch(snapshot)
        times.append(time.perf_counter() - start)
    assert converting > 100 * min(times)


@pytest.mark.parametrize(
    "quantization",
    [{}, {"center_q": True}, {"head_output": "int16", "weight_bits": 3}, {"head_output": "float32"}],
)
def test_the_very_first_snapshot_of_a_run_is_patched_as_it_is_converted(quantization):
    """Its ranges are exactly symmetric: the zero point lies on a rounding tie."""
    spec = make_spec(hidden=(6,), **quantization)
    snapshot = initial_snapshot(spec, seed=0, normalized=True)
    patched = Patcher.build(spec, normalized=True, verify=False).patch(snapshot)
    assert difference(patched, convert_snapshot(spec, for_export(spec, snapshot))) == ""
