"""The file that a spool writes to, and how what was written reaches the disk."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from quarl_device.files import sync_directory
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
        fault: why the last fsync failed, "" if it did not.
    """

    def __init__(self, directory: Path, config: SpoolConfig) -> None:
        self._directory = directory
        self._config = config
        self._ended: list[int] = []  # files that wait for their last fsync
        self._dirty = False
        self._synced_s = 0.0
        self.file = -1
        self.size_bytes = 0
        self.bytes_written = 0
        self.fault = ""

    def begin(self, path: Path) -> None:
        """End the file that is written, and begin another.

        Raises:
            OSError: the disk refuses; everything is as it was.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
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
        self.file, self.size_bytes = file, len(PREAMBLE)
        self.bytes_written += len(PREAMBLE)

    def end(self) -> None:
        """Write to the file no longer; it still has to reach the disk."""
        if self.file >= 0:
            if self._config.sync == "interval":
                self._ended.append(self.file)
            else:
                os.close(self.file)
        self.file = -1

    def append(self, head: bytes, payload: bytes = b"") -> int:
        """Write one record; it survives the death of this process from here on.

        Returns:
            Its offset in the file.

        Raises:
            OSError: the disk refuses; the file is as it was.
        """
        offset, total = self.size_bytes, len(head) + len(payload)
        try:
            written = os.writev(self.file, (head, payload))
            if written < total:
                view = memoryview(head + payload)[written:]
                while view:
                    view = view[os.write(self.file, view) :]
            if payload and self._config.sync == "always":
                os.fdatasync(self.file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.file, offset)
            raise
        self.size_bytes += total
        self.bytes_written += total
        self._dirty = True
        return offset

    def sync_is_due(self, now_s: float, *, news: bool) -> bool:
        """Whether it is time for an fsync: of what was written, or of `news` that would be written with it."""
        if self._config.sync != "interval" or now_s - self._synced_s < self._config.sync_interval_s:
            return False
        if not (self._dirty or self._ended or self.fault or news):
            return False
        self._synced_s = now_s
        return True

    def sync_job(self) -> Callable[[], None]:
        """Return a function that brings everything written so far to the disk; it may run beside anything else."""
        files, self._ended = self._ended, []
        if self.file >= 0:
            files.append(os.dup(self.file))
        self._dirty = False

        def sync() -> None:
            try:
                for file in files:
                    os.fdatasync(file)
                sync_directory(self._directory)
                self.fault = ""
            except OSError as cause:
                self.fault = f"{cause.strerror}"
                _LOG.error("spool %s cannot be synced: %s", self._directory, cause.strerror)
            finally:
                for file in files:
                    os.close(file)

        return sync

    def close(self) -> None:
        """Close every file as it is."""
        for file in (self.file, *self._ended):
            if file >= 0:
                os.close(file)
        self.file, self._ended = -1, []
