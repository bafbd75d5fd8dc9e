"""Clean ends: the first SIGINT, SIGTERM or SIGHUP asks, the second one ends at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any


class AskedToStop(Exception):
    """An end was asked for before training began."""


class StopSignal:
    """Context manager that turns signals into a flag.

    Outside the main thread (tests) it installs nothing and is set by `request` alone.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._previous: dict[int, Any] = {}
        self.signal_number = 0

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def request(self) -> None:
        """Ask for a clean end."""
        self._event.set()

    @property
    def requested(self) -> bool:
        """Whether an end was asked for."""
        return self._event.is_set()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self._event.set()
        # The next signal of any kind meets the default action and ends the process at once.
        for each in self._previous:
            signal.signal(each, signal.SIG_DFL)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("quarl-edge: ending cleanly, which may take some seconds; once more ends at once\n")

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
