"""What is on the board already, as far as it is asked for."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from quarl_device.install import layout, service
from quarl_device.install.host import Host
from quarl_device.install.wanted import Wanted, WantedFile

RECEIPT_SCHEMA = "quarl.release.v1"
ACCEPTED_SLOTS = ("incoming", "testing", "ready", "trial", "current")
"""A policy in one of these has been given to the agent, and it has not refused it (`quarl_device.deploy.slots`)."""


_HALF_WRITTEN = re.compile(r"\.(device\.toml|password|learner\.pub)\.\w{8}")
"""Temporary names of `quarl_device.files.write_atomic`."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A board before anything is done.

    Attributes:
        user: there is the system user, or none is needed.
        state: there is a state directory.
        complete: the wanted release is there, whole.
        current: release that is switched to, "" for none.
        changed: paths of wanted files that are missing or otherwise.
        surplus: paths that are not to be there.
        policy: the wanted policy has been given to the agent, or none is wanted.
        active: the service runs, or tries to.
        enabled: it starts with the board.
        stale: paths of releases that are neither current nor previous nor wanted, and of what a kill left behind.
    """

    user: bool
    state: bool
    complete: bool
    current: str
    changed: tuple[str, ...]
    surplus: tuple[str, ...]
    policy: bool
    active: bool
    enabled: bool
    stale: tuple[str, ...]


def look(host: Host, wanted: Wanted, *, systemd: bool) -> Found:
    """Compare the board with what is wanted."""
    current = linked_release(host, layout.CURRENT)
    return Found(
        user=not wanted.owner or host.has_user(wanted.owner),
        state=host.entry(layout.STATE) is not None,
        complete=is_complete(host, wanted.release),
        current=current,
        changed=tuple(file.path for file in wanted.files if not _is_so(host, file)),
        surplus=_surplus(host, wanted),
        policy=not wanted.policy_digest or _has_policy(host, wanted.policy_digest),
        active=systemd and service.is_active(host),
        enabled=systemd and service.is_enabled(host),
        stale=stale_paths(host, keep=wanted.release),
    )


def linked_release(host: Host, link: str) -> str:
    """Return the release that a link points at, "" where there is none."""
    return (host.link_target(link) or "").rpartition("/")[2]


def is_complete(host: Host, release: str) -> bool:
    """Return whether a release was made to its end."""
    receipt = host.read(f"{layout.release_path(release)}/{layout.RECEIPT}")
    try:
        said = json.loads(receipt or b"null")
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("release") == release and said.get("schema") == RECEIPT_SCHEMA


def stale_paths(host: Host, *, keep: str) -> tuple[str, ...]:
    """Return the releases that nothing points at, but `keep`, and whatever an installation that was killed left."""
    kept = {linked_release(host, layout.CURRENT), linked_release(host, layout.PREVIOUS), keep}
    releases = (layout.release_path(name) for name in host.names(layout.RELEASES) if name not in kept)
    # An open switch is no rest: it is put back.
    rests = (f"{layout.HOME}/{name}" for name in host.names(layout.HOME))
    known = (layout.RELEASES, layout.CURRENT, layout.PREVIOUS, layout.SWITCH)
    halves = (f"{layout.CONFIG}/{name}" for name in host.names(layout.CONFIG) if _HALF_WRITTEN.fullmatch(name))
    return (*releases, *(path for path in rests if path not in known), *halves)


def _is_so(host: Host, file: WantedFile) -> bool:
    entry = host.entry(file.path)
    if entry is None or entry.kind != "file" or entry.mode != file.mode:
        return False
    return (not file.owner or entry.owner == file.owner) and host.read(file.path) == file.data


def _surplus(host: Host, wanted: Wanted) -> tuple[str, ...]:
    paths = {file.path for file in wanted.files}
    found = [path for path in wanted.absent if host.entry(path) is not None]
    # A bundle that brings no credentials leaves those that are there.
    if any(path.startswith(f"{layout.CREDENTIALS}/") for path in paths):
        inside = (f"{layout.CREDENTIALS}/{name}" for name in host.names(layout.CREDENTIALS))
        found += [path for path in inside if path not in paths]
    return tuple(found)


def _has_policy(host: Host, digest: str) -> bool:
    for slot in ACCEPTED_SLOTS:
        data = host.read(f"{layout.SLOTS}/{slot}.qpol")
        if data is not None and hashlib.sha256(data).hexdigest() == digest:
            return True
    return False
