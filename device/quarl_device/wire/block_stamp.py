"""Where a block belongs: the metadata at the end of its header, which can be read and changed without its spec.

What is sent again says the `base` and the dropped ranges of now. So an actor can send what an earlier life of it left,
for whatever task that was made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from quarl_device.errors import PayloadRefused, SpaceMismatch
from quarl_device.wire.block_spec import BLOCK_SCHEMA, MAX_DROPPED_RANGES, MAX_SEQUENCE, Block
from quarl_device.wire.limits import MAX_BLOCK_HEADER_BYTES

METADATA_BYTES = 2560
"""No metadata are longer: 64 dropped ranges of 34 characters, and less than 250 more."""
METADATA_MARK = b'"__metadata__":'
_DIGITS = rb"(0|[1-9][0-9]{0,15})"
_METADATA = re.compile(
    rb'"__metadata__":\{"schema":"1","boot_id":"([0-9a-f]{16})","sequence":"'
    + _DIGITS
    + rb'","base":"'
    + _DIGITS
    + rb'","first_step":"'
    + _DIGITS
    # The padding that makes the tensor bytes start at a multiple of 8.
    + rb'","dropped":"([0-9,-]*)"(?:,"lost_steps":"'
    + _DIGITS
    + rb'")?\}\} {0,7}'
)
_BOOT_ID = re.compile(r"[0-9a-f]{16}")
_RANGE = re.compile(r"(0|[1-9][0-9]{0,15})-(0|[1-9][0-9]{0,15})")


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """A block's place in its stream; see `Block`.

    Attributes:
        lost_steps: of what stands in a lost block's place (`wire/loss`), `None` in a block.
    """

    boot_id: str
    sequence: int
    base: int
    first_step: int = 0
    dropped: tuple[tuple[int, int], ...] = ()
    lost_steps: int | None = None


def read_stamp(payload: bytes) -> Stamp:
    """Read where a block belongs, whatever else is in it: its spec need not be known, its arrays are not looked at.

    Raises:
        PayloadRefused: there is no metadata, or it does not hold.
    """
    mark, end = _find_metadata(payload)
    return read_metadata(payload[mark:end])


def restamped(payload: bytes, *, base: int, dropped: tuple[tuple[int, int], ...] = ()) -> bytes:
    """Return a block that says `base` and `dropped` of now; one that says so already is returned as it is.

    Raises:
        PayloadRefused: there is no metadata, or it does not hold.
        SpaceMismatch: the new place does not hold.
    """
    mark, end = _find_metadata(payload)
    stamp = read_metadata(payload[mark:end])
    if (stamp.base, stamp.dropped) == (base, dropped):
        return payload
    return b"".join((*head_of(payload[8:mark], replace(stamp, base=base, dropped=dropped)), memoryview(payload)[end:]))


def _find_metadata(payload: bytes) -> tuple[int, int]:
    """Return where the metadata begin, and where the header ends."""
    end = 8 + int.from_bytes(payload[:8], "little")
    if not 8 < end <= min(len(payload), 8 + MAX_BLOCK_HEADER_BYTES):
        raise PayloadRefused(f"block: header of {end - 8} bytes in a payload of {len(payload)}")
    mark = payload.find(METADATA_MARK, 8, end)
    if mark < 0:
        raise PayloadRefused("block: no metadata in the header")
    return mark, end


def head_of(prefix: bytes, stamp: Stamp | Block) -> tuple[bytes, bytes]:
    """Return the header's length as it travels, and the header: what comes before the metadata, and these.

    Raises:
        SpaceMismatch: the metadata do not hold.
    """
    head = prefix + _metadata(stamp)
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little"), head


def _metadata(stamp: Stamp | Block) -> bytes:
    dropped = ",".join([f"{low}-{high}" for low, high in stamp.dropped])
    fault = _metadata_fault(stamp.sequence, stamp.base, stamp.first_step, stamp.dropped)
    if fault or not _BOOT_ID.fullmatch(stamp.boot_id):
        raise SpaceMismatch(f"block metadata do not hold: {fault or f'boot id {stamp.boot_id[:40]!r}'}")
    lost_steps = stamp.lost_steps if isinstance(stamp, Stamp) else None
    lost = "" if lost_steps is None else f',"lost_steps":"{lost_steps}"'
    return (
        f'"__metadata__":{{"schema":"{BLOCK_SCHEMA}","boot_id":"{stamp.boot_id}","sequence":"{stamp.sequence}",'
        f'"base":"{stamp.base}","first_step":"{stamp.first_step}","dropped":"{dropped}"{lost}}}}}'
    ).encode()


def read_metadata(text: bytes) -> Stamp:
    """Read the metadata of an untrusted header.

    Raises:
        PayloadRefused: they do not hold.
    """
    found = _METADATA.fullmatch(text)
    if not found:
        raise PayloadRefused(f"block: the metadata do not fit schema {BLOCK_SCHEMA}: {text[:200]!r}")
    sequence, base, first_step = int(found[2]), int(found[3]), int(found[4])
    dropped: tuple[tuple[int, int], ...] = ()
    if found[5]:
        parts = [_RANGE.fullmatch(part) for part in found[5].decode().split(",", MAX_DROPPED_RANGES)]
        if not all(parts):
            raise PayloadRefused("block: the dropped ranges are malformed or too many")
        dropped = tuple((int(part[1]), int(part[2])) for part in parts if part)
    fault = _metadata_fault(sequence, base, first_step, dropped)
    if fault:
        raise PayloadRefused(f"block: {fault}")
    lost_steps = None if found[6] is None else int(found[6])
    if lost_steps is not None and first_step + lost_steps > MAX_SEQUENCE:
        raise PayloadRefused(f"block: steps {first_step} to {first_step + lost_steps} lost: not in 0..{MAX_SEQUENCE}")
    return Stamp(
        boot_id=found[1].decode(),
        sequence=sequence,
        base=base,
        first_step=first_step,
        dropped=dropped,
        lost_steps=lost_steps,
    )


def _metadata_fault(sequence: int, base: int, first_step: int, dropped: tuple[tuple[int, int], ...]) -> str:
    """Return what is wrong with a block's place in its stream, or ""."""
    if not 0 <= base <= sequence <= MAX_SEQUENCE:
        return f"sequence {sequence} and base {base}: expected 0 <= base <= sequence <= {MAX_SEQUENCE}"
    if not 0 <= first_step <= MAX_SEQUENCE:
        return f"first step {first_step}: expected 0..{MAX_SEQUENCE}"
    if len(dropped) > MAX_DROPPED_RANGES:
        return f"{len(dropped)} dropped ranges, at most {MAX_DROPPED_RANGES}"
    previous = -1
    for low, high in dropped:
        if not previous < low <= high <= MAX_SEQUENCE:
            return f"dropped range {low}-{high} is not ascending"
        if low <= sequence <= high:
            return f"sequence {sequence} is declared dropped"
        previous = high
    return ""
