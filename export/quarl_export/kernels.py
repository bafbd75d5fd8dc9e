"""How the kernel and bias of one layer become int8 and int32, in the layout of a TFLite file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import NonFiniteError
from quarl_export.arithmetic import (
    Float32,
    bias_floor,
    channel_scales,
    checked_limit,
    quantize_channels,
    quantize_kernel,
    weight_scale,
    widened_limit,
)
from quarl_export.ir.layers import WEIGHTED, Layer
from quarl_export.range_plan import QuantizationOptions, RangePlan

# Kernels are written transposed, in blocks of channels that stay in the cache.
_BLOCK_WEIGHTS = 1 << 17

Scratch = dict[tuple[tuple[int, ...], Any], NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerScales:
    """Unrounded scales of one layer, ``[1]`` or ``[channels]``.

    Attributes:
        kernel: of the weights.
        bias: of the bias, the product with the input's scale as a rule.
        limit: end of the kernel's 8-bit range where the layer has one scale, else `None`.
    """

    kernel: NDArray[np.float64]
    bias: NDArray[np.float64]
    limit: np.float32 | None


def has_one_scale(layer: Layer, options: QuantizationOptions) -> bool:
    """Whether the kernel of `layer` has one scale, by a fake quant; others the converter quantizes per channel."""
    return layer.kind == "dense" and not options.per_channel


def is_convertible(plan: RangePlan) -> bool:
    """Whether TensorFlow's converter can make the files of `plan`: a kernel per channel it scales to 8 bits only."""
    layers = (layer for layer in plan.graph.layers if layer.kind in WEIGHTED and layer.name in plan.live - plan.floats)
    return plan.options.weight_bits == 8 or all(has_one_scale(layer, plan.options) for layer in layers)


def as_rows(layer: Layer, kernel: Float32) -> Float32:
    """Return `kernel` as ``[rows, channels]``, without a copy where it is contiguous."""
    channels = kernel.shape[2] * kernel.shape[3] if layer.kind == "depthwise_conv2d" else kernel.shape[-1]
    return kernel.reshape(-1, channels)


def as_channels(layer: Layer, tensor: NDArray[Any]) -> NDArray[Any]:
    """Return the data of a TFLite kernel as ``[channels, rows]``: a view."""
    if layer.kind == "depthwise_conv2d":
        return tensor.reshape(-1, tensor.shape[-1]).T
    return tensor.reshape(tensor.shape[0], -1)


def file_shape(layer: Layer, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a kernel of `shape` has in a TFLite file."""
    if layer.kind == "dense":
        return shape[::-1]
    rows, columns, inputs, outputs = shape
    if layer.kind == "depthwise_conv2d":
        return (1, rows, columns, inputs * outputs)
    return (outputs, rows, columns, inputs)


def layer_scales(
    layer: Layer, kernel: Float32, bias: Float32 | None, input_scale: float, *, options: QuantizationOptions
) -> LayerScales:
    """Return the scales of `layer`.

    Args:
        layer: a dense or convolution layer.
        kernel: as in the policy graph.
        bias: ``[channels]``, `None` where the layer has none.
        input_scale: unrounded scale of what the layer reads.
        options: see `QuantizationOptions`.

    Raises:
        NonFiniteError: NaN or Inf in either.
        PatchError: a weight is beyond what can be quantized.
    """
    if bias is not None and not _is_finite(bias):
        raise NonFiniteError(f"policy: {layer.name}/bias holds NaN or Inf")
    bits = options.weight_bits
    if has_one_scale(layer, options):
        floor = options.min_weight_range
        if options.bias_opens_weights:
            floor = max(floor, bias_floor(bias, input_scale, bits=bits))
        magnitude = _magnitude(kernel)
        if not math.isfinite(magnitude):
            raise NonFiniteError(f"policy: {layer.name}/kernel holds NaN or Inf")
        limit = widened_limit(checked_limit(magnitude, floor=floor), bits)
        scale = np.array([weight_scale(limit)])
        return LayerScales(kernel=scale, bias=scale * input_scale, limit=limit)
    rows = as_rows(layer, kernel)
    limits = np.maximum(rows.max(axis=0), -rows.min(axis=0))
    if not np.isfinite(limits).all():
        raise NonFiniteError(f"policy: {layer.name}/kernel holds NaN or Inf")
    scales, bias_scales = channel_scales(limits, bias, input_scale, bits=bits)
    return LayerScales(kernel=scales, bias=bias_scales, limit=None)


def channel_blocks(layer: Layer, kernel: Float32) -> list[range]:
    """Return the channels of `kernel` in the pieces that `write_kernel` writes one after the other."""
    rows, channels = as_rows(layer, kernel).shape
    block = max(1, min(channels, _BLOCK_WEIGHTS // rows))
    return [range(start, min(start + block, channels)) for start in range(0, channels, block)]


def write_kernel(
    layer: Layer,
    kernel: Float32,
    scales: LayerScales,
    target: NDArray[Any],
    *,
    scratch: Scratch,
    blocks: Sequence[range] | None = None,
) -> None:
    """Write `kernel` in steps.

    Args:
        layer: whose kernel.
        kernel: as in the policy graph.
        scales: from `layer_scales`.
        target: ``[channels, rows]`` of any dtype, such as `as_channels` gives.
        scratch: kept by the caller from call to call, so that nothing is allocated.
        blocks: of `channel_blocks`, those to write; by default all.
    """
    weights = as_rows(layer, kernel)
    for channels in channel_blocks(layer, kernel) if blocks is None else blocks:
        part = weights[:, channels.start : channels.stop]
        steps, whole = (_scratch(scratch, part.shape, dtype) for dtype in (np.float32, np.int8))
        if scales.limit is None:
            work = _scratch(scratch, part.shape, "work")
            quantize_channels(part, scales.kernel[channels.start : channels.stop], steps, work)
        else:
            quantize_kernel(part, scales.limit, steps)
        # As whole bytes first: transposing floats takes four times as long.
        np.copyto(whole, steps, casting="unsafe")
        target[channels.start : channels.stop] = whole.T


def _scratch(scratch: Scratch, shape: tuple[int, ...], use: Any) -> NDArray[Any]:
    if (shape, use) not in scratch:
        scratch[shape, use] = np.empty(shape, np.float32 if use == "work" else use)
    return scratch[shape, use]


def _magnitude(kernel: Float32) -> np.float32:
    """Return the largest magnitude, NaN where there is one; what is in the cache is looked at twice, not the memory."""
    flat = kernel.reshape(-1)
    parts = (flat[start : start + _BLOCK_WEIGHTS] for start in range(0, flat.size, _BLOCK_WEIGHTS))
    found: np.float32 = np.max([np.maximum(part.max(), -part.min()) for part in parts])
    return found


def _is_finite(array: Float32) -> bool:
    # Extremes show NaN and Inf alike, without a temporary.
    return math.isfinite(array.max(initial=0.0)) and math.isfinite(array.min(initial=0.0))
