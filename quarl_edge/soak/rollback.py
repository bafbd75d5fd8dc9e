"""A learner that is restored from an older state: its journal as it was some time ago."""

from __future__ import annotations

from pathlib import Path

from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_edge.replay.journal import Journal
from quarl_edge.replay.segments import iterate
from quarl_edge.soak.books import StoredBlock, stored_block


def roll_back(directory: Path, spec: BlockSpec, *, share: float) -> tuple[StoredBlock, ...]:
    """Take the newest records off a journal that nobody has open.

    Args:
        directory: of the journal.
        spec: of its blocks.
        share: of its records that goes, in 0..1.

    Returns:
        What went, in order of arrival: devices were told that it is safe, and have it no longer.

    Raises:
        JournalError: the journal does not hold.
    """
    records = list(iterate(directory))
    going = records[len(records) - int(share * len(records)) :]
    if not going:
        return ()
    codec = BlockCodec(spec)
    gone = tuple(stored_block(record.device, record.payload, codec) for record in going)
    journal = Journal(directory)
    journal.bind(lambda: (0, {}))
    try:
        journal.truncate(going[0].position)
    finally:
        journal.close()
    return gone
