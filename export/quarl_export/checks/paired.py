"""Two policies' returns over the same start seeds, and what they tell.

The rule is a test for non-inferiority. The loss is the mean over episodes of (float's return - the file's). The file
holds if the loss is at most 5 % of float's scale even two standard errors of the paired differences above what was
seen, and fails if it is more even two below. In between the episodes do not tell, and other checks decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

MAX_LOSS = 0.05
_STANDARD_ERRORS = 2.0

Verdict = Literal["held", "lost", "undecided", "not judged"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Returns of two policies over the same start seeds.

    Attributes:
        episodes: how many.
        float_mean: mean return of the float policy.
        file_mean: of the file.
        loss: how much less the file returns, on average.
        standard_error: of `loss`.
        scale: of the float policy's returns: their mean's size, or their spread over starts if that is larger.
    """

    episodes: int
    float_mean: float
    file_mean: float
    loss: float
    standard_error: float
    scale: float

    @classmethod
    def of(cls, theirs: Sequence[float], ours: Sequence[float]) -> Comparison:
        """Compare the float policy's returns, `theirs`, with the file's, `ours`, episode by episode, two at least."""
        a, b = np.asarray(theirs, np.float64), np.asarray(ours, np.float64)
        if a.shape != b.shape or a.size < 2:
            raise ValueError(f"{a.size} and {b.size} returns are no pairs")
        with np.errstate(invalid="ignore", over="ignore"):
            return cls(
                episodes=a.size,
                float_mean=float(a.mean()),
                file_mean=float(b.mean()),
                loss=float((a - b).mean()),
                standard_error=float((a - b).std(ddof=1) / math.sqrt(a.size)),
                scale=max(abs(float(a.mean())), float(a.std())),
            )

    @property
    def limit(self) -> float:
        """The loss that is allowed."""
        return MAX_LOSS * self.scale

    @property
    def verdict(self) -> Verdict:
        """What the episodes tell."""
        if not all(map(math.isfinite, (self.loss, self.standard_error, self.scale))):
            return "lost"
        if not self.scale:
            return "undecided"
        margin = _STANDARD_ERRORS * self.standard_error
        if self.loss + margin <= self.limit:
            return "held"
        return "lost" if self.loss - margin > self.limit else "undecided"

    @property
    def episodes_needed(self) -> float:
        """How many episodes would tell, if loss and spread stay as they are."""
        distance = abs(self.limit - self.loss)
        if not distance:
            return math.inf
        return math.ceil(self.episodes * (_STANDARD_ERRORS * self.standard_error / distance) ** 2)
