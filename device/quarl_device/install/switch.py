"""What is replaced while an agent may be acting, kept so that all of it can be put back: after an error, or a kill.

`begin` copies everything that will change into a directory that gets its name in one rename: from then on the switch is
open. `commit` takes the name away in one rename again. Whoever finds an open switch puts back what was there before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quarl_device.errors import InstallFailed
from quarl_device.install import layout
from quarl_device.install.host import Host

_SCHEMA = "quarl.switch.v1"
_NEW, _OVER = f"{layout.SWITCH}.new", f"{layout.SWITCH}.over"
_JOURNAL = "journal.json"
_LINKS = (layout.CURRENT, layout.PREVIOUS)
_CANDIDATES = ("incoming", "testing", "ready", "trial")
_FOLDERS = (layout.CONFIG, layout.CREDENTIALS)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An open switch.

    Attributes:
        before: release that was current, "" for none.
        active: the service ran.
        enabled: it started with the board.
        files: of each path that changes, where its copy lies, its mode and its owner; `None` for what was not there.
        links: targets of the links, `None` for those that were not there.
        made: directories that were not there.
        policy: sha256 (hex) of the signed policy that is handed over, "" for none.
    """

    before: str
    active: bool
    enabled: bool
    files: dict[str, tuple[str, int, str] | None]
    links: dict[str, str | None]
    made: tuple[str, ...]
    policy: str = ""


def begin(host: Host, paths: Sequence[str], *, active: bool, enabled: bool, policy: str = "") -> Opened:
    """Keep what lies at these paths, and open the switch.

    Args:
        host: the board.
        paths: files that will be written or removed.
        active: the service runs.
        enabled: it starts with the board.
        policy: see `Opened`.
    """
    for rest in (_NEW, _OVER):
        host.remove(rest)
    host.make_directory(_NEW, mode=0o700)
    files: dict[str, tuple[str, int, str] | None] = {}
    for number, path in enumerate(paths):
        files[path] = _keep(host, path, f"{_NEW}/{number}")
    opened = Opened(
        before=(host.link_target(layout.CURRENT) or "").rpartition("/")[2],
        active=active,
        enabled=enabled,
        files=files,
        links={link: host.link_target(link) for link in _LINKS},
        made=tuple(path for path in _FOLDERS if host.entry(path) is None),
        policy=policy,
    )
    host.write(f"{_NEW}/{_JOURNAL}", json.dumps({"schema": _SCHEMA, **vars(opened)}).encode(), mode=0o600)
    host.move(_NEW, layout.SWITCH)
    return opened


def opened(host: Host) -> Opened | None:
    """Return the switch that is open, `None` for none.

    Raises:
        InstallFailed: one is, and its journal does not hold.
    """
    if host.entry(layout.SWITCH) is None:
        return None
    try:
        return _parse(json.loads(host.read(f"{layout.SWITCH}/{_JOURNAL}") or b"null"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise InstallFailed(
            f"an installation was cut off, and what it kept in {layout.SWITCH} is damaged",
            hint=f"look at {layout.CONFIG} and {layout.CURRENT}, then: sudo rm -r {layout.SWITCH}",
        ) from cause


def put_back(host: Host, switch: Opened) -> None:
    """Put back what was there, and close the switch; doing it twice, or the rest of it, is the same."""
    _take_back(host, switch.policy)
    for path, kept in switch.files.items():
        if kept is None:
            host.remove(path)
        else:
            _put_back_file(host, path, *kept)
    for link, target in switch.links.items():
        if target is None:
            host.remove(link)
        else:
            host.link(link, target)
    for path in reversed(switch.made):
        host.remove(path)
    commit(host)


def _take_back(host: Host, policy: str) -> None:
    """Remove a policy that was handed over: the agent before would act with it, by its own settings."""
    for slot in _CANDIDATES if policy else ():
        path = f"{layout.SLOTS}/{slot}.qpol"
        if hashlib.sha256(host.read(path) or b"").hexdigest() == policy:
            host.remove(path)


def commit(host: Host) -> None:
    """Close the switch: what is there stays. The copies are removed with everything else that is of no more use."""
    host.move(layout.SWITCH, _OVER)


def _put_back_file(host: Host, path: str, name: str, mode: int, owner: str) -> None:
    copy = f"{layout.SWITCH}/{name}"
    if host.entry(copy) is None:
        return  # it was put back by a run that was cut off in its turn
    try:
        # A rename needs no room: a full disk may be why this is undone.
        host.move(copy, path)
    except InstallFailed:
        data = host.read(copy)
        if data is None:
            raise
        host.write(path, data, mode=mode, owner=owner)


def _keep(host: Host, path: str, copy: str) -> tuple[str, int, str] | None:
    entry = host.entry(path)
    if entry is None:
        return None
    data = host.read(path)
    if entry.kind != "file" or data is None:
        raise InstallFailed(f"{path} is a {entry.kind}, expected a file", hint=f"sudo rm -ri {path}")
    host.write(copy, data, mode=entry.mode, owner=entry.owner)
    return copy.rpartition("/")[2], entry.mode, entry.owner


def _parse(said: Any) -> Opened:
    if said.pop("schema") != _SCHEMA:
        raise ValueError("another schema")
    files = {path: None if kept is None else (kept[0], kept[1], kept[2]) for path, kept in said["files"].items()}
    return Opened(**{**said, "files": files, "made": tuple(said["made"])})
