"""What earlier lives left in a spool's directory: every whole block that they did not know to be safe elsewhere.

And what is missing. A file's name says where its life stood when it was begun and every block says how many steps its
life had made before it, so whatever lies between what is whole is known in blocks and steps, wherever the damage is:
in the first record of a file, in its last ones where another file follows, in the whole of it. Of a life's end after
the last header that is whole nothing is known but its bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from quarl_device.actor.loss import UNKNOWN_TASK, Loss, join
from quarl_device.spool.records import BLOCK, FREED, PREAMBLE, Header, Scan, scan
from quarl_device.spool.segment import Place, Segment, read_name
from quarl_device.wire.limits import MAX_BLOCK_BYTES

_MAX_FILE_BYTES = 64 * 1024 * 1024 + MAX_BLOCK_BYTES


@dataclass(kw_only=True)
class Recovered:
    """What was found.

    Attributes:
        segments: all files, in order, with the blocks that are still to be delivered.
        losses: that are still to be told.
        said: those of them that a record tells, by the file that it is in.
        next_number: of the file that is made next.
        blocks: in the segments.
        lives: whose blocks they are.
        dropped_blocks: that are lost and were not known to be, as far as what is whole tells.
        dropped_steps: environment steps in them.
        lost_bytes: damaged, between whole records.
        torn_bytes: damaged, at the end of a file: what a kill or a power cut left of a last write.
        set_aside: files that are of another version or damaged from end to end.
    """

    segments: list[Segment] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    said: dict[Loss, Path] = field(default_factory=dict)
    next_number: int = 0
    blocks: int = 0
    lives: int = 0
    dropped_blocks: int = 0
    dropped_steps: int = 0
    lost_bytes: int = 0
    torn_bytes: int = 0
    set_aside: list[Path] = field(default_factory=list)

    def __str__(self) -> str:
        parts = []
        if self.blocks:
            parts.append(f"{self.blocks:,} blocks of {self.lives} earlier lives are still to be delivered")
        told = sum(loss.blocks for loss in self.losses)
        if told:
            parts.append(f"of {told:,} blocks the learner is told that they never come")
        lost = self.lost_bytes + self.torn_bytes
        if lost or self.dropped_blocks:
            parts.append(
                f"{self.dropped_blocks:,} blocks ({self.dropped_steps:,} steps) in {lost:,} bytes did not hold"
            )
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class _File:
    """One file and what it holds."""

    path: Path
    place: Place
    records: Scan

    @property
    def blocks(self) -> list[tuple[int, Header]]:
        return [(offset, header) for offset, header in self.records.records if header.kind == BLOCK]

    @property
    def life(self) -> str:
        """Whose it is: its name says so, or its first block."""
        return self.place.life or (self.blocks[0][1].life if self.blocks else "")

    @property
    def task(self) -> int:
        """Of its blocks, which are all of one; a block that is damaged still says it where its header is whole."""
        headers = [header for _, header in self.blocks] + [one for one in self.records.damaged if one.kind == BLOCK]
        return headers[0].task if headers else UNKNOWN_TASK


def recover(directory: Path) -> Recovered:
    """Read a spool's directory and change nothing.

    Raises:
        OSError: it cannot be read.
    """
    result, files = Recovered(), []
    for path, place in _paths(directory).items():
        result.next_number = place.number + 1
        data = _read(path)
        file = _File(path=path, place=place, records=scan(data))
        files.append(file)
        result.lost_bytes += file.records.lost_bytes
        result.torn_bytes += file.records.torn_bytes
        if not file.records.records and len(data) > len(PREAMBLE) and not data.startswith(PREAMBLE):
            result.set_aside.append(path)
    freed = _freed(files)
    _hold(result, files, freed)
    _account(result, files, freed)
    return result


def _paths(directory: Path) -> dict[Path, Place]:
    places = {path: read_name(path.name) for path in directory.iterdir()}
    sound = {path: place for path, place in places.items() if place is not None}
    return dict(sorted(sound.items(), key=lambda item: item[1].number))


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        return file.read(_MAX_FILE_BYTES)


def _freed(files: list[_File]) -> dict[str, int]:
    """Return the last sequence that is done with, by life."""
    freed: dict[str, int] = {}
    for file in files:
        for _, header in file.records.records:
            if header.kind == FREED:
                freed[header.life] = max(header.sequence, freed.get(header.life, -1))
    return freed


def _hold(result: Recovered, files: list[_File], freed: dict[str, int]) -> None:
    """Find what is still to be delivered."""
    lost = [loss for file in files for loss in file.records.losses]
    for file in files:
        if file.path in result.set_aside:
            continue
        segment = _segment(file)
        gone = [(loss.first, loss.last) for loss in lost if loss.life == segment.life]
        gone.append((0, freed.get(segment.life, -1)))
        for entry in list(segment.entries()):
            if any(low <= entry.sequence <= high for low, high in gone):
                segment.remove(entry.sequence)
        result.segments.append(segment)
    result.blocks = sum(map(len, result.segments))
    result.lives = len({segment.life for segment in result.segments if len(segment)})


def _segment(file: _File) -> Segment:
    """Return the blocks of the life and task that the file begins with; it holds no others."""
    segment = Segment(path=file.path, life=file.life, task=file.task)
    for offset, header in file.blocks:
        ascending = not len(segment) or header.sequence > segment.last
        if (header.life, header.task) == (segment.life, segment.task) and ascending:
            segment.add(offset, header)
    return segment


def _account(result: Recovered, files: list[_File], freed: dict[str, int]) -> None:
    """Find what is missing, beside what earlier lives knew to be lost."""
    told = [(loss, file.path) for file in files for loss in file.records.losses]
    for life in dict.fromkeys([*(loss.life for loss, _ in told), *(file.life for file in files)]):
        done = freed.get(life, -1)
        known = join([loss for loss, _ in told if loss.life == life])
        walk = _Walk(life)
        for file in files:
            if file.life == life:
                walk.along(file)
        missing = [loss for loss in walk.missing if loss.last > done]
        for loss in missing:
            if not any(one.first <= loss.first and loss.last <= one.last for one in known):
                result.dropped_blocks += loss.blocks
                result.dropped_steps += loss.steps
        result.losses += [loss for loss in join(known + missing) if loss.last > done]
    result.said = {loss: path for loss, path in told if loss in result.losses}


class _Walk:
    """Goes along a life's files and notes what must have been in them and is not."""

    def __init__(self, life: str) -> None:
        self.missing: list[Loss] = []
        self._life = life
        self._task = UNKNOWN_TASK
        self._at: tuple[int, int] | None = None  # the sequence and the step that come next

    def along(self, file: _File) -> None:
        if file.place.life:
            self._reach(file.place.sequence, file.place.first_step)  # what is missing was in the file before
        self._task = file.task or self._task
        for _, header in file.blocks:
            if header.life == self._life:
                self._reach(header.sequence, header.first_step)
                self._pass(header.sequence + 1, header.end_step)
        for header in file.records.damaged:
            # Of a life's last blocks nothing else tells.
            if (header.kind, header.life) == (BLOCK, self._life) and header.sequence >= (self._at or (0, 0))[0]:
                self._at = self._at or (header.sequence, header.first_step)
                self._reach(header.sequence + 1, header.end_step)

    def _reach(self, sequence: int, step: int) -> None:
        if self._at is not None and sequence > self._at[0]:
            loss = Loss(
                life=self._life,
                first=self._at[0],
                last=sequence - 1,
                first_step=self._at[1],
                end_step=max(self._at[1], step),
                task=self._task,
            )
            self.missing.append(loss)
        self._pass(sequence, step)

    def _pass(self, sequence: int, step: int) -> None:
        if self._at is None or sequence > self._at[0]:
            self._at = sequence, step
