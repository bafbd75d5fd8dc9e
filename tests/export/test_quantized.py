"""The converter's file of a policy graph computes what the graph with fake quants computes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from graph_factory import (
    Build,
    cnn,
    dueling,
    make_policy,
    mlp,
    observed_ranges,
    random_inputs,
    random_weights,
    two_inputs,
)

from quarl_device.contract import Normalizer
from quarl_device.errors import NonFiniteError, PatchError, UsageError
from quarl_device.runtime import find_runtime
from quarl_export.graph import view
from quarl_export.ir.reference import run_reference
from quarl_export.quantized import build_planned, convert_quantized, policy_values
from quarl_export.range_plan import QuantizationOptions, plan_ranges


def converted(graph, *, normalizer=None, kind="action", **options):
    weights = random_weights(graph)
    policy = make_policy(graph, weights=weights, normalizer=normalizer, kind=kind)
    chosen = QuantizationOptions(**options)
    return policy, convert_quantized(policy, observed_ranges(graph, weights), options=chosen)


def run(policy, model, inputs):
    """Outputs by role, each row alone, as a device does."""
    loaded = find_runtime().load(model, inputs=list(inputs), outputs=list(policy.graph.outputs))
    count = len(next(iter(inputs.values())))
    rows = []
    for row in range(count):
        results = loaded.run({key: values[row : row + 1] for key, values in inputs.items()})
        rows.append({role: np.array(values) for role, values in results.items()})
    return {role: np.concatenate([row[role] for row in rows]) for role in policy.graph.outputs}


def operators(model):
    return [operator.name for operator in view(model).operators]


GRAPHS = {"mlp": (mlp(16, 8), "action"), "dueling": (dueling(), "q_values"), "cnn": (cnn(), "action"),
          "two inputs": (two_inputs(), "gaussian")}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_file_and_fake_quants_agree_within_biases(name):
    graph, kind = GRAPHS[name]
    policy, model = converted(graph, kind=kind)
    inputs = random_inputs(graph, 40, seed=5)
    outputs = run(policy, model, inputs)
    ranges = observed_ranges(graph, policy.weights)
    plan = plan_ranges(graph, QuantizationOptions())
    twin = build_planned(plan, policy_values(policy, plan, ranges))
    expected = twin([inputs[item.key] for item in graph.inputs])
    reference = run_reference(policy, inputs)
    for place, (role, source) in enumerate(graph.outputs.items()):
        low, high = ranges[source]
        step = (max(high, 0) - min(low, 0)) / 255
        assert np.abs(outputs[role] - expected[f"output_{place}"].numpy()).max() < 12 * step
        assert np.abs(outputs[role] - reference[role]).mean() < 0.1 * np.abs(reference[role]).mean() + 3 * step


def test_ends_are_named_by_key_and_role_whatever_their_order():
    _, model = converted(two_inputs(), kind="gaussian")
    graph = view(model)
    shapes = {graph.tensors[i].name: graph.tensors[i].shape for i in (*graph.inputs, *graph.outputs)}
    assert shapes == {"image": (1, 8, 8, 1), "state": (1, 3), "mean": (1, 2), "log_std": (1, 2)}


@pytest.mark.parametrize(("io", "zero"), [("int8", 0), ("uint8", 128)])
def test_integer_ends(io, zero):
    graph = mlp(8)
    weights = random_weights(graph)
    ranges = {"observation": (-127 / 128, 1.0), "relu_1": (0.0, 4.0), "dense_2": (-4.0, 4.0)}
    normalizer = Normalizer(where="device", offset={"observation": (3.0,)}, scale={"observation": (2.0,)})
    policy = make_policy(graph, weights=weights, normalizer=normalizer)
    found = view(convert_quantized(policy, ranges, options=QuantizationOptions(io=io)))
    ends = [found.tensors[i] for i in (*found.inputs, *found.outputs)]
    assert [str(np.dtype(tensor.dtype)) for tensor in ends] == [io, io]
    assert int(ends[1].zero_point[0]) == zero
    assert not {"SUB", "MUL"} & {operator.name for operator in found.operators}


def test_dense_is_per_layer_or_per_unit_and_convolutions_per_filter():
    for per_channel, sizes in ((False, {1}), (True, {10, 3})):
        _, model = converted(cnn(), per_channel=per_channel)
        found = view(model)
        scales = {
            operator.name: set() for operator in found.operators if operator.name in ("FULLY_CONNECTED", "CONV_2D")
        }
        for operator in found.operators:
            if operator.name in scales:
                scales[operator.name].add(found.tensors[operator.inputs[1]].scale.size)
        assert scales == {"FULLY_CONNECTED": sizes, "CONV_2D": {4, 6}}


def test_the_normaliser_is_a_float_prologue_and_clips_by_the_range():
    normalizer = Normalizer(offset={"observation": (0.5,) * 4}, scale={"observation": (4.0,) * 4}, clip=1.5)
    policy, model = converted(mlp(8), normalizer=normalizer)
    assert operators(model)[:3] == ["SUB", "MUL", "QUANTIZE"]
    far = {"observation": np.full((1, 4), 100.0, np.float32)}
    edge = {"observation": np.full((1, 4), 0.5 + 1.5 / 4.0, np.float32)}
    np.testing.assert_array_equal(run(policy, model, far)["action"], run(policy, model, edge)["action"])


def test_where_a_range_is_shared_the_clip_is_done_in_float():
    scale = {"image": (1.0,), "state": (2.0, -4.0, 0.0)}
    normalizer = Normalizer(offset={"image": (0.0,), "state": (1.0, 1.0, 1.0)}, scale=scale, clip=0.25)
    policy, model = converted(two_inputs(), kind="gaussian", normalizer=normalizer)
    assert {"MINIMUM", "MAXIMUM"} <= set(operators(model))
    image = np.zeros((1, 8, 8, 1), np.float32)
    far = run(policy, model, {"image": image, "state": np.array([[9.0, 9.0, 9.0]], np.float32)})
    edge = run(policy, model, {"image": image, "state": np.array([[1.125, 0.9375 + 0.125, 1.0]], np.float32)})
    for role in far:
        np.testing.assert_array_equal(far[role], edge[role])


def test_float_layers_stay_in_float_and_the_rest_does_not():
    build = Build(observation=(4,))
    hidden = build.dense("observation", 8, "elu")
    graph = build.graph({"action": build.dense(build.add("layer_norm", hidden), 2)})
    kept = frozenset({"elu_1", "layer_norm_2"})
    weights = random_weights(graph)
    policy = make_policy(graph, weights=weights)
    ranges = observed_ranges(graph, weights)
    model = convert_quantized(policy, ranges, options=QuantizationOptions(keep_float=kept))
    found = view(model)
    dense = [operator for operator in found.operators if operator.name == "FULLY_CONNECTED"]
    assert [str(np.dtype(found.tensors[operator.inputs[1]].dtype)) for operator in dense] == ["int8", "int8"]
    assert "ELU" in operators(model)
    inputs = random_inputs(graph, 20, seed=1)
    error = np.abs(run(policy, model, inputs)["action"] - run_reference(policy, inputs)["action"])
    assert error.max() < 0.1 * np.ptp(ranges["dense_3"])


def test_a_float_layer_between_int8_layers_stays_in_float():
    """The converter would make int8 of what has int8 on both sides."""
    policy, model = converted(mlp(8, 6, 5), keep_float=frozenset({"dense_2"}))
    found = view(model)
    kernels = [found.tensors[op.inputs[1]] for op in found.operators if op.name == "FULLY_CONNECTED"]
    assert [str(np.dtype(tensor.dtype)) for tensor in kernels] == ["int8", "float32", "int8", "int8"]
    np.testing.assert_array_equal(kernels[1].data, policy.weights["dense_2/kernel"].T)


def test_a_float_activation_is_not_drawn_to_int8_by_its_fixed_range():
    _, model = converted(mlp(8, activation="tanh"), keep_float=frozenset({"tanh_1"}))
    found = view(model)
    (tanh,) = (operator for operator in found.operators if operator.name == "TANH")
    assert found.tensors[tanh.inputs[0]].dtype is np.float32


def test_a_float_head_is_exact_up_to_its_input():
    policy, model = converted(mlp(8), keep_float=frozenset({"dense_2"}))
    found = view(model)
    assert operators(model) == ["QUANTIZE", "FULLY_CONNECTED", "DEQUANTIZE", "FULLY_CONNECTED"]
    last = found.operators[-1]
    np.testing.assert_array_equal(found.tensors[last.inputs[1]].data, policy.weights["dense_2/kernel"].T)


def test_what_cannot_be_is_refused():
    graph = mlp(8)
    policy = make_policy(graph)
    ranges = observed_ranges(graph, policy.weights)
    with pytest.raises(UsageError, match="no range for 'relu_1'"):
        convert_quantized(policy, {key: value for key, value in ranges.items() if key != "relu_1"})
    with pytest.raises(NonFiniteError):
        convert_quantized(policy, {**ranges, "relu_1": (0.0, np.nan)})
    huge = {name: array * np.float32(1e33) for name, array in policy.weights.items()}
    with pytest.raises(PatchError, match="weights"):
        convert_quantized(dataclasses.replace(policy, weights=huge), ranges)
