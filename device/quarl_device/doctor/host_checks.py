"""Checks of the board itself: clock, Python, C library, disk, state directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from quarl_device.doctor.finding import Finding, ok, problem, warning

FIRST_RELEASE = datetime(2026, 1, 1, tzinfo=UTC)
"""No clock is right that says an earlier day, whatever a package's date is."""

_SET_CLOCK = "sudo timedatectl set-ntp true; timedatectl status"
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 11), (3, 13)
_LOW_BYTES, _SHORT_BYTES = 64 * 2**20, 256 * 2**20
_LOW_INODES = 1000
Version = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class DiskReading:
    """The file system of a state directory.

    Attributes:
        folder: the directory, or the nearest above it that exists.
        free_bytes: for this user.
        free_inodes: likewise; `None` where the file system has no fixed number of them.
        refused: why nothing can be written there, "" where a file was written, synced and removed.
    """

    folder: Path
    free_bytes: int
    free_inodes: int | None
    refused: str


def check_clock(now: datetime, built: datetime) -> Finding:
    """A clock before the day when this package came to be is wrong: a board without a battery begins in 1970.

    Args:
        now: what the board thinks.
        built: when the package was made or installed. Its date may be the wrong one, if it was copied from a host whose
            clock was ahead; before `FIRST_RELEASE` it is the clock for certain.
    """
    if now >= built - timedelta(days=1) and now >= FIRST_RELEASE - timedelta(days=1):
        return ok("clock", f"{now:%Y-%m-%d %H:%M:%S} UTC")
    said = f"this board's clock says {now:%Y-%m-%d %H:%M}, before this package was made"
    harm = "certificates and signatures cannot be judged"
    if now < FIRST_RELEASE - timedelta(days=1):
        return problem("clock", f"{said} ({built:%Y-%m-%d}): {harm}", _SET_CLOCK)
    return problem(
        "clock", f"the clock or the package's date is wrong: {said} ({built:%Y-%m-%d}): {harm}",
        f"set the clock: {_SET_CLOCK}; if it is right, install the package again",
    )  # fmt: skip


def check_python(version: Version, *, processor: str) -> Finding:
    """It runs on Python 3.11 to 3.13, on any processor that the runtimes have wheels for."""
    shown = ".".join(map(str, version[:3]))
    if version[:2] < _OLDEST_PYTHON:
        return problem("python", f"Python {shown}; 3.11 or newer is needed", "sudo apt-get install python3.11-venv")
    if version[:2] > _NEWEST_PYTHON:
        return warning("python", f"Python {shown} is newer than any this was tested with", "python3.13 -m venv .venv")
    return ok("python", f"Python {shown} on {processor}")


def check_glibc(found: Version | None, needs: Mapping[str, Version]) -> Finding:
    """The C library against what the installed wheels were built for.

    Args:
        found: version of glibc, `None` where there is none.
        needs: installed distribution to the least glibc that its wheel's tags name.
    """
    shown = ".".join(map(str, found or ()))
    if found is None:
        judge = problem if needs else warning
        said = f"no glibc is here (musl?), for which the runtimes' wheels are built{': ' * bool(needs)}{_listed(needs)}"
        return judge("glibc", said, "use a system with glibc, such as Debian or Raspberry Pi OS")
    short = {name: least for name, least in needs.items() if found < least}
    if short:
        return problem(
            "glibc", f"glibc {shown} is too old: {_listed(short)}",
            "upgrade the system (Raspberry Pi OS Bookworm has 2.36), or install an older wheel of that package",
        )  # fmt: skip
    return ok("glibc", f"glibc {shown}" + (f"; {_listed(needs)}" if needs else ""))


def check_disk(disk: DiskReading) -> Finding:
    """Room for the spool, in bytes and in files."""
    free = f"{disk.free_bytes / 2**20:,.0f} MiB free at {disk.folder}"
    mend = f"free some space (du -xh {disk.folder} | sort -h | tail), or --state-dir on another disk"
    if disk.free_inodes is not None and disk.free_inodes < _LOW_INODES:
        return problem("disk", f"{free}, but only {disk.free_inodes:,} more files can be made (inodes)", mend)
    if disk.free_bytes < _LOW_BYTES:
        return problem("disk", f"only {free}", mend)
    if disk.free_bytes < _SHORT_BYTES:
        return warning("disk", f"{free}, less than a spool may take", f"{mend}; or run --spool-mib 64")
    return ok("disk", free)


def check_writable(disk: DiskReading) -> Finding:
    """State must outlive a power cut, so it must be written and synced."""
    if disk.refused:
        return problem(
            "state", f"nothing can be written at {disk.folder}: {disk.refused}",
            f"sudo chown $USER {disk.folder}, or --state-dir DIR on a disk that can be written",
        )  # fmt: skip
    return ok("state", f"{disk.folder} can be written")


def _listed(needs: Mapping[str, Version]) -> str:
    return ", ".join(f"{name} needs {'.'.join(map(str, least))}" for name, least in sorted(needs.items()))
