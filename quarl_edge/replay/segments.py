"""Segment files of the journal: their format, and reading them.

Layout of a segment ``<first position, 20 digits>.qj``::

    b"QJNL", u8 schema, 3 zero bytes, u64 first position, u32 header length, u32 crc32 of the header,
    header: JSON {"items": items before this segment, "snapshot": what the owner knew before this segment}
    records: u32 length, u32 crc32, then `length` bytes: u16 device name length, device name, payload

Every segment but the last two is whole on the disk. What a power cut left of those is read up to the first record that
is not whole; what lies behind that is as good as never written.

Integers are little-endian. A position is a byte offset in the concatenation of all segments that ever were: it names a
record, grows with every append, and survives the deletion of old segments.
"""

from __future__ import annotations

import dataclasses
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
_MAY_BE_TORN = 2


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


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What is in a journal's directory.

    Attributes:
        segments: oldest first; the last one ends with its last whole record.
        behind: files behind that, in which nothing is of use.
        torn_bytes: behind the last whole record, in all files.
    """

    segments: list[Segment]
    behind: list[Path]
    torn_bytes: int


def survey(directory: Path) -> Survey:
    """Read the headers of a journal and find the end of its last two segments, without locking or mending anything.

    Raises:
        JournalError: unreadable, a header does not hold, or a segment between two others is missing.
    """
    try:
        return _survey(sorted(path for path in directory.iterdir() if path.suffix == SUFFIX))
    except FileNotFoundError:
        return Survey(segments=[], behind=[], torn_bytes=0)
    except OSError as cause:
        raise JournalError(f"journal cannot be read: {directory}: {cause.strerror}") from cause


def _survey(paths: list[Path]) -> Survey:
    segments: list[Segment] = []
    cut_bytes = 0
    for number, path in enumerate(paths):
        may_be_torn = number >= len(paths) - _MAY_BE_TORN
        if cut_bytes or (may_be_torn and not _header_is_whole(path)):
            break
        segment = _read_header(path)
        if segments and segments[-1].end != segment.first:
            if path == paths[-1]:
                break  # the end of the one before never reached the disk
            before = segments[-1]
            raise JournalError(f"journal damaged: {before.path} ends at {before.end:,}, not at {segment.first:,}")
        end = _end_of_records(segment) if may_be_torn else segment.size_bytes
        cut_bytes = segment.size_bytes - end
        segments.append(segment.resized(end))
    behind = paths[len(segments) :]
    torn_bytes = cut_bytes + sum(path.stat().st_size for path in behind)
    return Survey(segments=segments, behind=behind, torn_bytes=torn_bytes)


def read_segments(directory: Path) -> list[Segment]:
    """Return the segments of a journal, oldest first, up to the last whole record; see `survey`."""
    return survey(directory).segments


def iterate(directory: Path, start: int = 0) -> Iterator[Record]:
    """Yield the records of a journal from position `start` on: a data set in order of arrival.

    Reads what was there at the call, and may run beside the learner that writes.

    Raises:
        JournalError: unreadable or damaged before the tail.
    """
    for segment in read_segments(directory):
        if segment.end > start:
            yield from segment.records(start)


def _end_of_records(segment: Segment) -> int:
    ends = (end for _, _, end in scan(segment.path, segment.header_bytes, segment.size_bytes))
    return max(ends, default=segment.header_bytes)


def _header_is_whole(path: Path) -> bool:
    """Say whether a segment's header reached the disk; one that did and does not hold is damaged, and an error.

    What did not reach it is missing, or reads as zeros, which JSON has none of.
    """
    with path.open("rb") as file:
        fixed = file.read(FIXED.size)
        if len(fixed) < FIXED.size or not any(fixed):
            return False
        length, crc = FIXED.unpack(fixed)[3:]
        if length == 0:
            # No header is empty: its length did not reach the disk, or is damaged.
            return any(file.read(_READ_BYTES))
        if length > MAX_HEADER_BYTES:
            return True
        header = file.read(length)
    return zlib.crc32(header) == crc or (len(header) == length and 0 not in header)


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
