"""The layers of a policy graph: what each kind takes, what shape it gives, which weights it has.

All shapes are without batch; images are height, width, channels. Activations are layers of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from quarl_device.errors import UsageError

Shape = tuple[int, ...]
Kind = Literal[
    "dense",
    "conv2d",
    "depthwise_conv2d",
    "max_pool2d",
    "average_pool2d",
    "global_average_pool2d",
    "flatten",
    "mean",
    "add",
    "subtract",
    "multiply",
    "concatenate",
    "relu",
    "relu6",
    "tanh",
    "sigmoid",
    "softmax",
    "elu",
    "layer_norm",
]

ACTIVATIONS = frozenset({"relu", "relu6", "tanh", "sigmoid", "softmax", "elu"})
FUSED_ACTIVATIONS = frozenset({"relu", "relu6"})
"""Activations that a dense, convolution or arithmetic operator computes in its own int8 output."""

WEIGHTED = frozenset({"dense", "conv2d", "depthwise_conv2d"})
FLOAT_ONLY = frozenset({"elu", "layer_norm"})
"""Kinds without an int8 kernel that every runtime has: they need `--keep-float`."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer.

    Attributes:
        name: unique in the graph, as in the source where it has one.
        kind: what it computes.
        inputs: names of graph inputs or earlier layers.
        settings: "strides" (int, int), "pool_size" (int, int), "padding" "valid" or "same", where the kind has them;
            "epsilon" of layer_norm.
        use_bias: whether a weighted layer has a bias.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    use_bias: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    @property
    def strides(self) -> tuple[int, int]:
        """Strides of a convolution or pooling."""
        rows, columns = self.settings.get("strides", (1, 1))
        return int(rows), int(columns)

    @property
    def pool_size(self) -> tuple[int, int]:
        """Window of a pooling."""
        rows, columns = self.settings["pool_size"]
        return int(rows), int(columns)

    @property
    def padding(self) -> str:
        """Either "valid" or "same"."""
        return str(self.settings.get("padding", "valid"))

    def weight_names(self) -> tuple[str, ...]:
        """Return the names of its arrays: "<layer>/kernel", "<layer>/bias"; "gamma" and "beta" of a layer_norm."""
        if self.kind in WEIGHTED:
            return (f"{self.name}/kernel", f"{self.name}/bias") if self.use_bias else (f"{self.name}/kernel",)
        return (f"{self.name}/gamma", f"{self.name}/beta") if self.kind == "layer_norm" else ()


def output_shape(layer: Layer, inputs: list[Shape], kernel: Shape | None) -> Shape:
    """Return the shape that `layer` gives.

    Args:
        layer: the layer.
        inputs: shapes of what goes in, in order.
        kernel: shape of its kernel, `None` where it has none.

    Raises:
        UsageError: the inputs or the kernel do not fit the layer.
    """
    try:
        return _RULES[layer.kind](layer, inputs, kernel or ())
    except (ValueError, IndexError, KeyError, TypeError) as error:
        shown = f"inputs {inputs}" + (f", kernel {kernel}" if kernel else "")
        raise UsageError(f"layer {layer.name!r} ({layer.kind}) does not fit its {shown}: {error}") from error


def _require(holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"expected {expected}")


def _dense(_: Layer, inputs: list[Shape], kernel: Shape) -> Shape:
    (shape,) = inputs
    _require(len(shape) == 1, "one vector")
    _require(len(kernel) == 2 and kernel[0] == shape[0], f"a kernel of [{shape[0]}, units]")
    return (kernel[1],)


def _windows(layer: Layer, shape: Shape, window: tuple[int, int]) -> tuple[int, int]:
    _require(len(shape) == 3, "an image [height, width, channels]")
    _require(layer.padding in ("valid", "same"), "padding valid or same")
    _require(min(layer.strides) >= 1, "strides of at least 1")
    sizes = []
    for size, extent, stride in zip(shape[:2], window, layer.strides, strict=True):
        count = math.ceil(size / stride) if layer.padding == "same" else (size - extent) // stride + 1
        _require(count >= 1, f"at least {extent} rows and columns")
        sizes.append(count)
    return sizes[0], sizes[1]


def _conv2d(layer: Layer, inputs: list[Shape], kernel: Shape) -> Shape:
    (shape,) = inputs
    _require(len(kernel) == 4 and kernel[2] == shape[2], f"a kernel of [rows, columns, {shape[-1]}, filters]")
    return (*_windows(layer, shape, (kernel[0], kernel[1])), kernel[3])


def _depthwise(layer: Layer, inputs: list[Shape], kernel: Shape) -> Shape:
    (shape,) = inputs
    _require(len(kernel) == 4 and kernel[2] == shape[2], f"a kernel of [rows, columns, {shape[-1]}, multiplier]")
    return (*_windows(layer, shape, (kernel[0], kernel[1])), kernel[2] * kernel[3])


def _pool(layer: Layer, inputs: list[Shape], _: Shape) -> Shape:
    (shape,) = inputs
    return (*_windows(layer, shape, layer.pool_size), shape[2])


def _global_pool(_: Layer, inputs: list[Shape], __: Shape) -> Shape:
    (shape,) = inputs
    _require(len(shape) == 3, "an image [height, width, channels]")
    return (shape[2],)


def _flatten(_: Layer, inputs: list[Shape], __: Shape) -> Shape:
    (shape,) = inputs
    return (math.prod(shape),)


def _mean(_: Layer, inputs: list[Shape], __: Shape) -> Shape:
    (shape,) = inputs
    _require(len(shape) == 1, "one vector")
    return (1,)


def _elementwise(_: Layer, inputs: list[Shape], __: Shape) -> Shape:
    _require(len(inputs) == 2, "two inputs")
    wide, narrow = sorted(inputs, key=math.prod, reverse=True)
    _require(narrow in (wide, (1,)), "equal shapes, or one of a single element")
    return wide


def _concatenate(_: Layer, inputs: list[Shape], __: Shape) -> Shape:
    _require(len(inputs) >= 2, "at least two inputs")
    _require(len({shape[:-1] for shape in inputs}) == 1, "shapes that differ in the last axis only")
    return (*inputs[0][:-1], sum(shape[-1] for shape in inputs))


def _same(_: Layer, inputs: list[Shape], __: Shape) -> Shape:
    (shape,) = inputs
    return shape


_RULES: Mapping[str, Callable[[Layer, list[Shape], Shape], Shape]] = {
    "dense": _dense,
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise,
    "max_pool2d": _pool,
    "average_pool2d": _pool,
    "global_average_pool2d": _global_pool,
    "flatten": _flatten,
    "mean": _mean,
    "add": _elementwise,
    "subtract": _elementwise,
    "multiply": _elementwise,
    "concatenate": _concatenate,
    **dict.fromkeys((*sorted(ACTIVATIONS), "layer_norm"), _same),
}
KINDS = frozenset(_RULES)
