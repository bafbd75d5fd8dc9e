"""Which observations are held out of calibration, to judge by.

Rows of one episode follow each other closely: a row between two that were calibrated with is no surprise to a range.
So whole episodes are held out. Where nobody has said which rows make an episode, or there are too few of them, it is
whole stretches of the recording, which are neighbours at their ends only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

HELD_OUT = 0.25
# A share below this, of the shortest episodes, says too little about a file.
MIN_HELD_OUT = 1 / 16
MIN_ROWS = 8
_STRETCHES = 16

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


def hold_out(count: int, episodes: Numbers | None = None) -> HoldOut | None:
    """Return what to hold out of `count` rows, `None` where they are too few for two parts.

    Args:
        count: of rows, in the order in which they were recorded.
        episodes: int64 ``[count]``, equal where rows are of one episode; those of several environments may take turns.
    """
    if count < MIN_ROWS:
        return None
    chosen = None if episodes is None else _whole_episodes(episodes)
    if chosen is not None:
        return HoldOut(rows=chosen, of="of other episodes")
    stretches = np.arange(count) * min(_STRETCHES, count) // count
    return HoldOut(rows=_nearest_to_share(stretches), of="of other stretches of the recording")


def _whole_episodes(episodes: Numbers) -> Rows | None:
    chosen = _nearest_to_share(episodes)
    return chosen if chosen.mean() >= MIN_HELD_OUT else None


def _nearest_to_share(numbers: Numbers) -> Rows:
    """Go through episodes as they came, and hold one out where that brings the share so far nearer to `HELD_OUT`.

    Long and short ones are then held out alike. The first never is, so at least half of the rows remain.
    """
    _, first, inverse, lengths = np.unique(numbers, return_index=True, return_inverse=True, return_counts=True)
    chosen = np.zeros(len(lengths), np.bool_)
    seen = held = 0
    for place in np.argsort(first):
        seen += int(lengths[place])
        if held + lengths[place] / 2 < HELD_OUT * seen:
            chosen[place] = True
            held += int(lengths[place])
    rows: Rows = chosen[inverse]
    return rows
