"""An outbox on disk: append-only segment files in a directory of their own, one process at a time.

A block is handed to the operating system before `put` returns, so it survives the death of the process; `SpoolConfig`
says what survives a power cut. Files of one life follow those of the life before it. Blocks leave in the order in which
they came, so what is free is always the beginning: whole files go once nothing in them is held, and a `FREED` record
now and then lets a restart begin about there. What is sent again nevertheless, the learner knows.

What will never come is told to the learner by a loss in its place (`holdings`, `wire/loss`; on disk: `notes`).

A disk that refuses costs nothing: the block that could not be written stays in memory, `fault` says why, and `upkeep`
tries again. Who looks at `fault` makes no more blocks meanwhile.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from quarl_device.actor.loss import Loss
from quarl_device.errors import SpoolInUse, StateUnwritable, UsageError
from quarl_device.spool.appender import Appender
from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.directory import SpoolLock, set_aside
from quarl_device.spool.holdings import Holdings, Waiting
from quarl_device.spool.notes import Notes
from quarl_device.spool.reader import NotNow, Reader
from quarl_device.spool.records import BLOCK, HEADER_BYTES, encode_header, read_header
from quarl_device.spool.recovery import Recovered, recover
from quarl_device.spool.segment import Place, Segment

_LOG = logging.getLogger(__name__)
_RETRY_S = 1.0


class DiskSpool:
    """The spool of one device. See `Outbox`; not thread-safe, but for what `upkeep` returns.

    Args:
        directory: of this spool alone; made if it is missing.
        boot_id: of this life.
        config: see `SpoolConfig`.

    Attributes:
        recovered: what earlier lives left.

    Raises:
        StateUnwritable: the directory cannot be used.
        SpoolInUse: another process has it.
        UsageError: an earlier life had this boot id.
    """

    def __init__(self, directory: Path, *, boot_id: str, config: SpoolConfig | None = None) -> None:
        self.boot_id = boot_id
        self._directory = directory
        self._config = config or SpoolConfig()
        self._lock = SpoolLock(directory)
        self._appender = Appender(directory, self._config)
        self._reader = Reader()
        self._task = _fingerprint("")
        self._write_fault = ""
        self._retry_s = 0.0
        self._next_step = 0
        self.recovered = self._open()
        if boot_id in {segment.life for segment in self.recovered.segments}:
            self._let_go()
            raise UsageError(f"boot id {boot_id} was used before: every life needs its own")
        self._number = self.recovered.next_number
        self._holdings = Holdings(boot_id, self.recovered.segments, self.recovered.losses)
        self._notes = Notes(self._holdings, self._appender, begin_file=self._begin_file, said=self.recovered.said)
        if self.recovered.blocks or self.recovered.dropped_blocks or self.recovered.losses:
            _LOG.warning("spool %s: %s", directory, self.recovered)
        self._settle()

    def _open(self) -> Recovered:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock.take()
            return recover(self._directory)
        except OSError as cause:
            self._let_go()
            raise StateUnwritable(
                f"the spool cannot be opened: {self._directory}: {cause.strerror}",
                hint="--state-dir DIR on a disk that can be written, or --spool memory",
            ) from cause
        except SpoolInUse:
            self._let_go()
            raise

    def _settle(self) -> None:
        """Let go of the files of earlier lives that hold nothing, or nothing that anybody can read."""
        if self._notes.keep_losses():
            for path in self.recovered.set_aside:
                set_aside(path)
        self._tidy()

    # -- what is held ------------------------------------------------------------------------------------------------

    @property
    def delivering(self) -> str:
        """The life that is delivered now. See `Outbox`."""
        return self._holdings.delivering

    @property
    def base(self) -> int:
        """The lowest sequence of the delivered life that is or will be held."""
        return self._holdings.base

    @property
    def end(self) -> int:
        """One more than the highest sequence of the delivered life that was put."""
        return self._holdings.end

    @property
    def full(self) -> bool:
        """Whether another block may not fit; never, if the oldest is dropped for it."""
        return self._config.when_full == "block" and self.pending_bytes >= self._config.held_bytes

    @property
    def fault(self) -> str:
        """Why what was put last could not be kept safe (yet), "" if it could."""
        return (self._write_fault if self._holdings.waiting is not None else "") or self._appender.fault

    @property
    def pending_bytes(self) -> int:
        """Bytes held on disk, in all lives."""
        return self._holdings.held_bytes

    @property
    def dropped_blocks(self) -> int:
        """Blocks given up since the start of this life, and those that were found damaged at its start."""
        return self.recovered.dropped_blocks + self._holdings.dropped_blocks

    @property
    def dropped_steps(self) -> int:
        """Environment steps in them."""
        return self.recovered.dropped_steps + self._holdings.dropped_steps

    @property
    def bytes_written(self) -> int:
        """To files, by this life."""
        return self._appender.bytes_written

    def __len__(self) -> int:
        return len(self._holdings)

    def next_held(self, sequence: int) -> int | None:
        """Return the lowest sequence held from `sequence` on, in the delivered life."""
        return self._holdings.next_held(sequence)

    def gap_before(self, sequence: int) -> tuple[tuple[int, int], ...]:
        """Return the range of sequences right before a held one that will never come: one, or none."""
        return self._holdings.gap_before(sequence)

    def get(self, sequence: int) -> bytes | None:
        """Return what is held in the place of a block, or None when nothing is, or it cannot be read now."""
        found = self._holdings.find(sequence)
        if found is None or isinstance(found, Waiting):
            return None if found is None else found.payload
        if isinstance(found, Loss):
            return found.payload()
        segment, entry = found
        try:
            payload = self._reader.read(segment, entry, file=self._written(segment))
        except NotNow:
            return None
        if payload is None:
            _LOG.error("spool file %s: block %d is damaged and dropped", segment.path, sequence)
            self._holdings.lose(segment, entry)
            self._tidy()
        return payload

    def _written(self, segment: Segment) -> int:
        """Return the descriptor of a file if it is the one that is written, else -1."""
        return self._appender.file if segment is self._holdings.segments[-1] else -1

    # -- in ----------------------------------------------------------------------------------------------------------

    def put(self, sequence: int, payload: bytes, *, steps: int = 0, first_step: int | None = None) -> None:
        """Keep a block. See `Outbox`."""
        holdings = self._holdings
        if sequence != holdings.next:
            raise UsageError(f"outbox expects block {holdings.next}, not {sequence}")
        if holdings.waiting is not None:
            raise UsageError(f"outbox cannot take block {sequence}: {self.fault}")
        if self._config.when_full == "drop-oldest":
            while holdings.held_bytes and holdings.held_bytes + HEADER_BYTES + len(payload) > self._config.held_bytes:
                self._drop_oldest()
        first_step = self._next_step if first_step is None else first_step
        self._next_step = first_step + steps
        holdings.wait(Waiting(sequence=sequence, payload=payload, first_step=first_step, steps=steps, task=self._task))
        self._write()

    def _drop_oldest(self) -> None:
        segment = self._holdings.oldest_segment()
        if segment is not None:
            self._holdings.lose(segment, next(segment.entries()))
            self._tidy()

    def _write(self) -> None:
        """Bring the block that waits in memory to disk, if that takes it."""
        block = self._holdings.waiting
        if block is None:
            return
        head = encode_header(
            kind=BLOCK,
            life=self.boot_id,
            task=block.task,
            sequence=block.sequence,
            first_step=block.first_step,
            steps=block.steps,
            payload=block.payload,
        )
        try:
            if self._appender.file < 0 or self._appender.size_bytes >= self._config.segment_bytes:
                self._begin_file()
                self._tidy()
            offset = self._appender.append(head, block.payload)
        except OSError as cause:
            if not self._write_fault:
                _LOG.error("spool %s cannot be written: %s", self._directory, cause.strerror)
            self._write_fault = f"{cause.strerror}"
            return
        if self._write_fault:
            _LOG.warning("spool %s is written again", self._directory)
        self._write_fault = ""
        header = read_header(head)
        assert header is not None  # noqa: S101  just made
        self._holdings.written(offset, header)

    def _begin_file(self) -> None:
        """Begin a file with the block that waits, or the one that comes next."""
        block = self._holdings.waiting
        at = (self._holdings.next, self._next_step) if block is None else (block.sequence, block.first_step)
        path = self._directory / Place(self._number, self.boot_id, *at).name
        self._appender.begin(path)
        self._holdings.segments.append(Segment(path=path, life=self.boot_id, task=self._task))
        self._number += 1

    # -- out ---------------------------------------------------------------------------------------------------------

    def free(self, durable: int) -> int:
        """Forget every block of the delivered life up to and including `durable`; return how many."""
        life = self.delivering
        freed, last = self._holdings.free(durable)
        if freed:
            self._notes.freed(life, last)
            self._tidy()
        if self.delivering != life:
            self._notes.life_is_over()
        return freed

    def holds_other_task(self, task: str) -> bool:
        """Return whether a block of another task is held. See `Outbox`."""
        return self._holdings.holds_other_task(_fingerprint(task))

    def begin_task(self, task: str) -> int:
        """Drop what was put for another task. See `Outbox`."""
        holdings, before = self._holdings, self._holdings.dropped_blocks
        written = holdings.segments[-1] if holdings.segments else None
        self._task = _fingerprint(task)
        going = holdings.drop_other_tasks(self._task)
        if any(segment is written for segment in going):
            self._appender.end()
        for segment in going:
            self._notes.keep_losses(segment.path)
            self._remove(segment)
        return holdings.dropped_blocks - before

    def give_up(self, boot_id: str = "") -> None:
        """Lose all blocks of a life, or of all lives, and their files; what they were is on disk when this returns.

        Raises:
            StateUnwritable: the disk takes no note of them, so their files stay.
        """
        going = [one for one in self._holdings.segments if len(one) and (not boot_id or one.life == boot_id)]
        for segment in going:
            for entry in list(segment.entries()):
                self._holdings.lose(segment, entry)
        if not self._notes.keep_losses() and not self._note_in_place_of(going):
            raise StateUnwritable(
                f"the spool cannot be written: {self._directory}: {self._notes.fault}",
                hint="free space, or mend the disk; then again: until it is noted what is lost, nothing is removed",
            )
        self._notes.mark_all()
        self._remove_empty()

    def _note_in_place_of(self, going: list[Segment]) -> bool:
        """Note losses on a full disk; one that fails in another way is not trusted with what it has."""
        if self._appender.fault:
            return False
        free = [segment for segment in going if self._written(segment) < 0]
        return any(self._notes.write_losses_over(segment) for segment in reversed(free))

    def _tidy(self) -> None:
        """Remove the files at the beginning that hold nothing, but for the one that is written."""
        segments = self._holdings.segments
        while segments and not len(segments[0]) and (len(segments) > 1 or self._appender.file < 0):
            if not self._notes.keep_losses(segments[0].path):
                return
            self._remove(segments.popleft())

    def _remove_empty(self) -> None:
        """Remove the files that hold nothing wherever they are, behind files that hold something too."""
        for segment in [one for one in self._holdings.segments if not len(one) and self._written(one) < 0]:
            if not self._notes.keep_losses(segment.path):
                return
            self._holdings.segments.remove(segment)
            self._remove(segment)

    def _remove(self, segment: Segment) -> None:
        self._reader.forget(segment.path)
        try:
            segment.path.unlink()
        except OSError as cause:
            _LOG.warning("spool file %s cannot be removed: %s", segment.path, cause.strerror)

    # -- certainty ---------------------------------------------------------------------------------------------------

    def upkeep(self, now_s: float) -> Callable[[], None] | None:
        """Try again what the disk refused, note what is freed, and return the fsync that is due. See `Outbox`."""
        if self._write_fault and now_s >= self._retry_s:
            self._retry_s = now_s + _RETRY_S
            self._write()
        self._notes.mark_if_due(now_s)
        if not self._appender.sync_is_due(now_s):
            return None
        self._notes.mark()
        return self._appender.sync_job()

    def close(self) -> None:
        """Write and sync what there is, and let another process have the spool. A second call does nothing."""
        if not self._lock.taken:
            return
        self._write()
        self._lose_waiting()
        self._notes.mark()
        if not len(self):
            self._appender.end()
            self._tidy()
        if self._config.sync != "never":
            self._appender.sync_job()()
        self._let_go()

    def _lose_waiting(self) -> None:
        """Give up the block that the disk has refused to the end; a note of it may be small enough."""
        block = self._holdings.lose_waiting()
        if block is None:
            return
        told = "the learner will be told" if self._notes.keep_losses() else "the learner cannot be told"
        _LOG.error(
            "spool %s cannot be written: %s: block %d (%d steps) is lost; %s",
            self._directory, self._write_fault, block.sequence, block.steps, told,
        )  # fmt: skip

    def _let_go(self) -> None:
        self._appender.close()
        self._reader.close()
        self._lock.release()


def _fingerprint(task: str) -> int:
    return int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "little")
