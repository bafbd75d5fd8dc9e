"""A process that is not to outlive the one that started it, in whatever way that ends; Linux alone can say so."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Looked up here, so that nothing is left to be loaded between a fork and the program that follows it.
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def end_with_parent(parent: int, *, by: signal.Signals = signal.SIGKILL) -> bool:
    """Have the kernel send this process a signal when its parent is gone.

    Args:
        parent: process id of the one that is meant: 1 may be alive, the first process of a container.
        by: the signal.

    Returns:
        Whether the parent is still there: it may have gone before the kernel was asked.
    """
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, by)
    return os.getppid() == parent


def end_with_parent_or_now(parent: int, *, by: signal.Signals = signal.SIGKILL) -> None:
    """Do the same, and end this process at once where the parent is gone already; between fork and exec too."""
    if not end_with_parent(parent, by=by):
        os._exit(1)
