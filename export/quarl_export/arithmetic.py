"""The rounding rules of TensorFlow's converter, in numpy, bit for bit.

Each rule was found by comparing with the converter's own files; `template` verifies them on every architecture, and
`audit` again on live policies. Where a rule says float32, the steps must stay float32 in this order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import PatchError

Float32 = NDArray[np.float32]

_LEVELS = np.float32(254.0)  # symmetric narrow int8: -127..127
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_INT32_MAX = 2**31 - 1
_MAX_WEIGHT = np.float32(1e30)


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Scale and zero point of one int8 tensor: ``real = (q - zero_point) * scale``.

    Attributes:
        scale: unrounded; the file stores it as float32, but bias scales are products of unrounded ones.
        zero_point: -128..127.
    """

    scale: float
    zero_point: int


def activation_quantization(low: float, high: float) -> Quantization:
    """Return what the converter makes of an activation range (float32 values, zero inside).

    Raises:
        PatchError: the range is empty or does not include zero.
    """
    low, high = float(np.float32(low)), float(np.float32(high))
    if not low <= 0.0 <= high or high <= low:
        raise PatchError(f"range [{low}, {high}] is empty or does not include zero")
    scale = (high - low) / 255.0
    return Quantization(scale=scale, zero_point=int(np.clip(np.rint(-128.0 - low / scale), -128, 127)))


def weight_limit(kernel: Float32, *, floor: float) -> np.float32:
    """Return the largest magnitude in `kernel`, at least `floor`.

    Raises:
        PatchError: it is beyond what the steps below can compute in float32.
    """
    limit = np.float32(np.maximum(np.maximum(kernel.max(), -kernel.min()), np.float32(floor)))
    if not limit <= _MAX_WEIGHT:
        raise PatchError(f"weights of up to {limit:.3g} cannot be quantized")
    return limit


def weight_scale(limit: np.float32) -> float:
    """Return the unrounded scale of a symmetric int8 kernel whose largest magnitude is `limit`."""
    return 2.0 * float(limit) / 254.0


def quantize_kernel(kernel: Float32, limit: np.float32, scratch: Float32) -> Float32:
    """Return `kernel` in int8 steps (still float32), as the converter folds FakeQuantWithMinMaxVars.

    Args:
        kernel: any shape.
        limit: from `weight_limit`.
        scratch: of `kernel`'s shape; overwritten and returned.
    """
    width = limit + limit
    step = width / _LEVELS
    inverse = _LEVELS / width
    zero = np.floor(_ONE + limit / step + _HALF)
    low = (_ONE - zero) * step
    high = (_LEVELS + _ONE - zero) * step
    quantized_zero = np.floor(-low * inverse + _HALF)
    np.clip(kernel, low, high, out=scratch)
    scratch -= low
    scratch /= step
    scratch -= quantized_zero
    scratch += _HALF
    return np.floor(scratch, out=scratch)


def quantize_bias(bias: Float32, scale: float) -> NDArray[np.float64]:
    """Return `bias` in int32 steps of `scale` (still float64).

    Raises:
        PatchError: a step does not fit int32: the layer's input or kernel is so small that its bias drowns it.
    """
    steps = np.rint(bias.astype(np.float64) / scale)
    if np.abs(steps).max(initial=0.0) > _INT32_MAX:
        raise PatchError(f"a bias of {float(np.abs(bias).max()):.3g} does not fit int32 at scale {scale:.3g}")
    return steps


def snap_bias(bias: Float32, scale: float) -> Float32:
    """Return `bias`, float32, as the file will apply it: a fake-quant model with it has no bias rounding of its own."""
    return (quantize_bias(bias, scale) * scale).astype(np.float32)
