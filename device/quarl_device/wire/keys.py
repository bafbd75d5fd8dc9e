"""The learner's ed25519 key: made once per host, its public half given to devices.

The private file holds the 32-byte seed as 64 hex digits and a newline, mode 0600; the public file likewise.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from quarl_device.errors import BadSignature, KeyFileError
from quarl_device.files import read_capped, write_atomic

SIGNATURE_BYTES = 64
_KEY_BYTES = 32
_MAX_FILE_BYTES = 1024


class PublicKey:
    """The half that checks signatures.

    Args:
        raw: 32 bytes.

    Raises:
        KeyFileError: not 32 bytes.
    """

    def __init__(self, raw: bytes) -> None:
        if len(raw) != _KEY_BYTES:
            raise KeyFileError(f"a public key has {_KEY_BYTES} bytes, found {len(raw)}")
        self.hex = raw.hex()
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    @classmethod
    def from_hex(cls, text: str) -> PublicKey:
        """Build from 64 hex digits; KeyFileError if they are not."""
        return cls(_unhex(text, what="public key"))

    @classmethod
    def from_file(cls, path: Path) -> PublicKey:
        """Read a public key file; KeyFileError if it is missing, unreadable or malformed."""
        data = read_capped(path, cap_bytes=_MAX_FILE_BYTES, error=KeyFileError, what="learner key file")
        return cls(_unhex(data.decode("ascii", errors="replace"), what=f"learner key file {path}"))

    def save(self, path: Path) -> None:
        """Write the public key file; KeyFileError if that fails."""
        write_atomic(path, f"{self.hex}\n".encode(), error=KeyFileError, what="public key file")

    def verify(self, signature: bytes, data: bytes) -> None:
        """Check a signature over `data`.

        Raises:
            BadSignature: it was not made with the private half.
        """
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            raise BadSignature(f"the signature was not made by the learner key {self.hex[:16]}...") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and self.hex == other.hex

    def __hash__(self) -> int:
        return hash(self.hex)

    def __repr__(self) -> str:
        return f"PublicKey({self.hex[:16]}...)"


class LearnerKey:
    """The half that signs. Its bytes never show in `repr`, logs or errors.

    Args:
        seed: 32 secret bytes.

    Raises:
        KeyFileError: not 32 bytes.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != _KEY_BYTES:
            raise KeyFileError(f"a private key has {_KEY_BYTES} bytes, found {len(seed)}")
        self._seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> LearnerKey:
        """Make a new key."""
        return cls(os.urandom(_KEY_BYTES))

    @classmethod
    def load_or_create(cls, path: Path) -> LearnerKey:
        """Read the key at `path`, or make one there with mode 0600 if there is none.

        Raises:
            KeyFileError: unreadable, unwritable, malformed, or others may read it.
        """
        if not _exists(path):
            key = cls.generate()
            write_atomic(path, f"{key._seed.hex()}\n".encode(), error=KeyFileError, what="learner key", mode=0o600)
            return key
        data = read_capped(path, cap_bytes=_MAX_FILE_BYTES, error=KeyFileError, what="learner key")
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise KeyFileError(f"learner key {path} is open to others (mode {mode:04o})", hint=f"chmod 600 {path}")
        return cls(_unhex(data.decode("ascii", errors="replace"), what=f"learner key {path}"))

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature over `data`."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"LearnerKey(public={self.public.hex[:16]}...)"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a folder that may not be searched, a name too long
        raise KeyFileError(f"learner key cannot be read: {path}: {error.strerror}") from error


def _unhex(text: str, *, what: str) -> bytes:
    digits = text.strip()
    try:
        # `fromhex` would also take spaces between bytes.
        raw = bytes.fromhex(digits) if len(digits) == 2 * _KEY_BYTES else b""
    except ValueError:
        raw = b""
    if len(raw) != _KEY_BYTES:
        raise KeyFileError(f"{what} does not hold {2 * _KEY_BYTES} hex digits")
    return raw
