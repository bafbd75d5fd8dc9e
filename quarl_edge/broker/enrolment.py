"""The list of a broker's clients: one entry per certificate, never forgotten, so that revoked ones stay revoked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quarl_device.errors import AuthorityError, UsageError
from quarl_device.files import read_capped, write_atomic
from quarl_device.link.credentials import ROLES
from quarl_device.names import check_name

_SCHEMA = "quarl.enrolled.v1"
_MAX_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Enrolled:
    """One certificate of one client.

    Attributes:
        name: client id, user name and common name.
        role: one of `ROLES`.
        fleet: that it belongs to, "" for every fleet.
        serial: of the certificate, in hex.
        expires: Unix seconds.
        revoked: Unix seconds, 0 while it holds.
        learner_key: a public key in hex: a learner's own, a device's the one that it was given to trust; "" for none.
    """

    name: str
    role: str
    fleet: str
    serial: str
    expires: int
    revoked: int = 0
    learner_key: str = ""

    @property
    def revocation(self) -> tuple[int, datetime]:
        """Serial number and time, as a revocation list has them."""
        return int(self.serial, 16), datetime.fromtimestamp(self.revoked, UTC)

    def state(self, now: datetime) -> str:
        """Return "revoked", "expired" or "enrolled"."""
        if self.revoked:
            return "revoked"
        return "expired" if self.expires < now.timestamp() else "enrolled"


@dataclass(frozen=True)
class Register:
    """All entries, in the order of enrolment.

    Attributes:
        entries: see `Enrolled`.
    """

    entries: tuple[Enrolled, ...] = ()

    def __iter__(self) -> Iterator[Enrolled]:
        return iter(self.entries)

    def current(self) -> tuple[Enrolled, ...]:
        """Return the newest entry of every client that is not revoked."""
        newest = {entry.name: entry for entry in self.entries if not entry.revoked}
        return tuple(newest.values())

    def find(self, name: str) -> Enrolled | None:
        """Return the newest entry of a client that is not revoked."""
        return next((entry for entry in self.current() if entry.name == name), None)

    def knows(self, name: str) -> bool:
        """Whether a client was ever enrolled, though it may be revoked."""
        return any(entry.name == name for entry in self.entries)

    def add(self, entry: Enrolled) -> Register:
        """Return a register with one more entry."""
        return Register((*self.entries, entry))

    def revoke(self, name: str, *, now: datetime) -> Register:
        """Return a register in which every certificate of a client is revoked.

        Raises:
            UsageError: no such client was ever enrolled.
        """
        if not self.knows(name):
            raise UsageError(f"no client {name[:80]!r} is enrolled", hint="quarl-edge broker ls")
        at = int(now.timestamp())
        return Register(
            tuple(
                replace(entry, revoked=at) if entry.name == name and not entry.revoked else entry
                for entry in self.entries
            )
        )

    def learner_key_for(self, fleet: str) -> str:
        """Return the public key (hex) of the learner of a fleet: its own first one, else the first of every fleet."""
        learners: dict[str, str] = {}
        for entry in self.current():
            if entry.role == "learner":
                learners.setdefault(entry.fleet, entry.learner_key)
        return learners.get(fleet) or learners.get("", "")

    def distrusting(self, learner: Enrolled) -> tuple[str, ...]:
        """Return the devices that a learner will serve, and that were given another learner's key."""
        if learner.role != "learner":
            return ()
        served = (entry for entry in self.current() if entry.role == "device" and learner.fleet in ("", entry.fleet))
        return tuple(entry.name for entry in served if entry.learner_key not in ("", learner.learner_key))

    @classmethod
    def read(cls, path: Path) -> Register:
        """Read the file.

        Raises:
            AuthorityError: missing, damaged, or of another version.
        """
        data = read_capped(path, cap_bytes=_MAX_FILE_BYTES, error=AuthorityError, what="list of enrolled clients")
        try:
            said = json.loads(data)
            if said["schema"] != _SCHEMA:
                raise ValueError(f"schema {said['schema']!r}, expected {_SCHEMA!r}")
            return cls(tuple(_entry(one) for one in said["clients"]))
        except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
            raise AuthorityError(
                f"the list of enrolled clients is damaged: {path}: {error}", hint="restore it from a copy"
            ) from error

    def write(self, path: Path) -> None:
        """Write the file whole.

        Raises:
            AuthorityError: it cannot be written; the old one is untouched.
        """
        said = {"schema": _SCHEMA, "clients": [dataclasses.asdict(entry) for entry in self.entries]}
        data = json.dumps(said, indent=1).encode() + b"\n"
        write_atomic(path, data, error=AuthorityError, what="list of enrolled clients", mode=0o600)


def _entry(said: dict[str, Any]) -> Enrolled:
    entry = Enrolled(**said)
    check_name(entry.name, kind="device")
    if entry.fleet:
        check_name(entry.fleet, kind="fleet")
    if entry.role not in ROLES:
        raise ValueError(f"role {entry.role!r}")
    int(entry.serial, 16)
    if not all(isinstance(number, int) and 0 <= number < 2**40 for number in (entry.expires, entry.revoked)):
        raise ValueError(f"times of {entry.name}")
    return entry
