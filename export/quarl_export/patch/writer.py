"""Writes a policy's values into their places in a file's bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import NonFiniteError, PatchError
from quarl_export.arithmetic import Quantization, quantize_bias
from quarl_export.graph import GraphView, TensorView, operator_version, repack, view
from quarl_export.ir.layers import Layer
from quarl_export.kernels import LayerScales, Scratch, as_channels, channel_blocks, layer_scales, write_kernel
from quarl_export.lanes import in_lanes, processors
from quarl_export.patch.places import LayerPlace, Places, float_layout
from quarl_export.patch.values import PolicyValues, check_values, clip_bound
from quarl_export.range_plan import RangePlan
from quarl_export.wide import FINER

# From here on threads are worth what it takes to start them.
_SHARED_WEIGHTS = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class _LayerValues:
    """What is written into one layer's views, computed before anything is written.

    Attributes:
        scales: unrounded.
        input_scale: of what the layer reads, unrounded.
        bias: steps, `None` where the layer has none.
        bias_scale: of the file's bias.
    """

    scales: LayerScales
    input_scale: float
    bias: NDArray[np.float64] | None
    bias_scale: NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _LayerViews:
    """Views on one layer's tensors, into the file's bytes; the bias is `None` where the operator has none.

    Of a layer that reads int16 also the scale of what it reads: its own copy of the source, in finer steps.
    """

    place: LayerPlace
    wide_source_scale: NDArray[np.float32] | None
    kernel: NDArray[np.int8]
    kernel_scale: NDArray[np.float32]
    bias: NDArray[np.int32] | NDArray[np.int64] | None
    bias_scale: NDArray[np.float32] | None


class Writer:
    """A converted file with cached views on everything that a policy decides.

    Not thread-safe: `write` fills one buffer and hands out a copy.

    Args:
        model: the converted file, in which every tensor has a buffer of its own (`quarl_export.graph.repack`).
        plan: of the network.
        places: where its values are.
        normalizer_shapes: per observation key that the file normalises, shape of its offset and scale.

    Attributes:
        plan: as given.
        normalizer_shapes: as given.
    """

    def __init__(
        self, model: bytes, *, plan: RangePlan, places: Places, normalizer_shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.plan = plan
        self.normalizer_shapes = dict(normalizer_shapes)
        self._places = places
        self._buffer = bytearray(model)
        weights = sum(math.prod(shape) for shape in plan.graph.weight_shapes.values())
        self._scratch: list[Scratch] = [{} for _ in range(processors() if weights >= _SHARED_WEIGHTS else 1)]
        graph = view(self._buffer)
        self._carriers = [
            (site, [_quantization_views(graph.tensors[index]) for index in indices])
            for site, indices in places.carriers.items()
        ]
        self._layers = [_layer_views(graph, place) for place in places.layers]
        self._floats = {name: _data(graph.tensors[index]) for name, index in places.floats.items()}
        self._multiply = operator_version(self._buffer, "MUL")
        self._products = _products(plan)
        self._normalizer = {
            key: [_data(graph.tensors[index]) for index in indices] for key, indices in places.normalizer.items()
        }

    @property
    def data(self) -> bytes:
        """The file as last written; every write has its size."""
        return bytes(self._buffer)

    def with_metadata(self, entries: Mapping[str, bytes]) -> Writer:
        """Return a writer whose files carry these metadata entries."""
        return Writer(
            repack(self.data, metadata=entries),
            plan=self.plan,
            places=self._places,
            normalizer_shapes=self.normalizer_shapes,
        )

    def write(self, values: PolicyValues) -> bytes:
        """Return the complete file of `values`; where they are refused, the file as last written stays as it is.

        Raises:
            PatchError: another network, or a weight or bias beyond what can be quantized.
            UsageError: a range is missing or the wrong way round.
            NonFiniteError: NaN or Inf anywhere.
        """
        check_values(values, self.plan, self.normalizer_shapes)
        quantizations = self.plan.quantizations(self.plan.effective(values.ranges))
        # All that can be refused is computed first: below here nothing raises.
        layers = self._all_layer_values(values.weights, quantizations)
        self._check_floats(values)
        for site, views in self._carriers:
            quantization = quantizations[site]
            for scale, zero_point, shift in views:
                scale[0] = quantization.scale
                zero_point[0] = quantization.zero_point + shift
        self._write_kernels(layers, values.weights)
        for layer, found in zip(self._layers, layers, strict=True):
            _write_scales(layer, found)
        self._write_floats(values)
        if self._multiply is not None and self._products:
            self._multiply[0] = 3 if any(_is_steep(names, quantizations) for names in self._products) else 2
        return self.data

    def _all_layer_values(
        self, weights: Mapping[str, NDArray[np.float32]], quantizations: Mapping[str, Quantization]
    ) -> list[_LayerValues]:
        def task(views: _LayerViews) -> Callable[[int], _LayerValues]:
            return lambda _lane: self._layer_values(views, weights, quantizations[views.place.source].scale)

        return in_lanes([task(views) for views in self._layers], len(self._scratch))

    def _layer_values(
        self, views: _LayerViews, weights: Mapping[str, NDArray[np.float32]], input_scale: float
    ) -> _LayerValues:
        layer = views.place.layer
        kernel, bias = weights[f"{layer.name}/kernel"], weights.get(f"{layer.name}/bias")
        scales = layer_scales(layer, kernel, bias, input_scale, options=self.plan.options)
        finer = 1 if views.wide_source_scale is None else FINER
        return _LayerValues(
            scales=scales,
            input_scale=input_scale,
            bias=quantize_bias(bias, scales.bias) * finer if bias is not None and views.bias is not None else None,
            bias_scale=scales.bias.astype(np.float32) / finer,
        )

    def _write_kernels(self, layers: Sequence[_LayerValues], weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Write all kernels, a share of each large one in every lane."""
        lanes = len(self._scratch)

        def task(write: Callable[..., None]) -> Callable[[int], None]:
            return lambda lane: write(scratch=self._scratch[lane])

        tasks: list[Callable[[int], None]] = []
        for views, values in zip(self._layers, layers, strict=True):
            layer = views.place.layer
            kernel = weights[f"{layer.name}/kernel"]
            blocks = channel_blocks(layer, kernel)
            for share in range(min(lanes, len(blocks))):
                write = partial(write_kernel, layer, kernel, values.scales, views.kernel, blocks=blocks[share::lanes])
                tasks.append(task(write))
        in_lanes(tasks, lanes)

    def _check_floats(self, values: PolicyValues) -> None:
        for name in self._floats:
            if not np.isfinite(values.weights[name]).all():
                raise NonFiniteError(f"policy: {name} holds NaN or Inf")

    def _write_floats(self, values: PolicyValues) -> None:
        layers: Mapping[str, Layer] = {
            name: layer
            for layer in self.plan.graph.layers
            if layer.name in self.plan.floats
            for name in layer.weight_names()
        }
        for name, target in self._floats.items():
            target[...] = float_layout(layers[name], name, values.weights[name]).reshape(target.shape)
        for key, targets in self._normalizer.items():
            offset, scale = values.normalizer[key]
            arrays = [offset, scale]
            if len(targets) > 2:
                bound = clip_bound(scale, self.plan.clip)
                arrays += [bound, -bound]
            for target, array in zip(targets, arrays, strict=True):
                target[...] = array.reshape(target.shape)


