"""The records of a segment file: each says all about itself, so that damage costs no record but those it hits.

Layout: 8 bytes ``QSPOOL``, 0, version; then records::

    u32 mark, u8 kind, 3 zero bytes, u64 life (boot id), u64 task, u64 sequence, u64 first step,
    u32 steps, u32 payload length, u32 crc32 of the payload, u32 crc32 of the header before it; payload

Integers are little-endian. A layout that differs has another mark, too: a damaged version hides no record. A `FREED`
record says that everything up to `sequence` of `life` is done with; a `LOST` record that the blocks up to `sequence`
will never come, its payload being u64 sequence of the first of them, u64 steps of the life after the last.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from quarl_device.actor.loss import Loss
from quarl_device.wire.block_spec import MAX_SEQUENCE
from quarl_device.wire.limits import MAX_BLOCK_BYTES

MAGIC = b"QSPOOL\x00"
VERSION = 2
PREAMBLE = MAGIC + bytes([VERSION])
BLOCK, FREED, LOST = 1, 2, 3
HEADER_BYTES = 56
_MARK = b"\xf5QS2"
_FIELDS = struct.Struct("<4sB3xQQQQIII")
_LOST = struct.Struct("<QQ")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Header:
    """What a record says before its payload.

    Attributes:
        kind: `BLOCK`, `FREED` or `LOST`.
        life: boot id, 16 hex digits.
        task: fingerprint of the task that the block was made for.
        sequence: of the block, or the last one done with.
        first_step: steps that the life had made before it.
        steps: environment steps in the block.
        length: bytes of the payload.
        crc: of the payload.
    """

    kind: int
    life: str
    task: int
    sequence: int
    first_step: int
    steps: int
    length: int
    crc: int

    @property
    def end_step(self) -> int:
        """Steps that the life had made after it."""
        return self.first_step + self.steps

    @property
    def size_bytes(self) -> int:
        """Of the whole record."""
        return HEADER_BYTES + self.length


def encode_header(
    *,
    kind: int,
    life: str,
    sequence: int,
    task: int = 0,
    first_step: int = 0,
    steps: int = 0,
    payload: bytes = b"",
) -> bytes:
    """Return the header of a record."""
    fields = _FIELDS.pack(
        _MARK, kind, int(life, 16), task, sequence, first_step, steps, len(payload), zlib.crc32(payload)
    )
    return fields + _CRC.pack(zlib.crc32(fields))


def encode_loss(loss: Loss) -> tuple[bytes, bytes]:
    """Return header and payload of the record of a loss."""
    payload = _LOST.pack(loss.first, loss.end_step)
    head = encode_header(
        kind=LOST, life=loss.life, task=loss.task, sequence=loss.last, first_step=loss.first_step, payload=payload
    )
    return head, payload


def read_loss(header: Header, payload: bytes) -> Loss | None:
    """Return the loss that a `LOST` record tells, or None where it is none."""
    if len(payload) != _LOST.size:
        return None
    first, end_step = _LOST.unpack(payload)
    if first > header.sequence or end_step < header.first_step:
        return None
    return Loss(
        life=header.life,
        first=first,
        last=header.sequence,
        first_step=header.first_step,
        end_step=end_step,
        task=header.task,
    )


def read_header(data: bytes, offset: int = 0) -> Header | None:
    """Return the header at `offset`, or None where there is no sound one."""
    fields = data[offset : offset + _FIELDS.size]
    crc = data[offset + _FIELDS.size : offset + HEADER_BYTES]
    if len(crc) < _CRC.size or not fields.startswith(_MARK) or _CRC.unpack(crc)[0] != zlib.crc32(fields):
        return None
    _, kind, life, task, sequence, first_step, steps, length, payload_crc = _FIELDS.unpack(fields)
    if kind not in (BLOCK, FREED, LOST) or length > MAX_BLOCK_BYTES or max(sequence, first_step) > MAX_SEQUENCE:
        return None
    return Header(kind, f"{life:016x}", task, sequence, first_step, steps, length, payload_crc)


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
        losses: that records of their own tell.
        damaged: headers of records whose payload is cut off or damaged.
        lost_bytes: that belong to no whole record, before the last one that is whole.
        torn_bytes: after it: what a write that did not come to its end left.
    """

    records: list[tuple[int, Header]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    damaged: list[Header] = field(default_factory=list)
    lost_bytes: int = 0
    torn_bytes: int = 0


def scan(data: bytes) -> Scan:
    """Find every whole record, whatever lies between them."""
    result, end, offset = Scan(), min(len(PREAMBLE), len(data)), 0
    while (offset := data.find(_MARK, offset)) >= 0:
        header = read_header(data, offset)
        payload = None if header is None else payload_of(header, data, offset)
        if header is None:
            offset += 1
        elif payload is None:
            result.damaged.append(header)
            offset += 1
        else:
            loss = read_loss(header, payload) if header.kind == LOST else None
            if loss is not None:
                result.losses.append(loss)
            result.records.append((offset, header))
            result.lost_bytes += max(0, offset - end)
            offset = end = offset + header.size_bytes
    result.torn_bytes = len(data) - end
    return result
