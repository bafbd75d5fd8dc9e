"""A run as a listener sees it: everything that its directory says, read without TensorFlow and without trust.

Whatever is damaged is named in `RunView.damage`; the rest of the run is still read.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from quarl_device.errors import QuarlError, RunNotFound
from quarl_edge.checkpoint import env_steps_of, finished
from quarl_edge.config import TrainConfig
from quarl_edge.configure import make_config
from quarl_edge.judgements import Judgements, read_judgements
from quarl_edge.runs import RUN_NAME, RunDirectory
from quarl_edge.session_log import Sessions, read_sessions

MAX_RUNS = 10_000
MAX_FILES = 200_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PARTS = ("config.json", "sessions.jsonl", "judgements.jsonl", "checkpoints")
# What says how a run was watched and kept, and nothing of what it learned.
OPERATIONAL = frozenset(
    {"audit_period_pushes", "checkpoint_period_s", "evaluate_timeout_s", "journal_segment_bytes"}
    | {"journal_fsync_interval_s"}
)
_Read = TypeVar("_Read")


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """One checkpoint.

    Attributes:
        name: of its directory.
        env_steps: that it was written at.
        size_bytes: of its files.
    """

    name: str
    env_steps: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class RunView:
    """What is known of a run.

    Attributes:
        path: of its directory.
        config: `None` where it cannot be read.
        sessions: how it stands.
        judgements: of its int8 files.
        env_steps: environment steps done, as far as anything on disk says.
        best_return: mean return of the kept policy's int8 file, of the best judgement where none was kept.
        last_return: of the last judgement.
        policy_sha256: of the int8 file that the kept policy was pushed as, "" without.
        checkpoints: oldest first.
        size_bytes: of all its files.
        damage: what of it cannot be read, in words.
    """

    path: Path
    config: TrainConfig | None = None
    sessions: Sessions = field(default_factory=Sessions)
    judgements: Judgements = field(default_factory=Judgements)
    env_steps: int = 0
    best_return: float | None = None
    last_return: float | None = None
    policy_sha256: str = ""
    checkpoints: tuple[CheckpointView, ...] = ()
    size_bytes: int = 0
    damage: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its directory."""
        return self.path.name or str(self.path)

    def to_json(self) -> dict[str, Any]:
        """Return what `runs ls` says of it."""
        config = self.config
        return {
            "run": str(self.path),
            "env": None if config is None else config.env_id,
            "algorithm": None if config is None else config.algorithm,
            "seed": None if config is None else config.seed,
            "state": self.sessions.state.value,
            "reason": self.sessions.reason,
            "env_steps": self.env_steps,
            "budget_steps": None if config is None else config.steps,
            "int8_return_mean": self.best_return,
            "last_return_mean": self.last_return,
            "goal_return": None if config is None else config.goal_return,
            "judgements": len(self.judgements.points),
            "size_bytes": self.size_bytes,
            "damage": list(self.damage),
        }


def look_at_run(path: Path) -> RunView:
    """Read a run; nothing in it makes this fail."""
    run, damage = RunDirectory(path), list[str]()

    def read(part: Callable[[], _Read], otherwise: _Read) -> _Read:
        try:
            return part()
        except QuarlError as error:
            damage.append(error.message)
        except OSError as error:
            damage.append(f"{error.filename or path}: {error.strerror}")
        return otherwise

    config = read(lambda: run.config, None)
    judgements = read(lambda: read_judgements(run.judgements), Judgements())
    sessions = read(lambda: read_sessions(run.sessions), Sessions())
    if judgements.damaged:
        damage.append(f"{judgements.damaged} lines of {run.judgements.name} do not hold")
    points = judgements.points
    checkpoints = _checkpoints(run)
    return RunView(
        path=path,
        config=config,
        sessions=sessions,
        judgements=judgements,
        env_steps=max([sessions.env_steps, *(c.env_steps for c in checkpoints), *(p.env_steps for p in points)]),
        best_return=_best(run, judgements),
        last_return=points[-1].return_mean if points else None,
        policy_sha256=_policy_sha256(run),
        checkpoints=checkpoints,
        size_bytes=_size_bytes(path),
        damage=tuple(damage),
    )


