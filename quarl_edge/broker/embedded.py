"""Starts and stops the broker's process."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from quarl_device.errors import BrokerStartFailed, LinkLost, UsageError

_HOST = "127.0.0.1"
_MAX_LINE_BYTES = 256
_LOG_TAIL_BYTES = 600


class EmbeddedBroker:
    """amqtt on the loopback, in a process of its own, for as long as the context lasts.

    Nobody gets in without a user name and its password. The process ends with `stop`, with the context, or when this
    process dies in whatever way.

    Args:
        users: user name to password.
        port: to listen on; 0 takes a free one.
        log_dir: where its log goes, as `broker.log`; by default it is kept only to explain a failed start.
        start_timeout_s: how long it may take to accept connections.

    Raises:
        UsageError: no users, or a name or password that is empty or not printable.
    """

    def __init__(
        self,
        users: Mapping[str, str],
        *,
        port: int = 0,
        log_dir: Path | None = None,
        start_timeout_s: float = 15.0,
    ) -> None:
        texts = [text for pair in users.items() for text in pair]
        if not texts or not all(text and text.isprintable() for text in texts):
            raise UsageError("the embedded broker needs one or more users, each with a password, both printable")
        self._users = dict(users)
        self._port = port
        self._log_dir = log_dir
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __repr__(self) -> str:
        return f"EmbeddedBroker(users={sorted(self._users)}, port={self._port})"

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """TCP port; 0 before the start if a free one was asked for."""
        return self._port

    @property
    def url(self) -> str:
        """Its URL, without a user."""
        return f"mqtt://{_HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """Process id, 0 when it is not running."""
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raise LinkLost where the process has ended by itself."""
        status = None if self._process is None else self._process.poll()
        if status is not None:
            raise LinkLost(f"{self._failed(f'ended with status {status}').message}", hint="go on with --resume")

    def start(self) -> None:
        """Start the process; returns when it accepts connections.

        Raises:
            BrokerStartFailed: it did not within the time limit; says what it logged.
        """
        if self.running:
            return
        self._log = self._open_log()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quarl_edge.broker.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # Not in this terminal's process group: Ctrl-C is for the learner, whose goodbye needs the broker.
                start_new_session=True,
            )
        except OSError as error:
            self.stop()
            raise BrokerStartFailed(f"the embedded broker cannot be started: {error.strerror}") from error
        try:
            self._hand_over()
            self._port = self._await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self, *, timeout_s: float = 3.0) -> None:
        """Stop the process, by force after `timeout_s`; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            try:
                process.wait(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=timeout_s)
        if self._log is not None:
            self._log.close()
            self._log = None

    def _open_log(self) -> IO[bytes]:
        if self._log_dir is None:
            return tempfile.TemporaryFile()
        path = self._log_dir / "broker.log"
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            return path.open("a+b")
        except OSError as error:
            raise BrokerStartFailed(f"the broker's log cannot be written: {path}: {error.strerror}") from error

    def _hand_over(self) -> None:
        assert self._process is not None and self._process.stdin is not None  # noqa: S101, PT018
        request = {"users": self._users, "host": _HOST, "port": self._port}
        # The pipe stays open: its end tells the child that this process is gone.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _await_ready(self) -> int:
        """Return the port that the child reports."""
        assert self._process is not None and self._process.stdout is not None  # noqa: S101, PT018
        deadline = time.monotonic() + self._start_timeout_s
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._failed(f"did not come up within {self._start_timeout_s:.0f} s")
                chunk = os.read(self._process.stdout.fileno(), _MAX_LINE_BYTES)
                if not chunk:
                    raise self._failed("ended by itself")
                line += chunk
        word, _, number = line.decode(errors="replace").strip().partition(" ")
        if word != "ready" or not number.isdigit():
            raise self._failed(f"said {line[:80]!r}")
        port = int(number)
        with contextlib.suppress(OSError), socket.create_connection((_HOST, port), timeout=1.0):
            return port
        raise self._failed(f"does not accept connections on port {port}")

    def _failed(self, what: str) -> BrokerStartFailed:
        tail = ""
        if self._log is not None:
            self._log.flush()
            size = self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, size - _LOG_TAIL_BYTES))
            tail = " ".join(self._log.read().decode(errors="replace").split())
        return BrokerStartFailed(f"the embedded broker {what}" + (f": {tail}" if tail else ""))
