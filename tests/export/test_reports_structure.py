"""Layers are matched by structure: other names, other orders, other representations."""

import numpy as np
import pytest
from report_pairs import PAIRS, pair

from quarl_device.errors import UsageError
from quarl_device.flatbuffer import read_graph
from quarl_export.graph import repack
from quarl_export.reports.side import read_side
from quarl_export.reports.structure import dequantize, layer_names, layers_of, match, real_constant


def sides(name):
    return tuple(read_side(path) for path in pair(name))


def layers(side):
    return layers_of(side.graph, side.inputs)


@pytest.mark.parametrize("name", PAIRS)
def test_every_layer_has_its_twin(name):
    left, right = sides(name)
    ours, theirs = layers(left), layers(right)
    pairs = match(left.graph, ours, right.graph, theirs)
    assert sorted(its for _, its in pairs) == list(range(len(theirs)))
    for mine, its in pairs:
        assert ours[mine].kind == theirs[its].kind
        assert ours[mine].activation == theirs[its].activation


@pytest.mark.parametrize("name", PAIRS)
def test_matched_weights_are_the_same_up_to_rounding(name):
    left, right = sides(name)
    ours, theirs = layers(left), layers(right)
    for mine, its in match(left.graph, ours, right.graph, theirs):
        a, b = real_constant(left.graph, ours[mine].weights), real_constant(right.graph, theirs[its].weights)
        if a is not None:
            cosine = float(a.ravel() @ b.ravel()) / np.linalg.norm(a) / np.linalg.norm(b)
            # A normaliser folded into the first layer stretches its columns.
            assert cosine > (0.5 if mine == 0 else 0.999)


def names_of(side, layers):
    return layer_names([[(side.graph, layer)] for layer in layers])


def test_names_play_no_part():
    left, right = sides("dueling")
    mixed = {tensor.index: f"x{tensor.index * 7 % 31}" for tensor in right.graph.tensors}
    renamed = read_graph(repack(right.data, names=mixed))
    expected = match(left.graph, layers(left), right.graph, layers(right))
    assert match(left.graph, layers(left), renamed, layers_of(renamed, renamed.inputs)) == expected


def test_twin_branches_are_told_apart_by_their_weights():
    left, right = sides("dueling")
    ours, theirs = layers(left), layers(right)
    names, others = names_of(left, ours), names_of(right, theirs)
    found = {names[mine]: others[its] for mine, its in match(left.graph, ours, right.graph, theirs)}
    assert found["value_hidden"] == "value_hidden"
    assert found["advantage_hidden"] == "advantage_hidden"
    # Offered the other way round, they still find each other.
    places = [n for n, layer in enumerate(theirs) if others[n].endswith("_hidden")]
    swapped = list(theirs)
    first, second = places
    swapped[first], swapped[second] = theirs[second], theirs[first]
    swap = {first: second, second: first}
    swapped = [
        layer if not layer.inputs else type(layer)(
            **{**vars(layer), "inputs": tuple(swap.get(n, n) for n in layer.inputs)})
        for layer in swapped
    ]  # fmt: skip
    again = {names[mine]: its for mine, its in match(left.graph, ours, right.graph, swapped)}
    assert again["value_hidden"] == swap[next(n for n, name in enumerate(others) if name == "value_hidden")]


def test_prologue_quantize_and_reshape_are_no_layers():
    for name in PAIRS:
        for side in sides(name):
            assert not {layer.kind for layer in layers(side)} & {"QUANTIZE", "DEQUANTIZE", "RESHAPE"}
    assert [layer.kind for layer in layers(sides("qat")[1])] == ["FULLY_CONNECTED"] * 3


def test_names_are_short_and_differ():
    pixels, arm = sides("pixels")[0], sides("arm")[0]
    assert names_of(pixels, layers(pixels)) == ("conv_0", "conv_1", "dense", "logits")
    names = names_of(arm, layers(arm))
    assert len(set(names)) == len(names)
    assert names[:3] == ("first", "first tanh", "second")


def test_a_layer_without_a_name_in_one_file_takes_the_other_ones():
    left, right = sides("dueling")
    numbered = {tensor.index: f"policy/network/MatMul_{tensor.index}" for tensor in left.graph.tensors}
    nameless = read_graph(repack(left.data, names=numbered))
    ours, theirs = layers_of(nameless, left.inputs), layers(right)
    pairs = match(nameless, ours, right.graph, theirs)
    assert names_of(left, []) == ()
    assert layer_names([[(nameless, layer)] for layer in ours])[0] == "fully_connected_0"
    assert layer_names([((nameless, ours[a]), (right.graph, theirs[b])) for a, b in pairs])[0] == "trunk"


def test_other_networks_are_refused_with_what_differs():
    cartpole, dueling = sides("cartpole")[0], sides("dueling")[1]
    with pytest.raises(UsageError, match="2 layers"):
        match(cartpole.graph, layers(cartpole), dueling.graph, layers(dueling))
    arm = sides("arm")[0]
    ours = layers(arm)
    relu = [type(layer)(**{**vars(layer), "activation": "relu6"}) for layer in ours]
    with pytest.raises(UsageError, match=r"FULLY_CONNECTED of 12 \(operator 0\) has no counterpart"):
        match(arm.graph, ours, arm.graph, relu)


def test_per_channel_constants_become_real_numbers():
    side = sides("pixels")[1]
    [depthwise] = [layer for layer in layers(side) if layer.kind == "DEPTHWISE_CONV_2D"]
    tensor = side.graph.tensors[depthwise.weights]
    stored = side.graph.constant(tensor)
    real = dequantize(stored, tensor)
    for channel in range(4):
        scale = float(tensor.quantization.scales[channel])
        assert real[..., channel] == pytest.approx(stored[..., channel].astype(float) * scale)
