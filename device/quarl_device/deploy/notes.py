"""The agent's notes: a small file with what no slot can say. Losing it costs counts and history, never a policy.

``{"schema": 1, "checksum": sha256 of the rest, "notes": {...}}``. A file that is torn, empty, all NUL, of another
schema or of any other making reads as no notes at all.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from quarl_device.deploy.machine import Fault, Phase
from quarl_device.errors import ModelFileError, PayloadRefused, StateUnwritable
from quarl_device.files import read_capped, write_atomic
from quarl_device.wire.strict_json import MAX_INT, MAX_UNIX_S, Reader, loads, one_line

SCHEMA = 1
MAX_BYTES = 64 * 1024
_MAX_MESSAGE = 500
_PHASES = tuple(phase.value for phase in Phase)


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Since the state directory was made, as far as notes were not lost.

    Attributes:
        steps: environment steps.
        episodes: whole episodes.
        safe_steps: steps in which the safe action was what the environment got.
        overruns: steps whose action came after its period.
        limited: actions that a hard limit changed.
        bad_observations: observations with NaN or Inf.
        accepted: policies that began a probation.
        refused: policies that did not come to one.
        fallbacks: policies that failed as they acted.
    """

    steps: int = 0
    episodes: int = 0
    safe_steps: int = 0
    overruns: int = 0
    limited: int = 0
    bad_observations: int = 0
    accepted: int = 0
    refused: int = 0
    fallbacks: int = 0


class Tally:
    """What one life counts besides steps and episodes, by the names of `Counters`."""

    def __init__(self) -> None:
        self.safe_steps = self.overruns = self.bad_observations = 0
        self.accepted = self.refused = self.fallbacks = 0


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What the agent writes down.

    Attributes:
        phase: of the machine.
        since_unix_s: when it began, by the wall clock, which may be wrong and decides nothing.
        acting: digest of what acts, "" for the safe action.
        activated_unix_s: when that began to act.
        clean: whether the process that wrote this has ended by itself.
        starts: starts in a row that did not end cleanly, see `boot.Found`.
        level: see `boot.Found`.
        env_id: of the environment.
        fault: the last one.
        fault_unix_s: when.
        counters: see `Counters`.
    """

    phase: Phase = Phase.EMPTY
    since_unix_s: float = 0.0
    acting: str = ""
    activated_unix_s: float = 0.0
    clean: bool = False
    starts: int = 0
    level: int = 0
    env_id: str = ""
    fault: Fault | None = None
    fault_unix_s: float = 0.0
    counters: Counters = Counters()


def encode_notes(notes: Notes) -> bytes:
    """Return the content of the file."""
    inner = asdict(notes)
    if notes.fault is not None:
        inner["fault"]["message"] = one_line(notes.fault.message, max_length=_MAX_MESSAGE)
    return json.dumps({"schema": SCHEMA, "checksum": _checksum(inner), "notes": inner}).encode()


def decode_notes(data: bytes) -> Notes:
    """Read the content of the file.

    Raises:
        PayloadRefused: it does not hold.
    """
    whole = loads(data, what="agent's notes", cap_bytes=MAX_BYTES)
    if whole.raw("schema") != SCHEMA:
        raise PayloadRefused(f"agent's notes: schema {str(whole.raw('schema'))[:40]} is not {SCHEMA}")
    inner = whole.object("notes")
    if whole.text("checksum", max_length=64) != _checksum(inner):
        raise PayloadRefused("agent's notes: the checksum is another one")
    found = Reader(inner, what="agent's notes")
    counters = Reader(found.object("counters"), what="agent's notes: counters")
    return Notes(
        phase=Phase(found.choice("phase", _PHASES)),
        since_unix_s=found.unix_s("since_unix_s"),
        acting=_digest(found, "acting"),
        activated_unix_s=found.unix_s("activated_unix_s"),
        clean=found.boolean("clean"),
        starts=found.integer("starts"),
        level=found.integer("level", high=2),
        env_id=found.line("env_id", max_length=128),
        fault=_fault(found),
        fault_unix_s=found.unix_s("fault_unix_s"),
        counters=Counters(**{each.name: counters.integer(each.name, high=MAX_INT) for each in fields(Counters)}),
    )


def read_notes(path: Path) -> tuple[Notes, str]:
    """Return the notes in a file, and why they are none ("" where they are read)."""
    try:
        return decode_notes(read_capped(path, cap_bytes=MAX_BYTES, error=ModelFileError, what="agent's notes")), ""
    except (ModelFileError, PayloadRefused) as error:
        return Notes(), error.message


def write_notes(path: Path, notes: Notes) -> None:
    """Write the file whole or not at all.

    Raises:
        StateUnwritable: the disk refuses; what was there stays.
    """
    write_atomic(path, encode_notes(notes), error=StateUnwritable, what="agent's notes")


def believable_unix_s(now_s: float) -> float:
    """Return a wall-clock time as notes take it, whatever the clock says."""
    return min(max(now_s, 0.0), MAX_UNIX_S)


def _fault(found: Reader) -> Fault | None:
    if found.raw("fault") is None:
        return None
    inner = Reader(found.object("fault"), what="agent's notes: fault")
    return Fault(
        code=inner.integer("code", high=255),
        message=inner.line("message", max_length=_MAX_MESSAGE),
        digest=_digest(inner, "digest"),
    )


def _digest(found: Reader, name: str) -> str:
    digest = found.text(name, max_length=64)
    if digest and (len(digest) != 64 or not set(digest) <= set("0123456789abcdef")):
        raise PayloadRefused(f"{found.what}: {name!r} is not 64 hex digits")
    return digest


def _checksum(inner: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(inner, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
