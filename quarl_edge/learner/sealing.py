"""A policy file and its header into what goes out: a signed push, or a signed manifest where the file is too large."""

from __future__ import annotations

from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.limits import MAX_CHUNK_BYTES
from quarl_device.wire.manifest import Manifest, chunk_digests, encode_manifest
from quarl_device.wire.push import PushHeader, encode_push, fits_inline


def seal_policy(
    header: PushHeader, policy: bytes, key: LearnerKey, *, chunks: bytes = b""
) -> tuple[bytes, Manifest | None]:
    """Return the signed push, or of a large policy its signed manifest, and what that says.

    Args:
        header: its `sha256` must be that of `policy`.
        policy: a policy file.
        key: the learner's.
        chunks: digests of the chunks of a large file, where they are known already.

    Raises:
        PayloadTooLarge: over 64 MiB.
    """
    if fits_inline(header, len(policy)):
        return encode_push(header, policy, key.sign), None
    manifest = Manifest(
        header=header,
        size_bytes=len(policy),
        chunk_bytes=MAX_CHUNK_BYTES,
        digests=chunks or chunk_digests(policy, chunk_bytes=MAX_CHUNK_BYTES),
    )
    return encode_manifest(manifest, key.sign), manifest
