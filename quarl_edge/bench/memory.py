"""What the processes of a run hold while it trains: `quarl-edge train` as a user starts it, watched from outside.

The run is a real one: an embedded broker, a learner whose replay is full soon, actors that step their environments,
pushes, judgements, checkpoints, audits. What grows after replay is full would go on growing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl_device.errors import ActorFailed, QuarlError, TrainingStalled, UsageError
from quarl_edge.checkpoint import env_steps_of, finished
from quarl_edge.machine import anonymous_bytes, resident_bytes

SAMPLES = 40
MAX_SECONDS = 86_400.0
_START_S = 900.0  # TensorFlow on a busy machine
_END_S = 120.0
_LOOK_S = 0.2
_TAIL_BYTES = 500
_ENDLESS_STEPS = 1_000_000_000
_CAPACITY = "replay_capacity"
# Small enough to be full soon.
_SETTINGS = {"goal_return": "none", _CAPACITY: "5000"}
_ACTOR = re.compile(rb"\0--id\0([^\0]{1,63})\0")
_BROKER = b"quarl_edge.broker"
_Held = dict[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class ProcessMemory:
    """One process of the run.

    Attributes:
        name: `learner`, an actor's device name, `broker`, or `helpers`: what judges and audits, all together.
        start_bytes: resident, when the measurement began.
        end_bytes: when it ended.
        samples: all between, as often as those of the other processes.
        anonymous: of the same, what no file holds; see `anonymous_bytes`.
    """

    name: str
    start_bytes: int
    end_bytes: int
    samples: tuple[int, ...]
    anonymous: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """What `watch_a_run` saw; its fields are the keys of `--format json`.

    Attributes:
        env: that was trained in.
        seconds: measured.
        warm_up_s: from the first checkpoint behind a full replay to the measurement.
        at_s: when each sample was taken.
        processes: of the run.
        env_steps: of the whole run.
        updates: likewise.
        pushes: likewise.
        judgements: likewise.
    """

    env: str
    seconds: float
    warm_up_s: float
    at_s: tuple[float, ...]
    processes: tuple[ProcessMemory, ...]
    env_steps: int
    updates: int
    pushes: int
    judgements: int


def watch_a_run(
    env: str,
    *,
    seconds: float,
    warm_up_s: float,
    actors: int = 2,
    settings: Sequence[str] = (),
    progress: Callable[[float], None] = lambda _share: None,
) -> MemoryReport:
    """Train for a while and watch.

    Args:
        env: a gymnasium id.
        seconds: to measure.
        warm_up_s: before that, from the first checkpoint behind a full replay on.
        actors: processes.
        settings: of the run, key=value, on top of a small replay and no goal.
        progress: called with the share of `seconds` that is over.

    Raises:
        UsageError: out of range.
        TrainingStalled: no checkpoint in time, or no end.
        QuarlError: the run failed.
    """
    if not 0.1 <= seconds <= MAX_SECONDS or not 0 <= warm_up_s <= MAX_SECONDS:
        raise UsageError(f"cannot watch for {seconds} s after {warm_up_s} s: expected 0.1..{MAX_SECONDS:.0f}")
    said = {**_SETTINGS, **dict(setting.partition("=")[::2] for setting in settings)}
    if not said[_CAPACITY].isdigit():
        raise UsageError(f"--set {_CAPACITY}={said[_CAPACITY][:80]}: expected a number of transitions")
    with tempfile.TemporaryDirectory(prefix="quarl-memory-") as folder, _Run(Path(folder), env, actors, said) as run:
        run.wait_for_checkpoint(behind_steps=int(said[_CAPACITY]))
        run.rest(warm_up_s)
        at_s, samples = _sample(run, seconds, progress)
        result = run.end()
    return MemoryReport(
        env=env,
        seconds=at_s[-1] - at_s[0],
        warm_up_s=warm_up_s,
        at_s=at_s,
        processes=tuple(_told(name, samples) for name in samples[0]),
        **{name: int(result[name]) for name in ("env_steps", "updates", "pushes", "judgements")},
    )


def _sample(run: _Run, seconds: float, progress: Callable[[float], None]) -> tuple[tuple[float, ...], list[_Held]]:
    began_s = time.monotonic()
    at_s, samples = [0.0], [run.memory()]
    while at_s[-1] < seconds:
        run.rest(min(seconds / SAMPLES, began_s + seconds - time.monotonic()))
        at_s.append(time.monotonic() - began_s)
        samples.append(run.memory())
        progress(min(1.0, at_s[-1] / seconds))
    return tuple(at_s), samples


def _told(name: str, samples: Sequence[_Held]) -> ProcessMemory:
    held, anonymous = zip(*(sample.get(name, (0, 0)) for sample in samples), strict=True)
    return ProcessMemory(name=name, start_bytes=held[0], end_bytes=held[-1], samples=held, anonymous=anonymous)


class _Run:
    """A run in a process of its own."""

    def __init__(self, folder: Path, env: str, actors: int, settings: Mapping[str, str]) -> None:
        self._folder = folder
        words = ["train", env, "--actors", str(actors), "--steps", str(_ENDLESS_STEPS), "--run", "run"]
        words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quarl_edge", *words, "--format", "json"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        # Its broker and actors end with it.
        self._process.kill()
        self._process.wait(_END_S)

    def wait_for_checkpoint(self, *, behind_steps: int) -> None:
        """Wait until so many steps are kept."""
        deadline_s = time.monotonic() + _START_S
        while not any(env_steps_of(path) >= behind_steps for path in finished(self._folder / "run" / "checkpoints")):
            self.rest(_LOOK_S)
            if time.monotonic() > deadline_s:
                raise TrainingStalled(
                    f"no checkpoint behind {behind_steps:,} steps after {_START_S:.0f} s: {self._last_words()}"
                )

    def rest(self, seconds: float) -> None:
        """Wait; raises where the run ends meanwhile."""
        deadline_s = time.monotonic() + seconds
        while True:
            if self._process.poll() is not None:
                raise ActorFailed(f"the run ended with {self._process.returncode}: {self._last_words()}")
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(_LOOK_S, left_s))

    def memory(self) -> _Held:
        """Return resident and anonymous bytes of the run's processes by name."""
        held = {"learner": _held_by(self._process.pid), "helpers": (0, 0)}
        for pid in descendants(self._process.pid):
            name, (resident, anonymous) = _name_of(pid), _held_by(pid)
            before = held.get(name, (0, 0))
            held[name] = (before[0] + resident, before[1] + anonymous)
        return held

    def end(self) -> dict[str, Any]:
        """End it in order; returns its summary."""
        self._process.terminate()
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise TrainingStalled(f"the run did not end within {_END_S:.0f} s: {self._last_words()}") from None
        if status:
            raise QuarlError(f"the run ended with {status}: {self._last_words()}")
        found: dict[str, Any] = json.loads((self._folder / "out").read_bytes().splitlines()[-1])
        return found

    def _last_words(self) -> str:
        text = (self._folder / "err").read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        return text.splitlines()[-1] if text else "it said nothing"


def _held_by(pid: int) -> tuple[int, int]:
    return resident_bytes(pid), anonymous_bytes(pid)


def descendants(pid: int) -> list[int]:
    """Return the processes of this machine that a process has started, and those that they have; Linux alone."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent_of(int(entry.name)), []).append(int(entry.name))
    found, queue = list[int](), [pid]
    while queue:
        found += (born := children.get(queue.pop(), []))
        queue += born
    return sorted(found)


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0  # gone meanwhile


def _name_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "helpers"
    actor = _ACTOR.search(words)
    if actor:
        return os.fsdecode(actor[1])
    return "broker" if _BROKER in words else "helpers"
