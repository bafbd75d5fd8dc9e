"""The file that a spool writes to, and how what was written reaches the disk.

Every write names its offset, so a record that fails half way is written over by the next one, whatever else fails.

After an fsync that failed, whatever it was about is written once more before `fault` goes: see `files.write_again`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from quarl_device.files import sync_directory, write_again, write_at
from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.records import PREAMBLE

_LOG = logging.getLogger(__name__)


class Appender:
    """Writes whole records to one file at a time.

    Args:
        directory: of the files.
        config: says when to ask the disk for certainty.

    Attributes:
        file: descriptor of the file that is written, which can be read too; -1 if there is none.
        size_bytes: of that file.
        bytes_written: to all files.
        fault: why the last fsync failed, "" once one has succeeded for everything that it was about.
    """

    def __init__(self, directory: Path, config: SpoolConfig) -> None:
        self._directory = directory
        self._config = config
        self._path = directory
        self._ended: dict[Path, int] = {}  # files that wait for their last fsync, with their size
        self._pinned: list[int] = []  # their descriptors: with its file closed, a kernel may forget an error
        self._doubtful: dict[Path, int] = {}  # files of an fsync that failed, with their size then
        self._dirty = False
        self._synced_s = 0.0
        self._syncing = threading.Lock()
        self.file = -1
        self.size_bytes = 0
        self.bytes_written = 0
        self.fault = ""

    def begin(self, path: Path) -> None:
        """End the file that is written, and begin another.

        Raises:
            OSError: the disk refuses; everything is as it was.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
        try:
            if os.write(file, PREAMBLE) < len(PREAMBLE):
                raise OSError(0, "no space for the beginning of a file")
            if self._config.sync == "always":
                sync_directory(self._directory)
        except OSError:
            os.close(file)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self.end()
        self._path, self.file, self.size_bytes = path, file, len(PREAMBLE)
        self.bytes_written += len(PREAMBLE)

    def end(self) -> None:
        """Write to the file no longer; it still has to reach the disk."""
        if self.file >= 0:
            if self._config.sync == "interval":
                self._ended[self._path] = self.size_bytes
                self._pinned.append(self.file)
            else:
                os.close(self.file)
        self.file = -1

    def append(self, head: bytes, payload: bytes = b"") -> int:
        """Write one record; it survives the death of this process from here on.

        Returns:
            Its offset in the file.

        Raises:
            OSError: the disk refuses; the next record comes to the same offset.
        """
        offset, total = self.size_bytes, len(head) + len(payload)
        try:
            written = os.pwritev(self.file, (head, payload), offset)
            if written < total:
                write_at(self.file, (head + payload)[written:], offset + written)
            if payload and self._config.sync == "always":
                os.fdatasync(self.file)
        except OSError:
            # Only to leave less for a recovery to look at.
            with contextlib.suppress(OSError):
                os.ftruncate(self.file, offset)
            raise
        self.size_bytes += total
        self.bytes_written += total
        self._dirty = True
        return offset

    def write_over(self, path: Path, records: bytes) -> None:
        """Let a file that is not written hold these records in place of its own, on disk when this returns.

        That takes no room that the file does not have, so a full disk has it.

        Raises:
            OSError: the disk refuses, or the file is smaller than that; it is as it was unless the disk fails.
        """
        content = PREAMBLE + records
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(file).st_size < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write_at(file, content, 0)
            os.fdatasync(file)
            os.ftruncate(file, len(content))
        finally:
            os.close(file)
        self.bytes_written += len(content)

    def sync_is_due(self, now_s: float) -> bool:
        """Whether it is time for an fsync of what was written."""
        if self._config.sync != "interval" or now_s - self._synced_s < self._config.sync_interval_s:
            return False
        if not (self._dirty or self._ended or self.fault):
            return False
        self._synced_s = now_s
        return True

    def sync_job(self) -> Callable[[], None]:
        """Return a function that brings everything written so far to the disk.

        It may run beside anything: what it reads and writes is never changed by `append`. Two of them take turns.
        """
        files, pinned = self._ended, self._pinned
        self._ended, self._pinned, self._dirty = {}, [], False
        if self.file >= 0:
            files[self._path] = self.size_bytes

        def sync() -> None:
            with self._syncing:
                self._sync_all(files)
            for file in pinned:
                os.close(file)

        return sync

    def _sync_all(self, files: dict[Path, int]) -> None:
        doubtful = self._doubtful
        try:
            for path, size_bytes in (doubtful | files).items():
                _sync(path, rewrite_bytes=size_bytes if path in doubtful else 0)
            sync_directory(self._directory)
        except OSError as cause:
            self._doubtful = doubtful | files
            self.fault = f"{cause.strerror}"
            _LOG.error("spool %s cannot be synced: %s", self._directory, cause.strerror)
        else:
            self._doubtful, self.fault = {}, ""

    def close(self) -> None:
        """Close every file as it is."""
        for file in (self.file, *self._pinned):
            if file >= 0:
                os.close(file)
        self.file, self._ended, self._pinned = -1, {}, []


def _sync(path: Path, *, rewrite_bytes: int) -> None:
    """Bring a file to the disk, its first bytes written again if they are in doubt; one that is gone needs nothing."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        write_again(file, 0, rewrite_bytes)
        os.fdatasync(file)
    finally:
        os.close(file)
