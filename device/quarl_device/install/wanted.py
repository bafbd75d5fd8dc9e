"""What is to be on the board: a pure function of a bundle, the board's facts and what was asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from quarl_device.install import layout
from quarl_device.install.bundle import Bundle
from quarl_device.install.facts import Facts
from quarl_device.install.unit import udev_text, unit_text

START_TIMEOUT_S = 180
_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class Order:
    """What was asked for.

    Attributes:
        coral: the agent reaches an Edge TPU.
        memory_mib: limit of its memory in MiB, 0 for none.
        start_timeout_s: until it must be ready, in seconds.
        extras: of the device package.
    """

    coral: bool = False
    memory_mib: int = 0
    start_timeout_s: int = START_TIMEOUT_S
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WantedFile:
    """A file as it is to be; `owner` "" where it may be anybody's."""

    path: str
    data: bytes
    mode: int = 0o644
    owner: str = ""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Everything that is to be there.

    Attributes:
        release: its name.
        files: all of them, those that the agent reads first.
        absent: files that are not to be there.
        owner: of what is the agent's own, "" where there is no system user.
        policy_digest: sha256 (hex) of the signed policy that the agent is to have been given, "" for none.
    """

    release: str
    files: tuple[WantedFile, ...]
    absent: tuple[str, ...]
    owner: str
    policy_digest: str


def make_wanted(bundle: Bundle, facts: Facts, order: Order) -> Wanted:
    """Return what is to be there."""
    owner = layout.USER if facts.own_system else ""
    files = [WantedFile(path=layout.DEVICE_TOML, data=bundle.device_toml), *_secrets(bundle, owner)]
    if order.coral:
        files.append(WantedFile(path=layout.UDEV_RULE, data=udev_text().encode()))
    if facts.systemd:
        unit = unit_text(coral=order.coral, memory_mib=order.memory_mib, start_timeout_s=order.start_timeout_s)
        files.append(WantedFile(path=layout.UNIT, data=unit.encode()))
    return Wanted(
        release=release_name(bundle.wheels, facts.python, order.extras),
        files=tuple(files),
        absent=() if order.coral else (layout.UDEV_RULE,),
        owner=owner,
        policy_digest="" if bundle.policy is None else hashlib.sha256(bundle.policy).hexdigest(),
    )


def release_name(wheels: Mapping[str, str], python: tuple[int, int, int], extras: tuple[str, ...] = ()) -> str:
    """Return the name of the release that these wheels, this interpreter and these extras make."""
    parts = [*sorted(wheels.values()), ".".join(map(str, python)), *sorted(set(extras))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_DIGITS]


def _secrets(bundle: Bundle, owner: str) -> list[WantedFile]:
    files = [
        WantedFile(path=f"{layout.CREDENTIALS}/{name}", data=data, mode=0o600, owner=owner)
        for name, data in sorted(bundle.credentials.items())
    ]
    if bundle.password is not None:
        files.append(WantedFile(path=layout.PASSWORD, data=bundle.password, mode=0o600, owner=owner))
    if bundle.learner_key is not None:
        files.append(WantedFile(path=layout.LEARNER_KEY, data=bundle.learner_key))
    return files
