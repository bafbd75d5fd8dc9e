"""What earlier lives left in a spool's directory: every whole block that they did not know to be safe elsewhere."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path

from quarl_device.errors import StateUnwritable
from quarl_device.spool.records import BLOCK, FREED, MAGIC, PREAMBLE, Header, Scan, scan
from quarl_device.spool.segment import SUFFIX, Segment
from quarl_device.wire.limits import MAX_BLOCK_BYTES

_MAX_FILE_BYTES = 64 * 1024 * 1024 + MAX_BLOCK_BYTES


@dataclass(kw_only=True)
class Recovered:
    """What was found.

    Attributes:
        segments: with blocks that are still to be delivered, oldest first.
        next_number: of the file that is made next.
        blocks: in them.
        lives: whose blocks they are.
        dropped_blocks: that are lost, as far as gaps in the sequences and damaged records tell.
        dropped_steps: environment steps in damaged records whose header is whole.
        lost_bytes: damaged, between whole records.
        torn_bytes: damaged, at the end of a file: what a kill or a power cut left of a last write.
    """

    segments: list[Segment] = field(default_factory=list)
    next_number: int = 0
    blocks: int = 0
    lives: int = 0
    dropped_blocks: int = 0
    dropped_steps: int = 0
    lost_bytes: int = 0
    torn_bytes: int = 0

    def __str__(self) -> str:
        text = f"{self.blocks:,} blocks of {self.lives} earlier lives are still to be delivered"
        lost = self.lost_bytes + self.torn_bytes
        return f"{text}; {self.dropped_blocks} blocks in {lost:,} bytes did not hold" if lost else text


def recover(directory: Path) -> Recovered:
    """Read a spool's directory; files that hold nothing any more are removed.

    Raises:
        StateUnwritable: a file was written by another version.
        OSError: the directory cannot be read or written.
    """
    result = Recovered()
    freed: dict[str, int] = {}
    found: list[Segment] = []
    for path in sorted(path for path in directory.iterdir() if path.suffix == SUFFIX and path.stem.isdecimal()):
        result.next_number = int(path.stem) + 1
        records = scan(_read(path))
        result.lost_bytes += records.lost_bytes
        result.torn_bytes += records.torn_bytes
        for _, header in records.records:
            if header.kind == FREED:
                freed[header.life] = max(header.sequence, freed.get(header.life, -1))
        _note_damage(result, records)
        found.append(_segment(path, records))
    for segment in found:
        while len(segment) and segment.first <= freed.get(segment.life, -1):
            segment.pop_first()
        # A file without blocks may still say how far those before it are freed.
        if len(segment) or result.segments:
            result.segments.append(segment)
        else:
            segment.path.unlink()
    result.blocks = sum(map(len, result.segments))
    result.lives = len({segment.life for segment in result.segments if len(segment)})
    result.dropped_blocks += _gaps([segment for segment in result.segments if len(segment)])
    return result


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        data = file.read(_MAX_FILE_BYTES)
    preamble = data[: len(PREAMBLE)]
    if preamble.startswith(MAGIC) and preamble != PREAMBLE and len(preamble) == len(PREAMBLE):
        raise StateUnwritable(
            f"spool file {path} is of version {preamble[-1]}, this is version {PREAMBLE[-1]}",
            hint="use the version that wrote it, or another --state-dir",
        )
    return data


def _segment(path: Path, records: Scan) -> Segment:
    """Return the blocks of the life and task that the file begins with; it holds no others."""
    blocks = [(offset, header) for offset, header in records.records if header.kind == BLOCK]
    first: Header | None = blocks[0][1] if blocks else None
    life, task = (first.life, first.task) if first else ("", 0)
    segment = Segment(path=path, life=life, task=task)
    for offset, header in blocks:
        ascending = not len(segment) or header.sequence > segment.last
        if (header.life, header.task) == (life, task) and ascending:
            segment.add(offset, header)
    return segment


def _note_damage(result: Recovered, records: Scan) -> None:
    """Count what is damaged in payload alone; what lies between whole blocks shows as a gap instead."""
    highest = max((header.sequence for _, header in records.records if header.kind == BLOCK), default=-1)
    for header in records.damaged:
        result.dropped_steps += header.steps
        result.dropped_blocks += header.kind == BLOCK and header.sequence > highest


def _gaps(segments: list[Segment]) -> int:
    """Return the number of sequences that are missing between blocks of one life."""
    missing = 0
    for segment in segments:
        missing += segment.last - segment.first + 1 - len(segment)
    for before, after in itertools.pairwise(segments):
        if before.life == after.life:
            # One that was written twice, since the disk refused it only after it had it, is not missing.
            missing += max(0, after.first - before.last - 1)
    return missing
