"""A signed envelope: what pushes and manifests have in common.

Layout: four magic bytes, u8 format version, u32-LE header length, JSON header, body, 64-byte ed25519 signature over
everything before it. The signature is checked first: nothing of an unsigned payload is parsed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from quarl_device.errors import PayloadRefused
from quarl_device.wire.keys import SIGNATURE_BYTES
from quarl_device.wire.limits import MAX_INLINE_PUSH_BYTES, check_incoming, check_outgoing

FORMAT_VERSION = 1
_PREAMBLE = struct.Struct("<4sBI")


def seal(
    magic: bytes,
    head: bytes,
    body: bytes,
    sign: Callable[[bytes], bytes],
    *,
    what: str,
    cap_bytes: int = MAX_INLINE_PUSH_BYTES,
) -> bytes:
    """Return a signed payload.

    Args:
        magic: four bytes that name the kind.
        head: JSON header.
        body: what follows it.
        sign: returns the 64-byte signature over its argument, `LearnerKey.sign`.
        what: names the kind in errors.
        cap_bytes: of the whole; by default that of a message.

    Raises:
        PayloadTooLarge: over the cap.
    """
    check_outgoing(sealed_bytes(len(head), len(body)), cap_bytes, what=what)
    signed = b"".join((_PREAMBLE.pack(magic, FORMAT_VERSION, len(head)), head, body))
    return signed + sign(signed)


def sealed_bytes(head_bytes: int, body_bytes: int) -> int:
    """Return the size of a payload with such a header and body."""
    return _PREAMBLE.size + head_bytes + body_bytes + SIGNATURE_BYTES


def unseal(
    payload: bytes,
    magic: bytes,
    verify: Callable[[bytes, bytes], None],
    *,
    what: str,
    cap_bytes: int = MAX_INLINE_PUSH_BYTES,
) -> tuple[bytes, bytes]:
    """Check an untrusted payload and return its JSON header, not read yet, and its body.

    Args:
        payload: as it came.
        magic: of the kind that is expected.
        verify: called with (signature, signed bytes), `PublicKey.verify`.
        what: names the kind in errors.
        cap_bytes: of the whole; by default that of a message.

    Raises:
        BadSignature: `verify` refused.
        PayloadRefused: over the cap, truncated, or of another kind or format version.
    """
    check_incoming(len(payload), cap_bytes, what=what)
    if len(payload) < sealed_bytes(0, 0) or not payload.startswith(magic):
        raise PayloadRefused(f"{what}: {len(payload)} bytes that do not start with {magic.decode()}")
    verify(payload[-SIGNATURE_BYTES:], payload[:-SIGNATURE_BYTES])
    _, version, head_bytes = _PREAMBLE.unpack_from(payload)
    if version != FORMAT_VERSION:
        raise PayloadRefused(f"{what}: format version {version} is not {FORMAT_VERSION}")
    end = _PREAMBLE.size + head_bytes
    if end > len(payload) - SIGNATURE_BYTES:
        raise PayloadRefused(f"{what}: a header of {head_bytes} bytes in a payload of {len(payload)}")
    return payload[_PREAMBLE.size : end], payload[end:-SIGNATURE_BYTES]
