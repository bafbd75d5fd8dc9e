"""What is sent to a board: files by their place in the bundle, listed with their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quarl_device.errors import CredentialsError, ModelFileError
from quarl_device.files import read_capped
from quarl_device.link.credentials import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    LEARNER_PUBLIC_FILE,
    TOML_FILE,
    Credentials,
)
from quarl_edge.deploy.host import Source

SCHEMA = "quarl.bundle.v1"
LIST_NAME = "bundle.json"
WHEELS = "wheels"
_CREDENTIAL_FILES = (TOML_FILE, KEY_FILE, CERTIFICATE_FILE, CA_FILE)
_MAX_CREDENTIAL_BYTES = 64 * 1024
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of a bundle.

    Attributes:
        source: its bytes, or a file that holds them.
        sha256: hex digest.
        size: in bytes.
        kept: a board may keep it for the next time: a wheel, and nothing that is secret.
    """

    source: Source = field(repr=False)
    sha256: str
    size: int
    kept: bool


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """All that is sent.

    Attributes:
        wheel: name of the device's wheel.
        entries: by path in the bundle, without the list itself.
    """

    wheel: str
    entries: Mapping[str, Entry]

    @property
    def digests(self) -> dict[str, str]:
        """Digest by path."""
        return {path: entry.sha256 for path, entry in self.entries.items()}

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(entry.size for entry in self.entries.values())

    def listing(self) -> bytes:
        """Return `bundle.json`."""
        return json.dumps({"schema": SCHEMA, "files": dict(sorted(self.digests.items()))}, indent=1).encode()


def make_bundle(
    wheel: Path,
    *,
    wheels: Sequence[Path] = (),
    settings: bytes | None = None,
    credentials: Credentials | None = None,
    password: str | None = None,
    learner_key: bytes | None = None,
    policy: bytes | None = None,
) -> Bundle:
    """Put a bundle together.

    Args:
        wheel: of the device package.
        wheels: wheelhouse, or none.
        settings: `device.toml`; `None` for a bundle that only removes.
        credentials: of the device.
        password: for the broker.
        learner_key: content of `learner.pub`.
        policy: a signed policy.

    Raises:
        CredentialsError: a file of the credentials cannot be read.
        ModelFileError: a wheel cannot be read.
    """
    entries = {wheel.name: _file(wheel), **{f"{WHEELS}/{each.name}": _file(each) for each in wheels}}
    given = {"device.toml": settings, "learner.pub": learner_key, "policy.qpol": policy}
    if password is not None:
        given["password"] = f"{password}\n".encode()
    if credentials is not None:
        given.update(_credentials(credentials))
    entries.update({path: _bytes(data) for path, data in given.items() if data is not None})
    return Bundle(wheel=wheel.name, entries=entries)


def _credentials(held: Credentials) -> dict[str, bytes]:
    """Return the files that a device needs; whatever else lies in that directory stays here."""
    names = [*_CREDENTIAL_FILES, *([LEARNER_PUBLIC_FILE] if held.learner_key is not None else [])]
    return {
        f"credentials/{name}": read_capped(
            held.folder / name, cap_bytes=_MAX_CREDENTIAL_BYTES, error=CredentialsError, what="file of the credentials"
        )
        for name in names
    }


def _bytes(data: bytes) -> Entry:
    return Entry(source=data, sha256=hashlib.sha256(data).hexdigest(), size=len(data), kept=False)


def _file(path: Path) -> Entry:
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
    except OSError as error:
        raise ModelFileError(f"wheel cannot be read: {path}: {error.strerror}") from error
    return Entry(source=path, sha256=digest.hexdigest(), size=size, kept=True)
