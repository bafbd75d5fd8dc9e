"""Quantization of few numbers by bisection: what `preprocess` computes of one number is a staircase.

Normalising, rounding and clipping all grow with their value, so the integer of an observation's element is how many of
its at most 255 stairs' edges are not above it. One bisection among them, in C, costs a fraction of the seven calls of
numpy that compute the same; from about a dozen numbers on these are faster again. The edges are searched for among all
float32 values with `preprocess` itself, so there is one rule and no second arithmetic. NaN lies on no stair: it is
left to `preprocess`, and found by a sum, which costs a fraction of asking each number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.preprocess import InputBinding, normalized, stored

Array = NDArray[Any]
MOST_NUMBERS = 8
_SIGN = 0x80
_LEAST_SCALE = float(np.finfo(np.float32).tiny)
_INFINITE = 0x7F800000
"""float32's bits of infinity, the largest number in the order of `_values`."""


def stair_encoder(binding: InputBinding, into: Array) -> Callable[[Any], None] | None:
    """Return what writes observations into `into`, bit for bit as `preprocess.to_tensor`.

    Args:
        binding: of an integer tensor.
        into: [*shape] or [B, *shape], a view of the kept buffer.

    Returns:
        `None` where another way is faster or the rule is no staircase: many numbers, more than 8 bits, a factor that
        is not positive, a scale whose inverse float32 hardly holds, a view with gaps.
    """
    rising = binding.factor is None or bool((binding.factor > 0.0).all())
    rising = rising and binding.scale >= _LEAST_SCALE
    few = 0 < into.size <= MOST_NUMBERS and binding.dtype.itemsize == 1
    if not (rising and few and into.flags.c_contiguous) or binding.by_frame:
        return None
    found = edges(binding)
    stairs = found * (into.size // len(found))
    work = np.empty(into.shape, np.float32)
    numbers, cells = work.reshape(-1), into.reshape(-1).view(np.uint8).data

    def by_rule(values: Array) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            into[...] = stored(binding, normalized(binding, values))

    if binding.dtype == np.uint8:

        def encode(observation: Any) -> None:
            work[...] = observation
            values = numbers.tolist()
            if isnan(sum(values)):
                by_rule(work)
                return
            cells[:] = bytes(map(bisect_right, stairs, values))

        return encode
    # Counted from 0; an int8 counts from -128, which is the other sign bit.
    signed = bytes(count ^ _SIGN for count in range(256))

    def encode_signed(observation: Any) -> None:
        work[...] = observation
        values = numbers.tolist()
        if isnan(sum(values)):
            by_rule(work)
            return
        cells[:] = bytes(map(bisect_right, stairs, values)).translate(signed)

    return encode_signed


def edges(binding: InputBinding) -> list[list[float]]:
    """Return for each element of one observation, in ascending order, where its stored integer goes up by one.

    A bisection over the float32 values in their order, of all edges at once. An integer that nothing reaches, behind
    the normaliser's clip, has no edge.
    """
    low, high = binding.limits
    shape = binding.spec.shape
    wanted = np.arange(low + 1, high + 1).reshape(-1, *(1 for _ in shape))
    below = np.full((high - low, *shape), -_INFINITE - 1, np.int64)
    least = np.full_like(below, _INFINITE)
    with np.errstate(over="ignore", under="ignore"):
        reached = stored(binding, normalized(binding, _values(least))) >= wanted
        while (least - below > 1).any():
            middle = (below + least) // 2
            enough = stored(binding, normalized(binding, _values(np.maximum(middle, -_INFINITE)))) >= wanted
            least, below = np.where(enough, middle, least), np.where(enough, below, middle)
    # No bound is left at -inf - 1, which is no number.
    found = _values(np.maximum(least, -_INFINITE)).reshape(high - low, -1)
    return [column[kept].tolist() for column, kept in zip(found.T, reached.reshape(high - low, -1).T, strict=True)]


def _values(order: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the float32 of each place in their order, 0 at 0."""
    bits = np.abs(order).astype(np.uint32) | np.where(order < 0, np.uint32(1 << 31), np.uint32(0))
    return bits.view(np.float32)
