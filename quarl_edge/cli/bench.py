"""`quarl-edge bench`: the published figures, each by a command."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from quarl_device.environments import check_registered
from quarl_device.errors import NotSolved, UsageError
from quarl_edge.cli.demo import DEMO_ENV
from quarl_edge.cli.output import Format, keep_examples, write_json, write_line
from quarl_edge.extras import require_learner
from quarl_edge.machine import describe_machine

bench = typer.Typer(help="Measure what the documentation states.", no_args_is_help=True, rich_markup_mode=None)
_DEADLINE_S = 3_600.0
_SHOWN = ("solved", "train_s", "env_steps", "updates", "int8_return_mean", "float_return_mean", "fresh_return_mean")


@bench.callback()
def _group() -> None:
    """Measure what the documentation states."""


def solve(
    env: Annotated[str, typer.Argument(help="An environment whose preset names a goal.")] = DEMO_ENV,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0,1,2,3,4",
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value; may be given often.")] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Run `quarl-edge demo` once a seed, one after the other, each in processes of its own.

    Exit 0 only if every seed was solved.

    Examples:
      quarl-edge bench solve
      quarl-edge bench solve Acrobot-v1 --seeds 0,1,2 --format json
    """
    require_learner("bench")
    check_registered(env)
    runs = [_run(env, seed, settings or [], output) for seed in parse_seeds(seeds)]
    solved = [run for run in runs if run["solved"]]
    summary = {
        "env": env,
        "seeds": len(runs),
        "solved": len(solved),
        "train_s_median": statistics.median(run["train_s"] for run in runs),
        "train_s_max": max(run["train_s"] for run in runs),
        "runtime": runs[0]["runtime"],
        "machine": describe_machine(),
        "runs": runs,
    }
    if output is Format.JSON:
        write_json(summary)
    else:
        write_line(
            f"{env}: {len(solved)} of {len(runs)} seeds solved, training {summary['train_s_median']:.1f} s median, "
            f"{summary['train_s_max']:.1f} s at most; {summary['runtime']}; {summary['machine']}"
        )
    if len(solved) < len(runs):
        raise NotSolved(f"{len(runs) - len(solved)} of {len(runs)} seeds were not solved")


bench.command("solve", help=keep_examples(solve))(solve)


def _run(env: str, seed: int, settings: list[str], output: Format) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="quarl-bench-") as folder:
        words = [sys.executable, "-m", "quarl_edge", "demo", "--env", env, "--seed", str(seed), "--format", "json"]
        words += ["--out", str(Path(folder) / "model.tflite"), "--runs", str(Path(folder) / "runs")]
        words += [word for setting in settings for word in ("--set", setting)]
        try:
            done = subprocess.run(
                words, capture_output=True, timeout=_DEADLINE_S, check=False,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotSolved(f"{env}, seed {seed}: no end after {_DEADLINE_S:.0f} s") from None
    reports = [_json(line) for line in done.stdout.decode().splitlines()]
    found = [report for report in reports if report and "train_s" in report]
    if not found:
        last = done.stderr.decode(errors="replace").strip().splitlines()
        raise NotSolved(f"{env}, seed {seed}: no result, exit {done.returncode}: {last[-1] if last else 'silent'}")
    kept = {name: value for name, value in found[0].items() if name not in ("model", "run")}
    if output is Format.TEXT:
        shown = "  ".join(f"{name} {_short(kept[name])}" for name in _SHOWN)
        write_line(f"seed {seed}: {shown}")
    return kept


def _json(line: str) -> dict[str, Any] | None:
    try:
        decoded = json.loads(line)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _short(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of `--seeds`.

    Raises:
        UsageError: no whole numbers with commas between, or one that is out of range.
    """
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds {text[:80]!r}: expected numbers with commas, such as 0,1,2") from None
    if any(not 0 <= seed < 2**31 for seed in seeds):
        raise UsageError(f"--seeds {text[:80]!r}: expected numbers in 0..2147483647")
    return seeds
