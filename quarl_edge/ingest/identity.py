"""Which block a payload says it is, though it does not hold: so that its refusal can be answered."""

from __future__ import annotations

import re

from quarl_device.wire.limits import MAX_BLOCK_HEADER_BYTES

_IDENTITY = re.compile(rb'"boot_id":"([0-9a-f]{16})","sequence":"([0-9]{1,16})","base":"([0-9]{1,16})"')


def identity(payload: bytes) -> tuple[str, int, int] | None:
    """Return the boot id, sequence and base that a payload names, `None` if they cannot be read."""
    end = 8 + min(int.from_bytes(payload[:8], "little"), MAX_BLOCK_HEADER_BYTES)
    found = _IDENTITY.search(payload, 8, end)
    if found is None:
        return None
    sequence, base = int(found[2]), int(found[3])
    return (found[1].decode(), sequence, base) if base <= sequence < 2**53 else None
