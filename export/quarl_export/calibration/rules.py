"""From values to a range: extremes, percentiles, or the bounds of the observation space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UsageError

RuleKind = Literal["minmax", "percentile", "bounds"]
RULES: tuple[RuleKind, ...] = ("minmax", "percentile", "bounds")


@dataclass(frozen=True, kw_only=True)
class RangeRule:
    """How a range follows from values.

    Attributes:
        kind: "minmax": the true extremes of all values; "percentile": what lies between two percentiles, the rest is
            clipped; "bounds": the observation space's own bounds for inputs, extremes for everything else.
        percentile: upper percentile of "percentile"; the lower one is ``100 - percentile``.
    """

    kind: RuleKind = "minmax"
    percentile: float = 99.9

    def __post_init__(self) -> None:
        if self.kind not in RULES:
            raise UsageError(f"range rule {self.kind!r} is not one of {', '.join(RULES)}")
        if not 50.0 < self.percentile <= 100.0:
            raise UsageError(f"percentile {self.percentile} is not in (50, 100]")

    def outside(self, count: int) -> int:
        """Return how many of `count` values "percentile" leaves out at each end: fewer than half of them."""
        # 99.9 of 1,000 leaves 1 out, though 100 - 99.9 is a little less than a tenth.
        return min(int(count * (100.0 - self.percentile) / 100.0 + 1e-6), (count - 1) // 2)

    def columns(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return lower and upper limit of each column of `values`, float64 ``[rows, columns]``."""
        if self.kind == "percentile":
            low, high = np.percentile(values, [100.0 - self.percentile, self.percentile], axis=0)
            return low, high
        return values.min(axis=0), values.max(axis=0)