def _write_scales(views: _LayerViews, values: _LayerValues) -> None:
    """Write all of a layer but its kernel."""
    views.kernel_scale[:] = values.scales.kernel
    if views.wide_source_scale is not None:
        views.wide_source_scale[0] = np.float32(values.input_scale) / FINER
    if views.bias is not None and views.bias_scale is not None:
        views.bias_scale[:] = values.bias_scale
        if values.bias is not None:
            np.copyto(views.bias, values.bias, casting="unsafe")


def _products(plan: RangePlan) -> list[tuple[str, str, str]]:
    """Return the sites of both inputs and the output of every int8 multiplication."""
    found = []
    for layer in plan.graph.layers:
        if layer.kind == "multiply" and layer.name in plan.live and layer.name not in plan.floats:
            names = (*layer.inputs, plan.graph.fused.get(layer.name, layer.name))
            one, other, result = (str(plan.read_as(name)) for name in names)
            found.append((one, other, result))
    return found


def _is_steep(sites: tuple[str, str, str], quantizations: Mapping[str, Quantization]) -> bool:
    """Whether one step of the product is more than one of the output, which takes version 3 of the kernel."""
    one, other, result = (np.float32(quantizations[site].scale) for site in sites)
    return bool(one * other / result >= 1.0)


def _quantization_views(tensor: TensorView) -> tuple[NDArray[np.float32], NDArray[np.int64], int]:
    if tensor.scale is None or tensor.zero_point is None:
        raise PatchError(f"tensor {tensor.name!r} is not quantized")
    return tensor.scale, tensor.zero_point, 128 if tensor.dtype is np.uint8 else 0


def _layer_views(graph: GraphView, place: LayerPlace) -> _LayerViews:
    kernel = graph.tensors[place.kernel]
    bias = graph.tensors[place.bias] if place.bias >= 0 else None
    (user,) = (operator for operator in graph.operators if place.kernel in operator.inputs)
    source = graph.tensors[user.inputs[0]]
    if kernel.scale is None or (bias is not None and bias.scale is None):
        raise PatchError(f"the tensors of {place.layer.name!r} are not quantized")
    return _LayerViews(
        place=place,
        wide_source_scale=source.scale if source.dtype is np.int16 else None,
        kernel=as_channels(place.layer, _data(kernel)),
        kernel_scale=kernel.scale,
        bias=None if bias is None else _data(bias),
        bias_scale=None if bias is None else bias.scale,
    )


def _data(tensor: TensorView) -> NDArray[Any]:
    if tensor.data is None:
        raise PatchError(f"tensor {tensor.name!r} is not a constant")
    return tensor.data
