"""The rounding rules of TensorFlow's converter, in numpy, bit for bit.

Each rule was found by comparing with the converter's own files; `template` verifies them on every architecture, and
`audit` again on live policies. Where a rule says float32, the steps must stay float32 in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import PatchError

Float32 = NDArray[np.float32]

_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_INT32_MAX = 2**31 - 1
_MAX_WEIGHT = np.float32(1e30)

MIN_CHANNEL_LIMIT = 5e-7
"""Smallest magnitude of a kernel's channel that its scale tells."""

BIAS_LIMIT = 2**30 - 1
"""Largest bias step that the converter lets be: half of int32, which leaves room for the sum."""


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Scale and zero point of one int8 or int16 tensor: ``real = (q - zero_point) * scale``.

    Attributes:
        scale: unrounded; the file stores it as float32, but bias scales are products of unrounded ones.
        zero_point: -128..127; 0 of 16 bits.
        bits: of the integers, 8 or 16.
    """

    scale: float
    zero_point: int
    bits: int = 8


def activation_quantization(low: float, high: float) -> Quantization:
    """Return what the converter makes of an activation range (float32 values, zero inside).

    Raises:
        PatchError: the range is empty or does not include zero.
    """
    low, high = float(np.float32(low)), float(np.float32(high))
    if not low <= 0.0 <= high or high <= low:
        raise PatchError(f"range [{low}, {high}] is empty or does not include zero")
    scale = (high - low) / 255.0
    return Quantization(scale=scale, zero_point=max(-128, min(127, round(-128.0 - low / scale))))


def wide_low(high: Any) -> Any:
    """Return the low end of the 16-bit range up to `high`, float32 of numpy or TensorFlow, whose zero point is 0."""
    return high * np.float32(-32768 / 32767)


def wide_quantization(low: float, high: float) -> Quantization:
    """Return what the converter makes of a 16-bit range from `wide_low`."""
    return Quantization(scale=(float(np.float32(high)) - float(np.float32(low))) / 65535.0, zero_point=0, bits=16)


def weight_limit(kernel: Float32, *, floor: float) -> np.float32:
    """Return the largest magnitude in `kernel`, at least `floor`.

    Raises:
        PatchError: it is beyond what the steps below can compute in float32.
    """
    return checked_limit(np.maximum(kernel.max(), -kernel.min()), floor=floor)


def checked_limit(magnitude: np.float32, *, floor: float) -> np.float32:
    """Return `weight_limit` of a kernel whose largest magnitude is known.

    Raises:
        PatchError: it is beyond what the steps below can compute in float32.
    """
    limit = np.float32(max(float(magnitude), float(np.float32(floor))))
    if not limit <= _MAX_WEIGHT:
        raise PatchError(f"weights of up to {limit:.3g} cannot be quantized")
    return limit


def widened_limit(limit: Any, bits: int) -> Any:
    """Return the limit whose 8-bit grid has, within plus or minus `limit`, exactly the steps of `bits` bits.

    So the converter makes files of fewer bits too, though it knows none: nothing reaches the outer steps.

    Args:
        limit: float32, of numpy or TensorFlow: training and patching must round alike.
        bits: 2-8.
    """
    return limit * np.float32(127 / (2 ** (bits - 1) - 1))


def weight_scale(limit: np.float32) -> float:
    """Return the unrounded scale of a symmetric kernel whose largest magnitude is `limit`."""
    return 2.0 * float(limit) / 254.0


def quantize_kernel(kernel: Float32, limit: np.float32, scratch: Float32) -> Float32:
    """Return `kernel` in steps (still float32), as the converter folds FakeQuantWithMinMaxVars.

    Args:
        kernel: any shape.
        limit: from `weight_limit`.
        scratch: of `kernel`'s shape; overwritten and returned.
    """
    levels = np.float32(254)
    width = limit + limit
    step = width / levels
    inverse = levels / width
    zero = np.floor(_ONE + limit / step + _HALF)
    low = (_ONE - zero) * step
    high = (levels + _ONE - zero) * step
    quantized_zero = np.floor(-low * inverse + _HALF)
    np.clip(kernel, low, high, out=scratch)
    scratch -= low
    scratch /= step
    scratch -= quantized_zero
    scratch += _HALF
    return np.floor(scratch, out=scratch)


def channel_scales(
    limits: Float32, bias: Float32 | None, input_scale: float, *, bits: int = 8
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the unrounded scales that the converter gives a kernel per channel, and its bias.

    A bias that would not fit opens the scale of its channel (TensorFlow's quantization driver,
    ``SetBiasParamsWithAdjustments``).

    Args:
        limits: largest magnitude in each channel, ``[channels]``.
        bias: ``[channels]``, `None` for a layer without.
        input_scale: unrounded scale of what the layer reads.
        bits: of the kernel.

    Raises:
        PatchError: a weight is beyond what can be quantized.
    """
    if not (limits <= _MAX_WEIGHT).all():
        raise PatchError(f"weights of up to {limits.max():.3g} cannot be quantized")
    scales = np.maximum(limits.astype(np.float64), MIN_CHANNEL_LIMIT) / (2 ** (bits - 1) - 1)
    bias_scales = scales * input_scale
    if bias is not None:
        magnitudes = np.abs(bias).astype(np.float64)
        over = magnitudes / bias_scales > BIAS_LIMIT
        if over.any():
            bias_scales = np.where(over, magnitudes / BIAS_LIMIT, bias_scales)
            scales = np.where(over, bias_scales / input_scale, scales)
    return scales, bias_scales


