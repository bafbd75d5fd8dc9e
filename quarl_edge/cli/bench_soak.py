"""`quarl-edge bench soak`: broker, learner and actors, killed and cut off by a seeded schedule, and their books."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from quarl_device.errors import UsageError
from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.machine import describe_machine
from quarl_edge.soak.run import SoakConfig, SoakReport, as_json
from quarl_edge.soak.run import soak as run_soak


def soak(
    seconds: Annotated[int, typer.Option(help="How long faults come.", min=1, max=7 * 86_400)] = 180,
    seed: Annotated[int, typer.Option(help="Of the schedule of faults.", min=0, max=2**31 - 1)] = 0,
    actors: Annotated[int, typer.Option(help="Actor processes.", min=1, max=64)] = 3,
    rate: Annotated[int, typer.Option(help="Environment steps per second of each actor.", min=1)] = 500,
    only: Annotated[list[str] | None, typer.Option(help="A kind of fault, such as 'cut'; may be given often.")] = None,
    work: Annotated[Path | None, typer.Option(help="Empty folder for journal, spools and logs; kept.")] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Kill, cut off and starve real processes on this machine, then check that every step is accounted for.

    A Mosquitto, a learner that stores and acknowledges (the real ingest and journal) and actors with spools on disk,
    each behind a proxy. Faults come by the seed: kills of broker (with and without its memory), learner and actors,
    full disks, links that are cut, silent, slow, lossy. In the end, per device: steps that its environments made =
    steps stored + steps declared dropped + what kills took of unfinished blocks (one block a kill at most), 0
    duplicates. Exit 1 if that does not hold; logs are kept then.

    Examples:
      quarl-edge bench soak --seconds 60 --seed 7
      quarl-edge bench soak --seconds 1800 --actors 4 --format json
      quarl-edge bench soak --only 'actor kill' --only cut --work soak/
    """
    if work is not None and work.exists() and (not work.is_dir() or any(work.iterdir())):
        raise UsageError(f"--work {work} is no empty folder", hint="name one that does not exist yet")
    folder = work or Path(tempfile.mkdtemp(prefix="quarl-soak-"))
    config = SoakConfig(seconds=seconds, seed=seed, actors=actors, steps_per_s=rate, only=tuple(only or ()))
    finished = False
    try:
        report = run_soak(config, folder, say=(lambda _: None) if output is Format.JSON else write_line)
        finished = report.ok
    finally:
        if finished and work is None:
            shutil.rmtree(folder, ignore_errors=True)
        elif not finished:
            sys.stderr.write(f"quarl-edge: what it left, with logs, is in {folder}\n")
    if output is Format.JSON:
        write_json({**as_json(report), "seed": seed, "actors": actors, "rate": rate, "machine": describe_machine()})
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(1)


def _show(report: SoakReport) -> None:
    for books in report.devices:
        write_line(
            f"{books.device}: made {books.made:,} = stored {books.stored:,} + dropped {books.declared_dropped:,} + "
            f"unfinished {books.unfinished:,} ({books.kills} kills); {books.blocks:,} blocks of {books.lives} lives, "
            f"{books.duplicates} duplicates"
        )
        for fault in books.faults[:20]:
            write_line(f"  WRONG: {fault}")
    for fault in report.wrong:
        write_line(f"WRONG: {fault}")
    count = sum(report.faults.values())
    write_line(
        f"{count} faults in {report.seconds:.0f} s; broker killed {report.broker_kills} times, learner "
        f"{report.learner_kills}; {'the books are right' if report.ok else 'the books are WRONG'}; {describe_machine()}"
    )
