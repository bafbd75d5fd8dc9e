"""`quarl-edge bench memory`: what learner and actors hold while a real run trains."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quarl_device.environments import check_registered
from quarl_device.errors import UsageError
from quarl_device.files import write_atomic
from quarl_edge.cli.demo import DEMO_ENV
from quarl_edge.cli.interrupts import ended_by_sigterm
from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.extras import require_learner
from quarl_edge.machine import describe_machine
from quarl_edge.progress import EpisodeProgress

if TYPE_CHECKING:
    from quarl_edge.bench.memory import ProcessMemory

_SHARES = 100


def memory(
    env: Annotated[str, typer.Argument(help="What to train in.")] = DEMO_ENV,
    seconds: Annotated[float, typer.Option(help="To measure.", min=0.1, max=86_400)] = 600.0,
    warm_up: Annotated[float, typer.Option(help="Seconds before that, with a full replay.", min=0)] = 60.0,
    actors: Annotated[int, typer.Option(help="Actor processes.", min=1, max=16)] = 2,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value of the run.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Train for a while, and tell the memory of each process of the run: flat once replay is full.

    The run is `quarl-edge train` as it is, with a replay of 5,000 transitions and no goal. Linux alone.

    Examples:
      quarl-edge bench memory --seconds 60
      quarl-edge bench memory --seconds 600 --format json --out docs/results/memory.json
    """
    require_learner("bench")
    check_registered(env)
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"--out: there is no directory {out.parent}", hint=f"mkdir -p {out.parent}")
    from quarl_edge.bench.memory import watch_a_run

    with ended_by_sigterm(), EpisodeProgress(_SHARES, what="hundredths") as bar:
        report = watch_a_run(
            env,
            seconds=seconds,
            warm_up_s=warm_up,
            actors=actors,
            settings=settings or (),
            progress=lambda share: bar.advance(round(share * _SHARES)),
        )
    told = {"machine": describe_machine(), **asdict(report)}
    if output is Format.JSON:
        write_json(told)
    else:
        for each in report.processes:
            write_line(_line(each))
        write_line(
            f"{report.env}, {report.seconds:.0f} s: {report.env_steps:,} steps, {report.updates:,} updates, "
            f"{report.pushes:,} pushes, {report.judgements:,} judgements; {told['machine']}"
        )
    if out is not None:
        write_atomic(out, (json.dumps(told, indent=1) + "\n").encode(), error=UsageError, what="result")


def _line(process: ProcessMemory) -> str:
    shown = {"resident": process.samples, "of it in no file": process.anonymous}
    parts = [
        f"{name} {held[0] / 2**20:.1f} -> {held[-1] / 2**20:.1f} MiB, {max(held) / 2**20:.1f} at most"
        for name, held in shown.items()
    ]
    return f"{process.name:10}" + "; ".join(parts)
