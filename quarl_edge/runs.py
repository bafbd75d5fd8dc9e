"""Run directories: where a run keeps its configuration, checkpoints, policy, journal and metrics.

::

    runs/<env>-<algorithm>-<utc>-s<seed>/
        config.json       written once
        checkpoints/      of the learner, the last two
        judgements.jsonl  the return of every int8 file that was judged
        sessions.jsonl    when it was trained, and how that ended
        policy/           the best judged policy: policy.json, policy.npz
        journal/          every accepted block of experience
        tb/               TensorBoard events
        logs/             of the processes that the run started
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from quarl_device.environments import bare_name
from quarl_device.errors import QuarlError, RunNotFound, UsageError
from quarl_device.files import read_capped, write_atomic
from quarl_device.wire.limits import MAX_JSON_BYTES
from quarl_edge.config import TrainConfig
from quarl_edge.configure import config_from_json

DEFAULT_ROOT = Path("runs")
LEARNER_PUBLIC = "learner.pub"
_MAX_POLICY_JSON_BYTES = 16 * 1024 * 1024
_CONFIG = "config.json"
_POLICY = "policy.json"
RUN_NAME = re.compile(r".+-[a-z0-9]+-(\d{8}T\d{6}Z)-s\d+(?:-\d+)?")
_HINT = "make one with: quarl-edge demo"
_SAME_SECOND = 1_000


@dataclass(frozen=True)
class RunDirectory:
    """One run on disk.

    Attributes:
        path: of the directory.
    """

    path: Path

    @classmethod
    def create(
        cls,
        config: TrainConfig,
        *,
        path: Path | None = None,
        root: Path = DEFAULT_ROOT,
        now: datetime | None = None,
    ) -> RunDirectory:
        """Make the directory of a new run and write its configuration.

        Args:
            config: of the run.
            path: the directory itself; new or empty. Default: a name made under `root`.
            root: where runs are kept.
            now: time in the name, the clock's by default.

        Raises:
            UsageError: `path` holds something already, or cannot be written.
        """
        try:
            if path is None:
                path = _make_unique(root, run_name(config, now or datetime.now(UTC)))
            elif path.is_dir() and any(path.iterdir()):
                raise UsageError(f"run directory {path} is not empty", hint="give a new one, or add --resume")
            else:
                path.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise UsageError(f"run directory cannot be made: {path or root}: {cause.strerror}") from cause
        run = cls(path)
        text = json.dumps(config.to_json(), indent=2) + "\n"
        write_atomic(path / _CONFIG, text.encode(), error=UsageError, what="run configuration")
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Return an existing run.

        Raises:
            RunNotFound: there is none at `path`.
        """
        if not (path / _CONFIG).is_file():
            raise RunNotFound(f"no run at {path}: it has no {_CONFIG}", hint=_HINT)
        return cls(path)

    @cached_property
    def config(self) -> TrainConfig:
        """Its configuration, as it was written.

        Raises:
            RunNotFound: unreadable or no JSON.
            CheckpointError: of another version.
        """
        data = read_capped(self.path / _CONFIG, cap_bytes=MAX_JSON_BYTES, error=RunNotFound, what="run configuration")
        try:
            decoded = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RunNotFound(f"run configuration is damaged: {self.path / _CONFIG}: {error}") from None
        return config_from_json(decoded)

    def check_writable(self) -> None:
        """Refuse to go on with a run that cannot be written, before anything of it is read.

        Raises:
            UsageError: naming the part.
        """
        for part in (self.path, self.checkpoints, self.policy, self.journal, self.tensorboard, self.logs):
            if part.exists() and not os.access(part, os.W_OK | os.X_OK):
                raise UsageError(f"the run cannot be written: no permission in {part}")

    @property
    def checkpoints(self) -> Path:
        """Learner checkpoints."""
        return self.path / "checkpoints"

    @property
    def policy(self) -> Path:
        """The best judged policy."""
        return self.path / "policy"

    @property
    def journal(self) -> Path:
        """The journal of experience."""
        return self.path / "journal"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard events."""
        return self.path / "tb"

    @property
    def logs(self) -> Path:
        """Logs of processes that the run started."""
        return self.path / "logs"

    @property
    def judgements(self) -> Path:
        """Every judgement, a line each."""
        return self.path / "judgements.jsonl"

    @property
    def sessions(self) -> Path:
        """When it was trained, and how that ended."""
        return self.path / "sessions.jsonl"

    def kept_return(self) -> float | None:
        """Return what the kept policy was judged to return, `None` where there is none or nothing says so."""
        try:
            return float(self.provenance()["judged"]["result"]["return_mean"])
        except (ValueError, KeyError, TypeError):
            return None

    def provenance(self) -> dict[str, Any]:
        """Return what the kept policy says of itself, nothing where there is none or it does not hold."""
        try:
            said = json.loads(
                read_capped(self.policy / _POLICY, cap_bytes=_MAX_POLICY_JSON_BYTES, error=RunNotFound, what="policy")
            )
            found = said["provenance"]
        except (RunNotFound, ValueError, KeyError, TypeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @contextlib.contextmanager
    def kept_if_begun(self) -> Iterator[None]:
        """Remove the run where an error ends it before anything was learned, stored or logged."""
        try:
            yield
        except QuarlError:
            self._discard_if_empty()
            raise

    def discard_if_untouched(self) -> bool:
        """Remove the run where nothing was learned or stored, whatever its actors logged; returns whether it did."""
        self._discard_if_empty(but=(self.logs,))
        return not (self.path / _CONFIG).exists()

    def _discard_if_empty(self, *, but: tuple[Path, ...] = ()) -> None:
        begun = (self.checkpoints, self.policy)
        told = (path for part in (self.journal, self.logs) if part not in but for path in part.rglob("*"))
        if any(part.exists() for part in begun) or any(path.is_file() and path.stat().st_size for path in told):
            return
        # Its own parts alone: the directory may be one that the user has made, for other things too.
        for part in (self.journal, self.logs, self.tensorboard):
            shutil.rmtree(part, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in (self.path / _CONFIG, self.path / LEARNER_PUBLIC, self.sessions):
                path.unlink(missing_ok=True)
            self.path.rmdir()

    @property
    def has_policy(self) -> bool:
        """Whether a policy has been kept."""
        return (self.policy / _POLICY).is_file()


def run_name(config: TrainConfig, now: datetime) -> str:
    """Return `<env>-<algorithm>-<utc>-s<seed>`, the environment's id made fit for a file name."""
    env = re.sub(r"[^A-Za-z0-9._-]+", "_", bare_name(config.env_id)).strip("._-") or "env"
    return f"{env[:100]}-{config.algorithm}-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-s{config.seed}"


