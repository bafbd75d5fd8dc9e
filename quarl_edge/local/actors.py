"""Actor processes on the learner's machine: plain `quarl-device run`, watched and restarted within limits."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from quarl_device.errors import ActorFailed

_LOG = logging.getLogger(__name__)
_MAX_RESTARTS = 3
_RESTART_WINDOW_S = 60.0
_RETURN_S = 1.0
_LONGEST_RETURN_S = 30.0
_SOON_S = 10.0
_KILL_WAIT_S = 5.0
_STDERR_TAIL_BYTES = 2_000


@dataclass(frozen=True, kw_only=True)
class ActorCommand:
    """How to start one actor.

    Attributes:
        name: its device name.
        arguments: what follows `quarl-device run`; no secret belongs here.
        environment: variables on top of the learner's own, such as QUARL_MQTT_PASSWORD.
    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class ActorProcesses:
    """A few actor processes, started together and ended together.

    One that ends is started again. One that ends well (a learner's goodbye reached it, such as of the run before) comes
    back after a second; one that fails more than three times within a minute is given up.

    Args:
        commands: one per actor.
        log_dir: where each actor's stderr goes, `<name>.log`.

    Attributes:
        restarts: how often any of them was started again.
    """

    def __init__(self, commands: Sequence[ActorCommand], *, log_dir: Path) -> None:
        self._commands = {command.name: command for command in commands}
        self._log_dir = log_dir
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._failures: dict[str, deque[float]] = {name: deque() for name in self._commands}
        self._spawned_s: dict[str, float] = {}
        self._ended_well: dict[str, tuple[float, int]] = {}
        self.restarts = 0

    def start(self) -> None:
        """Start all of them; returns at once.

        Raises:
            ActorFailed: the system refuses to start one.
        """
        for name in self._commands:
            self._spawn(name)

    def check(self) -> None:
        """Restart what ended by itself.

        Raises:
            ActorFailed: one failed more than three times within a minute, or cannot be started.
        """
        for name, process in list(self._processes.items()):
            status = process.poll()
            if status is None or (status == 0 and not self._may_return(name)):
                continue
            if status != 0:
                self._count_failure(name, status)
            self.restarts += 1
            _LOG.warning("actor %s ended with status %s; starting it again", name, status)
            self._spawn(name)

    def _may_return(self, name: str) -> bool:
        """Say whether one that ended well may come back: later and later while it ends soon after its start."""
        now = time.monotonic()
        ended_s, times = self._ended_well.get(name, (0.0, 0))
        if ended_s < self._spawned_s[name]:
            times = times + 1 if now - self._spawned_s[name] < _SOON_S else 0
            self._ended_well[name] = (now, times)
            return False
        return now - ended_s >= min(_RETURN_S * 2.0**times, _LONGEST_RETURN_S)

    def _count_failure(self, name: str, status: int) -> None:
        now = time.monotonic()
        times = self._failures[name]
        while times and now - times[0] > _RESTART_WINDOW_S:
            times.popleft()
        if len(times) >= _MAX_RESTARTS:
            raise ActorFailed(
                f"actor {name} ended {len(times) + 1} times in {_RESTART_WINDOW_S:.0f} s, last with {status}: "
                f"{self._last_words(name)}",
                hint=f"its log is {self._log_path(name)}",
            )
        times.append(now)

    @property
    def names(self) -> tuple[str, ...]:
        """Device names of all of them."""
        return tuple(self._commands)

    @property
    def alive(self) -> int:
        """How many run now."""
        return sum(process.poll() is None for process in self._processes.values())

    def stop(self, *, timeout_s: float = 5.0) -> None:
        """End all of them: SIGTERM, then SIGKILL at the deadline."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + timeout_s
        for name, process in self._processes.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _LOG.warning("actor %s did not end within %.0f s; killed", name, timeout_s)
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILL_WAIT_S)
        self._processes.clear()

    def _spawn(self, name: str) -> None:
        self._spawned_s[name] = time.monotonic()
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            with self._log_path(name).open("ab") as log:
                self._processes[name] = self._popen(self._commands[name], log)
        except OSError as cause:
            raise ActorFailed(f"actor {name} cannot be started: {cause}", hint="free space, memory or files") from cause

    def _popen(self, command: ActorCommand, log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            # A child of ours must see exactly our interpreter and packages: the module, not a script on the PATH.
            [sys.executable, "-m", "quarl_device.cli", "run", *command.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **command.environment},
            # Ctrl-C at the terminal goes to the learner alone, which then ends its actors in order.
            start_new_session=True,
        )

    def _log_path(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    def _last_words(self, name: str) -> str:
        try:
            text = self._log_path(name).read_bytes()[-_STDERR_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return text.splitlines()[-1] if text else "it said nothing"
