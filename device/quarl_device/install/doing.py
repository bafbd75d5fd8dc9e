"""The steps, one function each. None looks whether it is needed, and each can be done again."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass

from quarl_device.errors import InstallFailed
from quarl_device.install import layout, service
from quarl_device.install.bundle import Bundle
from quarl_device.install.facts import Facts
from quarl_device.install.found import Found, linked_release, stale_paths
from quarl_device.install.host import Host
from quarl_device.install.release import make_release
from quarl_device.install.wanted import Order, Wanted

_CALL_S = 60.0
_ACTIVATE_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all steps are given."""

    host: Host
    bundle: Bundle
    facts: Facts
    order: Order
    wanted: Wanted
    found: Found


Say = Callable[[str], None]


def user(work: Work, say: Say) -> str:
    """Make the system user, and the directory of its state."""
    host, owner = work.host, work.wanted.owner
    if owner and not host.has_user(owner):
        words = ["useradd", "--system", "--user-group", "--home-dir", layout.STATE, "--no-create-home"]
        _must(host, [*words, "--shell", "/usr/sbin/nologin", owner])
    host.make_directory(layout.STATE, mode=0o750, owner=owner)
    return f"user {owner or 'of this process'}, {layout.STATE}"


def release(work: Work, say: Say) -> str:
    """Make the release."""
    make_release(work.host, work.bundle, work.facts, work.order, work.wanted, tell=say)
    return f"{layout.release_path(work.wanted.release)} is complete and has run a model"


def stop(work: Work, say: Say) -> str:
    """Stop the agent."""
    service.stop(work.host)
    return "the agent has ended"


def config(work: Work, say: Say) -> str:
    """Write what the agent reads, remove what it is not to find."""
    work.host.make_directory(layout.CONFIG)
    if work.bundle.credentials:
        work.host.make_directory(layout.CREDENTIALS, mode=0o700, owner=work.wanted.owner)
    return _write(work, lambda path: path.startswith(f"{layout.CONFIG}/"))


def coral(work: Work, say: Say) -> str:
    """Let the agent reach an Edge TPU, or no more."""
    said = _write(work, lambda path: path == layout.UDEV_RULE)
    if work.order.coral and work.wanted.owner:
        for group in layout.CORAL_GROUPS:
            _must(work.host, ["groupadd", "--system", "--force", group])
        _must(work.host, ["usermod", "--append", "--groups", ",".join(layout.CORAL_GROUPS), work.wanted.owner])
    # Without udev (a container) a rule is of no use yet, and of no harm.
    if work.facts.own_system and work.host.run(["udevadm", "control", "--reload"], timeout_s=_CALL_S).code == 0:
        work.host.run(["udevadm", "trigger", "--subsystem-match=usb", "--subsystem-match=apex"], timeout_s=_CALL_S)
    return said


def unit(work: Work, say: Say) -> str:
    """Write the service."""
    return _write(work, lambda path: path == layout.UNIT)


def switch(work: Work, say: Say) -> str:
    """Point at the release."""
    before = linked_release(work.host, layout.CURRENT)
    if before and before != work.wanted.release:
        work.host.link(layout.PREVIOUS, layout.link_target(before))
    work.host.link(layout.CURRENT, layout.link_target(work.wanted.release))
    return f"{layout.CURRENT} is {work.wanted.release}"


def policy(work: Work, say: Say) -> str:
    """Hand the policy to the agent as a person would: it verifies and tries it."""
    host, data = work.host, work.bundle.policy
    assert data is not None  # noqa: S101  the plan says so
    host.write(layout.HANDED_POLICY, data, mode=0o644)
    words = [host.place(f"{layout.CURRENT}/bin/quarl-device"), "activate", host.place(layout.HANDED_POLICY)]
    words += ["--state-dir", host.place(layout.STATE)]
    if host.entry(layout.LEARNER_KEY) is not None:
        words += ["--learner-key", host.place(layout.LEARNER_KEY)]
    done = host.run([*words, *runtime_words(work.bundle.device_toml)], timeout_s=_ACTIVATE_S, user=work.wanted.owner)
    host.remove(layout.HANDED_POLICY)
    if done.code != 0:
        raise InstallFailed(f"policy.qpol was refused with code {done.code}: {done.said[-400:]}")
    return done.said.partition("\n")[0]


def start(work: Work, say: Say) -> str:
    """Start the agent, and wait until it is ready."""
    service.reload(work.host)
    service.enable(work.host)
    said = service.start(work.host, timeout_s=work.order.start_timeout_s, tell=say)
    return f"the agent is ready{': ' if said else ''}{said}"


def tidy(work: Work, say: Say) -> str:
    """Remove what nothing points at any more."""
    stale = stale_paths(work.host, keep=work.wanted.release)
    for path in stale:
        work.host.remove(path)
    return f"removed {', '.join(stale)}" if stale else "nothing to remove"


def runtime_words(device_toml: bytes) -> list[str]:
    """Return the options by which `activate` uses the runtime that the agent uses."""
    said = tomllib.loads(device_toml.decode())
    named = ((key, said.get(key)) for key in ("runtime", "delegate"))
    return [word for key, value in named if isinstance(value, str) and value for word in (f"--{key}", value)]


def _write(work: Work, ours: Callable[[str], bool]) -> str:
    written, removed = 0, 0
    for file in work.wanted.files:
        if ours(file.path) and file.path in work.found.changed:
            work.host.write(file.path, file.data, mode=file.mode, owner=file.owner)
            written += 1
    for path in work.found.surplus:
        if ours(path):
            work.host.remove(path)
            removed += 1
    return f"{written} written, {removed} removed"


def _must(host: Host, words: list[str]) -> None:
    done = host.run(words, timeout_s=_CALL_S)
    if done.code != 0:
        raise InstallFailed(f"{words[0]} ended with code {done.code}: {done.said[-300:]}")
