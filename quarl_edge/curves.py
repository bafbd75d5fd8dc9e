"""Learning curves as numbers: runs that differ in nothing but their seed become a mean and its interval.

Pure data; `figure` draws it. The x axis is environment steps, the y axis the greedy mean return of exported int8 files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_edge.config import TrainConfig
from quarl_edge.run_view import OPERATIONAL, RunView, differing_settings

INTERVAL = "95 % t-interval of the mean over seeds"
_GRID = 200
_MAX_LABEL_SETTINGS = 4
# 97.5 % quantiles of Student's t by degrees of freedom, 1 to 30; beyond, an expansion that is within 0.003 of them.
_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_JOINED = OPERATIONAL | {"seed", "steps"}

Float64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """One run.

    Attributes:
        seed: of the run.
        env_steps: [J], never falling.
        returns: [J], mean return of each judged file.
    """

    seed: int
    env_steps: Float64
    returns: Float64


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """Runs that differ in nothing but their seed and budget.

    Attributes:
        env_id: of all of them.
        label: what tells them from the other curves of that environment.
        goal_return: `None` where they have none.
        lines: the runs, whole.
        env_steps: [G], where every one of them has been judged before and after; empty where there is no such place.
        mean: [G], over the runs, each linear between its judgements.
        low: [G], of the interval; equal to `mean` for a single run.
        high: likewise.
    """

    env_id: str
    label: str
    goal_return: float | None
    lines: tuple[Line, ...]
    env_steps: Float64
    mean: Float64
    low: Float64
    high: Float64

    def to_json(self) -> dict[str, Any]:
        """Return what `plot --format json` says of it."""
        ends = len(self.env_steps) > 0
        return {
            "env": self.env_id,
            "label": self.label,
            "runs": len(self.lines),
            "seeds": [line.seed for line in self.lines],
            "goal_return": self.goal_return,
            "env_steps": int(self.env_steps[-1]) if ends else None,
            "return_mean": float(self.mean[-1]) if ends else None,
            "return_low": float(self.low[-1]) if ends else None,
            "return_high": float(self.high[-1]) if ends else None,
            "best_of_runs": [float(line.returns.max()) for line in self.lines],
        }


def make_curves(views: Sequence[RunView]) -> list[Curve]:
    """Join runs to curves, in the order in which they are given.

    Args:
        views: runs with a configuration and at least one judgement.
    """
    groups: dict[tuple[Any, ...], list[tuple[TrainConfig, RunView]]] = {}
    for view in views:
        if view.config is not None and view.judgements.points:
            groups.setdefault(_alike(view.config), []).append((view.config, view))
    labels = _labels([members[0][0] for members in groups.values()])
    return [_curve(members, label) for members, label in zip(groups.values(), labels, strict=True)]


def interval(values: Float64) -> tuple[Float64, Float64, Float64]:
    """Return mean, low and high of the 95 % t-interval over the first axis.

    Args:
        values: float64 [runs, G]; low and high are the mean itself where there is one run.
    """
    count, mean = len(values), values.mean(axis=0)
    if count < 2:
        return mean, mean, mean
    half = t975(count - 1) * values.std(axis=0, ddof=1) / np.sqrt(count)
    return mean, mean - half, mean + half


def t975(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution, `degrees` at least 1."""
    return _T975[degrees - 1] if degrees <= len(_T975) else 1.96 + 2.4 / degrees


def _alike(config: TrainConfig) -> tuple[Any, ...]:
    return tuple((name, value) for name, value in dataclasses.asdict(config).items() if name not in _JOINED)


def _labels(configs: list[TrainConfig]) -> list[str]:
    """Return algorithm and the settings that tell each curve from the others of its environment and algorithm."""
    labels = []
    for config in configs:
        rivals = [each for each in configs if (each.env_id, each.algorithm) == (config.env_id, config.algorithm)]
        differing = differing_settings([config, *rivals])
        told = [f"{name}={_short(values[0])}" for name, values in differing.items() if name not in _JOINED]
        more = ["…"] if len(told) > _MAX_LABEL_SETTINGS else []
        labels.append(" ".join([config.algorithm, *told[:_MAX_LABEL_SETTINGS], *more]))
    return labels


def _short(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else "none" if value is None else str(value)


def _curve(members: list[tuple[TrainConfig, RunView]], label: str) -> Curve:
    lines = tuple(_line(config, view) for config, view in members)
    # No run is drawn on beyond its end: what it would have returned there, nobody knows.
    begin, end = max(line.env_steps[0] for line in lines), min(line.env_steps[-1] for line in lines)
    inner = {step for line in lines for step in line.env_steps.tolist() if begin <= step <= end}
    grid = np.array(sorted(inner | ({begin, end} if begin <= end else set())), np.float64)
    if len(grid) > _GRID:
        grid = np.linspace(begin, end, _GRID)
    values = np.stack([np.interp(grid, line.env_steps, line.returns) for line in lines])
    mean, low, high = interval(values)
    config = members[0][0]
    return Curve(
        env_id=config.env_id,
        label=f"{label} ({_count(lines)})",
        goal_return=config.goal_return,
        lines=lines,
        env_steps=grid,
        mean=mean,
        low=low,
        high=high,
    )


def _count(lines: Sequence[Line]) -> str:
    if len(lines) == 1:
        return f"seed {lines[0].seed}"
    distinct = len({line.seed for line in lines})
    return f"{distinct} seeds" if distinct == len(lines) else f"{len(lines)} runs of {distinct} seeds"


def _line(config: TrainConfig, view: RunView) -> Line:
    points = view.judgements.points
    return Line(
        seed=config.seed,
        env_steps=np.array([point.env_steps for point in points], np.float64),
        returns=np.array([point.return_mean for point in points], np.float64),
    )
