"""A manifest: a push whose policy file is too large for one message, and travels in chunks.

It is an `envelope` that starts with `QMAN`, has the header of a push, and whose body is u64-LE policy bytes, u32-LE
bytes per chunk (the last one may be shorter), and the 32-byte sha256 of each chunk in order. The chunks themselves are
plain bytes on `blob/<sha256>/<offset>`: their topic says where they belong, the manifest whether they are right.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

from quarl_device.errors import PayloadRefused, PayloadTooLarge
from quarl_device.wire.envelope import seal, unseal
from quarl_device.wire.limits import MAX_CHUNK_BYTES, MAX_CHUNKS, MAX_POLICY_BYTES
from quarl_device.wire.push import MAGIC as PUSH_MAGIC
from quarl_device.wire.push import PushHeader, decode_push

MAGIC = b"QMAN"
DIGEST_BYTES = 32
_WHAT = "manifest"
_SIZES = struct.Struct("<QI")


@dataclass(frozen=True, eq=False, kw_only=True)
class Manifest:
    """What is needed to assemble a policy file from chunks.

    Attributes:
        header: as in a push.
        size_bytes: of the policy file, 1 to 64 MiB.
        chunk_bytes: of every chunk but the last, at most 64 KiB.
        digests: sha256 of each chunk, 32 bytes each, one after the other.
    """

    header: PushHeader
    size_bytes: int
    chunk_bytes: int
    digests: bytes

    @property
    def count(self) -> int:
        """How many chunks there are."""
        return len(self.digests) // DIGEST_BYTES

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, version), by which pushes are ordered."""
        return self.header.epoch, self.header.version

    def index_of(self, offset: int) -> int:
        """Return the chunk that begins at `offset`; PayloadRefused if none does."""
        index, inside = divmod(offset, self.chunk_bytes)
        if inside or not 0 <= index < self.count:
            raise PayloadRefused(f"chunk: none begins at byte {offset} of {self.size_bytes:,}")
        return index

    def check(self, index: int, chunk: bytes) -> None:
        """Raise PayloadRefused unless `chunk` is what the learner signed for this place."""
        expected = min(self.chunk_bytes, self.size_bytes - index * self.chunk_bytes)
        if len(chunk) != expected:
            raise PayloadRefused(f"chunk {index} of {self.count} has {len(chunk):,} bytes, expected {expected:,}")
        if hashlib.sha256(chunk).digest() != self.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]:
            raise PayloadRefused(f"chunk {index} of {self.count} is not what the manifest says: another sha256")


def make_manifest(header: PushHeader, policy: bytes, *, chunk_bytes: int = MAX_CHUNK_BYTES) -> Manifest:
    """Return the manifest of a policy file; PayloadTooLarge as `chunk_digests`."""
    digests = chunk_digests(policy, chunk_bytes=chunk_bytes)
    return Manifest(header=header, size_bytes=len(policy), chunk_bytes=chunk_bytes, digests=digests)


def chunk_digests(policy: bytes, *, chunk_bytes: int = MAX_CHUNK_BYTES) -> bytes:
    """Return the sha256 of each chunk, one after the other.

    Raises:
        PayloadTooLarge: over 64 MiB, or in more than 4096 chunks.
    """
    count = -(-len(policy) // chunk_bytes)
    if len(policy) > MAX_POLICY_BYTES or count > MAX_CHUNKS:
        raise PayloadTooLarge(
            f"a policy of {len(policy):,} bytes in {count:,} chunks is over the caps of {MAX_POLICY_BYTES:,} bytes "
            f"and {MAX_CHUNKS:,} chunks"
        )
    view = memoryview(policy)
    starts = range(0, len(view), chunk_bytes)
    return b"".join(hashlib.sha256(view[start : start + chunk_bytes]).digest() for start in starts)


def encode_manifest(manifest: Manifest, sign: Callable[[bytes], bytes]) -> bytes:
    """Return a signed manifest.

    Raises:
        PayloadTooLarge: over the inline cap of 256 KiB.
        PayloadRefused: a number in the header is not finite.
    """
    body = _SIZES.pack(manifest.size_bytes, manifest.chunk_bytes) + manifest.digests
    return seal(MAGIC, manifest.header.encode(), body, sign, what=_WHAT)


def decode_manifest(payload: bytes, verify: Callable[[bytes, bytes], None]) -> Manifest:
    """Check an untrusted manifest and return it; nothing in the size of the policy file is allocated.

    Args:
        payload: as it came.
        verify: called with (signature, signed bytes), `PublicKey.verify`.

    Raises:
        BadSignature: `verify` refused.
        PayloadRefused: over a cap, truncated, of another format version, or a header or sizes that do not hold.
    """
    head, body = unseal(payload, MAGIC, verify, what=_WHAT)
    header = PushHeader.decode(head)
    if len(body) < _SIZES.size:
        raise PayloadRefused(f"manifest: a body of {len(body)} bytes")
    size_bytes, chunk_bytes = _SIZES.unpack_from(body)
    if not 1 <= size_bytes <= MAX_POLICY_BYTES or not 1 <= chunk_bytes <= MAX_CHUNK_BYTES:
        raise PayloadRefused(f"manifest: a policy of {size_bytes:,} bytes in chunks of {chunk_bytes:,}")
    count, digests = -(-size_bytes // chunk_bytes), body[_SIZES.size :]
    if count > MAX_CHUNKS or len(digests) != count * DIGEST_BYTES:
        raise PayloadRefused(f"manifest: {len(digests)} bytes of digests for {count:,} chunks")
    return Manifest(header=header, size_bytes=size_bytes, chunk_bytes=chunk_bytes, digests=digests)


def is_manifest(payload: bytes) -> bool:
    """Say whether a payload on `live/policy` calls itself a manifest."""
    return payload.startswith(MAGIC)


def decode_header(payload: bytes, verify: Callable[[bytes, bytes], None]) -> PushHeader:
    """Return the header of what is on `live/policy`: a push or a manifest.

    Raises:
        BadSignature, PayloadRefused: see `decode_push` and `decode_manifest`.
    """
    if is_manifest(payload):
        return decode_manifest(payload, verify).header
    if payload.startswith(PUSH_MAGIC):
        return decode_push(payload, verify)[0]
    raise PayloadRefused(f"push: {len(payload)} bytes that start with neither QPOL nor QMAN")
