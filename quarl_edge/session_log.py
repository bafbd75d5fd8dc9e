"""Which sessions a run has had, and whether one goes on now: `sessions.jsonl`.

A session appends a line when it begins and one when it ends, and holds a lock on the file in between: a second one in
the same run is refused. The system takes the lock away with the process, so a killed session is never taken for one
that runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from quarl_device.errors import QuarlError, RunInUse, RunNotFound
from quarl_edge.json_lines import append_line, read_lines

_LOG = logging.getLogger(__name__)
_LOCK_TRIES = 20
_LOCK_WAIT_S = 0.01


class RunState(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """What a run's file says.

    Attributes:
        state: unknown where its last session was killed, or runs on a machine whose locks are not seen here.
        count: sessions that began.
        reason: how the last one ended: solved, budget, interrupted, or what failed; "" unless it ended.
        env_steps: of the run, when it ended; 0 unless it ended.
        train_s: of all sessions that ended.
    """

    state: RunState = RunState.UNKNOWN
    count: int = 0
    reason: str = ""
    env_steps: int = 0
    train_s: float = 0.0


class SessionLog:
    """One session's place in the file.

    Args:
        file: open for appending; `None` where it cannot be written.
    """

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line; a disk that refuses costs the line, not the run."""
        if self._file is None:
            return
        try:
            append_line(self._file, {**line, "unix_s": round(time.time(), 3)})
        except OSError as error:
            _LOG.warning("the run's sessions are not noted: %s", error.strerror)
            self._file = None

    def ended(self, reason: str, *, env_steps: int, train_s: float) -> None:
        """Note the end of the session."""
        self.write({"event": "end", "reason": reason, "env_steps": env_steps, "train_s": round(train_s, 3)})


@contextlib.contextmanager
def noted_session(path: Path) -> Iterator[SessionLog]:
    """Note a session's beginning, and an error that ends it; what ends it well says so itself (`SessionLog.ended`).

    Raises:
        RunInUse: another session goes on in the same run.
    """
    with _held(path) as file:
        log = SessionLog(file)
        log.write({"event": "begin", "pid": os.getpid(), "host": platform.node()})
        try:
            yield log
        except QuarlError as error:
            log.ended(f"error {error.code}: {type(error).__name__}", env_steps=0, train_s=0.0)
            raise
        except Exception as error:
            log.ended(f"error: {type(error).__name__}", env_steps=0, train_s=0.0)
            raise


@contextlib.contextmanager
def _held(path: Path) -> Iterator[BinaryIO | None]:
    try:
        file = path.open("a+b")
    except OSError as error:
        _LOG.warning("the run's sessions are not noted: %s", error.strerror)
        yield None
        return
    with file:
        if not _lock(file):
            raise _in_use(path)
        yield file


def _lock(file: BinaryIO) -> bool:
    """Lock `file` for this process; false if another one has it. Somewhere without locks nobody can be seen."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Perhaps somebody who lists runs, and holds it for a moment.
            time.sleep(_LOCK_WAIT_S)
        except OSError:
            return True
        else:
            return True
    return False


def check_idle(path: Path) -> None:
    """Refuse a run in which a session goes on, before anything is loaded for another one.

    Raises:
        RunInUse: naming the process, and what to do.
    """
    if _is_held(path):
        raise _in_use(path)


def _in_use(path: Path) -> RunInUse:
    run = path.parent
    begun = [each for each in _events(path) if each.get("event") == "begin"][-1:]
    pid, host = (int(_number(begun[0].get("pid"))), str(begun[0].get("host", ""))[:80]) if begun else (0, "")
    who = f"process {pid} on {host}" if pid else "another process"
    ends = f"kill -INT {pid}" if pid and host == platform.node() else "end it there"
    return RunInUse(
        f"the run {run} is in use: {who} trains in it, and two would spoil each other's checkpoints and journal",
        hint=f"wait for its end, or: {ends}; then again; how it stands: quarl-edge runs show {shlex.quote(str(run))}",
    )


def _events(path: Path) -> tuple[Mapping[str, Any], ...]:
    return read_lines(path, what="sessions of the run", error=RunNotFound).objects


def read_sessions(path: Path) -> Sessions:
    """Read a run's file; without one nothing is known.

    Raises:
        RunNotFound: unreadable, or over its cap.
    """
    running = _is_held(path)
    events = _events(path)
    ends = [each for each in events if each.get("event") == "end"]
    count = sum(each.get("event") == "begin" for each in events)
    train_s = sum(_number(each.get("train_s")) for each in ends)
    if running or not events or events[-1].get("event") != "end":
        return Sessions(state=RunState.RUNNING if running else RunState.UNKNOWN, count=count, train_s=train_s)
    return Sessions(
        state=RunState.ENDED,
        count=count,
        reason=str(events[-1].get("reason", ""))[:200],
        env_steps=int(_number(events[-1].get("env_steps"))),
        train_s=train_s,
    )


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e15 else 0.0
