"""Blocks that the learner may still ask for: kept until they are durable on its side."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, Protocol

from quarl_device.actor.loss import Loss
from quarl_device.errors import UsageError

DEFAULT_OUTBOX_BYTES = 64 * 1024 * 1024

WhenFull = Literal["block", "drop-oldest"]


class Outbox(Protocol):
    """Where encoded blocks wait, oldest first, each life's (boot id's) after those of the lives before it.

    A life is delivered to its end before the next one begins: `base`, `end`, `next_held`, `get` and `free` are about
    the life that is delivered now, the one of the oldest block that is held. Sequences are put in ascending order,
    without gaps. What is dropped to make room or damaged is held as a loss: in the place of the last of its blocks
    `get` gives what tells the learner (`wire/loss`), until that is freed as a block is. What was made for another task
    leaves gaps. Every implementation passes `quarl_device.testing.outbox_conformance`.

    Attributes:
        boot_id: of the life that puts.
        dropped_blocks: blocks given up since the start of this life: to make room, of another task, or damaged.
        dropped_steps: environment steps in them, as far as known.
    """

    boot_id: str

    @property
    def dropped_blocks(self) -> int:
        """See above."""
        ...

    @property
    def dropped_steps(self) -> int:
        """See above."""
        ...

    @property
    def delivering(self) -> str:
        """The life that is delivered now: that of the oldest block held, or the one that puts if nothing is held."""
        ...

    @property
    def base(self) -> int:
        """The lowest sequence of the delivered life that is or will be held."""
        ...

    @property
    def end(self) -> int:
        """One more than the highest sequence of the delivered life that was put."""
        ...

    @property
    def full(self) -> bool:
        """Whether another block may not fit; never, if the oldest is dropped for it."""
        ...

    @property
    def fault(self) -> str:
        """Why what was put last could not be kept safe (yet), "" if it could."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes held, in all lives."""
        ...

    def __len__(self) -> int:
        """Return the number of blocks and losses held, in all lives."""
        ...

    def put(self, sequence: int, payload: bytes, *, steps: int = 0, first_step: int | None = None) -> None:
        """Keep a block.

        Args:
            sequence: of the block.
            payload: encoded.
            steps: environment steps in it.
            first_step: steps that this life had made before it; by default those that were put.

        Raises:
            UsageError: not the sequence that comes next; two blocks would share an identity.
        """
        ...

    def next_held(self, sequence: int) -> int | None:
        """Return the lowest sequence held from `sequence` on, in the delivered life."""
        ...

    def get(self, sequence: int) -> bytes | None:
        """Return a held block of the delivered life, or None when it is held no longer, or cannot be read now."""
        ...

    def gap_before(self, sequence: int) -> tuple[tuple[int, int], ...]:
        """Return the range of sequences right before a held one that were dropped after `base`: one, or none."""
        ...

    def free(self, durable: int) -> int:
        """Forget every block of the delivered life up to and including `durable`; return how many."""
        ...

    def holds_other_task(self, task: str) -> bool:
        """Return whether a block is held that was put for another task than `task`."""
        ...

    def begin_task(self, task: str) -> int:
        """Drop what was put for another task than `task`, of which the next blocks are; return how many blocks."""
        ...

    def upkeep(self, now_s: float) -> Callable[[], None] | None:
        """Do what is due at `now_s`, monotonic; return what may be slow, to be called where nobody waits for it."""
        ...

    def close(self) -> None:
        """Keep what is held as safe as it gets, and let it go. A second call does nothing."""
        ...