def list_runs(root: Path) -> list[RunView]:
    """Return the runs under `root`, those begun last at the end.

    Raises:
        RunNotFound: `root` is no directory that can be read, or holds too many entries to be one of runs.
    """
    try:
        found = [path for path in root.iterdir() if _looks_like_a_run(path)]
    except OSError as error:
        raise RunNotFound(
            f"runs cannot be listed: {root}: {error.strerror}", hint="another directory: --runs DIR"
        ) from None
    if len(found) > MAX_RUNS:
        raise RunNotFound(f"{root} holds {len(found):,} runs; at most {MAX_RUNS:,} are listed")
    return [look_at_run(path) for path in sorted(found, key=_begun)]


def find_run(text: str, root: Path) -> Path:
    """Return the directory of a run that a person named: a path, or a name under `root`.

    Raises:
        RunNotFound: there is none; names those that are like it.
    """
    for path in (Path(text), root / text):
        if _looks_like_a_run(path):
            return path
    names = [path.name for path in root.iterdir() if _looks_like_a_run(path)] if root.is_dir() else []
    near = difflib.get_close_matches(Path(text).name, names, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"list them with: quarl-edge runs ls --runs {root}"
    raise RunNotFound(f"no run at {text!r}, nor of that name under {root}", hint=hint)


def differences_from_preset(config: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which a run differs from a fresh one of its environment: name to (run's, preset's).

    The preset is the environment's own, and the algorithm's default where it has none.
    """
    preset = make_config(config.env_id, algorithm=config.algorithm)
    mine, usual = dataclasses.asdict(config), dataclasses.asdict(preset)
    return {name: (value, usual[name]) for name, value in mine.items() if value != usual[name]}


def differing_settings(configs: list[TrainConfig | None]) -> dict[str, list[Any]]:
    """Return the settings that are not the same in all runs: name to a value per run, `None` where it has none."""
    known = [{} if config is None else dataclasses.asdict(config) for config in configs]
    readable = [each for each in known if each]
    names = dict.fromkeys(name for each in readable for name in each)
    missing = object()
    return {
        name: [each.get(name) for each in known]
        for name in names
        if any(each.get(name, missing) != readable[0].get(name, missing) for each in readable)
    }


def _looks_like_a_run(path: Path) -> bool:
    try:
        if not path.is_dir():
            return False
        return bool(RUN_NAME.fullmatch(path.name)) or any((path / part).exists() for part in _PARTS)
    except (OSError, ValueError):
        return False


def _begun(path: Path) -> tuple[str, str]:
    found = RUN_NAME.fullmatch(path.name)
    return (found[1] if found else "", path.name)


def _checkpoints(run: RunDirectory) -> tuple[CheckpointView, ...]:
    return tuple(
        CheckpointView(name=path.name, env_steps=env_steps_of(path), size_bytes=_size_bytes(path))
        for path in finished(run.checkpoints)
    )


def _best(run: RunDirectory, judgements: Judgements) -> float | None:
    kept = run.kept_return()
    if kept is not None and math.isfinite(kept):
        return kept
    return max((point.return_mean for point in judgements.points), default=None)


def _policy_sha256(run: RunDirectory) -> str:
    said = run.provenance().get("pushed_sha256")
    return said if isinstance(said, str) and _SHA256.fullmatch(said) else ""


def _size_bytes(path: Path) -> int:
    """Return the size of all files under `path`, links not followed; of the first `MAX_FILES`."""
    total, seen, folders = 0, 0, [str(path)]
    while folders and seen < MAX_FILES:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            # Gone meanwhile, or not ours to read: a size is worth no error.
            continue
    return total
