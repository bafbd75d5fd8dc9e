"""The observations that a run has recorded, out of its journal: what an export calibrates with and judges by."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec, PolicyContract
from quarl_device.errors import JournalError, PayloadRefused
from quarl_device.wire.block import BlockCodec
from quarl_device.wire.block_spec import Block, BlockSpec, extras_for, extras_of
from quarl_device.wire.loss import read_loss
from quarl_edge.replay.segments import iterate
from quarl_edge.replay.stacking import laid_out, stack_places

MAX_OBSERVATIONS = 10_000
_MOST_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class Recorded:
    """What a journal holds.

    Attributes:
        observations: per key ``[count, *shape]``, stacks ``[count, stack, *shape]``, in order of arrival; those of
            several environments take turns.
        episodes: int64 ``[count]``, equal where observations are of one episode.
    """

    observations: dict[str, NDArray[Any]] = field(repr=False)
    episodes: NDArray[np.int64] = field(repr=False)


def recorded_observations(journal: Path, contract: PolicyContract, *, most: int = MAX_OBSERVATIONS) -> Recorded | None:
    """Return the newest observations of a journal, in order of arrival.

    Args:
        journal: its directory; may be in use by a learner.
        contract: of the run's policy: says what a block holds.
        most: how many observations at most; fewer where they are large.

    Returns:
        `None` where nothing was recorded.

    Raises:
        JournalError: unreadable, damaged, or of another environment than `contract`.
    """
    extras = extras_for(extras_of(contract.head.kind), contract.action)
    codec = BlockCodec(BlockSpec(observations=contract.observations, action=contract.action, extras=extras))
    newest: deque[Recorded] = deque()
    row_bytes = sum(math.prod(s.shape) * s.stack * np.dtype(s.dtype).itemsize for s in contract.observations)
    most = max(1, min(most, _MOST_BYTES // row_bytes))
    count, episodes = 0, _Episodes()
    for record in iterate(journal):
        try:
            if read_loss(record.payload) is not None:
                continue
            part = _acted_on(codec.decode(record.payload), contract.observations, episodes)
        except PayloadRefused as cause:
            raise JournalError(f"journal {journal} does not fit the policy: {cause.message}") from cause
        newest.append(part)
        count += len(part.episodes)
        while newest and count - len(newest[0].episodes) >= most:
            count -= len(newest.popleft().episodes)
    if not newest:
        return None
    return Recorded(
        observations={
            key: np.concatenate([part.observations[key] for part in newest])[-most:] for key in newest[0].observations
        },
        episodes=np.concatenate([part.episodes for part in newest])[-most:],
    )


class _Episodes:
    """Numbers episodes across blocks, whose environments take turns."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], int] = {}
        self._count = 0

    def of(self, block: Block) -> NDArray[np.int64]:
        """Return the episode of each step of `block`, int64[T, N]."""
        numbers = np.empty(block.start.shape, np.int64)
        for place in range(block.start.shape[1]):
            stream, begun = (block.boot_id, place), np.cumsum(block.start[:, place])
            if stream not in self._open:
                self._open[stream], self._count = self._count, self._count + 1
            numbers[:, place] = np.where(begun == 0, self._open[stream], self._count + begun - 1)
            self._count += int(begun[-1])
            self._open[stream] = int(numbers[-1, place])
        return numbers


def _acted_on(block: Block, observations: tuple[ObservationSpec, ...], episodes: _Episodes) -> Recorded:
    """Return the observations acted on, dummy rows left out; copies, so that the payload can go."""
    return Recorded(
        observations={seen.key: _stacks(block, seen) for seen in observations},
        episodes=episodes.of(block)[block.valid],
    )


def _stacks(block: Block, seen: ObservationSpec) -> NDArray[Any]:
    if seen.stack == 1:
        return block.observation[seen.key][:-1][block.valid]
    places, _ = stack_places(block, seen)
    return laid_out(block, seen.key)[places[:-1][block.valid]]
