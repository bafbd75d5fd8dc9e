"""Whether an agent acts with a state directory: the lock of its slots, which whoever looks for faults asks too.

Imports nothing that a damaged board may lack.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

FOLDER = "deploy"
"""Where the slots lie in a state directory."""


def is_occupied(state: Path) -> bool:
    """Return whether an agent of deploy mode acts with a state directory."""
    try:
        handle = os.open(state / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not locked(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def locked(handle: int, kind: int) -> bool:
    """Take a lock without waiting; false where another process has it."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
