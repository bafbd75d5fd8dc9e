"""How far two arrays are apart, by named measures, row by row without keeping the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 256
CLIPPED = 0.01
"""Share of values outside of a range from which on it is worth telling."""
_GRID = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Named measures of `b` against the reference `a`.

    Attributes:
        max_abs_error: largest absolute difference.
        mean_abs_error: mean absolute difference.
        mse: mean squared difference.
        snr_db: 10·log10(Σa² / Σ(a−b)²); infinite where nothing differs.
        cosine: of the angle between all of `a` and all of `b`; 1 where both are zero.
    """

    max_abs_error: float
    mean_abs_error: float
    mse: float
    snr_db: float
    cosine: float


class ErrorMeter:
    """Sums up differences; its memory does not grow with the rows."""

    def __init__(self) -> None:
        self._count = 0
        self._largest = self._absolute = self._square = self._mine = self._its = self._product = 0.0

    def add(self, reference: NDArray[np.float64], found: NDArray[np.float64]) -> None:
        """Take another pair of arrays of one size."""
        a, b = reference.ravel(), found.ravel()
        difference = np.abs(a - b)
        self._count += a.size
        self._largest = max(self._largest, float(difference.max(initial=0.0)))
        self._absolute += float(difference.sum())
        self._square += float(difference @ difference)
        self._mine += float(a @ a)
        self._its += float(b @ b)
        self._product += float(a @ b)

    def result(self) -> Errors:
        """Return the measures over everything that was added."""
        count = max(1, self._count)
        return Errors(
            max_abs_error=self._largest,
            mean_abs_error=self._absolute / count,
            mse=self._square / count,
            snr_db=_decibel(self._mine, self._square),
            cosine=_cosine(self._product, self._mine, self._its),
        )


def _decibel(signal: float, noise: float) -> float:
    if noise == 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal > 0.0 else -math.inf


def _cosine(product: float, mine: float, its: float) -> float:
    if mine == 0.0 and its == 0.0:
        return 1.0
    length = math.sqrt(mine) * math.sqrt(its)
    return max(-1.0, min(1.0, product / length)) if length > 0.0 else 0.0


class GridMeter:
    """Counts values over the grid of a quantized tensor: what is stored, and where the float twin's values would lie.

    Args:
        dtype: "int8", "uint8" or "int16".
        scale: real value of one step.
        zero_point: stored value of 0.
    """

    def __init__(self, *, dtype: str, scale: float, zero_point: int) -> None:
        self.low, self.high = _GRID[dtype]
        self.scale, self.zero_point = scale, zero_point
        self.stored = np.zeros(BINS, np.int64)
        self.wanted = np.zeros(BINS, np.int64)
        self.below = self.above = self.at_ends = self.count = 0
        self.wanted_low, self.wanted_high = math.inf, -math.inf

    def add(self, stored: NDArray[np.generic], wanted: NDArray[np.float64]) -> None:
        """Take stored values and the real values that the float file has in their place."""
        values = stored.ravel().astype(np.int64)
        self.stored += self._histogram(values)
        ends = ((values == self.low) | (values == self.high)) & (values != self.zero_point)
        self.at_ends += int(ends.sum())
        self.count += values.size
        # More than half a step outside: rounding cannot bring it back onto the grid.
        steps = wanted.ravel() / self.scale + self.zero_point
        self.below += int((steps < self.low - 0.5).sum())
        self.above += int((steps > self.high + 0.5).sum())
        inside = np.clip(np.rint(steps), self.low, self.high).astype(np.int64)
        self.wanted += self._histogram(inside)
        if wanted.size:
            self.wanted_low = min(self.wanted_low, float(wanted.min()))
            self.wanted_high = max(self.wanted_high, float(wanted.max()))

    def _histogram(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        width = (self.high - self.low + 1) // BINS
        return np.bincount((values - self.low) // width, minlength=BINS)[:BINS]

    @property
    def clipped(self) -> float:
        """Share of the float twin's values that lie outside of the grid."""
        return (self.below + self.above) / self.count if self.count else 0.0

    @property
    def at_limit(self) -> float:
        """Share of stored values at an end of the grid that does not mean zero."""
        return self.at_ends / self.count if self.count else 0.0

    @property
    def used(self) -> float:
        """Share of the grid's width that the float twin's values span."""
        if self.wanted_high < self.wanted_low:
            return 0.0
        floor, ceiling = self.scale * (self.low - self.zero_point), self.scale * (self.high - self.zero_point)
        span = min(self.wanted_high, ceiling) - max(self.wanted_low, floor)
        return max(0.0, min(1.0, span / (ceiling - floor)))
