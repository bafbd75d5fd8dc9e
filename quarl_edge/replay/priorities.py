"""Priorities of transitions in a sum tree: drawing and changing many at once, in numpy.

Proportional prioritisation (Schaul et al. 2016, section 3.3): a transition is drawn with a probability proportional to
``priority ** exponent``. The tree lies in one array: the children of node i are 2i and 2i+1, leaves behind inner nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import CheckpointError

Float64 = NDArray[np.float64]
Index = NDArray[np.int64]
# An error of zero would never be drawn again.
_LEAST = 1e-6


class SumTree:
    """Weights of `capacity` places, all zero at first.

    Args:
        capacity: places.
    """

    def __init__(self, capacity: int) -> None:
        self._depth = max(1, int(capacity - 1).bit_length())
        self._first = 1 << self._depth
        self._capacity = capacity
        self._nodes = np.zeros(2 * self._first, np.float64)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._nodes[1])

    def __getitem__(self, places: Index) -> Float64:
        return self._nodes[self._first + places]

    def __setitem__(self, places: Index, weights: Float64 | float) -> None:
        """Set weights; of a place that is named twice, the last one counts."""
        nodes = self._first + places
        self._nodes[nodes] = weights
        for _ in range(self._depth):
            # Sums are made anew from both children, so that rounding errors cannot add up.
            nodes = np.unique(nodes >> 1)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, points: Float64) -> Index:
        """Return the place that each point in [0, total) falls on, weights laid end to end."""
        nodes = np.ones(len(points), np.int64)
        rest = points.copy()
        for _ in range(self._depth):
            left = 2 * nodes
            below = self._nodes[left]
            # Where rounding leaves a point at the very end, it must not fall on an empty half.
            right = (rest >= below) & (self._nodes[left + 1] > 0.0)
            rest -= np.where(right, below, 0.0)
            nodes = left + right
        return nodes - self._first

    def weights(self) -> Float64:
        """Return a copy of all weights."""
        return self._nodes[self._first : self._first + self._capacity].copy()


class Priorities:
    """Which transitions are drawn, and how much each counts.

    Args:
        capacity: of the replay.
        exponent: alpha, 0 draws uniformly.
        correction: beta of the importance weights, 0 for none and 1 for a full correction.
    """

    def __init__(self, capacity: int, *, exponent: float, correction: float) -> None:
        self._tree = SumTree(capacity)
        self._capacity = capacity
        self._exponent = exponent
        self._correction = correction
        self._highest = 1.0

    def entered(self, start: int, count: int) -> None:
        """Give new transitions at places start..start+count-1, modulo the capacity, the highest priority so far."""
        places = np.arange(start, start + count, dtype=np.int64) % self._capacity
        if count:
            self._tree[places] = self._highest**self._exponent

    def left(self, start: int, count: int) -> None:
        """Never draw what is at places start..start+count-1, modulo the capacity, until it is entered again."""
        self._tree[np.arange(start, start + count, dtype=np.int64) % self._capacity] = 0.0

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Index, NDArray[np.float32]]:
        """Draw places, one from each of `count` equal parts of the sum, in random order.

        Returns:
            places int64[count] and importance weights float32[count], the largest of them 1.
        """
        total = self._tree.total
        points = (np.arange(count) + rng.random(count)) * (total / count)
        places = self._tree.find(rng.permutation(np.minimum(points, np.nextafter(total, 0.0))))
        weights = (self._tree[places] / total) ** -self._correction
        return places, (weights / weights.max()).astype(np.float32)

    def learned(self, places: Index, errors: NDArray[np.float32]) -> None:
        """Set the priorities of drawn transitions to the size of their errors.

        Args:
            places: as drawn.
            errors: temporal differences; what is not finite is taken as the highest so far.
        """
        sizes = np.abs(errors.astype(np.float64)) + _LEAST
        sizes = np.where(np.isfinite(sizes), sizes, self._highest)
        self._highest = max(self._highest, float(sizes.max()))
        self._tree[places] = sizes**self._exponent

    def arrays(self) -> dict[str, Float64]:
        """Return what a checkpoint keeps."""
        return {"weights": self._tree.weights(), "highest": np.array(self._highest)}

    def restore(self, arrays: Mapping[str, Float64]) -> None:
        """Go on from a checkpoint.

        Raises:
            CheckpointError: of another capacity, or values that no priority has.
        """
        weights = arrays.get("weights", np.zeros(0))
        if weights.shape != (self._capacity,) or not (np.isfinite(weights) & (weights >= 0.0)).all():
            raise CheckpointError(f"the replay's priorities do not hold: {weights.shape}, expected {self._capacity}")
        self._highest = float(arrays["highest"])
        self._tree[np.arange(self._capacity, dtype=np.int64)] = weights
