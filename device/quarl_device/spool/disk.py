"""An outbox on disk: append-only segment files in a directory of their own, one process at a time.

A block is handed to the operating system before `put` returns, so it survives the death of the process; `SpoolConfig`
says what survives a power cut. Files of one life follow those of the life before it. Blocks leave in the order in which
they came, so what is free is always the beginning: whole files go once nothing in them is held, and a `FREED` record
now and then lets a restart begin about there. What is sent again nevertheless, the learner knows.

A disk that refuses costs nothing: the block that could not be written stays in memory, `fault` says why, and `upkeep`
tries again. Who looks at `fault` makes no more blocks meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from quarl_device.errors import SpoolInUse, StateUnwritable, UsageError
from quarl_device.spool.appender import Appender
from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.records import (
    BLOCK,
    FREED,
    HEADER_BYTES,
    encode_header,
    payload_of,
    read_header,
)
from quarl_device.spool.recovery import Recovered, recover
from quarl_device.spool.segment import SUFFIX, Entry, Segment

_LOG = logging.getLogger(__name__)
_RETRY_S = 1.0
_MARK_S = 5.0  # between notes of what is freed: 48 bytes each
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)  # says nothing about the file


class DiskSpool:
    """The spool of one device. See `Outbox`; not thread-safe, but for what `upkeep` returns.

    Args:
        directory: of this spool alone; made if it is missing.
        boot_id: of this life.
        config: see `SpoolConfig`.

    Attributes:
        recovered: what earlier lives left.

    Raises:
        StateUnwritable: the directory cannot be used, or was written by another version.
        SpoolInUse: another process has it.
        UsageError: an earlier life had this boot id.
    """

    def __init__(self, directory: Path, *, boot_id: str, config: SpoolConfig | None = None) -> None:
        self.boot_id = boot_id
        self._directory = directory
        self._config = config or SpoolConfig()
        self._lock = -1
        self._appender = Appender(directory, self._config)
        self._reader: tuple[Path | None, int] = (None, -1)
        self._next = 0
        self._task = _fingerprint("")
        self._unwritten: tuple[int, bytes, int] | None = None
        self._write_fault = ""
        self._retry_s = 0.0
        self._freed_since_mark = False
        self._marked_s = 0.0
        self._last_freed = ("", -1)
        self.recovered = self._open()
        if boot_id in {segment.life for segment in self.recovered.segments}:
            self._let_go()
            raise UsageError(f"boot id {boot_id} was used before: every life needs its own")
        self._segments = deque(self.recovered.segments)
        self._number = self.recovered.next_number
        self._held_bytes = sum(entry.size_bytes for segment in self._segments for entry in _entries(segment))
        self.dropped_blocks = self.recovered.dropped_blocks
        self.dropped_steps = self.recovered.dropped_steps
        if self.recovered.blocks or self.recovered.dropped_blocks:
            _LOG.warning("spool %s: %s", directory, self.recovered)

    def _open(self) -> Recovered:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._take_lock()
            return recover(self._directory)
        except OSError as cause:
            self._let_go()
            raise StateUnwritable(
                f"the spool cannot be opened: {self._directory}: {cause.strerror}",
                hint="--state-dir DIR on a disk that can be written, or --spool memory",
            ) from cause
        except (SpoolInUse, StateUnwritable):
            self._let_go()
            raise

    def _take_lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(self._directory / "lock", flags, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpoolInUse(
                f"another process uses the spool {self._directory}",
                hint="give one of them another --id or --state-dir",
            ) from None

    # -- what is held ------------------------------------------------------------------------------------------------

    @property
    def delivering(self) -> str:
        """The life that is delivered now. See `Outbox`."""
        return self._segments[0].life if self._segments and len(self._segments[0]) else self.boot_id

    @property
    def base(self) -> int:
        """The lowest sequence of the delivered life that is or will be held."""
        if self._segments and len(self._segments[0]):
            return self._segments[0].first
        return self._next if self._unwritten is None else self._unwritten[0]

    @property
    def end(self) -> int:
        """One more than the highest sequence of the delivered life that was put."""
        if self.delivering == self.boot_id:
            return self._next
        return max(segment.last for segment in self._delivered()) + 1

    @property
    def full(self) -> bool:
        """Whether another block may not fit; never, if the oldest is dropped for it."""
        return self._config.when_full == "block" and self._held_bytes >= self._config.held_bytes

    @property
    def fault(self) -> str:
        """Why what was put last could not be kept safe (yet), "" if it could."""
        return self._write_fault or self._appender.fault

    @property
    def pending_bytes(self) -> int:
        """Bytes held on disk, in all lives."""
        return self._held_bytes

    @property
    def bytes_written(self) -> int:
        """To files, by this life."""
        return self._appender.bytes_written

    def __len__(self) -> int:
        return sum(map(len, self._segments)) + (self._unwritten is not None)

    def next_held(self, sequence: int) -> int | None:
        """Return the lowest sequence held from `sequence` on, in the delivered life."""
        for segment in self._delivered():
            if segment.last >= sequence:
                return segment.next_held(sequence)
        waiting = self._waiting()
        return waiting[0] if waiting is not None and waiting[0] >= sequence else None

    def get(self, sequence: int) -> bytes | None:
        """Return a held block of the delivered life, or None when it is held no longer, or cannot be read now."""
        for segment in self._delivered():
            if segment.last >= sequence:
                entry = segment.entry(sequence)
                return None if entry is None else self._read(segment, entry)
        waiting = self._waiting()
        return waiting[1] if waiting is not None and waiting[0] == sequence else None

    def gap_before(self, sequence: int) -> tuple[tuple[int, int], ...]:
        """Return the range of sequences right before a held one that were dropped after `base`: one, or none."""
        before = -1
        for segment in self._delivered():
            if segment.first >= sequence:
                break
            found = segment.held_before(sequence)
            before = before if found is None else found
        return ((before + 1, sequence - 1),) if 0 <= before < sequence - 1 else ()

    def _waiting(self) -> tuple[int, bytes, int] | None:
        """Return the block that is not on disk yet, if it is of the delivered life."""
        return self._unwritten if self.delivering == self.boot_id else None

    def _delivered(self) -> Iterator[Segment]:
        """Yield the segments of the delivered life that hold blocks."""
        life = self.delivering
        for segment in self._segments:
            if len(segment):
                if segment.life != life:
                    return
                yield segment

    # -- in ----------------------------------------------------------------------------------------------------------

    def put(self, sequence: int, payload: bytes, *, steps: int = 0) -> None:
        """Keep a block. See `Outbox`."""
        if sequence != self._next:
            raise UsageError(f"outbox expects block {self._next}, not {sequence}")
        if self._unwritten is not None:
            raise UsageError(f"outbox cannot take block {sequence}: {self.fault}")
        if self._config.when_full == "drop-oldest":
            while self._held_bytes and self._held_bytes + HEADER_BYTES + len(payload) > self._config.held_bytes:
                self._drop_oldest()
        self._next += 1
        self._unwritten = sequence, payload, steps
        self._write()

    def _write(self) -> None:
        """Bring the block that waits in memory to disk, if that takes it."""
        if self._unwritten is None:
            return
        sequence, payload, steps = self._unwritten
        head = encode_header(
            kind=BLOCK, life=self.boot_id, task=self._task, sequence=sequence, steps=steps, payload=payload
        )
        try:
            if self._appender.file < 0 or self._appender.size_bytes >= self._config.segment_bytes:
                self._rotate()
            offset = self._appender.append(head, payload)
        except OSError as cause:
            if not self._write_fault:
                _LOG.error("spool %s cannot be written: %s", self._directory, cause.strerror)
            self._write_fault = f"{cause.strerror}"
            return
        if self._write_fault:
            _LOG.warning("spool %s is written again", self._directory)
        self._write_fault, self._unwritten = "", None
        header = read_header(head)
        assert header is not None  # noqa: S101  just made
        self._segments[-1].add(offset, header)
        self._held_bytes += header.size_bytes

    def _rotate(self) -> None:
        """Begin a file."""
        path = self._directory / f"{self._number:020d}{SUFFIX}"
        self._appender.begin(path)
        self._segments.append(Segment(path=path, life=self.boot_id, task=self._task))
        self._number += 1
        self._tidy()

    # -- out ---------------------------------------------------------------------------------------------------------

    def free(self, durable: int) -> int:
        """Forget every block of the delivered life up to and including `durable`; return how many."""
        life, freed = self.delivering, 0
        while self.delivering == life and len(self) and self.base <= durable:
            self._last_freed = life, self.base
            self._free_oldest()
            freed += 1
        self._freed_since_mark |= freed > 0
        if self.delivering != life:
            # A restart must not deliver a whole life again.
            self._mark()
        return freed

    def holds_other_task(self, task: str) -> bool:
        """Return whether a block of another task is held. See `Outbox`."""
        fingerprint = _fingerprint(task)
        if self._unwritten is not None and fingerprint != self._task:
            return True
        return any(len(segment) and segment.task != fingerprint for segment in self._segments)

    def begin_task(self, task: str) -> int:
        """Drop what was put for another task. See `Outbox`."""
        fingerprint = _fingerprint(task)
        dropped = 0
        for segment in [segment for segment in self._segments if segment.task != fingerprint]:
            dropped += len(segment)
            while len(segment):
                self._drop(segment.pop_first())
            if segment is self._segments[-1]:
                self._appender.end()
            self._segments.remove(segment)
            self._unlink(segment)
        if fingerprint != self._task and self._unwritten is not None:
            dropped += self._drop_unwritten()
        self._task = fingerprint
        return dropped

    def _drop_oldest(self) -> None:
        life = self.delivering
        self._last_freed = life, self.base
        self._freed_since_mark = True
        if self._segments and len(self._segments[0]):
            self._drop(self._segments[0].pop_first())
            self._tidy()
        else:
            self._drop_unwritten()
        if self.delivering != life:
            self._mark()

    def _drop_unwritten(self) -> int:
        if self._unwritten is None:
            return 0
        self.dropped_blocks += 1
        self.dropped_steps += self._unwritten[2]
        self._unwritten, self._write_fault = None, ""
        return 1

    def _drop(self, entry: Entry) -> None:
        """Count a block that is held no longer as dropped."""
        self._held_bytes -= entry.size_bytes
        self.dropped_blocks += 1
        self.dropped_steps += entry.steps

    def _free_oldest(self) -> None:
        if self._segments and len(self._segments[0]):
            self._held_bytes -= self._segments[0].pop_first().size_bytes
            self._tidy()
        else:
            self._unwritten, self._write_fault = None, ""

    def _tidy(self) -> None:
        """Remove the files at the beginning that hold nothing, but for the one that is written."""
        while len(self._segments) > 1 and not len(self._segments[0]):
            self._unlink(self._segments.popleft())
        if self._appender.file < 0 and self._segments and not len(self._segments[0]):
            self._unlink(self._segments.popleft())

    def _unlink(self, segment: Segment) -> None:
        if self._reader[0] == segment.path:
            self._close_reader()
        try:
            segment.path.unlink()
        except OSError as cause:
            _LOG.warning("spool file %s cannot be removed: %s", segment.path, cause.strerror)

    def _read(self, segment: Segment, entry: Entry) -> bytes | None:
        """Return a block as it was put; one that does not hold (any more) is dropped, one that may is not."""
        try:
            data = os.pread(self._open_for_reading(segment), entry.size_bytes, entry.offset)
        except OSError as cause:
            if cause.errno in _PASSING:
                return None
            _LOG.error("spool file %s cannot be read: %s", segment.path, cause.strerror)
            data = b""
        header = read_header(data)
        payload = None if header is None else payload_of(header, data)
        if payload is None or header is None or (header.life, header.sequence) != (segment.life, entry.sequence):
            _LOG.error("spool file %s: block %d is damaged and dropped", segment.path, entry.sequence)
            segment.remove(entry.sequence)
            self._drop(entry)
            self._tidy()
            return None
        return payload

    def _open_for_reading(self, segment: Segment) -> int:
        if self._appender.file >= 0 and segment is self._segments[-1]:
            return self._appender.file
        if self._reader[0] != segment.path:
            self._close_reader()
            self._reader = segment.path, os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        return self._reader[1]

    def _close_reader(self) -> None:
        if self._reader[1] >= 0:
            os.close(self._reader[1])
        self._reader = None, -1

    # -- certainty ---------------------------------------------------------------------------------------------------

    def upkeep(self, now_s: float) -> Callable[[], None] | None:
        """Try again what the disk refused, note what is freed, and return the fsync that is due. See `Outbox`."""
        if self._write_fault and now_s >= self._retry_s:
            self._retry_s = now_s + _RETRY_S
            self._write()
        # Whatever the policy of syncing: a restart after a kill is to begin about there, too.
        if now_s - self._marked_s >= _MARK_S:
            self._marked_s = now_s
            self._mark()
        if not self._appender.sync_is_due(now_s):
            return None
        self._mark()
        return self._appender.sync_job()

    def _mark(self) -> None:
        """Note how far blocks are freed, where anything could come again."""
        if not self._freed_since_mark or not self._segments:
            return
        self._freed_since_mark = False
        life, sequence = self._last_freed
        # Without it a restart sends more than it has to, which hurts nobody.
        with contextlib.suppress(OSError):
            if self._appender.file < 0:
                self._rotate()
            self._appender.append(encode_header(kind=FREED, life=life, task=0, sequence=sequence))

    def close(self) -> None:
        """Write and sync what there is, and let another process have the spool. A second call does nothing."""
        if self._lock < 0:
            return
        self._write()
        self._mark()
        if not len(self):
            self._appender.end()
            self._tidy()
        if self._config.sync != "never":
            self._appender.sync_job()()
        self._let_go()

    def _let_go(self) -> None:
        self._appender.close()
        self._close_reader()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def _entries(segment: Segment) -> Iterator[Entry]:
    sequence = segment.next_held(0)
    while sequence is not None:
        entry = segment.entry(sequence)
        if entry is not None:
            yield entry
        sequence = segment.next_held(sequence + 1)


def _fingerprint(task: str) -> int:
    return int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "little")
