"""The directory of a spool: one process at a time, and files that nobody can read."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from quarl_device.errors import SpoolInUse

_LOG = logging.getLogger(__name__)
_FOLDER, _LOCK = "spool", "lock"
ASIDE_SUFFIX = ".aside"
_MOST_ASIDE = 8


def spools_of(state: Path) -> Path:
    """Return where the spools of a device's state directory lie."""
    return state / _FOLDER


def spool_of(state: Path, *, fleet: str, device: str) -> Path:
    """Return the directory of one device's spool; with the fleet, since one host may serve several under one name."""
    return spools_of(state) / f"{fleet}.{device}"


def is_in_use(directory: Path) -> bool:
    """Return whether a process uses a spool; one whose lock may not be looked at is taken to be used.

    Nothing is made or written, so that another user may ask.
    """
    try:
        handle = os.open(directory / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


class SpoolLock:
    """Says that a process uses a spool; the operating system takes it back with the process.

    Args:
        directory: of the spool.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = -1

    @property
    def taken(self) -> bool:
        """Whether this process has it, by this lock."""
        return self._file >= 0

    def take(self) -> None:
        """Take it, or fail at once.

        Raises:
            SpoolInUse: another process has it.
            OSError: the directory cannot be used.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._directory / _LOCK, flags, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpoolInUse(
                f"another process uses the spool {self._directory}",
                hint="give one of them another --id or --state-dir",
            ) from None

    def release(self) -> None:
        """Give it back, if it was taken."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def set_aside(path: Path) -> None:
    """Rename a file that nobody can read, so that it is looked at once; a few of them are kept for a person to see."""
    try:
        path.rename(path.with_name(path.name + ASIDE_SUFFIX))
        for old in aside(path.parent)[:-_MOST_ASIDE]:
            old.unlink()
    except OSError as cause:
        _LOG.warning("spool file %s cannot be set aside: %s", path, cause.strerror)
    else:
        _LOG.error("spool file %s is damaged from end to end or of another version: it is set aside", path)


def aside(directory: Path) -> list[Path]:
    """Return what was set aside, oldest first."""
    return sorted(directory.glob(f"*{ASIDE_SUFFIX}"))
