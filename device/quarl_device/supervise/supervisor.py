"""One agent at a time, started again by the rules; signals are for it, and it ends with this process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quarl_device.errors import MissingTool
from quarl_device.parent import end_with_parent_or_now
from quarl_device.supervise.rules import LIMIT_S, LIMIT_STARTS, NOT_RESTARTED, STOP_S, Restarts

_LOG = logging.getLogger(__name__)
_CLEAN = (0, 130, 128 + signal.SIGTERM, 128 + signal.SIGINT)
"""How an agent ends that was asked to; 130 is its own word for an interruption."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How supervising ended.

    Attributes:
        code: exit code: that of the last agent; 0 where it ended because it was asked to.
        starts: how many there were.
        reason: a signal was taken, the agent's usage is wrong, or it ended too often.
    """

    code: int
    starts: int
    reason: Literal["asked", "usage", "too often"]


class Supervisor:
    """Runs a command again and again.

    Args:
        words: the command.
        restarts: the rules, with what is remembered.
        stop_s: that an agent has to end once it was asked to, before it is killed.
    """

    def __init__(self, words: Sequence[str], *, restarts: Restarts | None = None, stop_s: float = STOP_S) -> None:
        self._words = list(words)
        self._restarts = restarts or Restarts()
        self._stop_s = stop_s
        self._asked = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._killer: threading.Timer | None = None

    def ask(self, number: int) -> None:
        """Take a signal: it is for the agent, and there is no next one. Safe in a signal handler.

        Args:
            number: SIGINT or SIGTERM; another one (the terminal is gone) asks as SIGTERM does.
        """
        passed = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        first = not self._asked.is_set()
        self._asked.set()
        child = self._child
        if child is None:
            return
        child.send_signal(passed)
        if first:
            self._kill_later(child)

    def run(self) -> Ended:
        """Supervise until a signal was taken, or the rules give up.

        Raises:
            MissingTool: the command cannot be started.
        """
        count = 0
        while True:
            count += 1
            self._restarts.begins(time.monotonic())
            code = self._one_life()
            if self._asked.is_set():
                return Ended(code=0 if code in _CLEAN else code, starts=count, reason="asked")
            wait_s = self._restarts.ended(code, time.monotonic())
            if wait_s is None:
                return self._gives_up(code, count)
            _LOG.warning("the agent ended with code %d; it is started again in %g s", code, wait_s)
            if self._asked.wait(wait_s):
                return Ended(code=0, starts=count, reason="asked")

    def _one_life(self) -> int:
        """Return the exit code of one agent; 128 + N where a signal N ended it."""
        here = os.getpid()
        try:
            # In a group of its own: Ctrl-C at a terminal reaches it through `ask` alone, and once.
            child = subprocess.Popen(
                self._words,
                process_group=0,
                preexec_fn=lambda: end_with_parent_or_now(here),  # noqa: PLW1509  only a killer's timer may run beside it
            )
        except OSError as cause:
            raise MissingTool(f"the agent cannot be started: {self._words[0]}: {cause.strerror}") from cause
        self._child = child
        try:
            if self._asked.is_set():
                # It came between the last look and now, and met no child.
                self.ask(signal.SIGTERM)
                self._kill_later(child)
            code = child.wait()
        finally:
            self._child = None
            if self._killer is not None:
                self._killer.cancel()
            if child.poll() is None:
                child.kill()
                child.wait()
        return code if code >= 0 else 128 - code

    def _kill_later(self, child: subprocess.Popen[bytes]) -> None:
        if self._killer is not None:
            return
        self._killer = threading.Timer(self._stop_s, self._kill, (child,))
        self._killer.daemon = True
        self._killer.start()

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()

    def _gives_up(self, code: int, count: int) -> Ended:
        if code in NOT_RESTARTED:
            _LOG.error("the agent ended with code %d, which would come out the same: it is not started again", code)
            return Ended(code=code, starts=count, reason="usage")
        _LOG.error(
            "the agent ended with code %d; %d starts within %d s are too many, it is not started again",
            code, LIMIT_STARTS, LIMIT_S,
        )  # fmt: skip
        # What ends by itself with 0, over and over, has failed all the same.
        return Ended(code=code or 1, starts=count, reason="too often")
