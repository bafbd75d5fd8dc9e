"""The policy that a board is to act with, signed; the same policy for the same board keeps its version."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from quarl_device.deploy.signed import open_signed, read_signed, sign_policy
from quarl_device.errors import BadSignature, KeyFileError, QuarlError
from quarl_device.files import is_there, read_capped, write_atomic
from quarl_device.policy_file import read_policy_path
from quarl_device.wire.keys import LearnerKey, PublicKey
from quarl_device.wire.messages import MAX_EPOCH
from quarl_device.wire.strict_json import loads

_MAX_NOTE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Release:
    """A signed policy.

    Attributes:
        data: the whole `.qpol`.
        digest: sha256 of the policy in it, which births name.
        version: as a person reads it.
        key: that signed it.
        env_id: environment that the policy names, "" for none.
    """

    data: bytes = field(repr=False)
    digest: str
    version: str
    key: PublicKey
    env_id: str


def signed_release(path: Path, key: PublicKey) -> Release:
    """Return a release that somebody has signed.

    Raises:
        ModelFileError, PayloadRefused, ContractError: it does not hold.
        BadSignature: signed by another key.
    """
    try:
        signed = open_signed(read_signed(path), key)
    except BadSignature as error:
        error.hint = error.hint or "--learner-key learner.pub, the file that `quarl-edge sign` wrote beside it"
        raise
    return Release(
        data=signed.data,
        digest=signed.header.sha256,
        version=signed.name,
        key=key,
        env_id=signed.file.contract.env_id,
    )


def sign_release(path: Path, key: LearnerKey, *, note: Path) -> Release:
    """Sign a policy file. A board refuses a version that is not newer, so its own policy again keeps its number.

    Args:
        path: of a policy file made by `quarl-edge export`.
        key: the learner's.
        note: remembers what this board was given last.

    Raises:
        ModelFileError, ContractError: it is no policy, or has no golden answers.
    """
    file = read_policy_path(path)
    known = {"sha256": file.sha256, "key": key.public.hex}
    version = _noted(note, known)
    if version is None:
        version = min(max(int(time.time()), 0), MAX_EPOCH)
    data = sign_policy(file, key, version=version)
    return Release(data=data, digest=file.sha256, version=str(version), key=key.public, env_id=file.contract.env_id)


def remember(release: Release, *, note: Path) -> None:
    """Note that a board was given a release; a cache, so what cannot be written is no error."""
    if not release.version.isdigit():
        return
    said = {"sha256": release.digest, "key": release.key.hex, "version": int(release.version)}
    with contextlib.suppress(QuarlError):
        write_atomic(note, json.dumps(said).encode(), error=QuarlError, what="note of a release")


def note_of(folder: Path, *, board: str, fleet: str, name: str) -> Path:
    """Return where `remember` notes what a board was given."""
    return folder / f"{hashlib.sha256(f'{board} {fleet} {name}'.encode()).hexdigest()[:24]}.json"


def public_key_of(path: Path) -> PublicKey:
    """Return the public key in a file named ``.pub``, or of the signing key in any other.

    Both look alike, and a file's mode tells nothing on many disks. What is not named as a public key is taken for the
    one that must never leave this computer.

    Raises:
        KeyFileError: missing, unreadable, malformed, or a signing key that others may read.
    """
    if path.suffix == ".pub":
        return PublicKey.from_file(path)
    if not is_there(path):
        raise KeyFileError(f"learner key not found: {path}")
    return LearnerKey.load_or_create(path).public


def _noted(note: Path, known: dict[str, str]) -> int | None:
    try:
        read = loads(read_capped(note, cap_bytes=_MAX_NOTE_BYTES, error=QuarlError, what="note"), what="note")
        if all(read.text(name) == value for name, value in known.items()):
            return read.integer("version", high=MAX_EPOCH)
    except QuarlError:
        pass
    return None
