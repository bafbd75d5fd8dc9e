"""The real ingest, watched: what entered replay is read back from it and compared with what was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl_edge.bench.stream.workload import NUMBERS, checked
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.ingest.sessions import Verdict
from quarl_edge.replay.transitions import Transitions


@dataclass
class Seen:
    """What entered replay of one sender's stream.

    Attributes:
        transitions: how many.
        duplicates: of these, how many had been there before.
        lost: that were skipped.
        checksum: of all of them, in order.
    """

    transitions: int = 0
    duplicates: int = 0
    lost: int = 0
    checksum: int = 0
    _next: int = 0

    def note(self, transitions: Transitions) -> None:
        """Take the next transitions of the stream, as they lie in replay."""
        count = len(transitions)
        first = int(transitions.reward[0])
        if first != self._next:
            ahead = (first - self._next) % NUMBERS
            if ahead < NUMBERS // 2:
                self.lost += ahead
            else:
                self.duplicates += min(count, NUMBERS - ahead)
        self._next = (first + count) % NUMBERS
        self.transitions += count
        # Numbers that are not consecutive inside a block show in the checksum.
        self.checksum = checked(self.checksum, transitions)


class Witness(Ingest):
    """An `Ingest` that looks at replay after every block.

    Attributes:
        seen: by device.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.seen: dict[str, Seen] = {}

    def offer(self, device: str, payload: bytes) -> Verdict | None:
        """Take one payload as it came, and read back what has become of it."""
        before = self.replay.inserted
        verdict = super().offer(device, payload)
        count = self.replay.inserted - before
        if count:
            self.seen.setdefault(device, Seen()).note(self.replay.newest(count))
        return verdict


def same(first: Transitions, second: Transitions) -> bool:
    """Say whether two runs of transitions are equal, byte for byte."""
    names = ("observation", "action", "reward", "discount", "next_observation")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)
