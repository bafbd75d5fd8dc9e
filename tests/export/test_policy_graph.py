"""A policy graph is checked when it is made, knows its ranges, and runs in numpy as TensorFlow would run it."""

import dataclasses

import numpy as np
import pytest

from quarl_device.contract import ActionSpec, Head, Normalizer, ObservationSpec, PolicyContract
from quarl_device.errors import NonFiniteError, UsageError
from quarl_export.ir import GraphInput, ImportedPolicy, Layer, PolicyGraph, run_reference
from quarl_export.ir.reference import normalize, run_graph
from quarl_export.keras2 import keras, tf


def layer(name, kind, *inputs, use_bias=True, **settings):
    return Layer(name=name, kind=kind, inputs=inputs, use_bias=use_bias, settings=settings)


def graph(inputs, layers, outputs, **weights):
    return PolicyGraph(
        inputs=tuple(GraphInput(key=key, shape=shape) for key, shape in inputs.items()),
        layers=tuple(layers), outputs=outputs, weight_shapes=weights,
    )  # fmt: skip


def mlp():
    return graph(
        {"observation": (4,)},
        [layer("a", "dense", "observation"), layer("a_relu", "relu", "a"), layer("q", "dense", "a_relu")],
        {"q_values": "q"},
        **{"a/kernel": (4, 8), "a/bias": (8,), "q/kernel": (8, 2), "q/bias": (2,)},
    )


def dueling():
    names = ("v", "a")
    weights = {f"{n}/kernel": (4, size) for n, size in zip(names, (1, 3), strict=True)}
    weights |= {f"{n}/bias": (size,) for n, size in zip(names, (1, 3), strict=True)}
    return graph(
        {"observation": (4,)},
        [
            layer("v", "dense", "observation"), layer("a", "dense", "observation"), layer("m", "mean", "a"),
            layer("c", "subtract", "a", "m"), layer("q", "add", "c", "v"),
        ],
        {"q_values": "q"}, **weights,
    )  # fmt: skip


def contract(head="q_values", key="observation", shape=(4,), **changes):
    return PolicyContract(
        env_id="", algorithm="dqn", scheme="", observations=(ObservationSpec(key=key, shape=shape),),
        head=Head(kind=head, outputs={head: ""}), action=ActionSpec(kind="discrete", n=2), **changes,
    )  # fmt: skip


def random_weights(of, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in of.weight_shapes.items()}


def test_shapes_follow_from_the_layers():
    assert mlp().shapes == {"observation": (4,), "a": (8,), "a_relu": (8,), "q": (2,)}
    assert dueling().shapes["q"] == (3,)


def test_a_relu_carries_its_dense_layers_range():
    assert mlp().fused == {"a": "a_relu"}
    assert mlp().range_sites() == ("observation", "a_relu", "q")
    assert dueling().range_sites() == ("observation", "v", "a", "m", "c", "q")


def test_what_is_an_output_is_not_fused_away():
    two = graph(
        {"observation": (4,)}, [layer("a", "dense", "observation"), layer("r", "relu", "a")],
        {"q_values": "r", "extra": "a"}, **{"a/kernel": (4, 8), "a/bias": (8,)},
    )  # fmt: skip
    assert two.fused == {}


