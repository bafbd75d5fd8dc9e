"""Blocks that the learner may still ask for: kept until they are durable on its side."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from quarl_device.errors import UsageError

DEFAULT_OUTBOX_BYTES = 64 * 1024 * 1024


class Outbox(Protocol):
    """Where encoded blocks wait. Sequences are put in ascending order, without gaps."""

    @property
    def base(self) -> int:
        """The lowest sequence that is or will be held: the one that `put` takes next when nothing is held."""

    @property
    def full(self) -> bool:
        """Whether another block may not fit."""

    @property
    def pending_bytes(self) -> int:
        """Bytes held."""

    def __len__(self) -> int:
        """Return the number of blocks held."""

    def put(self, sequence: int, payload: bytes) -> None:
        """Keep a block."""

    def get(self, sequence: int) -> bytes | None:
        """Return a held block, or None when it was freed."""

    def free(self, durable: int) -> int:
        """Forget every block up to and including `durable`; return how many."""


class MemoryOutbox:
    """An outbox that ends with the process.

    Args:
        max_bytes: `full` from here on. One block may go over it, so that any block fits an empty outbox.

    Raises:
        UsageError: a cap that holds nothing.
    """

    def __init__(self, *, max_bytes: int = DEFAULT_OUTBOX_BYTES) -> None:
        if max_bytes < 1:
            raise UsageError(f"outbox cap {max_bytes} bytes is not positive")
        self._max_bytes = max_bytes
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._next = 0
        self._bytes = 0

    @property
    def base(self) -> int:
        """The lowest sequence that is or will be held."""
        return next(iter(self._blocks), self._next)

    @property
    def full(self) -> bool:
        """Whether another block may not fit."""
        return self._bytes >= self._max_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes held."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._blocks)

    def put(self, sequence: int, payload: bytes) -> None:
        """Keep a block.

        Raises:
            UsageError: not the sequence that comes next; two blocks would share an identity.
        """
        if sequence != self._next:
            raise UsageError(f"outbox expects block {self._next}, not {sequence}")
        self._blocks[sequence] = payload
        self._bytes += len(payload)
        self._next += 1

    def get(self, sequence: int) -> bytes | None:
        """Return a held block, or None when it was freed."""
        return self._blocks.get(sequence)

    def free(self, durable: int) -> int:
        """Forget every block up to and including `durable`; return how many."""
        freed = 0
        while self._blocks and next(iter(self._blocks)) <= durable:
            _, payload = self._blocks.popitem(last=False)
            self._bytes -= len(payload)
            freed += 1
        return freed
