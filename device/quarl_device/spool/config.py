"""How much a spool holds, what happens when it is full, and when it asks the disk for certainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quarl_device.actor.outbox import WhenFull
from quarl_device.errors import UsageError

SyncPolicy = Literal["always", "interval", "never"]

MIN_BYTES = 64 * 1024
_MAX_SEGMENT_BYTES = 4 * 1024 * 1024
_SEGMENTS = 8


@dataclass(frozen=True, kw_only=True)
class SpoolConfig:
    """Bounds and promises of a spool.

    What survives what: a block that was put survives ``kill -9`` of the actor whatever the policy, for the operating
    system has it. A power cut takes what came since the last fsync.

    Attributes:
        max_bytes: on disk, all files together; one block may go over it.
        when_full: "block" makes no more experience, "drop-oldest" makes room.
        sync: "always" asks for an fsync of every block, "interval" at most every `sync_interval_s`, "never" leaves it
            to the operating system (some 30 s).
        sync_interval_s: see above.
    """

    max_bytes: int = 256 * 1024 * 1024
    when_full: WhenFull = "block"
    sync: SyncPolicy = "interval"
    sync_interval_s: float = 5.0

    def __post_init__(self) -> None:
        if self.max_bytes < MIN_BYTES:
            raise UsageError(f"a spool of {self.max_bytes:,} bytes is too small: at least {MIN_BYTES:,}")
        if not 0 < self.sync_interval_s <= 3600:
            raise UsageError(f"sync_interval_s {self.sync_interval_s} is not in 0..3600")

    @property
    def segment_bytes(self) -> int:
        """A segment file ends with the block that reaches this; space is given back by whole segments."""
        return min(_MAX_SEGMENT_BYTES, self.max_bytes // _SEGMENTS)

    @property
    def held_bytes(self) -> int:
        """Most bytes of blocks held: a segment that is freed in part still takes its space."""
        return self.max_bytes - self.segment_bytes
