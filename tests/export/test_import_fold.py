"""Scalings leave a network without changing what it computes: into normaliser, weights or action."""

import numpy as np
import pytest
from draft_factory import Net, run_draft
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import UnsupportedModel
from quarl_export.ir.draft import Affine
from quarl_export.ir.fold import fold
from quarl_export.ir.policy_graph import GraphInput, PolicyGraph
from quarl_export.ir.reference import run_graph


def run_folded(folded, inputs):
    normalized = {}
    for name in folded.inputs:
        scale, shift = folded.normalizers.get(name, (1.0, 0.0))
        normalized[name] = (inputs[name] * scale + shift).astype(np.float32)
    graph = PolicyGraph(
        inputs=tuple(GraphInput(key=name, shape=shape) for name, shape in folded.inputs.items()),
        layers=folded.layers, outputs=folded.outputs,
        weight_shapes={name: array.shape for name, array in folded.weights.items()},
    )  # fmt: skip
    tensors = run_graph(graph, folded.weights, normalized)
    found = {}
    for role, name in folded.outputs.items():
        scale, shift = folded.output_affines.get(role, (1.0, 0.0))
        found[role] = tensors[name] * scale + shift
    return found


def check_equal(net, folded, draft):
    inputs = {name: net.rng.normal(size=(5, *shape)).astype(np.float32) for name, shape in net.inputs.items()}
    expected, found = run_draft(draft, inputs), run_folded(folded, inputs)
    for role, values in expected.items():
        np.testing.assert_allclose(found[role], values, rtol=2e-4, atol=2e-4)


def folded(net, *, open_outputs=frozenset(), **outputs):
    draft = net.draft(**outputs)
    result = fold(draft, open_outputs=open_outputs)
    check_equal(net, result, draft)
    return result


def kinds(result):
    return [layer.kind for layer in result.layers]


def test_behind_an_input_it_is_the_normaliser():
    net = Net(x=(4,))
    net.layer("dense", "q", net.affine("n2", net.affine("n1", "x", (4,)), (4,)), kernel=(4, 2))
    result = folded(net, q="q")
    assert kinds(result) == ["dense"]
    assert set(result.normalizers) == {"x"}


def test_behind_a_dense_layer_it_is_in_its_weights_and_gives_it_a_bias():
    net = Net(x=(4,))
    net.affine("bn", net.layer("dense", "d", "x", kernel=(4, 3), use_bias=False), (3,))
    result = folded(net, q="bn")
    assert kinds(result) == ["dense"]
    assert result.layers[0].use_bias
    assert not result.normalizers


@pytest.mark.parametrize("kind", ["conv2d", "depthwise_conv2d"])
def test_behind_a_convolution_it_is_in_its_weights(kind):
    net = Net(x=(5, 5, 2))
    net.layer(kind, "c", "x", kernel=(3, 3, 2, 3))
    channels = 3 if kind == "conv2d" else 6
    net.affine("bn", "c", (3, 3, channels))
    assert kinds(folded(net, q="bn")) == [kind]


@pytest.mark.parametrize("kind", ["conv2d", "depthwise_conv2d"])
@pytest.mark.parametrize(("padding", "shift"), [("valid", True), ("same", False)])
def test_before_a_convolution_it_is_in_its_weights(kind, padding, shift):
    net = Net(x=(5, 5, 2))
    net.layer("relu", "r", "x")
    net.layer(kind, "c", net.affine("bn", "r", (5, 5, 2), shift=shift), kernel=(3, 3, 2, 2), padding=padding)
    assert kinds(folded(net, q="c")) == ["relu", kind]


def test_a_shift_before_a_padded_convolution_needs_a_layer_of_its_own():
    net = Net(x=(5, 5, 2))
    net.layer("relu", "r", "x")
    net.layer("conv2d", "c", net.affine("bn", "r", (5, 5, 2)), kernel=(3, 3, 2, 2), padding="same")
    result = folded(net, q="c")
    assert kinds(result) == ["relu", "depthwise_conv2d", "conv2d"]
    assert "'bn'" in result.notes[0]


def test_behind_an_activation_it_moves_into_all_layers_behind():
    net = Net(x=(4,))
    net.affine("bn", net.layer("relu", "r", net.layer("dense", "d", "x", kernel=(4, 3))), (3,))
    net.layer("dense", "v", "bn", kernel=(3, 1))
    net.layer("dense", "a", "bn", kernel=(3, 2))
    net.layer("add", "q", "a", "v")
    assert kinds(folded(net, q="q")) == ["dense", "relu", "dense", "dense", "add"]


def test_it_moves_through_pooling_and_flattening():
    net = Net(x=(6, 6, 2))
    net.affine(
        "bn", net.layer("relu", "r", net.layer("conv2d", "c", "x", kernel=(3, 3, 2, 3))), (4, 4, 3), positive=True
    )
    net.layer("max_pool2d", "m", "bn", pool_size=(2, 2), strides=(2, 2))
    net.layer("dense", "q", net.layer("flatten", "f", "m"), kernel=(12, 2))
    assert kinds(folded(net, q="q")) == ["conv2d", "relu", "max_pool2d", "flatten", "dense"]


def test_a_negative_scale_does_not_pass_a_maximum():
    net = Net(x=(4, 4, 2))
    net.layer("relu", "r", "x")
    net.steps.append(Affine(name="bn", input="r", scale=np.full((4, 4, 2), -1.0), shift=np.zeros((4, 4, 2))))
    net.layer("global_average_pool2d", "g", net.layer("max_pool2d", "m", "bn", pool_size=(2, 2), strides=(2, 2)))
    assert kinds(folded(net, q="g")) == ["relu", "depthwise_conv2d", "max_pool2d", "global_average_pool2d"]