def test_fixed_and_passed_on_ranges_are_no_sites():
    image = graph(
        {"image": (9, 9, 2)},
        [
            layer("c", "conv2d", "image", strides=(2, 2)), layer("r", "relu", "c"), layer("p", "max_pool2d", "r",
            pool_size=(2, 2), strides=(2, 2)), layer("f", "flatten", "p"), layer("d", "dense", "f"),
            layer("t", "tanh", "d"),
        ],
        {"action": "t"}, **{"c/kernel": (3, 3, 2, 5), "c/bias": (5,), "d/kernel": (20, 1), "d/bias": (1,)},
    )  # fmt: skip
    assert image.range_sites() == ("image", "r", "d")
    assert image.range_sites(keep_float=frozenset({"d"})) == ("image", "r")


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([layer("a", "dense", "nowhere")], "nowhere"),
        ([layer("a", "swish", "observation")], "unknown kind"),
        ([layer("a", "relu", "observation"), layer("a", "relu", "observation")], "different names"),
        ([layer("q", "dense", "observation")], "no array"),
        ([layer("q", "conv2d", "observation", use_bias=False)], "no array"),
        ([layer("q", "max_pool2d", "observation", pool_size=(2, 2))], "image"),
        ([layer("q", "add", "observation")], "two inputs"),
        ([layer("x", "relu", "observation")], "do not exist"),
        ([], "do not exist"),
    ],
)
def test_what_does_not_hold_is_refused_by_name(layers, says):
    with pytest.raises(UsageError, match=says):
        graph({"observation": (4,)}, layers, {"q_values": "q"})


def test_a_kernel_that_does_not_fit_names_its_layer():
    with pytest.raises(UsageError, match=r"'a' \(dense\).*kernel \(5, 8\)"):
        graph(
            {"observation": (4,)}, [layer("a", "dense", "observation")], {"q_values": "a"},
            **{"a/kernel": (5, 8), "a/bias": (8,)},
        )  # fmt: skip


def test_an_imported_policy_is_checked():
    weights = random_weights(mlp())
    ImportedPolicy(graph=mlp(), weights=weights, contract=contract())
    for changed, error in [
        ({"q/bias": np.zeros(3, np.float32)}, UsageError),
        ({"q/bias": np.zeros(2, np.float64)}, UsageError),
        ({"q/bias": np.array([0, np.nan], np.float32)}, NonFiniteError),
    ]:
        with pytest.raises(error):
            ImportedPolicy(graph=mlp(), weights={**weights, **changed}, contract=contract())
    with pytest.raises(UsageError, match="observations"):
        ImportedPolicy(graph=mlp(), weights=weights, contract=contract(key="other"))
    with pytest.raises(UsageError, match="head"):
        ImportedPolicy(graph=mlp(), weights=weights, contract=contract(head="logits"))


def test_the_normaliser_and_its_clip_come_first():
    normalizer = Normalizer(
        where="graph", offset={"observation": (1.0, 0, 0, 0)}, scale={"observation": (2.0,)}, clip=3.0
    )
    policy = ImportedPolicy(graph=mlp(), weights=random_weights(mlp()), contract=contract(normalizer=normalizer))
    raw = np.array([[2, 1, -9, 0.5]], np.float64)
    wanted = run_graph(mlp(), policy.weights, {"observation": np.float32([[2, 2, -3, 1]])})["q"]
    np.testing.assert_allclose(run_reference(policy, {"observation": raw})["q_values"], wanted)


@pytest.mark.parametrize(
    ("frame", "stack", "shape"),
    [
        ((3,), 4, (12,)),
        ((5, 6, 3), 1, (5, 6, 3)),
        ((5, 6, 3), 2, (5, 6, 6)),
        ((5, 6), 4, (5, 6, 4)),
        ((3, 5, 6), 1, (5, 6, 3)),
        ((3, 5, 6), 2, (5, 6, 6)),
        ((1, 5, 6), 1, (5, 6, 1)),
        ((2, 3), 1, (6,)),
        ((), 3, (3,)),
    ],
)
def test_frames_stack_in_the_last_axis_and_channels_come_last(frame, stack, shape):
    raw = np.random.default_rng(0).normal(size=(2, stack, *frame)).astype(np.float32)
    one = graph({"x": shape}, [layer("y", "relu", "x")], {"q_values": "y"})
    spec = ObservationSpec(key="x", shape=frame, stack=stack)
    policy = ImportedPolicy(graph=one, weights={}, contract=dataclasses.replace(contract(), observations=(spec,)))
    frames = [raw[:, n] for n in range(stack)]
    if len(frame) == 3 and len(shape) == 3 and frame[1:] == shape[:2]:
        frames = [np.transpose(each, (0, 2, 3, 1)) for each in frames]
    if (len(frame) == 2 and len(shape) == 3) or not frame:
        wanted = np.stack(frames, axis=-1)
    else:
        wanted = np.concatenate(frames, axis=-1)
    given = raw if stack > 1 else raw[:, 0]
    found = normalize(policy, {"x": given})["x"]
    np.testing.assert_array_equal(found, wanted.reshape(2, *shape))
    np.testing.assert_array_equal(normalize(policy, {"x": wanted})["x"], found)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (3, 3)])
