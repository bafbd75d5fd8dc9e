"""What the spools of a state directory hold, for a person; and discarding it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from quarl_device.errors import SpoolInUse, StateUnwritable, UsageError
from quarl_device.spool.directory import aside, is_in_use
from quarl_device.spool.disk import DiskSpool
from quarl_device.spool.recovery import Recovered, recover

T = TypeVar("T")
_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True)
class LifeStock:
    """What is held of one life.

    Attributes:
        boot_id: of the life.
        blocks: still to be delivered.
        steps: environment steps in them.
        size_bytes: of their records.
        lost_blocks: that are lost, and that no learner has acknowledged to know.
        lost_steps: environment steps in them.
    """

    boot_id: str
    blocks: int = 0
    steps: int = 0
    size_bytes: int = 0
    lost_blocks: int = 0
    lost_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class SpoolStock:
    """One device's spool.

    Attributes:
        name: ``<fleet>.<device>``.
        in_use: whether an agent runs on it; what is read beside one is of that moment.
        lives: in the order in which they are delivered.
        aside: names of files that nobody can read.
    """

    name: str
    in_use: bool
    lives: tuple[LifeStock, ...] = ()
    aside: tuple[str, ...] = ()


def list_spools(directory: Path) -> tuple[SpoolStock, ...]:
    """Return what the spools in `directory` hold, by name; nothing is changed.

    Raises:
        StateUnwritable: it cannot be read.
    """
    if not directory.exists():
        return ()
    return _guarded(directory, lambda: tuple(_stock(path) for path in sorted(directory.iterdir()) if path.is_dir()))


def discard(directory: Path, *, boot_id: str = "") -> SpoolStock:
    """Give up the blocks of one spool, of one life or (by default) of all, and return what that was.

    They are lost as what is dropped to make room is: the next start tells the learner how many they were.

    Args:
        directory: of the spool.
        boot_id: of the life.

    Raises:
        UsageError: there is no such spool, or no block of such a life in it.
        SpoolInUse: an agent runs on it.
        StateUnwritable: it cannot be read or written.
    """
    if not directory.is_dir():
        raise UsageError(f"there is no spool {directory}", hint="quarl-device spool ls")
    try:
        spool = DiskSpool(directory, boot_id=secrets.token_hex(8))
    except SpoolInUse as error:
        error.hint = "stop the agent first, then discard"
        raise
    try:
        lives = tuple(life for life in _lives(spool.recovered) if not boot_id or life.boot_id == boot_id)
        if boot_id and not lives:
            known = ", ".join(life.boot_id for life in _lives(spool.recovered)) or "no life"
            raise UsageError(f"spool {directory.name} holds nothing of {boot_id[:40]!r}, but of {known}")
        spool.give_up(boot_id)
    finally:
        spool.close()
    files = () if boot_id else tuple(aside(directory))
    for path in files:
        _guarded(directory, path.unlink)
    return SpoolStock(name=directory.name, in_use=False, lives=lives, aside=tuple(path.name for path in files))


def _stock(directory: Path) -> SpoolStock:
    return SpoolStock(
        name=directory.name,
        in_use=is_in_use(directory),
        lives=_lives(_recover(directory)),
        aside=tuple(path.name for path in aside(directory)),
    )


def _recover(directory: Path) -> Recovered:
    for _ in range(_ATTEMPTS):
        # An agent may remove a file between the listing and its reading.
        with contextlib.suppress(FileNotFoundError):
            return recover(directory)
    return recover(directory)


def _lives(found: Recovered) -> tuple[LifeStock, ...]:
    order = dict.fromkeys([*(loss.life for loss in found.losses), *(one.life for one in found.segments if len(one))])
    lives = []
    for boot_id in order:
        entries = [entry for one in found.segments if one.life == boot_id for entry in one.entries()]
        losses = [loss for loss in found.losses if loss.life == boot_id]
        lives.append(
            LifeStock(
                boot_id=boot_id,
                blocks=len(entries),
                steps=sum(entry.steps for entry in entries),
                size_bytes=sum(entry.size_bytes for entry in entries),
                lost_blocks=sum(loss.blocks for loss in losses),
                lost_steps=sum(loss.steps for loss in losses),
            )
        )
    return tuple(lives)


def _guarded(directory: Path, work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as cause:
        raise StateUnwritable(f"the spool cannot be used: {directory}: {cause.strerror}") from cause
