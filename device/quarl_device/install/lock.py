"""One installation at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from quarl_device.errors import BoardUnfit, InstallFailed
from quarl_device.install import layout
from quarl_device.install.host import Host

WAIT_S = 10.0
_LOOK_S = 0.1


@contextlib.contextmanager
def only_one(host: Host, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Be the one that installs or removes on this board, until the block ends; the kernel ends it with the process.

    Raises:
        BoardUnfit: another one is at it, and was not done in time.
        InstallFailed: the lock cannot be made.
    """
    path = Path(host.place(layout.LOCK))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as cause:
        raise InstallFailed(f"the lock {path} cannot be made: {cause.strerror}") from cause
    try:
        _take(handle, time.monotonic() + wait_s)
        yield
    finally:
        os.close(handle)


def _take(handle: int, until_s: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise BoardUnfit(
                    "another installation is at work on this board", hint="wait for its end, then try again"
                ) from None
            time.sleep(_LOOK_S)
        else:
            return
