"""One segment file of a spool, and which of its blocks are still held.

Its name says where it begins, for nothing within a file is safe from damage to it::

    <number of the file>-<life>-<sequence of its first block>-<steps of the life before that>.qs
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from quarl_device.spool.records import HEADER_BYTES, Header

SUFFIX = ".qs"
_NAME = re.compile(r"(\d{20})(?:-([0-9a-f]{16})-(\d{1,16})-(\d{1,16}))?\.qs")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file belongs, as its name says it.

    Attributes:
        number: files are in this order.
        life: boot id of the life that wrote it, "" in names of version 1.
        sequence: of its first block.
        first_step: steps that the life had made before it.
    """

    number: int
    life: str = ""
    sequence: int = 0
    first_step: int = 0

    @property
    def name(self) -> str:
        """Of the file."""
        return f"{self.number:020d}-{self.life}-{self.sequence}-{self.first_step}{SUFFIX}"


def read_name(name: str) -> Place | None:
    """Return where a file belongs, `None` for one that is no segment."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return Place(int(found[1]), found[2] or "", int(found[3] or 0), int(found[4] or 0))


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a block lies.

    Attributes:
        sequence: of the block.
        offset: of its record.
        size_bytes: of its record.
        first_step: steps that its life had made before it.
        steps: environment steps in it.
    """

    sequence: int
    offset: int
    size_bytes: int
    first_step: int
    steps: int


@dataclass(kw_only=True)
class Segment:
    """The blocks of one life and one task in one file; 28 bytes of memory a block.

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
    _first_steps: array[int] = field(default_factory=lambda: array("Q"), repr=False)
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
        self._first_steps.append(header.first_step)
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
        if found is not None and place == self._freed:
            return self.pop_first()
        if found is not None:
            for column in (self._sequences, self._offsets, self._lengths, self._first_steps, self._steps):
                del column[place]
        return found

    def _place(self, sequence: int) -> int:
        return bisect_left(self._sequences, max(0, sequence), lo=self._freed)

    def _entry(self, place: int) -> Entry:
        size_bytes = HEADER_BYTES + self._lengths[place]
        first_step, steps = self._first_steps[place], self._steps[place]
        return Entry(self._sequences[place], self._offsets[place], size_bytes, first_step, steps)

    def entries(self) -> Iterator[Entry]:
        """Yield the blocks that are held."""
        return map(self._entry, range(self._freed, len(self._sequences)))
