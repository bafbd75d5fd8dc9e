"""Blocks read back from a spool's files, each as it was put or not at all."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from quarl_device.spool.records import payload_of, read_header
from quarl_device.spool.segment import Entry, Segment

_LOG = logging.getLogger(__name__)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)  # says nothing about the file


class NotNow(Exception):
    """What was asked for cannot be read at the moment."""


class Reader:
    """Keeps the file open that was read last."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file = -1

    def read(self, segment: Segment, entry: Entry, *, file: int = -1) -> bytes | None:
        """Return the payload of a block, `None` where it does not hold (any more).

        Args:
            segment: that it is in.
            entry: where.
            file: descriptor of the segment's file, if it is open for writing.

        Raises:
            NotNow: this process lacks files or memory.
        """
        try:
            data = os.pread(file if file >= 0 else self._open(segment.path), entry.size_bytes, entry.offset)
        except OSError as cause:
            if cause.errno in _PASSING:
                raise NotNow from cause
            _LOG.error("spool file %s cannot be read: %s", segment.path, cause.strerror)
            return None
        header = read_header(data)
        if header is None or (header.life, header.sequence) != (segment.life, entry.sequence):
            return None
        return payload_of(header, data)

    def forget(self, path: Path) -> None:
        """Close a file that is to be removed."""
        if self._path == path:
            self.close()

    def close(self) -> None:
        """Close the file that is open."""
        if self._file >= 0:
            os.close(self._file)
        self._path, self._file = None, -1

    def _open(self, path: Path) -> int:
        if self._path != path:
            self.close()
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._path = path
        return self._file