def newest_by_seed(config: TrainConfig, root: Path = DEFAULT_ROOT) -> dict[int, RunDirectory]:
    """Return the newest run under `root` of each seed, of those that have these settings but for the seed."""
    found: dict[int, RunDirectory] = {}
    for run in sorted(_runs(root), key=_begun):
        # What cannot be read is none of these.
        with contextlib.suppress(QuarlError):
            if run.config.replace(seed=config.seed) == config:
                found[run.config.seed] = run
    return found


def latest(root: Path = DEFAULT_ROOT) -> RunDirectory:
    """Return the newest run under `root` that has kept a policy.

    Raises:
        RunNotFound: there is none.
    """
    runs = [run for run in _runs(root) if run.has_policy]
    if not runs:
        raise RunNotFound(
            f"no run with a policy under {root.absolute()}",
            hint=f"runs elsewhere: --runs DIR; one run or another source: --from PATH; {_HINT}",
        )
    return max(runs, key=_age)


def latest_policy(*, source: Path | None = None, root: Path = DEFAULT_ROOT) -> Path:
    """Return the directory of a policy checkpoint.

    Args:
        source: a run, or a policy checkpoint itself; `None` for the newest run.
        root: where runs are kept.

    Raises:
        RunNotFound: none there.
    """
    if source is None:
        return latest(root).policy
    if (source / _POLICY).is_file():
        return source
    if (source / "policy" / _POLICY).is_file():
        return source / "policy"
    if (source / _CONFIG).is_file():
        raise RunNotFound(f"run {source} has not kept a policy yet", hint="train it for longer with --resume")
    raise RunNotFound(f"no run and no policy checkpoint at {source}", hint=f"another: --from PATH; {_HINT}")


def _runs(root: Path) -> Iterator[RunDirectory]:
    try:
        paths = [path for path in root.iterdir() if (path / _CONFIG).is_file()]
    except OSError:
        return
    yield from (RunDirectory(path) for path in paths)


def _begun(run: RunDirectory) -> tuple[str, str]:
    """Sort by the time in the name; runs with a name of the user's by when they were made."""
    found = RUN_NAME.fullmatch(run.path.name)
    if found:
        return found[1], run.path.name
    written = (run.path / _CONFIG).stat().st_mtime
    return f"{datetime.fromtimestamp(written, UTC):%Y%m%dT%H%M%SZ}", run.path.name


def _age(run: RunDirectory) -> tuple[str, int, str]:
    """Sort by when they began, then by policy."""
    begun, name = _begun(run)
    return begun, (run.policy / _POLICY).stat().st_mtime_ns, name


def _make_unique(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number in range(1, _SAME_SECOND):
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise UsageError(f"{_SAME_SECOND} runs named {name} exist under {root}")
