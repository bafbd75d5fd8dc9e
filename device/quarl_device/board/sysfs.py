"""Reading what the kernel shows as files: small, capped, and `None` for everything that goes wrong.

A sensor's file may be missing, unreadable for this user, empty, or answer with an error of its bus.
"""

from __future__ import annotations

import os
from pathlib import Path

_CAP_BYTES = 64 * 1024


def read_text(path: Path) -> str | None:
    """Return what a file of the kernel says, stripped; `None` if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(handle, _CAP_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(handle)


def read_int(path: Path) -> int | None:
    """Return the whole number that a file says, `None` if it says none."""
    text = read_text(path)
    try:
        return None if text is None else int(text[:32])
    except ValueError:
        return None


def entries(folder: Path, pattern: str) -> list[Path]:
    """Return the entries of a folder that match, in order; none where it cannot be listed."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
