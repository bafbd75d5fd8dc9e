"""Segment files of the journal: their format, and reading them.

Layout of a segment ``<first position, 20 digits>.qj``::

    b"QJNL", u8 schema, 3 zero bytes, u64 first position, u32 header length, u32 crc32 of the header,
    header: JSON {"items": items before this segment, "snapshot": what the owner knew before this segment}
    records: u32 length, u32 crc32, then `length` bytes: u16 device name length, device name, payload

Integers are little-endian. A position is a byte offset in the concatenation of all segments that ever were: it names a
record, grows with every append, and survives the deletion of old segments.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl_device.errors import JournalError
from quarl_device.wire.limits import MAX_BLOCK_BYTES

JOURNAL_SCHEMA = 1
MAX_RECORD_BYTES = MAX_BLOCK_BYTES + 1024
MAX_HEADER_BYTES = 16 * 1024 * 1024
MAGIC = b"QJNL"
FIXED = struct.Struct("<4sB3xQII")
RECORD = struct.Struct("<II")
NAME = struct.Struct("<H")
SUFFIX = ".qj"
_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One journalled payload.

    Attributes:
        position: of its first byte.
        end: position after its last byte.
        device: that sent it.
        payload: as it came.
    """

    position: int
    end: int
    device: str
    payload: bytes


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One segment file.

    Attributes:
        path: where it is.
        first: position of its first byte.
        size_bytes: of the file, header included.
        items: items that the owner had counted before it.
        snapshot: what the owner knew before it.
        header_bytes: before the first record.
    """

    path: Path
    first: int
    size_bytes: int
    items: int
    header_bytes: int
    snapshot: Mapping[str, Any] = field(repr=False)

    @property
    def end(self) -> int:
        """Position after its last byte."""
        return self.first + self.size_bytes

    def resized(self, size_bytes: int) -> Segment:
        """Return it with another size."""
        return dataclasses.replace(self, size_bytes=size_bytes)

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yield the records from position `start` on.

        Raises:
            JournalError: a record is damaged; says where.
        """
        offset = self.header_bytes
        for device, payload, end in scan(self.path, self.header_bytes, self.size_bytes):
            if self.first + offset >= start:
                yield Record(position=self.first + offset, end=self.first + end, device=device, payload=payload)
            offset = end
        if offset != self.size_bytes:
            raise JournalError(f"journal damaged: {self.path} holds no whole record at byte {offset:,}")


def read_segments(directory: Path) -> list[Segment]:
    """Return the segments of a journal, oldest first, without locking or mending anything.

    Raises:
        JournalError: unreadable, a header does not hold, or a segment between two others is missing.
    """
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
    except FileNotFoundError:
        return []
    except OSError as cause:
        raise JournalError(f"journal cannot be read: {directory}: {cause.strerror}") from cause
    segments = [_read_header(path) for path in paths]
    for before, after in itertools.pairwise(segments):
        if before.end != after.first:
            raise JournalError(f"journal damaged: {before.path} ends at {before.end:,}, not at {after.first:,}")
    return segments


def iterate(directory: Path, start: int = 0) -> Iterator[Record]:
    """Yield the records of a journal from position `start` on: a data set in order of arrival.

    Reads what was there at the call, and may run beside the learner that writes.

    Raises:
        JournalError: unreadable or damaged before the last segment's tail.
    """
    segments = read_segments(directory)
    for segment in segments:
        if segment.end <= start:
            continue
        try:
            yield from segment.records(start)
        except JournalError:
            # The writer may be in the middle of a record, or was when the power went.
            if segment is not segments[-1]:
                raise


def header_is_whole(path: Path) -> bool:
    """Say whether a segment file got as far as its first record.

    The header is on the disk before anything follows it, so one that does not hold is torn only where nothing does.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        fixed = file.read(FIXED.size)
        if len(fixed) < FIXED.size or not any(fixed):
            return False
        length, crc = FIXED.unpack(fixed)[3:]
        if size > FIXED.size + length or length > MAX_HEADER_BYTES:
            return True
        return bool(zlib.crc32(file.read(length)) == crc)


def _read_header(path: Path) -> Segment:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            magic, schema, first, length, crc = FIXED.unpack(file.read(FIXED.size))
            if magic != MAGIC or schema != JOURNAL_SCHEMA:
                raise JournalError(f"journal damaged: {path} is no segment of schema {JOURNAL_SCHEMA}")
            header = file.read(length) if length <= MAX_HEADER_BYTES else b""
        if zlib.crc32(header) != crc or len(header) != length:
            raise JournalError(f"journal damaged: the header of {path} does not hold")
        data = json.loads(header)
        return Segment(
            path=path,
            first=first,
            size_bytes=size,
            items=int(data["items"]),
            header_bytes=FIXED.size + length,
            snapshot=data["snapshot"],
        )
    except OSError as cause:
        raise JournalError(f"journal cannot be read: {path}: {cause.strerror}") from cause
    except (struct.error, ValueError, KeyError, TypeError) as cause:
        raise JournalError(f"journal damaged: the header of {path} does not hold: {cause}") from cause


def scan(path: Path, offset: int, size: int) -> Iterator[tuple[str, bytes, int]]:
    """Yield (device, payload, offset after it) of each whole record, and stop at the first that is not."""
    try:
        with path.open("rb", buffering=_READ_BYTES) as file:
            file.seek(offset)
            while size - offset >= RECORD.size:
                length, crc = RECORD.unpack(file.read(RECORD.size))
                if not NAME.size < length <= min(MAX_RECORD_BYTES, size - offset - RECORD.size):
                    return
                body = file.read(length)
                (named,) = NAME.unpack_from(body)
                if len(body) < length or zlib.crc32(body) != crc or NAME.size + named > length:
                    return
                offset += RECORD.size + length
                device = body[NAME.size : NAME.size + named].decode("utf-8", "replace")
                yield device, body[NAME.size + named :], offset
    except OSError as cause:
        raise JournalError(f"journal cannot be read: {path}: {cause.strerror}") from cause
