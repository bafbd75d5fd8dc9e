"""The records of a segment file: each says all about itself, so that damage costs no record but those it hits.

Layout: 8 bytes ``QSPOOL``, 0, version; then records::

    u32 mark, u8 kind, 3 zero bytes, u64 life (boot id), u64 task, u64 sequence,
    u32 steps, u32 payload length, u32 crc32 of the payload, u32 crc32 of the header before it; payload

Integers are little-endian. A `FREED` record says that everything up to `sequence` of `life` is done with.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from quarl_device.wire.limits import MAX_BLOCK_BYTES

MAGIC = b"QSPOOL\x00"
VERSION = 1
PREAMBLE = MAGIC + bytes([VERSION])
BLOCK, FREED = 1, 2
HEADER_BYTES = 48
_MARK = b"\xf5QSR"
_FIELDS = struct.Struct("<4sB3xQQQIII")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Header:
    """What a record says before its payload.

    Attributes:
        kind: `BLOCK` or `FREED`.
        life: boot id, 16 hex digits.
        task: fingerprint of the task that the block was made for.
        sequence: of the block, or the last one done with.
        steps: environment steps in the block.
        length: bytes of the payload.
        crc: of the payload.
    """

    kind: int
    life: str
    task: int
    sequence: int
    steps: int
    length: int
    crc: int

    @property
    def size_bytes(self) -> int:
        """Of the whole record."""
        return HEADER_BYTES + self.length


def encode_header(*, kind: int, life: str, task: int, sequence: int, steps: int = 0, payload: bytes = b"") -> bytes:
    """Return the header of a record."""
    fields = _FIELDS.pack(_MARK, kind, int(life, 16), task, sequence, steps, len(payload), zlib.crc32(payload))
    return fields + _CRC.pack(zlib.crc32(fields))


def read_header(data: bytes, offset: int = 0) -> Header | None:
    """Return the header at `offset`, or None where there is no sound one."""
    fields = data[offset : offset + _FIELDS.size]
    crc = data[offset + _FIELDS.size : offset + HEADER_BYTES]
    if len(crc) < _CRC.size or not fields.startswith(_MARK) or _CRC.unpack(crc)[0] != zlib.crc32(fields):
        return None
    _, kind, life, task, sequence, steps, length, payload_crc = _FIELDS.unpack(fields)
    if kind not in (BLOCK, FREED) or length > MAX_BLOCK_BYTES:
        return None
    return Header(kind, f"{life:016x}", task, sequence, steps, length, payload_crc)


def payload_of(header: Header, data: bytes, offset: int = 0) -> bytes | None:
    """Return the payload of the record at `offset`, or None where it is cut off or damaged."""
    start = offset + HEADER_BYTES
    payload = data[start : start + header.length]
    return payload if len(payload) == header.length and zlib.crc32(payload) == header.crc else None


@dataclass(kw_only=True)
class Scan:
    """What a segment file holds.

    Attributes:
        records: (offset, header) of each whole record.
        damaged: headers of records whose payload is cut off or damaged.
        lost_bytes: that belong to no whole record, before the last one that is whole.
        torn_bytes: after it: what a write that did not come to its end left.
    """

    records: list[tuple[int, Header]] = field(default_factory=list)
    damaged: list[Header] = field(default_factory=list)
    lost_bytes: int = 0
    torn_bytes: int = 0


def scan(data: bytes) -> Scan:
    """Find every whole record, whatever lies between them."""
    result, end, offset = Scan(), min(len(PREAMBLE), len(data)), 0
    while (offset := data.find(_MARK, offset)) >= 0:
        header = read_header(data, offset)
        if header is None:
            offset += 1
        elif payload_of(header, data, offset) is None:
            result.damaged.append(header)
            offset += 1
        else:
            result.records.append((offset, header))
            result.lost_bytes += max(0, offset - end)
            offset = end = offset + header.size_bytes
    result.torn_bytes = len(data) - end
    return result
