"""Every judgement of a run, as `judgements.jsonl`: what learning curves are drawn from.

A judgement is the return of one exported int8 file over greedy episodes on the run's start seeds; where it reaches the
goal, the file plays as many other starts, and training ends only if it reaches the goal on those too.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_device.errors import RunNotFound
from quarl_edge.json_lines import append_line, read_lines

if TYPE_CHECKING:
    from quarl_edge.local.evaluator import Judged

_LOG = logging.getLogger(__name__)
_MAX_STEPS = 10**15


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One point of a learning curve.

    Attributes:
        env_steps: environment steps behind the policy.
        version: of the policy.
        return_mean: undiscounted, over the episodes.
        return_std: likewise.
        episodes: greedy ones, on start seeds that are the same for all judgements of a run.
        sha256: digest of the file that was played.
        runtime: that played it.
        confirmation_mean: its mean return on other starts, where it reached the goal; `None` where it did not.
    """

    env_steps: int
    version: int
    return_mean: float
    return_std: float
    episodes: int
    sha256: str = ""
    runtime: str = ""
    confirmation_mean: float | None = None


@dataclass(frozen=True, kw_only=True)
class Judgements:
    """What a run's file holds.

    Attributes:
        points: by growing environment steps; where those are equal, by growing version.
        damaged: lines that say nothing.
    """

    points: tuple[Judgement, ...] = ()
    damaged: int = 0


class JudgementLog:
    """Appends to a run's file. A disk that refuses, or a file that is full, costs the curve and not the run.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._complained = False

    def append(self, judged: Judged) -> None:
        """Write one judgement."""
        result = judged.result
        line = {
            "env_steps": judged.env_steps,
            "version": judged.version,
            "return_mean": result.return_mean,
            "return_std": result.return_std,
            "episodes": result.episodes,
            "sha256": result.sha256,
            "runtime": result.runtime,
            "unix_s": round(time.time(), 3),
        }
        if judged.confirmation is not None:
            line["confirmation_mean"] = judged.confirmation.return_mean
        try:
            with self._path.open("a+b") as file:
                if not append_line(file, line):
                    self._complain("the file is full")
        except OSError as error:
            self._complain(error.strerror or str(error))

    def _complain(self, why: str) -> None:
        if not self._complained:
            _LOG.warning("judgements are not written to %s: %s", self._path, why)
        self._complained = True


def read_judgements(path: Path) -> Judgements:
    """Read a run's file; without one there are none.

    Raises:
        RunNotFound: unreadable, or over its cap.
    """
    lines = read_lines(path, what="judgements", error=RunNotFound)
    found = [_from_json(line) for line in lines.objects]
    points = [each for each in found if each is not None]
    return Judgements(points=_latest(points), damaged=lines.damaged + len(found) - len(points))


def _latest(points: Iterable[Judgement]) -> tuple[Judgement, ...]:
    """Leave out what a resume from an earlier checkpoint made again.

    The last policy of a run may be judged at the steps of one before it, after more updates: its version is higher.
    """
    kept: list[Judgement] = []
    for point in points:
        while kept and (kept[-1].env_steps, kept[-1].version) >= (point.env_steps, point.version):
            kept.pop()
        kept.append(point)
    return tuple(kept)


def _from_json(data: Mapping[str, Any]) -> Judgement | None:
    confirmation = data.get("confirmation_mean")
    try:
        point = Judgement(
            env_steps=int(data["env_steps"]),
            version=int(data["version"]),
            return_mean=float(data["return_mean"]),
            return_std=float(data["return_std"]),
            episodes=int(data["episodes"]),
            sha256=str(data.get("sha256", ""))[:64],
            runtime=str(data.get("runtime", ""))[:80],
            confirmation_mean=None if confirmation is None else float(confirmation),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    counted = 0 <= point.env_steps <= _MAX_STEPS and point.episodes > 0
    numbers = (point.return_mean, point.return_std, point.confirmation_mean or 0.0)
    return point if counted and all(map(math.isfinite, numbers)) else None
