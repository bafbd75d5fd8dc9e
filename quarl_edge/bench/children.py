"""Processes of a measurement that say what they see, a line of JSON each time, and hear a word now and then.

A child ends when its stdin does, so that none outlives a measurement that was killed.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from quarl_device.errors import ActorFailed, LinkLost
from quarl_edge.machine import resident_bytes

Said = dict[str, Any]
_LOOK_S = 0.2
_END_S = 10.0


class Children:
    """Processes in an order of their own.

    Args:
        commands: argument lists, one per child.
        name: of one, in errors: "sender" makes "sender 3".
        environment: theirs; by default ours.
        check: called while it is waited for them; what it raises ends the wait.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        name: str,
        environment: Mapping[str, str] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._check = check
        self._said: queue.Queue[tuple[int, Said | None]] = queue.Queue()
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for index, words in enumerate(commands):
                process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
                self._processes.append(process)
                threading.Thread(target=self._listen, args=(index, process), daemon=True).start()
        except OSError:
            self._end(kill=True)
            raise

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(kill=kind is not None)

    def _end(self, *, kill: bool) -> None:
        for process in self._processes:
            if kill:
                process.kill()
            assert process.stdin is not None  # noqa: S101  asked for above
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=_END_S)

    def tell(self) -> None:
        """Say the next word to all."""
        for process in self._processes:
            assert process.stdin is not None  # noqa: S101  asked for above
            with contextlib.suppress(OSError):
                process.stdin.write(b"\n")
                process.stdin.flush()

    def resident_bytes(self) -> int:
        """Return the memory of all of them together."""
        return sum(resident_bytes(process.pid) for process in self._processes)

    def check(self) -> None:
        """Raise ActorFailed where one has ended, and what the check given raises."""
        self._check()
        for index, process in enumerate(self._processes):
            if process.poll() is not None:
                raise ActorFailed(f"{self._name} {index} ended with status {process.returncode} in the middle of it")

    def collect(self, holds: Callable[[Said], bool], *, timeout_s: float, what: str) -> list[Said]:
        """Return what each of them said first that holds, in their order.

        Args:
            holds: which lines are waited for; others are forgotten.
            timeout_s: for all of them.
            what: they do by saying so, for errors: "connected".

        Raises:
            ActorFailed: one ended.
            LinkLost: not all said it in time.
        """
        found: dict[int, Said] = {}
        deadline_s = time.monotonic() + timeout_s
        while len(found) < len(self._processes):
            self._check()
            if time.monotonic() >= deadline_s:
                raise LinkLost(f"{len(found)} of {len(self._processes)} {self._name}s {what} within {timeout_s:.0f} s")
            try:
                index, said = self._said.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if said is None:
                raise ActorFailed(f"{self._name} {index} ended, or said what is no JSON, before it {what}")
            if holds(said):
                found.setdefault(index, said)
        return [found[index] for index in sorted(found)]

    def _listen(self, index: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101  asked for above
        with process.stdout, contextlib.suppress(ValueError):
            for line in process.stdout:
                self._said.put((index, json.loads(line)))
        self._said.put((index, None))
