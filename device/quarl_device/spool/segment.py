"""One segment file of a spool, and which of its blocks are still held."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

from quarl_device.spool.records import HEADER_BYTES, Header

SUFFIX = ".qs"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a block lies.

    Attributes:
        sequence: of the block.
        offset: of its record.
        size_bytes: of its record.
        steps: environment steps in it.
    """

    sequence: int
    offset: int
    size_bytes: int
    steps: int


@dataclass(kw_only=True)
class Segment:
    """The blocks of one life and one task in one file; 20 bytes of memory a block.

    Attributes:
        path: of the file; names order the files.
        life: boot id of the life that put them.
        task: fingerprint of their task.
    """

    path: Path
    life: str
    task: int
    _sequences: array[int] = field(default_factory=lambda: array("Q"), repr=False)
    _offsets: array[int] = field(default_factory=lambda: array("I"), repr=False)
    _lengths: array[int] = field(default_factory=lambda: array("I"), repr=False)
    _steps: array[int] = field(default_factory=lambda: array("I"), repr=False)
    _freed: int = 0  # entries before this one are freed

    def __len__(self) -> int:
        return len(self._sequences) - self._freed

    @property
    def first(self) -> int:
        """The lowest sequence held; there must be one."""
        return self._sequences[self._freed]

    @property
    def last(self) -> int:
        """The highest sequence held; there must be one."""
        return self._sequences[-1]

    def add(self, offset: int, header: Header) -> None:
        """Hold a block; its sequence is above all others."""
        self._sequences.append(header.sequence)
        self._offsets.append(offset)
        self._lengths.append(header.length)
        self._steps.append(header.steps)

    def entry(self, sequence: int) -> Entry | None:
        """Return where a block lies, or None where it is not held."""
        place = self._place(sequence)
        if place >= len(self._sequences) or self._sequences[place] != sequence:
            return None
        return self._entry(place)

    def next_held(self, sequence: int) -> int | None:
        """Return the lowest sequence held from `sequence` on."""
        place = self._place(sequence)
        return self._sequences[place] if place < len(self._sequences) else None

    def held_before(self, sequence: int) -> int | None:
        """Return the highest sequence held below `sequence`."""
        place = self._place(sequence) - 1
        return self._sequences[place] if place >= self._freed else None

    def pop_first(self) -> Entry:
        """Hold the first one no longer."""
        self._freed += 1
        return self._entry(self._freed - 1)

    def remove(self, sequence: int) -> Entry | None:
        """Hold one no longer, wherever it is."""
        place = self._place(sequence)
        found = self.entry(sequence)
        if found is not None:
            for column in (self._sequences, self._offsets, self._lengths, self._steps):
                del column[place]
        return found

    def _place(self, sequence: int) -> int:
        return bisect_left(self._sequences, max(0, sequence), lo=self._freed)

    def _entry(self, place: int) -> Entry:
        size_bytes = HEADER_BYTES + self._lengths[place]
        return Entry(self._sequences[place], self._offsets[place], size_bytes, self._steps[place])
