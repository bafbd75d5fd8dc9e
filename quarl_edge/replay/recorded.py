"""The observations that a run has recorded, out of its journal: what an export calibrates with and judges by."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.errors import JournalError, PayloadRefused
from quarl_device.wire.block import BlockCodec
from quarl_device.wire.block_spec import Block, BlockSpec
from quarl_edge.replay.segments import iterate

MAX_OBSERVATIONS = 10_000


def recorded_observations(
    journal: Path, contract: PolicyContract, *, most: int = MAX_OBSERVATIONS
) -> dict[str, NDArray[Any]]:
    """Return the newest observations of a journal, in order of arrival.

    Args:
        journal: its directory; may be in use by a learner.
        contract: of the run's policy: says what a block holds.
        most: how many observations at most.

    Returns:
        Per key ``[count, *shape]``; empty where nothing was recorded.

    Raises:
        JournalError: unreadable, damaged, or of another environment than `contract`.
    """
    codec = BlockCodec(BlockSpec(observations=contract.observations, action=contract.action))
    newest: deque[dict[str, NDArray[Any]]] = deque()
    count = 0
    for record in iterate(journal):
        try:
            rows = _rows(codec.decode(record.payload))
        except PayloadRefused as cause:
            raise JournalError(f"journal {journal} does not fit the policy: {cause.message}") from cause
        newest.append(rows)
        count += len(next(iter(rows.values())))
        while newest and count - len(next(iter(newest[0].values()))) >= most:
            count -= len(next(iter(newest.popleft().values())))
    if not newest:
        return {}
    return {key: np.concatenate([rows[key] for rows in newest])[-most:] for key in newest[0]}


def _rows(block: Block) -> dict[str, NDArray[Any]]:
    """Return the observations acted on, dummy rows left out; copies, so that the payload can go."""
    steps = block.num_steps
    return {key: array[-steps - 1 : -1][block.valid] for key, array in block.observation.items()}
