"""Policy graphs of every form, with random weights and ranges that fit them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quarl_device.contract import ActionSpec, Head, HeadKind, Normalizer, ObservationSpec, PolicyContract
from quarl_export.arithmetic import quantize_bias
from quarl_export.ir import GraphInput, ImportedPolicy, Layer, PolicyGraph
from quarl_export.ir.layers import WEIGHTED
from quarl_export.ir.reference import run_graph
from quarl_export.kernels import as_rows, layer_scales, write_kernel
from quarl_export.patch.values import PolicyValues
from quarl_export.range_plan import QuantizationOptions, RangePlan


class Build:
    """Adds layers one by one; every method returns the name of the layer that it ends with."""

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


def snapped(
    layer: Layer, kernel: Any, bias: Any, input_scale: float, *, options: QuantizationOptions
) -> tuple[Any, Any]:
    """Kernel and bias, float32, as a file applies them."""
    scales = layer_scales(layer, kernel, bias, input_scale, options=options)
    steps = np.empty(as_rows(layer, kernel).T.shape, np.float32)
    write_kernel(layer, kernel, scales, steps, scratch={})
    rows = np.ascontiguousarray((steps.astype(np.float64) * scales.kernel[:, None]).T, np.float32)
    if bias is not None:
        bias = (quantize_bias(bias, scales.bias) * scales.bias).astype(np.float32)
    return rows.reshape(kernel.shape), bias


def snapped_weights(plan: RangePlan, values: PolicyValues) -> dict[str, np.ndarray]:
    """The weights as the file applies them: on their grids, biases too, which fake quants leave alone."""
    quantizations = plan.quantizations(plan.effective(values.ranges))
    weights = dict(values.weights)
    for layer in plan.graph.layers:
        if layer.kind in WEIGHTED and layer.name in plan.live and layer.name not in plan.floats:
            kernel, bias = f"{layer.name}/kernel", f"{layer.name}/bias"
            scale = quantizations[str(plan.read_as(layer.inputs[0]))].scale
            weights[kernel], found = snapped(layer, weights[kernel], weights.get(bias), scale, options=plan.options)
            if found is not None:
                weights[bias] = found
    return weights


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


class _Random:
    """Draws a network in which every kind of layer and of joint may appear."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        keys = ["image", "state", "other"][: self.size(1, 3)]
        rng = self.rng
        shapes = {
            key: (self.size(5, 10), self.size(5, 10), self.size(1, 3))
            if key == "image" and rng.random() < 0.7
            else (self.size(1, 7),)
            for key in keys
        }
        self.build = Build(**shapes)

    def size(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def one_of(self, *choices: Any) -> Any:
        return choices[self.size(0, len(choices) - 1)]

    def activation(self) -> str:
        return str(self.one_of("relu", "relu", "relu6", "tanh", "sigmoid", ""))

    def seen(self, name: str) -> str:
        """An image becomes a vector."""
        for _ in range(self.size(0, 3)):
            rows, columns, _channels = self.build.shapes[name]
            window = (self.size(1, min(3, rows)), self.size(1, min(3, columns)))
            strides = (self.size(1, 2), self.size(1, 2))
            settings = {"strides": strides, "padding": self.one_of("same", "valid")}
            kind = self.one_of("conv", "conv", "depthwise", "max_pool2d", "average_pool2d")
            settings["bias"] = self.one_of(True, True, False)
            if kind == "conv":
                name = self.build.conv(name, self.size(1, 6), self.activation(), window=window, **settings)
            elif kind == "depthwise":
                # TensorFlow knows depthwise convolutions of equal strides alone.
                settings["strides"] = (strides[0],) * 2
                name = self.build.depthwise(name, self.size(1, 2), self.activation(), window=window, **settings)
            else:
                del settings["bias"]
                name = self.build.add(kind, name, pool_size=window, **settings)
        return self.build.add(self.one_of("flatten", "flatten", "global_average_pool2d"), name)

    def hidden(self, name: str) -> str:
        return self.build.dense(name, self.size(1, 12), self.activation(), bias=self.one_of(True, True, False))

    def joined(self, names: list[str]) -> str:
        name = names[0]
        for other in names[1:]:
            if self.one_of(True, False):
                name = self.build.add("concatenate", name, other)
            else:
                units = self.size(1, 6)
                sides = [self.build.dense(side, units, self.one_of("", "tanh", "relu")) for side in (name, other)]
                name = self.build.add(self.one_of("add", "subtract", "multiply"), *sides)
                if self.one_of(True, False):
                    name = self.build.add(self.one_of("relu", "relu6"), name)
        return name

    def head(self, trunk: str, units: int) -> str:
        kind = self.one_of("plain", "plain", "dueling", "gated", "residual")
        if kind == "dueling":
            advantage = self.build.dense(trunk, units)
            centred = self.build.add("subtract", advantage, self.build.add("mean", advantage))
            return self.build.add("add", centred, self.build.dense(trunk, 1))
        if kind == "gated":
            gate = self.build.dense(trunk, units, "sigmoid")
            return self.build.add("multiply", self.build.dense(trunk, units), gate)
        if kind == "residual":
            width = self.build.shapes[trunk][0]
            trunk = self.build.add("add", trunk, self.build.dense(trunk, width))
        return self.build.dense(trunk, units, self.one_of("", "", "tanh", "sigmoid", "softmax"))

    def graph(self) -> PolicyGraph:
        vectors = [self.seen(item.key) if len(item.shape) == 3 else item.key for item in self.build.inputs]
        trunk = self.joined(vectors)
        for _ in range(self.size(0, 2)):
            trunk = self.hidden(trunk)
        outputs = {"mean": self.head(trunk, self.size(1, 5)), "log_std": self.head(trunk, self.size(1, 3))}
        return self.build.graph(outputs)


def random_graph(seed: int) -> PolicyGraph:
    return _Random(seed).graph()


VALUE_KINDS = ("trained", "zero kernels", "zero biases", "equal values", "huge", "tiny", "symmetric ranges",
               "empty ranges", "big biases", "one dead unit", "mixed scales")  # fmt: skip


def shaped_values(graph: PolicyGraph, kind: str, seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Weights and ranges bent to one of the corners in which converters take shortcuts."""
    rng = np.random.default_rng(seed)
    weights = random_weights(graph, seed)
    ranges = observed_ranges(graph, weights, seed)
    kernels = [name for name in weights if name.endswith("kernel")]
    biases = [name for name in weights if name.endswith("bias")]
    if kind == "zero kernels":
        weights |= {name: np.zeros_like(weights[name]) for name in kernels if rng.random() < 0.6}
    elif kind == "zero biases":
        weights |= {name: np.zeros_like(weights[name]) for name in biases}
    elif kind == "equal values":
        weights |= {name: np.full_like(weights[name], 0.125) for name in weights}
    elif kind in ("huge", "tiny"):
        factor = np.float32(1e6 if kind == "huge" else 1e-5)
        weights = {name: array * factor for name, array in weights.items()}
        ranges = {name: (low * float(factor), high * float(factor)) for name, (low, high) in ranges.items()}
    elif kind == "symmetric ranges":
        ranges = {name: (-max(-low, high), max(-low, high)) for name, (low, high) in ranges.items()}
    elif kind == "empty ranges":
        ranges = {name: (0.0, 0.0) if rng.random() < 0.3 else found for name, found in ranges.items()}
    elif kind == "big biases":
        weights |= {name: weights[name] * np.float32(1e8) for name in biases}
    elif kind == "one dead unit":
        for name in kernels:
            weights[name] = weights[name].copy()
            weights[name][..., -1] = 0.0
    elif kind == "mixed scales":
        for name in kernels:
            spread = 10.0 ** rng.uniform(-9, 3, weights[name].shape[-1])
            weights[name] = (weights[name] * spread).astype(np.float32)
    return weights, ranges
