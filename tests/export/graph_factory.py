"""Policy graphs of every form, with random weights and ranges that fit them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quarl_device.contract import ActionSpec, Head, HeadKind, Normalizer, ObservationSpec, PolicyContract
from quarl_export.ir import GraphInput, ImportedPolicy, Layer, PolicyGraph
from quarl_export.ir.layers import ACTIVATIONS, WEIGHTED
from quarl_export.ir.reference import run_graph


class Build:
    """Adds layers one by one; every method returns the new layer's name."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.inputs = tuple(GraphInput(key=key, shape=shape) for key, shape in inputs.items())
        self.layers: list[Layer] = []
        self.weights: dict[str, tuple[int, ...]] = {}
        self.shapes: dict[str, tuple[int, ...]] = dict(inputs)

    def add(self, kind: Any, *inputs: str, kernel: tuple[int, ...] = (), bias: bool = True, **settings: Any) -> str:
        name = f"{kind}_{len(self.layers)}"
        layer = Layer(name=name, kind=kind, inputs=inputs, settings=settings, use_bias=bias)
        self.layers.append(layer)
        if kind in WEIGHTED:
            self.weights[f"{name}/kernel"] = kernel
            if bias:
                units = kernel[2] * kernel[3] if kind == "depthwise_conv2d" else kernel[-1]
                self.weights[f"{name}/bias"] = (units,)
        if kind == "layer_norm":
            self.weights[f"{name}/gamma"] = self.weights[f"{name}/beta"] = self.shapes[inputs[0]]
        self.shapes[name] = dict(self.graph({"action": name}).shapes)[name]
        return name

    def dense(self, source: str, units: int, activation: str = "", *, bias: bool = True) -> str:
        name = self.add("dense", source, kernel=(*self.shapes[source], units), bias=bias)
        return self.add(activation, name) if activation else name

    def conv(self, source: str, filters: int, activation: str = "", *, window: tuple[int, int] = (3, 3),
             bias: bool = True, **settings: Any) -> str:  # fmt: skip
        kernel = (*window, self.shapes[source][-1], filters)
        name = self.add("conv2d", source, kernel=kernel, bias=bias, **settings)
        return self.add(activation, name) if activation else name

    def depthwise(self, source: str, multiplier: int, activation: str = "", *, window: tuple[int, int] = (3, 3),
                  bias: bool = True, **settings: Any) -> str:  # fmt: skip
        kernel = (*window, self.shapes[source][-1], multiplier)
        name = self.add("depthwise_conv2d", source, kernel=kernel, bias=bias, **settings)
        return self.add(activation, name) if activation else name

    def graph(self, outputs: Mapping[str, str]) -> PolicyGraph:
        return PolicyGraph(inputs=self.inputs, layers=tuple(self.layers), outputs=outputs, weight_shapes=self.weights)


def random_weights(graph: PolicyGraph, seed: int = 0) -> dict[str, np.ndarray]:
    """Kernels as an initializer draws them, small nonzero biases."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in graph.weight_shapes.items():
        fan_in = np.prod(shape[:-1]) if name.endswith("kernel") else 100.0
        weights[name] = (rng.normal(size=shape) * np.sqrt(2.0 / fan_in)).astype(np.float32)
    return weights


def random_inputs(graph: PolicyGraph, count: int = 64, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {item.key: rng.normal(size=(count, *item.shape)).astype(np.float32) for item in graph.inputs}


def observed_ranges(graph: PolicyGraph, weights: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, Any]:
    tensors = run_graph(graph, weights, random_inputs(graph, 256, seed))
    return {name: (float(values.min()), float(values.max())) for name, values in tensors.items()}


def make_policy(graph: PolicyGraph, *, seed: int = 0, normalizer: Normalizer | None = None, kind: HeadKind = "action",
                weights: Mapping[str, np.ndarray] | None = None) -> ImportedPolicy:  # fmt: skip
    contract = PolicyContract(
        env_id="", algorithm="test", scheme="",
        observations=tuple(ObservationSpec(key=item.key, shape=item.shape) for item in graph.inputs),
        head=Head(kind=kind, outputs=dict.fromkeys(graph.outputs, "")), action=ActionSpec(kind="discrete", n=2),
        normalizer=normalizer or Normalizer(),
    )  # fmt: skip
    return ImportedPolicy(graph=graph, weights=weights or random_weights(graph, seed), contract=contract)


def mlp(*hidden: int, inputs: int = 4, outputs: int = 2, activation: str = "relu", head: str = "") -> PolicyGraph:
    build = Build(observation=(inputs,))
    last = "observation"
    for units in hidden:
        last = build.dense(last, units, activation)
    return build.graph({"action": build.dense(last, outputs, head)})


def dueling(head: int = 3) -> PolicyGraph:
    build = Build(observation=(6,))
    trunk = build.dense("observation", 12, "relu")
    value = build.dense(build.dense(trunk, 8, "relu"), 1)
    advantage = build.dense(build.dense(trunk, 8, "relu"), head)
    centred = build.add("subtract", advantage, build.add("mean", advantage))
    return build.graph({"q_values": build.add("add", centred, value)})


def cnn() -> PolicyGraph:
    build = Build(image=(12, 12, 2))
    last = build.conv("image", 4, "relu", strides=(2, 2), padding="same")
    last = build.depthwise(last, 2, "relu6", padding="same")
    last = build.add("max_pool2d", last, pool_size=(2, 2), strides=(2, 2))
    last = build.add("flatten", build.conv(last, 6, "relu", window=(2, 2)))
    return build.graph({"action": build.dense(build.dense(last, 10, "relu"), 3)})


def two_inputs() -> PolicyGraph:
    """An image and a vector meet in a concatenation; mean and log_std leave."""
    build = Build(image=(8, 8, 1), state=(3,))
    seen = build.add("flatten", build.conv("image", 3, "relu", strides=(2, 2)))
    joined = build.add("concatenate", seen, "state")
    trunk = build.dense(joined, 8, "tanh")
    return build.graph({"mean": build.dense(trunk, 2), "log_std": build.dense(trunk, 2, "tanh")})


__all__ = ["ACTIVATIONS", "Build", "cnn", "dueling", "make_policy", "mlp", "observed_ranges", "random_inputs",
           "random_weights", "two_inputs"]  # fmt: skip
