"""Returns of the file, of the float policy and of random actions over the same start seeds, and what they tell.

The rule is the three-arm test for non-inferiority (Pigeot et al. 2003, with random actions as the placebo). What the
float policy returns more than random actions is what it has learned; the file holds if it keeps 95 % of that. Per
episode the excess is `float - file - 0.05 (float - random)`. The file holds if its mean is at most 0 even two standard
errors above what was seen, and fails if it is more even two below. In between the episodes do not tell, and other
checks decide.

The weights of the three returns add up to 0, so a constant that every arm gets in an episode falls out of it, whatever
it depends on but the actions: the start, or the length where all episodes have one. A constant per step does not where
lengths differ: it is another task then, which pays for staying or for leaving.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MAX_LOSS = 0.05
_STANDARD_ERRORS = 2.0

Verdict = Literal["held", "lost", "undecided", "not judged"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Returns of three policies over the same start seeds. Every error is a standard error, in units of return.

    Attributes:
        episodes: how many of both files.
        random_episodes: how many of random actions, of the first starts; no more.
        float_mean: mean return of the float policy.
        file_mean: of the file.
        random_mean: of random actions.
        loss: how much less the file returns than the float policy, on average.
        loss_error: of `loss`.
        learned: how much more the float policy returns than random actions, on average.
        learned_error: of `learned`.
        excess: by how much `loss` is more than is allowed.
        excess_error: of `excess`.
    """

    episodes: int
    random_episodes: int
    float_mean: float
    file_mean: float
    random_mean: float
    loss: float
    loss_error: float
    learned: float
    learned_error: float
    excess: float
    excess_error: float

    @classmethod
    def of(cls, theirs: Sequence[float], ours: Sequence[float], chance: Sequence[float]) -> Comparison:
        """Compare returns episode by episode, of two episodes at least.

        Where random actions ended fewer, no episode of the file is left out for it: the loss is that of all, what was
        learned that of the first, and the error of their difference at most the sum of both.

        Args:
            theirs: of the float policy.
            ours: of the file, as many.
            chance: of random actions, as many or fewer.
        """
        a, b, c = (np.asarray(returns, np.float64) for returns in (theirs, ours, chance))
        if a.shape != b.shape or not 2 <= c.size <= a.size:
            raise ValueError(f"{a.size}, {b.size} and {c.size} returns are no triples")
        with np.errstate(invalid="ignore", over="ignore"):
            loss, loss_error = _mean(a - b)
            learned, learned_error = _mean(a[: c.size] - c)
            if c.size == a.size:
                # Differences first: a constant then falls out before anything is rounded.
                excess, excess_error = _mean((a - b) - MAX_LOSS * (a - c))
            else:
                excess, excess_error = loss - MAX_LOSS * learned, loss_error + MAX_LOSS * learned_error
            means = (float(a.mean()), float(b.mean()), float(c.mean()))
        return cls(
            episodes=a.size, random_episodes=c.size, float_mean=means[0], file_mean=means[1], random_mean=means[2],
            loss=loss, loss_error=loss_error, learned=learned, learned_error=learned_error,
            excess=excess, excess_error=excess_error,
        )  # fmt: skip

    @property
    def limit(self) -> float:
        """The loss that is allowed, 0 where nothing was learned."""
        return MAX_LOSS * max(0.0, self.learned)

    @property
    def has_learned(self) -> bool:
        """Whether the float policy returns more than random actions: without that there is nothing to keep."""
        return self.learned > 0.0 and self.learned - _STANDARD_ERRORS * self.learned_error > 0.0

    @property
    def verdict(self) -> Verdict:
        """What the episodes tell."""
        if not all(map(math.isfinite, (self.loss, self.loss_error, self.learned, self.excess, self.excess_error))):
            return "lost"
        if not self.has_learned:
            return "undecided"
        margin = _STANDARD_ERRORS * self.excess_error
        if self.excess + margin <= 0.0:
            return "held"
        return "lost" if self.excess - margin > 0.0 else "undecided"

    @property
    def episodes_needed(self) -> float:
        """How many episodes would tell, if means and spreads stay as they are."""
        if not self.excess:
            return math.inf
        return math.ceil(self.episodes * (_STANDARD_ERRORS * self.excess_error / abs(self.excess)) ** 2)


def _mean(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of values and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(values.size))
