"""What the board itself is: read here, judged in `host_checks`."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import quarl_device
from quarl_device.doctor.host_checks import FIRST_RELEASE, DiskReading, Version


def read_built() -> datetime:
    """Return when this package was made or installed by its own date, and never a day before the project began.

    The date is believed even where it is ahead of this board's clock: `check_clock` tells that one of them is wrong.
    """
    try:
        at = datetime.fromtimestamp(Path(quarl_device.__file__).stat().st_mtime, UTC)
    except (OSError, OverflowError, ValueError):
        return FIRST_RELEASE
    return max(FIRST_RELEASE, at)


def read_glibc() -> Version | None:
    """Return glibc's version, `None` where the C library is another."""
    name, version = platform.libc_ver()
    if name != "glibc":
        return None
    return parse_version(version)


def parse_version(text: str) -> Version | None:
    """Return "2.36" as (2, 36); `None` for what is none."""
    parts = text.split(".")[:3]
    return tuple(map(int, parts)) if all(part.isdecimal() and len(part) < 6 for part in parts) else None


def needed_glibc(tags: Iterable[str]) -> Version | None:
    """Return the least glibc that a wheel's tags name, such as ``cp311-cp311-manylinux_2_27_x86_64``."""
    least = []
    for tag in tags:
        for part in tag.rpartition("-")[2].split("."):
            words = part.split("_")
            if words[0] == "manylinux" and len(words) > 2 and words[1].isdecimal() and words[2].isdecimal():
                least.append((int(words[1]), int(words[2])))
            elif words[0] in _OLD_TAGS:
                least.append(_OLD_TAGS[words[0]])
    return min(least, default=None)


_OLD_TAGS = {"manylinux2014": (2, 17), "manylinux2010": (2, 12), "manylinux1": (2, 5)}


def read_needed_glibc(names: Iterable[str]) -> dict[str, Version]:
    """Return what the installed wheels of these distributions need; those that name nothing are left out."""
    needs = {}
    for name in names:
        try:
            text = distribution(name).read_text("WHEEL") or ""
        except (PackageNotFoundError, OSError):
            continue
        least = needed_glibc(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Tag:"))
        if least is not None:
            needs[name] = least
    return needs


def read_disk(folder: Path) -> DiskReading:
    """Look at the file system of a directory that need not exist yet; nothing is left behind there."""
    found = folder.absolute()
    while not found.is_dir() and found != found.parent:
        found = found.parent
    try:
        said = os.statvfs(found)
    except OSError as error:
        return DiskReading(folder=found, free_bytes=0, free_inodes=None, refused=error.strerror or str(error))
    return DiskReading(
        folder=found,
        free_bytes=said.f_bavail * said.f_frsize,
        # btrfs and FAT make them as they go, and say 0.
        free_inodes=said.f_favail if said.f_files else None,
        refused=_refused(found),
    )


def _refused(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""
