"""What a row of observations is known by: its content, wherever in a recording it lies.

Whatever is picked of a recording (what is held out, what is left when there is too much, what is summed up together)
is picked by digests, so that it does not depend on the order of the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Digests = NDArray[np.uint64]
_BYTES = 8


def row_digests(rows: Mapping[str, NDArray[Any]]) -> Digests:
    """Return a digest of every row.

    Args:
        rows: per key ``[count, ...]``, of one count.

    Returns:
        uint64 ``[count]``: equal where rows are equal in all keys, and as good as never otherwise.
    """
    flat = [np.ascontiguousarray(array).reshape(len(array), -1) for array in rows.values()]
    return np.fromiter((_digest(*parts) for parts in zip(*flat, strict=True)), np.uint64, len(flat[0]))


def episode_digests(digests: Digests, episodes: NDArray[np.integer[Any]]) -> Digests:
    """Return a digest of every episode, which does not depend on the order of its rows.

    Args:
        digests: of the rows.
        episodes: ``[count]``, 0 to the number of episodes less 1: which one each row is of.
    """
    order = np.lexsort((digests, episodes))
    ends = np.cumsum(np.bincount(episodes))
    parts = np.split(digests[order], ends[:-1])
    return np.fromiter((_digest(part) for part in parts), np.uint64, len(parts))


def _digest(*parts: NDArray[Any]) -> int:
    made = hashlib.blake2b(digest_size=_BYTES)
    for part in parts:
        made.update(part.data)
    return int.from_bytes(made.digest(), "little")
