"""Signals: while modules are imported nothing has begun yet; later, what a command has started ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

INTERRUPTED = 130


@contextlib.contextmanager
def quit_at_interrupt() -> Iterator[None]:
    """End the process at SIGINT, for the time of imports alone.

    An exception in the middle of numpy's or TensorFlow's import comes out as theirs, or as a traceback.
    """
    ours = threading.current_thread() is threading.main_thread()
    # A shell that starts a command in the background ignores SIGINT for it; that stays so.
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end what the command has started too, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
