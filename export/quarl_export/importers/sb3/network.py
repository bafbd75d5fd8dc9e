"""Builds a policy graph from torch weights, layer by layer, turning what torch has channels first.

torch flattens an image as channels, rows, columns, the graph as rows, columns, channels. `Features.order` remembers
where each element of a flat tensor lies in torch's order; the next dense layer takes its rows in that order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError, NonFiniteError, UnsupportedModel
from quarl_export.ir import Layer
from quarl_export.ir.layers import Kind

Float32 = NDArray[np.float32]
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """A tensor of the graph.

    Attributes:
        name: of the graph input or layer that gives it.
        shape: without batch; an image is rows, columns, channels.
        order: of a flat tensor, the place in torch's order of each element; `None` where the orders are the same.
    """

    name: str
    shape: Shape
    order: NDArray[np.intp] | None = None


class NetworkBuilder:
    """Collects layers and weights.

    Attributes:
        layers: so far, in order.
        weights: of them, float32, by the graph's names.
        widths: elements of each layer's output.
        what: for messages.

    Args:
        tensors: of the state dict that act.
        what: for messages.
        keys: of the observations, which are names of the graph too.
    """

    def __init__(self, tensors: Mapping[str, NDArray[np.generic]], *, what: str, keys: Collection[str] = ()) -> None:
        self._tensors = tensors
        self._names = set(keys)
        self._used: set[str] = set()
        self.layers: list[Layer] = []
        self.weights: dict[str, Float32] = {}
        self.widths: dict[str, int] = {}
        self.what = what

    def has(self, name: str) -> bool:
        """Tell whether the state dict has a tensor of that name that acts."""
        return name in self._tensors

    def places(self, prefix: str) -> list[int]:
        """Return the places in the Sequential at `prefix` that have weights, in order."""
        parts = (name.removeprefix(prefix).split(".")[0] for name in self._tensors if name.startswith(prefix))
        return sorted({int(part) for part in parts if part.isdecimal() and len(part) < 6})

    def take(self, name: str, *, axes: int) -> Float32:
        """Return a tensor.

        Raises:
            ModelFileError: not there.
            UnsupportedModel: of other axes or no floats: another layer than is expected at its place.
            NonFiniteError: NaN or Inf.
        """
        if name not in self._tensors:
            raise ModelFileError(f"{self.what}: the policy has no tensor {name!r}")
        array = self._tensors[name]
        if array.ndim != axes or array.dtype != np.float32:
            raise UnsupportedModel(
                f"{self.what}: {name} is {array.dtype}{list(array.shape)}, which is no layer that is exported there",
                hint="LayerNorm, BatchNorm and layers of your own inside the policy are not; train without them",
            )
        if not np.isfinite(array).all():
            raise NonFiniteError(
                f"{self.what}: {name} holds NaN or Inf", hint="the training diverged; export an earlier checkpoint"
            )
        self._used.add(name)
        return array.astype(np.float32)

    def skip(self, name: str) -> None:
        """Leave out a tensor that is of no use in acting."""
        self._used.add(name)

    def check_all_used(self) -> None:
        """Refuse acting tensors that no layer took.

        Raises:
            UnsupportedModel: naming the first.
        """
        left = sorted(set(self._tensors) - self._used)
        if left:
            raise UnsupportedModel(
                f"{self.what}: {left[0]} belongs to the acting network, but to no layer that is exported"
                + (f" (and {len(left) - 1} more)" if len(left) > 1 else ""),
                hint="custom networks are not exported; rebuild it in Keras, copy the weights, and export that",
            )

    def dense(self, name: str, features: Features, *, scale: float = 1.0, shift: float = 0.0) -> Features:
        """Add a Linear layer; what it gives is `scale` times as much, plus `shift`."""
        weight = self.take(f"{name}.weight", axes=2)
        (width,) = features.shape
        if weight.shape[1] != width:
            raise ModelFileError(f"{self.what}: {name} takes {weight.shape[1]} features, before it are {width}")
        rows = weight.T if features.order is None else weight.T[features.order]
        bias = self.take(f"{name}.bias", axes=1) if self.has(f"{name}.bias") else np.zeros(weight.shape[0], np.float32)
        return self.affine(name, features, rows * np.float32(scale), bias * np.float32(scale) + np.float32(shift))

    def affine(self, name: str, features: Features, kernel: Float32, bias: Float32) -> Features:
        """Add a dense layer of the graph's own `kernel` [in, out] and `bias` [out]."""
        if bias.shape != kernel.shape[1:]:
            raise ModelFileError(f"{self.what}: {name} has {bias.size} biases for {kernel.shape[1]} units")
        layer = Layer(name=self._layer_name(name), kind="dense", inputs=(features.name,))
        self._store(layer, kernel, bias)
        return self._add(layer, (kernel.shape[1],))

    def convolution(self, name: str, image: Features, *, stride: int) -> Features:
        """Add a Conv2d without padding."""
        weight = self.take(f"{name}.weight", axes=4)
        bias = self.take(f"{name}.bias", axes=1)
        rows, columns, channels = image.shape
        size = tuple(
            (extent - kernel) // stride + 1 for extent, kernel in zip((rows, columns), weight.shape[2:], strict=True)
        )
        if weight.shape[1] != channels or bias.shape != weight.shape[:1] or min(size) < 1:
            raise ModelFileError(
                f"{self.what}: {name} with weights of {weight.shape} does not fit an image of {image.shape}"
            )
        settings = {"strides": (stride, stride), "padding": "valid"}
        layer = Layer(name=self._layer_name(name), kind="conv2d", inputs=(image.name,), settings=settings)
        self._store(layer, weight.transpose(2, 3, 1, 0), bias)
        return self._add(layer, (*size, weight.shape[0]))

    def flatten(self, name: str, image: Features) -> Features:
        """Add a flatten of an image."""
        rows, columns, channels = image.shape
        order = np.arange(math.prod(image.shape)).reshape(channels, rows, columns).transpose(1, 2, 0).ravel()
        return self._add(Layer(name=self._layer_name(name), kind="flatten", inputs=(image.name,)), (order.size,), order)

    def concatenate(self, name: str, parts: Sequence[Features]) -> Features:
        """Add a concatenation of flat tensors; one alone stays as it is."""
        if len(parts) == 1:
            return parts[0]
        orders, start = [], 0
        for part in parts:
            own = np.arange(part.shape[0]) if part.order is None else part.order
            orders.append(own + start)
            start += part.shape[0]
        layer = Layer(name=self._layer_name(name), kind="concatenate", inputs=tuple(part.name for part in parts))
        return self._add(layer, (start,), np.concatenate(orders))

    def activation(self, name: str, features: Features, kind: Kind) -> Features:
        """Add an activation."""
        return self._add(
            Layer(name=self._layer_name(name), kind=kind, inputs=(features.name,)), features.shape, features.order
        )

    def _store(self, layer: Layer, kernel: Float32, bias: Float32) -> None:
        self.weights[f"{layer.name}/kernel"] = np.ascontiguousarray(kernel, np.float32)
        self.weights[f"{layer.name}/bias"] = np.ascontiguousarray(bias, np.float32)

    def _add(self, layer: Layer, shape: Shape, order: NDArray[np.intp] | None = None) -> Features:
        self.layers.append(layer)
        self.widths[layer.name] = math.prod(shape)
        return Features(name=layer.name, shape=shape, order=order)

    def _layer_name(self, path: str) -> str:
        """Return a module's path as a layer's name of its own: a key inside it may hold what TensorFlow refuses."""
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", path)
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name
