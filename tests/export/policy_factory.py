"""Small imported policies of every kind of network, with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from quarl_device.contract import ActionSpec, Head, Normalizer, ObservationSpec, PolicyContract
from quarl_export.ir import GraphInput, ImportedPolicy, Layer, PolicyGraph


def layer(name: str, kind: str, *inputs: str, use_bias: bool = True, **settings: Any) -> Layer:
    return Layer(name=name, kind=kind, inputs=inputs, use_bias=use_bias, settings=settings)  # type: ignore[arg-type]


def make_policy(
    inputs: dict[str, tuple[int, ...]],
    layers: list[Layer],
    shapes: dict[str, tuple[int, ...]],
    *,
    output: str,
    head: str = "q_values",
    box: bool = False,
    seed: int = 0,
    normalizer: Normalizer | None = None,
    bounds: dict[str, tuple[float, float]] | None = None,
    dtype: str = "float32",
) -> ImportedPolicy:
    graph = PolicyGraph(
        inputs=tuple(GraphInput(key=key, shape=shape) for key, shape in inputs.items()),
        layers=tuple(layers),
        outputs={head: output},
        weight_shapes=shapes,
    )
    rng = np.random.default_rng(seed)
    fans = {name: max(1, int(np.prod(shape[:-1]))) for name, shape in shapes.items()}
    weights = {
        name: rng.normal(0, 1 / np.sqrt(fans[name]) if len(shape) > 1 else 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    width = graph.shapes[output][0]
    action = ActionSpec(kind="discrete", n=width)
    if box:
        action = ActionSpec(
            kind="box", shape=(width,), low=(-2.0,) * width, high=(2.0,) * width, scale=(2.0,) * width,
            offset=(0.0,) * width,
        )  # fmt: skip
    limits = bounds or {}
    contract = PolicyContract(
        env_id="", algorithm="test", scheme="", head=Head(kind=head, outputs={head: ""}), action=action,  # type: ignore[arg-type]
        observations=tuple(
            ObservationSpec(
                key=key, shape=shape, dtype=dtype,
                low=None if key not in limits else limits[key][:1], high=None if key not in limits else limits[key][1:],
            )
            for key, shape in inputs.items()
        ),
        normalizer=normalizer or Normalizer(),
    )  # fmt: skip
    return ImportedPolicy(graph=graph, weights=weights, contract=contract)


def mlp(
    *, hidden: int = 16, inputs: int = 4, actions: int = 3, use_bias: bool = True, **changes: Any
) -> ImportedPolicy:
    shapes: dict[str, tuple[int, ...]] = {"a/kernel": (inputs, hidden), "q/kernel": (hidden, actions)}
    if use_bias:
        shapes |= {"a/bias": (hidden,), "q/bias": (actions,)}
    layers = [
        layer("a", "dense", "observation", use_bias=use_bias),
        layer("r", "relu", "a"),
        layer("q", "dense", "r", use_bias=use_bias),
    ]
    return make_policy({"observation": (inputs,)}, layers, shapes, output="q", **changes)


def tanh_actor(**changes: Any) -> ImportedPolicy:
    layers = [
        layer("a", "dense", "observation"), layer("r", "tanh", "a"), layer("d", "dense", "r"), layer("t", "tanh", "d"),
    ]  # fmt: skip
    shapes = {"a/kernel": (3, 16), "a/bias": (16,), "d/kernel": (16, 2), "d/bias": (2,)}
    return make_policy({"observation": (3,)}, layers, shapes, output="t", head="action", box=True, **changes)


def dueling(**changes: Any) -> ImportedPolicy:
    layers = [
        layer("h", "dense", "observation"), layer("r", "relu", "h"), layer("v", "dense", "r"), layer("a", "dense", "r"),
        layer("m", "mean", "a"), layer("c", "subtract", "a", "m"), layer("q", "add", "c", "v"),
    ]  # fmt: skip
    shapes = {
        "h/kernel": (4, 16), "h/bias": (16,), "v/kernel": (16, 1), "v/bias": (1,), "a/kernel": (16, 3), "a/bias": (3,),
    }  # fmt: skip
    return make_policy({"observation": (4,)}, layers, shapes, output="q", **changes)


def image_policy(**changes: Any) -> ImportedPolicy:
    """uint8 pixels, divided by 255 by the normaliser."""
    layers = [
        layer("c", "conv2d", "observation", strides=(2, 2)), layer("r", "relu", "c"),
        layer("p", "max_pool2d", "r", pool_size=(2, 2), strides=(2, 2)), layer("f", "flatten", "p"),
        layer("q", "dense", "f"),
    ]  # fmt: skip
    shapes = {"c/kernel": (3, 3, 2, 5), "c/bias": (5,), "q/kernel": (20, 3), "q/bias": (3,)}
    normalizer = Normalizer(where="graph", offset={"observation": (0.0,)}, scale={"observation": (1 / 255,)})
    return make_policy(
        {"observation": (9, 9, 2)}, layers, shapes, output="q", normalizer=normalizer, dtype="uint8",
        bounds={"observation": (0.0, 255.0)}, **changes,
    )  # fmt: skip


def mixed(**changes: Any) -> ImportedPolicy:
    """An image and a vector, joined."""
    layers = [
        layer("c", "conv2d", "image", strides=(2, 2)), layer("r", "relu", "c"), layer("f", "flatten", "r"),
        layer("v", "dense", "vector"), layer("vr", "relu", "v"), layer("j", "concatenate", "f", "vr"),
        layer("q", "dense", "j"),
    ]  # fmt: skip
    shapes = {
        "c/kernel": (3, 3, 1, 4), "c/bias": (4,), "v/kernel": (3, 6), "v/bias": (6,), "q/kernel": (42, 2),
        "q/bias": (2,),
    }  # fmt: skip
    return make_policy({"image": (7, 7, 1), "vector": (3,)}, layers, shapes, output="q", **changes)


def with_norm(*, activation: str = "relu", **changes: Any) -> ImportedPolicy:
    """A layer norm that reads what an int8 layer gives, or behind an ELU what a float one does."""
    layers = [
        layer("a", "dense", "observation"), layer("e", activation, "a"), layer("n", "layer_norm", "e"),
        layer("q", "dense", "n"),
    ]  # fmt: skip
    shapes = {
        "a/kernel": (4, 8), "a/bias": (8,), "n/gamma": (8,), "n/beta": (8,), "q/kernel": (8, 3), "q/bias": (3,),
    }  # fmt: skip
    return make_policy({"observation": (4,)}, layers, shapes, output="q", **changes)


def with_elu(**changes: Any) -> ImportedPolicy:
    return with_norm(activation="elu", **changes)


def rows(policy: ImportedPolicy, count: int, *, seed: int = 0, spread: float = 1.0) -> dict[str, np.ndarray]:
    """Observations in the contract's dtypes."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for spec in policy.contract.observations:
        if spec.dtype == "uint8":
            arrays[spec.key] = rng.integers(0, 256, (count, *spec.shape), dtype=np.uint8)
        else:
            arrays[spec.key] = rng.normal(0, spread, (count, *spec.shape)).astype(spec.dtype)
    return arrays