def test_behind_joined_inputs_each_gets_its_own_normaliser():
    net = Net(a=(2,), b=(3,))
    net.affine("n", net.layer("concatenate", "c", "a", "b"), (5,))
    net.layer("dense", "q", "n", kernel=(5, 2))
    result = folded(net, q="q")
    assert kinds(result) == ["concatenate", "dense"]
    assert result.normalizers["a"][0].shape == (2,)
    assert result.normalizers["b"][0].shape == (3,)


def test_on_one_part_of_a_concatenation_it_moves_behind_it():
    net = Net(a=(2,), b=(3,))
    net.layer("concatenate", "c", net.affine("n", net.layer("tanh", "t", "a"), (2,)), "b")
    net.layer("dense", "q", "c", kernel=(5, 2))
    assert kinds(folded(net, q="q")) == ["tanh", "concatenate", "dense"]


def test_behind_a_flattened_input_it_is_the_normaliser_of_the_image():
    net = Net(x=(3, 3, 2))
    net.layer("dense", "q", net.affine("n", net.layer("flatten", "f", "x"), (18,)), kernel=(18, 2))
    result = folded(net, q="q")
    assert result.normalizers["x"][0].shape == (3, 3, 2)
    assert kinds(result) == ["flatten", "dense"]


def test_an_input_that_is_also_read_raw_keeps_no_normaliser():
    net = Net(x=(4,))
    net.layer("dense", "d", net.affine("n", "x", (4,)), kernel=(4, 4))
    net.layer("add", "q", "d", "x")
    result = folded(net, q="q")
    assert not result.normalizers
    assert kinds(result) == ["dense", "add"]


def test_a_constant_element_is_no_normaliser_and_does_not_go_in_circles():
    net = Net(x=(2, 2, 1))
    net.layer("flatten", "f", "x")
    net.steps.append(Affine(name="n", input="f", scale=np.array([0.0, 1, 1, 1]), shift=np.ones(4)))
    net.layer("dense", "q", "n", kernel=(4, 2))
    result = folded(net, q="q")
    assert not result.normalizers
    assert kinds(result) == ["flatten", "dense"]


def test_at_an_open_output_it_is_handed_back():
    net = Net(x=(4,))
    net.affine("bounds", net.layer("tanh", "t", net.layer("dense", "d", "x", kernel=(4, 2))), (2,))
    result = folded(net, action="bounds", open_outputs=frozenset({"action"}))
    assert kinds(result) == ["dense", "tanh"]
    assert set(result.output_affines) == {"action"}


def test_at_a_closed_output_it_becomes_a_layer():
    net = Net(x=(4,))
    net.affine("scaled", net.layer("tanh", "t", "x"), (4,))
    assert kinds(folded(net, q="scaled")) == ["tanh", "dense"]


def test_what_changes_nothing_is_dropped():
    net = Net(x=(4,))
    net.layer("tanh", "t", "x")
    net.steps.append(Affine(name="one", input="t", scale=np.ones(4), shift=np.zeros(4)))
    assert kinds(folded(net, q="one")) == ["tanh"]


def test_what_no_output_needs_stays_behind():
    net = Net(x=(4,), critic_action=(2,))
    net.layer("dense", "q", "x", kernel=(4, 2))
    net.layer("concatenate", "c", "x", "critic_action")
    net.layer("dense", "critic", "c", kernel=(6, 1))
    result = folded(net, q="q")
    assert [layer.name for layer in result.layers] == ["q"]
    assert set(result.inputs) == {"x"}


def test_what_fits_nowhere_is_refused_by_name():
    net = Net(x=(4, 4, 2))
    net.layer("relu", "r", "x")
    net.layer("max_pool2d", "m", net.affine("pixelwise", "r", (4, 4, 2), even=False), pool_size=(2, 2), strides=(2, 2))
    with pytest.raises(UnsupportedModel, match="pixelwise"):
        fold(net.draft(q="m"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_network_computes_the_same_without_scalings(data):
    net = Net(seed=data.draw(st.integers(0, 10_000)), a=(3,), b=(3,))
    tensors = {"a": 3, "b": 3}
    for number in range(data.draw(st.integers(1, 9))):
        kind = data.draw(st.sampled_from(["affine", "affine", "dense", "relu", "tanh", "concatenate", "add"]))
        source = data.draw(st.sampled_from(sorted(tensors)))
        name, width = f"s{number}", tensors[source]
        if kind == "affine":
            net.affine(name, source, (width,))
        elif kind == "dense":
            width = data.draw(st.integers(1, 4))
            net.layer("dense", name, source, kernel=(tensors[source], width), use_bias=data.draw(st.booleans()))
        elif kind in ("relu", "tanh"):
            net.layer(kind, name, source)
        else:
            other = data.draw(st.sampled_from(sorted(key for key in tensors if kind != "add" or tensors[key] == width)))
            net.layer(kind, name, source, other)
            width += tensors[other] if kind == "concatenate" else 0
        tensors[name] = width
    outputs = data.draw(
        st.lists(st.sampled_from(sorted(set(tensors) - {"a", "b"})), min_size=1, max_size=2, unique=True)
    )
    opened = frozenset(data.draw(st.lists(st.sampled_from(["r0", "r1"]), unique=True)))
    draft = net.draft(**{f"r{n}": name for n, name in enumerate(outputs)})
    result = fold(draft, open_outputs=opened)
    assert not any(isinstance(layer, Affine) for layer in result.layers)
    check_equal(net, result, draft)
