"""How a device in deploy mode stands, from what lies on its disk: it needs no running agent and no broker."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from quarl_device.actor.live_slot import list_live
from quarl_device.deploy.machine import Fault
from quarl_device.deploy.notes import Notes, read_notes
from quarl_device.deploy.signed import SignedPolicy, open_signed, version_name
from quarl_device.deploy.slots import Slot, Slots
from quarl_device.errors import KeyFileError, QuarlError
from quarl_device.wire.keys import PublicKey

_SHOWN = (Slot.CURRENT, Slot.PREVIOUS, Slot.TRIAL, Slot.INCOMING, Slot.REFUSED)


def look(slots: Slots) -> dict[str, Any]:
    """Return the whole status, JSON values alone. Nothing is changed."""
    notes, why_none = read_notes(slots.notes_path)
    running, key = slots.in_use(), _key(slots)
    policies = {str(slot): _slot(slots, slot, key, notes) for slot in _SHOWN}
    return {
        "mode": "deploy",
        "directory": str(slots.directory),
        "running": running,
        "state": str(notes.phase) if running else "stopped" if notes.since_unix_s else "not known",
        "ended_cleanly": notes.clean,
        "since_unix_s": notes.since_unix_s,
        "env": notes.env_id,
        "acting": next((name for name, found in policies.items() if found and found.get("acting")), ""),
        **policies,
        "last_fault": _fault(notes.fault, notes.fault_unix_s),
        "starts": notes.starts,
        "counters": asdict(notes.counters),
        "notes": why_none,
        "live": list_live(slots.directory.parent),
    }


def as_text(status: dict[str, Any]) -> str:
    """Return the same for a person."""
    word, since = status["state"], f" since {_when(status['since_unix_s'])}" if status["running"] else ""
    if word == "stopped" and not status["ended_cleanly"]:
        word = "stopped, and not cleanly"
    lines = [f"{status['mode']}: {word}{since}, {status['directory']}"]
    for slot in _SHOWN:
        found = status[slot]
        if found is None:
            continue
        acts = ", acts" if found.get("acting") and status["running"] else ""
        said = found.get("error") or f"version {found['name']}, sha256 {found['digest'][:16]}{acts}"
        since = f", since {_when(found['since_unix_s'])}" if found.get("since_unix_s") else ""
        lines.append(f"  {slot!s:<9} {said}{since}")
    if not any(status[slot] for slot in _SHOWN):
        lines.append("  no policy: quarl-device activate model.qpol")
    if (fault := status["last_fault"]) is not None:
        lines.append(f"  fault {fault['code']}   {fault['message']} ({_when(fault['unix_s'])})")
    counted = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in status["counters"].items() if value)
    lines.append(f"  counted   {counted or 'nothing yet'}")
    if status["notes"]:
        lines.append(f"  notes     none: {status['notes']}")
    lines += [line for each in status["live"] for line in _live_lines(each)]
    return "\n".join(lines) + "\n"


def _live_lines(live: dict[str, Any]) -> list[str]:
    """Return what was learned last in training, and how it comes to act without a learner."""
    if "error" in live:
        return [f"  live      {live['device']}: {live['error']}"]
    name = version_name(live["epoch"], live["version"])
    return [
        f"  live      {live['device']}: version {name}, sha256 {live['digest'][:16]}, written "
        f"{_when(live['written_unix_s'])}",
        f"            in deploy mode: quarl-device activate {live['path']} --learner-key {live['learner_key']}",
    ]


def _slot(slots: Slots, slot: Slot, key: PublicKey | None, notes: Notes) -> dict[str, Any] | None:
    if not slots.there(slot):
        return None
    if key is None:
        return {"error": "no learner's key is known here to check it by"}
    try:
        signed = open_signed(slots.read(slot), key)
    except QuarlError as error:
        return {"error": error.message, "code": error.code}
    return _shown(signed, notes)


def _shown(signed: SignedPolicy, notes: Notes) -> dict[str, Any]:
    acting = signed.sha256 == notes.acting
    return {
        "name": signed.name,
        "epoch": signed.header.epoch,
        "version": signed.header.version,
        "digest": signed.header.sha256,
        "file_digest": signed.sha256,
        "acting": acting,
        "since_unix_s": notes.activated_unix_s if acting else None,
    }


def _key(slots: Slots) -> PublicKey | None:
    try:
        return slots.trusted_key(None)
    except KeyFileError:
        return None


def _fault(fault: Fault | None, unix_s: float) -> dict[str, Any] | None:
    return None if fault is None else {**asdict(fault), "unix_s": unix_s}


def _when(unix_s: float) -> str:
    if not unix_s:
        return "never"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(unix_s))
    except (ValueError, OverflowError):
        return f"{unix_s:.0f} s after 1970"
