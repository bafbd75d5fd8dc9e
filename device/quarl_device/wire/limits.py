"""The wire version and the size cap of each kind of payload."""

from __future__ import annotations

from quarl_device.errors import PayloadRefused, PayloadTooLarge

WIRE_VERSION = 1

MAX_INLINE_PUSH_BYTES = 256 * 1024
MAX_BLOCK_BYTES = 1024 * 1024
MAX_BLOCK_HEADER_BYTES = 32 * 1024
MAX_CHUNK_BYTES = 64 * 1024
MAX_CHUNKS = 4096
MAX_NEEDED_CHUNKS = 8
MAX_JSON_BYTES = 64 * 1024
MAX_POLICY_BYTES = 64 * 1024 * 1024
MAX_SIGNED_FILE_BYTES = MAX_POLICY_BYTES + MAX_JSON_BYTES + 1024
"""Of a signed policy file: a policy, a header, the frame around both."""

MAX_PAYLOAD_BYTES = max(MAX_BLOCK_BYTES, MAX_INLINE_PUSH_BYTES, MAX_CHUNK_BYTES, MAX_JSON_BYTES)
"""No payload of any kind is larger: brokers must let this much through, plus topic and packet header."""


def check_outgoing(size_bytes: int, cap_bytes: int, *, what: str) -> None:
    """Refuse to publish more than the cap: an over-size QoS 1 publish makes a broker drop the link for ever.

    Raises:
        PayloadTooLarge: `size_bytes` is over `cap_bytes`.
    """
    if size_bytes > cap_bytes:
        raise PayloadTooLarge(f"{what} has {size_bytes:,} bytes, over its cap of {cap_bytes:,}")


def check_incoming(size_bytes: int, cap_bytes: int, *, what: str) -> None:
    """Refuse an incoming payload over its cap before it is decoded.

    Raises:
        PayloadRefused: `size_bytes` is over `cap_bytes`.
    """
    if size_bytes > cap_bytes:
        raise PayloadRefused(f"{what} has {size_bytes:,} bytes, over its cap of {cap_bytes:,}")
