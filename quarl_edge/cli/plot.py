"""`quarl-edge plot`: learning curves of the int8 files of runs, as a figure."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from quarl_device.errors import QuarlError, RunNotFound, UsageError
from quarl_device.files import write_atomic
from quarl_edge.cli.output import Format, write_grid, write_json, write_line
from quarl_edge.curves import INTERVAL, Curve, make_curves
from quarl_edge.extras import require_plot
from quarl_edge.run_view import RunView, find_run, look_at_run
from quarl_edge.runs import DEFAULT_ROOT

KINDS = ("png", "svg")
MAX_RUNS = 1_000


def plot(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs, or names under --runs.")],
    out: Annotated[Path, typer.Option("--out", help="The figure: a .png or .svg file.")] = Path("curve.png"),
    title: Annotated[str, typer.Option(help="Above the figure.")] = "",
    goal: Annotated[float | None, typer.Option(help="Of the dotted line. Default: each run's goal_return.")] = None,
    root: Annotated[Path, typer.Option("--runs", help="Where runs are kept.")] = DEFAULT_ROOT,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Plot the returns of exported int8 files over environment steps.

    Runs that differ in nothing but their seed (and budget) become one curve: their mean, and the 95 % t-interval of
    the mean over seeds, as far as all of them go. Other algorithms or settings are further curves, other environments
    further panels. A dotted line is the goal.

    Examples:
      quarl-edge plot runs/CartPole-v1-dqn-* --out curve.png
      quarl-edge plot runs/Pendulum-v1-* --out pendulum.svg --title "D4PG and DDPG"
      quarl-edge plot runs/mine --out curve.png --goal 475 --format json
    """
    require_plot()
    kind = _kind(out)
    if len(names) > MAX_RUNS:
        raise UsageError(f"{len(names):,} runs given: expected at most {MAX_RUNS:,}")
    views = [look_at_run(path) for path in dict.fromkeys(find_run(name, root) for name in names)]
    curves = make_curves(_with_curve(views))
    _check_readable(curves)
    if goal is not None:
        if not math.isfinite(goal):
            raise UsageError(f"--goal {goal}: expected a finite return")
        curves = [dataclasses.replace(curve, goal_return=goal) for curve in curves]
    from quarl_edge.figure import draw

    write_atomic(out, draw(curves, kind=kind, title=title), error=QuarlError, what="figure")
    if output is Format.JSON:
        write_json({"figure": str(out), "interval": INTERVAL, "curves": [curve.to_json() for curve in curves]})
        return
    write_grid(str(out), ("curve", "environment", "to step", "mean", "95 % interval"), [_row(each) for each in curves])
    write_line(f"interval: {INTERVAL}")


def _kind(out: Path) -> str:
    kind = out.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UsageError(f"--out {out}: expected a name that ends with .png or .svg", hint="--out curve.png")
    if out.is_dir():
        raise UsageError(f"--out {out}: is a directory")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no directory {out.parent}", hint=f"mkdir -p {out.parent}")
    return kind


def _with_curve(views: Sequence[RunView]) -> list[RunView]:
    """Leave out runs that have nothing to draw, and say so."""
    good = []
    for view in views:
        if view.config is None:
            sys.stderr.write(f"quarl-edge: warning: left out: {'; '.join(view.damage)}\n")
        elif not view.judgements.points:
            sys.stderr.write(f"quarl-edge: warning: left out: {view.path} has no judgement of an int8 file\n")
        else:
            good.append(view)
    if not good:
        raise RunNotFound(
            "none of these runs has a judgement to draw",
            hint="a run has some after its first judged pushes: quarl-edge train CartPole-v1",
        )
    return good


def _check_readable(curves: Sequence[Curve]) -> None:
    from quarl_edge.figure import MAX_CURVES, MAX_PANELS

    by_env = [curve.env_id for curve in curves]
    most = max(by_env.count(env_id) for env_id in by_env)
    if len(set(by_env)) > MAX_PANELS or most > MAX_CURVES:
        raise UsageError(
            f"{len(set(by_env))} environments with up to {most} curves each: nobody could read more than {MAX_PANELS} "
            f"panels of {MAX_CURVES} curves",
            hint="name fewer runs; quarl-edge runs compare shows in which settings they differ",
        )


def _row(curve: Curve) -> tuple[str, ...]:
    if not len(curve.env_steps):
        return (curve.label, curve.env_id, "no common steps", "-", "-")
    several = len(curve.lines) > 1
    between = f"{curve.low[-1]:.1f} .. {curve.high[-1]:.1f}" if several else "-"
    return (curve.label, curve.env_id, f"{curve.env_steps[-1]:,.0f}", f"{curve.mean[-1]:.1f}", between)
