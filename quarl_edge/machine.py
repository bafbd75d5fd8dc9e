"""What machine this is, in one line, for figures that must name it."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe_machine() -> str:
    """Return processor, usable cores, operating system and Python on one line."""
    cores = len(os.sched_getaffinity(0))
    return (
        f"{_processor()}, {cores} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )


def _processor() -> str:
    for path, key in ((Path("/proc/device-tree/model"), ""), (Path("/proc/cpuinfo"), "model name")):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        if not key:
            return text.rstrip("\0\n")
        for line in text.splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process of this machine, by default this one; 0 where the system does not say."""
    try:
        pages = Path(f"/proc/{'self' if pid is None else pid}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes(pid: int) -> int:
    """Return what a process holds that no file does, in memory or swapped out; 0 where the system does not say.

    Of a program's files the system keeps in memory what it likes, so `resident_bytes` moves by itself; this does not.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    held_kib = [int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "VmSwap:"))]
    return 1024 * sum(held_kib)
