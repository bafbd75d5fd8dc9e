"""Which observations are held out of calibration, to judge by.

Rows of one episode follow each other closely: a row between two that were calibrated with is no surprise to a range.
So whole episodes are held out. Where nobody has said which rows make an episode, or there are too few of them, it is
single rows: a weaker judgement, of which messages say that it is one.

Which ones is decided by their content. By their places it would be another choice, and with it other ranges, for the
same observations in another order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_export.calibration.digests import Digests, episode_digests

HELD_OUT = 0.25
# A share below this, of the shortest episodes, says too little about a file.
MIN_HELD_OUT = 1 / 16
MIN_ROWS = 8

Rows = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class HoldOut:
    """What is held out.

    Attributes:
        rows: bool ``[count]``, true where a row is held out; neither none nor all.
        of: what these rows are, for messages: "of other episodes".
    """

    rows: Rows = field(repr=False)
    of: str


def hold_out(digests: Digests, episodes: Numbers | None = None) -> HoldOut | None:
    """Return what to hold out, `None` where the rows are too few, or too much alike, for two parts.

    Args:
        digests: of the rows: see `digests.row_digests`. Equal rows are never on both sides.
        episodes: int64 ``[count]``, equal where rows are of one episode; those of several environments may take turns.
    """
    if len(digests) < MIN_ROWS:
        return None
    if episodes is not None:
        _, numbers = np.unique(episodes, return_inverse=True)
        chosen = _nearest_to_share(numbers, np.argsort(episode_digests(digests, numbers), kind="stable"))
        if chosen.mean() >= MIN_HELD_OUT:
            return HoldOut(rows=chosen, of="of other episodes")
    different, numbers = np.unique(digests, return_inverse=True)
    chosen = _nearest_to_share(numbers, np.arange(len(different)))
    return HoldOut(rows=chosen, of="between those that were calibrated with") if chosen.any() else None


def _nearest_to_share(numbers: NDArray[np.integer[Any]], order: NDArray[np.integer[Any]]) -> Rows:
    """Go through parts in `order`, and hold one out where that brings the share so far nearer to `HELD_OUT`.

    Long and short ones are then held out alike. The first never is, so at least half of the rows remain.

    Args:
        numbers: ``[count]``, which part each row is of.
        order: ``[parts]``, by their content.
    """
    lengths = np.bincount(numbers)
    chosen = np.zeros(len(lengths), np.bool_)
    seen = held = 0
    for place in order:
        seen += int(lengths[place])
        if held + lengths[place] / 2 < HELD_OUT * seen:
            chosen[place] = True
            held += int(lengths[place])
    rows: Rows = chosen[numbers]
    return rows