def quantize_channels(rows: Float32, scales: NDArray[np.float64], steps: Float32, scratch: Float32) -> Float32:
    """Return weights in steps (still float32), as the converter rounds a kernel without fake quant.

    That is: the quotient in float64, halves away from zero. Almost all of it is done in float32, whose quotients are
    off by less than 1e-4; those that fall so near to a half are done again.

    Args:
        rows: ``[any, channels]``.
        scales: ``[channels]``, from `channel_scales`: no quotient is beyond 127.
        steps: of `rows`' shape, contiguous; overwritten and returned.
        scratch: likewise; overwritten.
    """
    np.multiply(rows, (1.0 / scales).astype(np.float32), out=scratch)
    np.rint(scratch, out=steps)
    scratch -= steps
    np.abs(scratch, out=scratch)
    row, channel = np.divmod(np.flatnonzero(scratch > np.float32(0.4999)), len(scales))
    exact = rows[row, channel].astype(np.float64) / scales[channel]
    steps[row, channel] = np.trunc(exact + np.copysign(0.5, exact))
    return steps


def bias_floor(bias: Float32 | None, input_scale: float, *, bits: int = 8) -> float:
    """Return the smallest `weight_limit` with which `bias` fits, in a kernel with one scale."""
    if bias is None:
        return 0.0
    return float(2 ** (bits - 1) - 1) * float(np.abs(bias).max(initial=0.0)) / (BIAS_LIMIT * input_scale)


def widened_low(high: Any, bits: int) -> Any:
    """Return the low end of the 8-bit range that gives a ReLU's output, of [0, high], exactly ``2**bits`` levels.

    The kernel's clamp at the zero point takes them from below, int8's own end from above.

    Args:
        high: float32, of numpy or TensorFlow: training and patching must round alike.
        bits: 2-8.
    """
    levels = 2**bits - 1
    return high * np.float32((levels - 255) / levels)


def quantize_bias(bias: Float32, scale: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `bias` in int32 steps of `scale`, one or one per channel (still float64).

    Raises:
        PatchError: a step does not fit int32: the layer's input or kernel is so small that its bias drowns it.
    """
    steps = bias / np.float64(scale)
    np.rint(steps, out=steps)
    if max(steps.max(initial=0.0), -steps.min(initial=0.0)) > _INT32_MAX:
        raise PatchError(f"a bias of {float(np.abs(bias).max()):.3g} does not fit int32 at scale {np.min(scale):.3g}")
    return steps


def snap_bias(bias: Float32, scale: float | NDArray[np.float64]) -> Float32:
    """Return `bias`, float32, as the file will apply it: a fake-quant model with it has no bias rounding of its own."""
    return (quantize_bias(bias, scale) * scale).astype(np.float32)
