"""The journal: every accepted payload, in order of arrival, in segment files. Replay is rebuilt from it.

What survives what: a record is handed to the operating system before `append` returns, so it survives ``kill -9`` of
the learner. What is appended reaches the disk by `sync` (checkpoints), and by the `sync_job` that the owner runs where
`sync_is_due`, beside further appends; a power cut loses the tail since. The torn tail that one leaves is cut off at the
last whole record when the journal is opened, counted and reported.

A segment is begun without waiting for the disk, since blocks come in meanwhile: the end of the one before reaches it by
the next `sync_job`. Only where that has not happened when yet another one is due, `append` waits for the disk, and
while that refuses nothing more is appended. So only the last two segments can be torn. What a failed sync was about is
written again by the next one: see `files.write_again`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quarl_device.errors import JournalError
from quarl_device.files import sync_directory, write_again
from quarl_edge.replay.segments import (
    FIXED,
    JOURNAL_SCHEMA,
    MAGIC,
    MAX_HEADER_BYTES,
    MAX_RECORD_BYTES,
    NAME,
    RECORD,
    SUFFIX,
    Record,
    Segment,
    iterate,
    read_segments,
    survey,
)

__all__ = ["Journal", "Record", "Segment", "iterate", "read_segments"]

_LOG = logging.getLogger(__name__)

Snapshot = Callable[[], tuple[int, Mapping[str, Any]]]


class Journal:
    """The journal of one run; one process at a time.

    Args:
        directory: made if it is missing.
        segment_bytes: a segment ends with the record that reaches it.
        fsync_interval_s: records that have waited for so long are due for an fsync.
        clock: monotonic seconds, for tests.

    Attributes:
        torn_bytes: cut off the end when it was opened.

    Raises:
        JournalError: cannot be read or written, damaged before its tail, or open in another process.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = 16 * 1024 * 1024,
        fsync_interval_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._fsync_interval_s = fsync_interval_s
        self._clock = clock
        self._snapshot: Snapshot = lambda: (0, {})
        self._file = -1
        self._ended = -1  # the file of the segment before, whose end may have to be synced
        self._lock = -1
        self._origin = 0
        self._size = 0
        self._junk = False  # behind the last whole record
        self._synced_to = 0
        self._doubtful_to = 0  # an fsync that failed was about what lies between; see `write_again`
        self._syncing = threading.Lock()
        self._synced_s = clock()
        self.torn_bytes = 0
        self._segments: list[Segment] = []
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self._segments = self._open_segments()
            self._size = self._segments[-1].size_bytes if self._segments else 0
        except OSError as cause:
            self.close()
            raise JournalError(f"journal cannot be opened: {directory}: {cause.strerror}") from cause
        except JournalError:
            self.close()
            raise
        self._synced_to = self.position

    def bind(self, snapshot: Snapshot) -> None:
        """Let `snapshot` say, at each new segment, how many items there were before it and what else to keep."""
        self._snapshot = snapshot

    @property
    def directory(self) -> Path:
        """Where the segments are."""
        return self._directory

    @property
    def position(self) -> int:
        """Position after the last record."""
        return self._segments[-1].first + self._size if self._segments else self._origin

    @property
    def start(self) -> int:
        """Position of the oldest byte that is left."""
        return self._segments[0].first if self._segments else self._origin

    @property
    def segments(self) -> list[Segment]:
        """The segments, oldest first."""
        if not self._segments:
            return []
        last = self._segments[-1]
        return [*self._segments[:-1], last.resized(self._size)]

    def append(self, device: str, payload: bytes) -> int:
        """Write one record; it survives the death of this process from here on.

        Returns:
            Position after the record.

        Raises:
            JournalError: the disk refuses, naming the directory; the journal is as it was before.
        """
        if self._lock < 0:
            raise JournalError(f"journal {self._directory} is closed")
        name = device.encode()
        body = NAME.pack(len(name)) + name
        length = len(body) + len(payload)
        if not 0 < len(name) < 256 or length > MAX_RECORD_BYTES:
            raise JournalError(f"a record of {length:,} bytes from {device[:80]!r} does not fit the journal")
        head = RECORD.pack(length, zlib.crc32(payload, zlib.crc32(body))) + body
        self._cut_junk()
        if self._file < 0 or self._size >= self._segment_bytes:
            self._rotate()
        self._write(head, payload)
        return self.position

    def sync_is_due(self) -> bool:
        """Whether records have waited long enough for an fsync, or are so many that a segment's end would take long."""
        unsynced = self.position - self._synced_to
        late = self._clock() - self._synced_s >= self._fsync_interval_s
        return unsynced > 0 and (late or 2 * unsynced >= self._segment_bytes)

    def sync_job(self) -> Callable[[], None]:
        """Return a function that makes every record so far survive a power cut; it may run beside anything else.

        It raises JournalError where the disk refuses, and the records stay due. Two of them take turns.
        """
        self._synced_s = self._clock()
        position = self.position
        if self._file < 0 or position <= self._synced_to:
            return lambda: None
        first = self._segments[-1].first
        begun = self._synced_to <= first  # since the last sync: its name may not be on the disk
        segments = self.segments[-2:] if self._synced_to < first else self.segments[-1:]
        files: list[int] = []
        try:
            if self._synced_to < first:
                files.append(os.dup(self._ended))
            files.append(os.dup(self._file))
        except OSError as cause:
            for file in files:
                os.close(file)
            raise self._failure(cause) from cause

        def sync() -> None:
            with self._syncing:
                try:
                    if self._doubtful_to > self._synced_to:
                        self._write_again(segments)
                    for file in files:
                        os.fdatasync(file)
                    if begun:
                        sync_directory(self._directory)
                except OSError as cause:
                    self._doubtful_to = max(self._doubtful_to, position)
                    raise self._failure(cause) from cause
                finally:
                    for file in files:
                        os.close(file)
                self._synced_to = max(self._synced_to, position)

        return sync

    def _write_again(self, segments: list[Segment]) -> None:
        for segment in segments:
            file = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                write_again(file, max(0, self._synced_to - segment.first), segment.size_bytes)
            finally:
                os.close(file)

    def sync(self) -> None:
        """Make every record survive a power cut.

        Raises:
            JournalError: the disk refuses.
        """
        self.sync_job()()

    def iterate(self, start: int = 0) -> Iterator[Record]:
        """Yield the records from position `start` on.

        Raises:
            JournalError: damaged; or `start` lies before the oldest segment.
        """
        for segment in self.segments:
            if segment.end > start:
                yield from segment.records(start)

    def truncate(self, position: int) -> int:
        """Discard everything from `position` on, which must be a record's border.

        Returns:
            Bytes discarded.

        Raises:
            JournalError: `position` is not in the journal, or the disk refuses.
        """
        discarded = self.position - position
        if discarded == 0:
            return 0
        if discarded < 0 or position < self.start:
            raise JournalError(
                f"journal {self._directory} spans positions {self.start:,}..{self.position:,}, not {position:,}"
            )
        self.sync()
        self._close_file()
        self._origin = position
        try:
            while self._segments and self._segments[-1].first >= position:
                self._segments.pop().path.unlink()
            if self._segments:
                last = self._segments[-1] = self._segments[-1].resized(position - self._segments[-1].first)
                os.truncate(last.path, last.size_bytes)
                self._size = last.size_bytes
                self._reopen(last)
            sync_directory(self._directory)
        except OSError as cause:
            raise self._failure(cause) from cause
        self._synced_to = min(self._synced_to, position)
        self._doubtful_to = min(self._doubtful_to, position)
        return discarded

    def trim(self, keep_from_items: int) -> int:
        """Delete the oldest segments that are not needed to rebuild the items from number `keep_from_items` on.

        One segment more is kept: what its first blocks continue is in no file, so only the segments after it are
        rebuilt exactly.

        Returns:
            Segments deleted.

        Raises:
            JournalError: the disk refuses.
        """
        deleted = 0
        while len(self._segments) > 2 and self._segments[2].items <= keep_from_items:
            try:
                self._segments[0].path.unlink()
            except OSError as cause:
                raise self._failure(cause) from cause
            del self._segments[0]
            deleted += 1
        return deleted

    def close(self) -> None:
        """Sync, and let another process have the journal. Safe to call twice."""
        with contextlib.suppress(JournalError):
            self._cut_junk()
            self.sync()
        self._close_file()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _take_lock(self) -> None:
        self._lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalError(f"journal {self._directory} is open in another process") from None

    def _open_segments(self) -> list[Segment]:
        """Read all headers, cut off what is torn, and have the disk hold what a process before left to the system."""
        found = survey(self._directory)
        for path in reversed(found.behind):
            path.unlink()
        self.torn_bytes = found.torn_bytes
        if self.torn_bytes:
            _LOG.warning("journal %s: a torn tail of %d bytes was cut off", self._directory, self.torn_bytes)
        if found.segments:
            last = found.segments[-1]
            os.truncate(last.path, last.size_bytes)
            self._reopen(last)
            for segment in found.segments[-2:]:
                _sync_file(segment.path)
            sync_directory(self._directory)
        return found.segments

    def _reopen(self, segment: Segment) -> None:
        self._file = os.open(segment.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _rotate(self) -> None:
        items, snapshot = self._snapshot()
        first = self.position
        header = json.dumps({"items": items, "snapshot": snapshot}, separators=(",", ":")).encode()
        if len(header) > MAX_HEADER_BYTES:
            raise JournalError(f"journal {self._directory}: a header of {len(header):,} bytes is over its cap")
        start = FIXED.pack(MAGIC, JOURNAL_SCHEMA, first, len(header), zlib.crc32(header)) + header
        path = self._directory / f"{first:020d}{SUFFIX}"
        if self._segments and self._synced_to < self._segments[-1].first:
            self.sync()
        file = self._begin_file(path, start)
        if self._ended >= 0:
            os.close(self._ended)
        self._ended, self._file = self._file, file
        if self._segments:
            self._segments[-1] = self._segments[-1].resized(self._size)
        self._segments.append(
            Segment(
                path=path, first=first, size_bytes=len(start), items=items, header_bytes=len(start), snapshot=snapshot
            )
        )
        self._size = len(start)

    def _begin_file(self, path: Path, start: bytes) -> int:
        file = -1
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
            _write_all(file, start)
        except OSError as cause:
            # Without its last, unfinished file the journal is as it was before.
            if file >= 0:
                os.close(file)
            with contextlib.suppress(OSError):
                path.unlink()
            raise self._failure(cause) from cause
        return file

    def _write(self, head: bytes, payload: bytes) -> None:
        total = len(head) + len(payload)
        try:
            written = os.writev(self._file, (head, payload))
            if written < total:
                _write_all(self._file, (head + payload)[written:])
        except OSError as cause:
            self._junk = True
            with contextlib.suppress(JournalError):
                self._cut_junk()
            raise self._failure(cause) from cause
        self._size += total

    def _cut_junk(self) -> None:
        """Cut off what a write left that failed half-way: a record behind it could not be read."""
        if not self._junk:
            return
        try:
            os.ftruncate(self._file, self._size)
        except OSError as cause:
            raise self._failure(cause) from cause
        self._junk = False

    def _close_file(self) -> None:
        for file in (self._ended, self._file):
            if file >= 0:
                os.close(file)
        self._ended = self._file = -1

    def _failure(self, cause: OSError) -> JournalError:
        return JournalError(
            f"journal cannot be written: {self._directory}: {cause.strerror}", hint="free space or mend the disk"
        )


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_file(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(file)
    finally:
        os.close(file)