class MemoryOutbox:
    """An outbox that ends with the process. See `Outbox`.

    Args:
        boot_id: of this life.
        max_bytes: `full` from here on. One block may go over it, so that any block fits an empty outbox.
        when_full: what happens then.

    Raises:
        UsageError: a cap that holds nothing.
    """

    fault = ""

    def __init__(
        self, boot_id: str = "", *, max_bytes: int = DEFAULT_OUTBOX_BYTES, when_full: WhenFull = "block"
    ) -> None:
        if max_bytes < 1:
            raise UsageError(f"outbox cap {max_bytes} bytes is not positive")
        self.boot_id = boot_id
        self.dropped_blocks = 0
        self.dropped_steps = 0
        self._max_bytes = max_bytes
        self._when_full = when_full
        self._blocks: OrderedDict[int, tuple[bytes, int, int]] = OrderedDict()  # payload, first step, steps
        self._loss: Loss | None = None  # right before the oldest block
        self._next = 0
        self._next_step = 0
        self._bytes = 0
        self._task = ""

    @property
    def delivering(self) -> str:
        """This life: there is no other."""
        return self.boot_id

    @property
    def base(self) -> int:
        """The lowest sequence that is or will be held."""
        return self._oldest if self._loss is None else self._loss.first

    @property
    def _oldest(self) -> int:
        return next(iter(self._blocks), self._next)

    @property
    def end(self) -> int:
        """The sequence that comes next."""
        return self._next

    @property
    def full(self) -> bool:
        """Whether another block may not fit."""
        return self._when_full == "block" and self._bytes >= self._max_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes held."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._blocks) + (self._loss is not None)

    def put(self, sequence: int, payload: bytes, *, steps: int = 0, first_step: int | None = None) -> None:
        """Keep a block. See `Outbox`."""
        if sequence != self._next:
            raise UsageError(f"outbox expects block {self._next}, not {sequence}")
        if self._when_full == "drop-oldest":
            while self._blocks and self._bytes + len(payload) > self._max_bytes:
                self._drop_oldest()
        first_step = self._next_step if first_step is None else first_step
        self._blocks[sequence] = payload, first_step, steps
        self._bytes += len(payload)
        self._next, self._next_step = sequence + 1, first_step + steps

    def next_held(self, sequence: int) -> int | None:
        """Return the lowest sequence held from `sequence` on."""
        if self._loss is not None and sequence <= self._loss.last:
            return self._loss.last
        # Only the oldest is ever taken out, so the blocks that are held are one range.
        sequence = max(sequence, self._oldest)
        return sequence if sequence < self._next else None

    def get(self, sequence: int) -> bytes | None:
        """Return a held block, or None when it is held no longer."""
        if self._loss is not None and sequence == self._loss.last:
            return self._loss.payload()
        held = self._blocks.get(sequence)
        return None if held is None else held[0]

    def gap_before(self, sequence: int) -> tuple[tuple[int, int], ...]:
        """Return what a loss takes the place of: nothing else is missing."""
        return self._loss.gap if self._loss is not None and sequence == self._loss.last else ()

    def free(self, durable: int) -> int:
        """Forget every block up to and including `durable`; return how many."""
        freed = 0
        if self._loss is not None and self._loss.last <= durable:
            self._loss, freed = None, 1
        while self._blocks and next(iter(self._blocks)) <= durable:
            self._take_oldest()
            freed += 1
        return freed

    def holds_other_task(self, task: str) -> bool:
        """Return whether a block of another task is held. See `Outbox`."""
        return len(self) > 0 and task != self._task

    def begin_task(self, task: str) -> int:
        """Drop what was put for another task. See `Outbox`."""
        dropped = len(self._blocks) if task != self._task else 0
        for _ in range(dropped):
            self._drop_oldest()
        if task != self._task:
            self._loss = None
        self._task = task
        return dropped

    def upkeep(self, now_s: float) -> None:
        """Do nothing: memory needs no care."""

    def close(self) -> None:
        """Do nothing."""

    def _drop_oldest(self) -> None:
        sequence, first_step, steps = self._take_oldest()
        self.dropped_blocks += 1
        self.dropped_steps += steps
        loss = Loss(
            life=self.boot_id, first=sequence, last=sequence, first_step=first_step, end_step=first_step + steps
        )
        # It touches the loss before it: what was freed since would have freed that one, too.
        self._loss = loss if self._loss is None else self._loss.joined(loss)

    def _take_oldest(self) -> tuple[int, int, int]:
        sequence, (payload, first_step, steps) = self._blocks.popitem(last=False)
        self._bytes -= len(payload)
        return sequence, first_step, steps
