"""`quarl-edge train --seeds`: one run per seed, one after the other, and what they came to.

A sweep has no file of its own. What an earlier one left is found among the runs: those with the same settings.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quarl_device.errors import LinkError, MissingPart, QuarlError, TrustError, UsageError
from quarl_edge.cli.output import Format, error_json, write_grid, write_json
from quarl_edge.config import TrainConfig
from quarl_edge.curves import INTERVAL, interval
from quarl_edge.learner.result import StopReason, TrainResult
from quarl_edge.run_view import RunView, look_at_run
from quarl_edge.runs import RunDirectory, newest_by_seed
from quarl_edge.session_log import RunState

MAX_SEEDS = 1_000
_MAX_SEED = 2**31 - 1
_PART = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")
_DONE = (StopReason.SOLVED.value, StopReason.BUDGET.value)
# Another seed meets these again.
_NOT_OF_THE_SEED = (LinkError, TrustError, UsageError, MissingPart)


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """One run of a sweep.

    Attributes:
        config: its own.
        directory: likewise.
        result: what it ended with, `None` where an error ended it, or an earlier sweep had done it.
        wall_s: with set-up and judging.
        error: that ended it.
        earlier: what an earlier sweep had done, `None` where it was trained in this one.
    """

    config: TrainConfig
    directory: RunDirectory
    result: TrainResult | None = None
    wall_s: float = 0.0
    error: QuarlError | None = None
    earlier: RunView | None = None

    @property
    def best_return(self) -> float | None:
        """Mean return of the kept int8 file, `None` without."""
        if self.earlier is not None:
            return self.earlier.best_return
        return None if self.result is None or self.result.best is None else self.result.best.result.return_mean


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read what `--seeds` says: "0-4", "0,1,2", "0-2,7".

    Raises:
        UsageError: none of these, a seed twice, or too many.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        first = int(match[1]) if match else -1
        last = int(match[2]) if match and match[2] else first
        if match is None or not first <= last <= _MAX_SEED:
            raise UsageError(f"--seeds {text[:80]!r}: expected seeds such as 0-4, 0,1,2 or 0-2,7")
        if last - first + len(seeds) >= MAX_SEEDS:
            raise UsageError(f"--seeds {text[:80]!r}: more than {MAX_SEEDS:,} of them")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds {text[:80]!r}: a seed occurs twice")
    return tuple(seeds)


def left_by_seed(config: TrainConfig, seeds: Sequence[int], root: Path) -> dict[int, RunView]:
    """Return what earlier sweeps left of these seeds that another one need not begin anew: done, or to go on with.

    Args:
        config: of all runs, but for the seed.
        seeds: that are asked for.
        root: where runs are kept.
    """
    newest = newest_by_seed(config, root)
    views = {seed: look_at_run(newest[seed].path) for seed in seeds if seed in newest}
    return {seed: view for seed, view in views.items() if _is_done(view) or view.checkpoints}


def note_unfinished(left: Mapping[int, RunView]) -> None:
    """Name the runs that a sweep begins anew though they could go on."""
    for seed, view in left.items():
        if not _is_done(view) and view.sessions.state is not RunState.RUNNING:
            sys.stderr.write(
                f"quarl-edge: note: seed {seed} was not finished in {view.path} ({view.env_steps:,} of "
                f"{0 if view.config is None else view.config.steps:,} steps); it is begun anew: the same command with "
                "--resume goes on with it instead\n"
            )


def _is_done(view: RunView) -> bool:
    return view.sessions.state is RunState.ENDED and view.sessions.reason in _DONE


def sweep(
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    make: Callable[[TrainConfig], RunDirectory],
    train: Callable[[TrainConfig, RunDirectory, bool], TrainResult],
    stopped: Callable[[], bool],
    left: Mapping[int, RunView] | None = None,
) -> list[SeedRun]:
    """Train one run after the other, until all are done or an end is asked for.

    An error of one run (weights that became NaN, an environment that broke) is a line of the summary, and the next
    seed is trained; what another seed would meet again ends the sweep.

    Args:
        config: of all runs, but for the seed.
        seeds: in this order.
        make: makes a run's directory.
        train: trains in it, or goes on with what is in it.
        stopped: whether an end was asked for.
        left: by earlier sweeps, by seed: what is done is not trained again, the rest goes on.
    """
    done: list[SeedRun] = []
    for number, seed in enumerate(seeds, 1):
        if stopped():
            break
        mine, found = config.replace(seed=seed), (left or {}).get(seed)
        directory = make(mine) if found is None else RunDirectory(found.path)
        if found is not None and _is_done(found):
            sys.stderr.write(f"seed {seed}, run {number} of {len(seeds)}: done in {found.path}\n")
            done.append(SeedRun(config=mine, directory=directory, earlier=found))
            continue
        sys.stderr.write(f"seed {seed}, run {number} of {len(seeds)}\n")
        started_s = time.monotonic()
        try:
            with directory.kept_if_begun():
                result = train(mine, directory, found is not None)
        except QuarlError as error:
            done.append(SeedRun(config=mine, directory=directory, error=error, wall_s=time.monotonic() - started_s))
            if isinstance(error, _NOT_OF_THE_SEED):
                break
            sys.stderr.write(f"quarl-edge: warning: seed {seed} failed: {error}\n")
            continue
        wall_s = time.monotonic() - started_s
        done.append(SeedRun(config=mine, directory=directory, result=result, wall_s=wall_s))
    return done


def show_sweep(
    done: Sequence[SeedRun], asked: int, output: Format, summary: Callable[[SeedRun, TrainResult], Mapping[str, Any]]
) -> None:
    """Write what the runs came to.

    Args:
        done: the runs that were begun.
        asked: seeds that were asked for.
        output: text or json.
        summary: of one run that ended, as `train --format json` gives it.

    Raises:
        QuarlError: runs failed; the only one's error itself, or how many they were.
        KeyboardInterrupt: none was begun.
    """
    if not done:
        raise KeyboardInterrupt
    if output is Format.JSON:
        write_json(_as_json(done, asked, summary))
    else:
        _show(done, asked)
    _note_open(done, asked)
    failed = [run.error for run in done if run.error is not None]
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise QuarlError(f"{len(failed)} of {len(done)} runs failed, the last with: {failed[-1].message}")


def _as_json(
    done: Sequence[SeedRun], asked: int, summary: Callable[[SeedRun, TrainResult], Mapping[str, Any]]
) -> dict[str, Any]:
    runs: list[Mapping[str, Any]] = []
    for run in done:
        if run.result is not None:
            runs.append(summary(run, run.result))
        elif run.earlier is not None:
            runs.append({**run.earlier.to_json(), "reason": run.earlier.sessions.reason, "earlier": True})
        elif run.error is not None:
            runs.append({"run": str(run.directory.path), "seed": run.config.seed, "error": error_json(run.error)})
    mean, low, high = _joined(done)
    return {
        "env": done[0].config.env_id,
        "algorithm": done[0].config.algorithm,
        "seeds": [run.config.seed for run in done],
        "seeds_not_begun": asked - len(done),
        "int8_return_mean": mean,
        "int8_return_low": low,
        "int8_return_high": high,
        "interval": INTERVAL,
        "runs": runs,
    }


def _note_open(done: Sequence[SeedRun], asked: int) -> None:
    """Say how a sweep that is not at its end goes on."""
    begun = [run for run in done if run.result is not None and run.result.reason is StopReason.INTERRUPTED]
    if not begun and len(done) == asked:
        return
    named = "".join(f"seed {run.config.seed} was interrupted in {run.directory.path}; " for run in begun)
    sys.stderr.write(
        f"quarl-edge: {named}{asked - len(done)} of {asked} seeds were not begun; "
        "the same command with --resume goes on\n"
    )


def _show(done: Sequence[SeedRun], asked: int) -> None:
    columns = ("seed", "ended", "best int8 return", "last", "env steps", "updates", "time")
    drawn = [str(run.directory.path) for run in done if _has_judgements(run)]
    first = done[0].config
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", first.env_id)
    following = [f"quarl-edge plot {shlex.join(drawn)} --out {name}-{first.algorithm}.png"] if drawn else []
    title = f"{first.env_id} · {first.algorithm} · {len(done)} of {asked} seeds"
    rows = [*map(_row, done)]
    mean, low, high = _joined(done)
    if mean is not None:
        between = f"{mean:.1f}" if low is None else f"{mean:.1f} ({low:.1f} .. {high:.1f})"
        rows.append(("all", "", between, "", "", "", f"{sum(run.wall_s for run in done):.1f} s"))
    write_grid(title, columns, rows, following)


def _has_judgements(run: SeedRun) -> bool:
    if run.earlier is not None:
        return bool(run.earlier.judgements.points)
    return run.result is not None and bool(run.result.judgements)


def _row(run: SeedRun) -> tuple[str, ...]:
    seed, wall = str(run.config.seed), f"{run.wall_s:.1f} s"
    result, earlier = run.result, run.earlier
    if earlier is not None:
        returns = (_number(value) for value in (earlier.best_return, earlier.last_return))
        return (seed, f"{earlier.sessions.reason}, earlier", *returns, f"{earlier.env_steps:,}", "-", "-")
    if result is None:
        return (seed, f"failed: {type(run.error).__name__}", "-", "-", "-", "-", wall)
    best, last = (_number(value) for value in (run.best_return, result.last_return_mean))
    return (seed, result.reason.value, best, last, f"{result.env_steps:,}", f"{result.updates:,}", wall)


def _joined(done: Sequence[SeedRun]) -> tuple[float | None, float | None, float | None]:
    """Return mean, low and high of the best returns over the runs; of one run the mean alone."""
    values = [run.best_return for run in done if run.best_return is not None]
    if not values:
        return None, None, None
    mean, low, high = (float(each) for each in interval(np.array(values, np.float64)))
    return (mean, low, high) if len(values) > 1 else (mean, None, None)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
