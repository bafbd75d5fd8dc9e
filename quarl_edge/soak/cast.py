"""The processes of a soak: started, killed, starved of disk, started again."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quarl_device.errors import BrokerUnreachable, QuarlError
from quarl_device.testing.mosquitto import Mosquitto
from quarl_edge.soak.books import COUNT

_FULL_BYTES = COUNT.size  # an environment that begins then must be able to begin its count
_TAIL_BYTES = 500
_LAST_WORDS_BYTES = 65_536
_KILL_WAIT_S = 10.0


class Player:
    """One process that is started again and again, each time with logs of its own. Not thread-safe.

    Args:
        name: its name, and that of its logs.
        folder: for logs.
        environment: variables on top of our own.

    Attributes:
        name: see above.
        kills: how often it was killed.
        started_unix_s: when it was started last.
        returns: how often it was started again because it had found no broker, which a supervisor would do.
        faults: ends that should not have been, in words.
    """

    def __init__(self, name: str, *, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._folder = folder
        self._environment = {**os.environ, **environment}
        self._words: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.kills = self.returns = 0
        self.started_unix_s = 0.0
        self.faults: list[str] = []

    def start(self, words: Sequence[str]) -> None:
        """Start it; it does not run now."""
        self._words = words
        self._starts += 1
        self.started_unix_s = time.time()
        with self._log("out").open("wb") as out, self._log("err").open("wb") as err:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self._environment, start_new_session=True
            )

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it as a power cut of its process would."""
        if self._process is not None and self.running:
            self.kills += 1
            self._process.kill()
            self._process.wait(_KILL_WAIT_S)
        self._process = None

    def fill_disk(self, full: bool) -> None:
        """Let no file of it grow, or let them grow again."""
        if self._process is not None and self.running:
            limit = _FULL_BYTES if full else resource.RLIM_INFINITY
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def attend(self, words: Sequence[str] | None = None) -> None:
        """Start it again if it ended by itself; anything but a broker out of reach is a fault.

        Args:
            words: to start it with, by default those of last time.
        """
        if self._process is None or self._process.poll() is None:
            return
        status = self._process.returncode
        if status != BrokerUnreachable.code:
            self.faults.append(f"{self.name} ended with {status}: {self._last_words()}")
        self.returns += 1
        self.start(words or self._words)

    def end(self, *, timeout_s: float, ask: bool = True) -> dict[str, Any]:
        """Wait for its end, ask for it with SIGTERM unless told otherwise; returns the JSON it said last.

        Raises:
            QuarlError: it did not end in time, or not well.
        """
        if self._process is None:
            raise QuarlError(f"{self.name} does not run")
        if ask:
            self._process.terminate()
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise QuarlError(f"{self.name} did not end within {timeout_s:.0f} s") from None
        self._process = None
        if status != 0:
            raise QuarlError(f"{self.name} ended with {status}: {self._last_words()}")
        lines = self._log("out").read_bytes()[-_LAST_WORDS_BYTES:].splitlines()
        try:
            said: dict[str, Any] = json.loads(lines[-1])
        except (IndexError, ValueError):
            raise QuarlError(f"{self.name} ended without a summary: {self._last_words()}") from None
        return said

    def close(self) -> None:
        """Kill it if it runs; that is no kill of the soak's."""
        if self._process is not None and self.running:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_WAIT_S)
        self._process = None

    def _log(self, kind: str) -> Path:
        return self._folder / f"{self.name}-{self._starts:03d}.{kind}"

    def _last_words(self) -> str:
        text = self._log("err").read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        return text.splitlines()[-1] if text else "it said nothing"


class Broker:
    """A Mosquitto that comes back on its port, with or without its memory.

    Args:
        folder: for what it remembers.

    Attributes:
        port: where it listens.
        kills: how often it was killed.
    """

    def __init__(self, folder: Path) -> None:
        self._store = folder
        self._running: Mosquitto | None = Mosquitto(persistence=folder)
        self.port = self._running.port
        self.kills = 0

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._running is not None:
            self.kills += 1
            self._running.kill()
            self._running = None

    def start(self, *, forget: bool) -> None:
        """Start it again.

        Args:
            forget: lose all that it had saved: sessions, queues, retained messages.
        """
        if self._running is None:
            if forget:
                shutil.rmtree(self._store, ignore_errors=True)
            self._running = Mosquitto(port=self.port, persistence=self._store)

    def close(self) -> None:
        """Stop it."""
        if self._running is not None:
            self._running.stop()
            self._running = None
