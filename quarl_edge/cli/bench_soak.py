"""`quarl-edge bench soak`: broker, learner and actors, killed and cut off by a seeded schedule, and their books."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quarl_device.errors import StreamFault, UsageError
from quarl_device.files import write_atomic
from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.extras import require_learner
from quarl_edge.machine import describe_machine

if TYPE_CHECKING:
    from quarl_edge.soak.run import SoakReport

_SHOWN_FAULTS = 20
_TERMINATED = 128 + signal.SIGTERM


def soak(
    seconds: Annotated[int, typer.Option(help="How long faults come.", min=1, max=7 * 86_400)] = 180,
    seed: Annotated[int, typer.Option(help="Of the schedule of faults.", min=0, max=2**31 - 1)] = 0,
    actors: Annotated[int, typer.Option(help="Actor processes.", min=1, max=64)] = 3,
    rate: Annotated[int, typer.Option(help="Steps per second of each actor's environment.", min=1)] = 500,
    only: Annotated[list[str] | None, typer.Option(help="A kind of fault, such as cut; may be given often.")] = None,
    train: Annotated[bool, typer.Option("--train", help="The learner trains, and resumes from checkpoints.")] = False,
    work: Annotated[Path | None, typer.Option(help="Empty folder for journal, spools and logs; kept.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Kill, cut off and starve real processes on this machine, and check that every step is accounted for.

    A Mosquitto, a learner that stores and acknowledges (the real ingest and journal), and actors with spools on disk,
    each behind a proxy; one actor drops its oldest blocks when its spool is full. By the seed come kills of the broker
    (with and without its memory), the learner and actors, a learner restored from an older state, full disks, and links
    that are cut, silent, slow or lossy. Then, per device: steps that its environments made = stored + declared dropped
    + forgotten (by a learner that was restored) + unfinished (of a block that a kill took out of memory: one a kill at
    most), no block is stored twice, and the learner's own account says the same. Exit 0 only if that holds; what is
    left, with logs, is kept otherwise.

    Examples:
      quarl-edge bench soak --seconds 60 --seed 7
      quarl-edge bench soak --seconds 1800 --format json --out docs/results/soak.json
      quarl-edge bench soak --train --seconds 600
      quarl-edge bench soak --only 'actor kill' --only cut --work soak/
    """
    if train:
        require_learner("bench")
    from quarl_edge.soak.run import SoakConfig, as_json
    from quarl_edge.soak.run import soak as run_soak

    _check(work, out)
    config = SoakConfig(
        seconds=seconds, seed=seed, actors=actors, steps_per_s=rate, only=tuple(only or ()), trains=train
    )
    # Ended like any other way out: with nothing left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    folder = work or Path(tempfile.mkdtemp(prefix="quarl-soak-"))
    right = False
    try:
        report = run_soak(config, folder, say=(lambda _: None) if output is Format.JSON else write_line)
        right = report.ok
    finally:
        if work is None and (right or not any(folder.iterdir())):
            shutil.rmtree(folder, ignore_errors=True)
        elif not right and any(folder.iterdir()):
            sys.stderr.write(f"quarl-edge: what it left, with logs, is in {folder}\n")
    told = {
        **as_json(report),
        "seed": seed,
        "actors": actors,
        "rate": rate,
        "train": train,
        "machine": describe_machine(),
    }
    _show(report, told, output)
    if out is not None:
        write_atomic(out, (json.dumps(told, indent=1) + "\n").encode(), error=UsageError, what="result")
    if not right:
        raise StreamFault(f"the books are wrong: {report.faults_found[0]}", hint=f"seed {seed}; logs are in {folder}")


def _check(work: Path | None, out: Path | None) -> None:
    if work is not None and work.exists() and (not work.is_dir() or any(work.iterdir())):
        raise UsageError(f"--work {work} is no empty folder", hint="name one that does not exist yet")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"--out: there is no directory {out.parent}", hint=f"mkdir -p {out.parent}")


def _show(report: SoakReport, told: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        write_json(told)
        return
    for books in report.devices:
        write_line(
            f"{books.device}: made {books.made:,} = stored {books.stored:,} + dropped {books.declared_dropped:,} + "
            f"forgotten {books.forgotten:,} + unfinished {books.unfinished:,} ({books.kills} kills); "
            f"{books.blocks:,} blocks of {books.lives} lives, "
            f"{books.duplicates} duplicates"
        )
    for fault in report.faults_found[:_SHOWN_FAULTS]:
        write_line(f"WRONG: {fault}")
    left_out = f" ({report.left_out} left out)" if report.left_out else ""
    write_line(
        f"{sum(report.faults.values())} faults in {report.seconds:.0f} s; broker killed {report.broker_kills} times, "
        f"learner {report.learner_kills}{left_out}; {'the books are right' if report.ok else 'the books are WRONG'}; "
        f"{told['machine']}"
    )