@pytest.mark.parametrize("size", [7, 8])
def test_convolutions_and_pools_are_tensorflows(padding, strides, size):
    rng = np.random.default_rng(size)
    image = rng.normal(size=(2, size, size, 3)).astype(np.float32)
    kernel = rng.normal(size=(3, 2, 3, 4)).astype(np.float32)
    settings = {"strides": strides, "padding": padding}
    pool = {**settings, "pool_size": (3, 2)}
    cases = {
        "conv2d": (settings, kernel, tf.nn.conv2d(image, kernel, strides, padding.upper())),
        "depthwise_conv2d": (
            settings, kernel[..., :2],
            keras.layers.DepthwiseConv2D((3, 2), strides[:1] * 2, padding, depth_multiplier=2, use_bias=False,
                depthwise_initializer=keras.initializers.Constant(kernel[..., :2]))(image)
            if strides[0] == strides[1] else None,
        ),
        "max_pool2d": (pool, None, tf.nn.max_pool2d(image, (3, 2), strides, padding.upper())),
        "average_pool2d": (pool, None, tf.nn.avg_pool2d(image, (3, 2), strides, padding.upper())),
    }  # fmt: skip
    for kind, (given, weight, wanted) in cases.items():
        if wanted is None:
            continue
        weights = {} if weight is None else {"x/kernel": weight}
        one = graph(
            {"image": (size, size, 3)}, [layer("x", kind, "image", use_bias=False, **given)], {"q_values": "x"},
            **{name: array.shape for name, array in weights.items()},
        )  # fmt: skip
        found = run_graph(one, weights, {"image": image})["x"]
        assert found.shape[1:] == one.shapes["x"], kind
        np.testing.assert_allclose(found, wanted, atol=1e-4, err_msg=kind)


@pytest.mark.parametrize("kind", ["relu", "relu6", "tanh", "sigmoid", "softmax", "elu"])
def test_activations_are_tensorflows(kind):
    values = np.linspace(-9, 9, 40, dtype=np.float32).reshape(8, 5)
    one = graph({"x": (5,)}, [layer("y", kind, "x")], {"q_values": "y"})
    np.testing.assert_allclose(
        run_graph(one, {}, {"x": values})["y"], getattr(tf.nn, kind)(values).numpy(), rtol=1e-5, atol=1e-6
    )


def test_layer_norm_mean_multiply_and_concatenate_are_kerass():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(6, 5)).astype(np.float32)
    gamma, beta = (rng.normal(size=5).astype(np.float32) for _ in range(2))
    many = graph(
        {"x": (5,)},
        [
            layer("n", "layer_norm", "x", epsilon=1e-3), layer("m", "mean", "n"), layer("p", "multiply", "n", "m"),
            layer("c", "concatenate", "p", "x"),
        ],
        {"q_values": "c"}, **{"n/gamma": (5,), "n/beta": (5,)},
    )  # fmt: skip
    norm = keras.layers.LayerNormalization(
        gamma_initializer=keras.initializers.Constant(gamma), beta_initializer=keras.initializers.Constant(beta)
    )
    normed = norm(values).numpy()
    wanted = np.concatenate([normed * normed.mean(1, keepdims=True), values], 1)
    found = run_graph(many, {"n/gamma": gamma, "n/beta": beta}, {"x": values})
    np.testing.assert_allclose(found["c"], wanted, rtol=1e-4, atol=1e-5)
