"""What a spool holds, in memory: which blocks and losses of which lives, in the order in which they leave. No IO."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quarl_device.actor.loss import Loss, join
from quarl_device.spool.records import Header
from quarl_device.spool.segment import Entry, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A block that the disk has not taken yet; always the newest of this life."""

    sequence: int
    payload: bytes
    first_step: int
    steps: int
    task: int


class Holdings:
    """Blocks and losses, life by life.

    Args:
        boot_id: of the life that puts.
        segments: that earlier lives left, in the order of their files.
        losses: of those lives.

    Attributes:
        segments: files in order; the last one may be written.
        losses: what will never come and is not told yet, in the order in which it is told.
        waiting: see `Waiting`; counts as held.
        held_bytes: of the blocks on disk.
        dropped_blocks: that were held, and became losses or are of no use.
        dropped_steps: environment steps in them.
    """

    def __init__(self, boot_id: str, segments: Iterable[Segment] = (), losses: Iterable[Loss] = ()) -> None:
        self.boot_id = boot_id
        self.segments = deque(segments)
        self.losses: list[Loss] = list(losses)
        self.waiting: Waiting | None = None
        self.held_bytes = sum(entry.size_bytes for segment in self.segments for entry in segment.entries())
        self.dropped_blocks = self.dropped_steps = 0
        self._next = 0
        # Any order of lives will do; one of which nothing but losses is left needs no file, so it comes first.
        self._ranks: dict[str, int] = {}
        with_blocks = {segment.life for segment in self.segments}
        for life in [loss.life for loss in self.losses if loss.life not in with_blocks]:
            self._rank(life)
        for segment in self.segments:
            self._rank(segment.life)
        self._sort()

    def __len__(self) -> int:
        return sum(map(len, self.segments)) + len(self.losses) + (self.waiting is not None)

    @property
    def next(self) -> int:
        """The sequence that this life puts next."""
        return self._next

    # -- the life that is delivered ----------------------------------------------------------------------------------

    @property
    def delivering(self) -> str:
        """See `Outbox`."""
        segment = self.segments[0] if self.segments and len(self.segments[0]) else self.oldest_segment()
        if not self.losses:
            return self.boot_id if segment is None else segment.life
        life = self.losses[0].life
        return life if segment is None or self._rank(life) <= self._rank(segment.life) else segment.life

    @property
    def base(self) -> int:
        """See `Outbox`."""
        segment, loss = next(self._segments_now(), None), next(iter(self._losses_now()), None)
        firsts = [] if segment is None else [segment.first]
        firsts += [] if loss is None else [loss.first]
        if firsts:
            return min(firsts)
        return self._next if self.waiting is None else self.waiting.sequence

    @property
    def end(self) -> int:
        """See `Outbox`."""
        if self.delivering == self.boot_id:
            return self._next
        lasts = [segment.last for segment in self._segments_now()] + [loss.last for loss in self._losses_now()]
        return max(lasts) + 1

    def next_held(self, sequence: int) -> int | None:
        """See `Outbox`."""
        block = next((one.next_held(sequence) for one in self._segments_now() if one.last >= sequence), None)
        loss = next((one.last for one in self._losses_now() if one.last >= sequence), None)
        waiting = self._waiting_now()
        if waiting is not None and waiting.sequence >= sequence and block is None and loss is None:
            return waiting.sequence
        return min((number for number in (block, loss) if number is not None), default=None)

    def find(self, sequence: int) -> tuple[Segment, Entry] | Loss | Waiting | None:
        """Return what is held in the place of a block of the delivered life."""
        for segment in self._segments_now():
            if segment.last >= sequence:
                entry = segment.entry(sequence)
                if entry is not None:
                    return segment, entry
                break
        for loss in self._losses_now():
            if loss.last == sequence:
                return loss
        waiting = self._waiting_now()
        return waiting if waiting is not None and waiting.sequence == sequence else None

    def gap_before(self, sequence: int) -> tuple[tuple[int, int], ...]:
        """See `Outbox`."""
        before = self.base - 1
        for segment in self._segments_now():
            if segment.first >= sequence:
                break
            found = segment.held_before(sequence)
            before = before if found is None else max(before, found)
        before = max([before, *(loss.last for loss in self._losses_now() if loss.last < sequence)])
        return ((before + 1, sequence - 1),) if before + 1 < sequence else ()

    def firsts(self) -> dict[str, int]:
        """Return the lowest sequence that is held of each life, where any before it is done with."""
        held = [(one.life, one.first) for one in self.segments if len(one)]
        held += [(loss.life, loss.first) for loss in self.losses]
        firsts = {life: min(first for other, first in held if other == life) for life, _ in held}
        return {life: first for life, first in firsts.items() if first > 0}

    def _segments_now(self) -> Iterator[Segment]:
        life = self.delivering
        return (segment for segment in self.segments if len(segment) and segment.life == life)

    def _losses_now(self) -> Iterable[Loss]:
        if not self.losses:
            return ()
        life = self.delivering
        return (loss for loss in self.losses if loss.life == life)

    def _waiting_now(self) -> Waiting | None:
        return self.waiting if self.delivering == self.boot_id else None

    def _rank(self, life: str) -> int:
        return self._ranks.setdefault(life, len(self._ranks))

    def _sort(self) -> None:
        self.losses.sort(key=lambda loss: (self._rank(loss.life), loss.first))

    # -- in ----------------------------------------------------------------------------------------------------------

    def wait(self, waiting: Waiting) -> None:
        """Hold a block, the next of this life, that is not on disk yet."""
        self._rank(self.boot_id)
        self.waiting = waiting
        self._next = waiting.sequence + 1

    def written(self, offset: int, header: Header) -> None:
        """The block that waits is in the last segment now."""
        self.segments[-1].add(offset, header)
        self.held_bytes += header.size_bytes
        self.waiting = None

    # -- out ---------------------------------------------------------------------------------------------------------

    def oldest_segment(self) -> Segment | None:
        """Return the file with the oldest block that is on disk."""
        return next((segment for segment in self.segments if len(segment)), None)

    def free(self, durable: int) -> tuple[int, int]:
        """Hold what the delivered life has up to a sequence no longer: it is safe elsewhere.

        Returns:
            How many blocks and losses that were, and the last of their sequences.
        """
        life, freed, last = self.delivering, 0, -1
        for segment in self.segments:
            if segment.life == life:
                while len(segment) and segment.first <= durable:
                    last = segment.first
                    self.held_bytes -= segment.pop_first().size_bytes
                    freed += 1
                if len(segment):
                    break
        done = [loss for loss in self.losses if loss.life == life and loss.last <= durable]
        self.losses = [loss for loss in self.losses if loss not in done] if done else self.losses
        freed, last = freed + len(done), max([last, *(loss.last for loss in done)])
        if self.waiting is not None and life == self.boot_id and self.waiting.sequence <= durable:
            freed, last, self.waiting = freed + 1, self.waiting.sequence, None
        return freed, last

    def lose(self, segment: Segment, entry: Entry) -> None:
        """Hold a block no longer that will never come, and a loss in its place."""
        segment.remove(entry.sequence)
        self._drop(entry.steps, entry.size_bytes)
        self._hold_loss(segment.life, segment.task, entry)

    def lose_waiting(self) -> Waiting | None:
        """`lose` the block that waits, and return it."""
        block, self.waiting = self.waiting, None
        if block is not None:
            self._drop(block.steps, 0)
            self._hold_loss(self.boot_id, block.task, block)
        return block

    def _hold_loss(self, life: str, task: int, block: Entry | Waiting) -> None:
        loss = Loss(
            life=life,
            first=block.sequence,
            last=block.sequence,
            first_step=block.first_step,
            end_step=block.first_step + block.steps,
            task=task,
        )
        others = [one for one in self.losses if one.life != loss.life]
        self.losses = [*others, *join([one for one in self.losses if one.life == loss.life] + [loss])]
        self._sort()

    def drop_other_tasks(self, task: int) -> list[Segment]:
        """Hold nothing any more that was made for another task; returns the files that go."""
        going = [segment for segment in self.segments if segment.task != task]
        for segment in going:
            for entry in segment.entries():
                self._drop(entry.steps, entry.size_bytes)
            self.segments.remove(segment)
        self.losses = [loss for loss in self.losses if loss.fits_task(task)]
        if self.waiting is not None and self.waiting.task != task:
            self._drop(self.waiting.steps, 0)
            self.waiting = None
        return going

    def holds_other_task(self, task: int) -> bool:
        """Whether anything is held that was made for another task."""
        if self.waiting is not None and self.waiting.task != task:
            return True
        blocks = any(len(segment) and segment.task != task for segment in self.segments)
        return blocks or any(not loss.fits_task(task) for loss in self.losses)

    def _drop(self, steps: int, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self.dropped_blocks += 1
        self.dropped_steps += steps
