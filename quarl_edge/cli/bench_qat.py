"""`quarl-edge bench qat`: what each option of quantization-aware training is worth, by whole runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from quarl_device.environments import check_registered
from quarl_device.errors import UsageError
from quarl_edge.cli.demo import DEMO_ENV
from quarl_edge.cli.interrupts import quit_at_interrupt
from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.cli.sweep import parse_seeds
from quarl_edge.configure import make_config
from quarl_edge.extras import require_learner
from quarl_edge.machine import describe_machine


def qat(
    env: Annotated[str, typer.Argument(help="An environment whose preset names a goal.")] = DEMO_ENV,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0,1,2",
    only: Annotated[list[str] | None, typer.Option(help="A variant's name; may be given often.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, of every variant.")] = None,
    episodes: Annotated[int, typer.Option(help="Greedy episodes per set of starts.", min=1, max=10_000)] = 100,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Train with each option of quantization-aware training, and judge the files: bits, heads, centring.

    Runs are in lockstep: their returns and steps depend on the seeds alone, their times on the machine.

    Examples:
      quarl-edge bench qat --only base --only '4 bits' --seeds 0
      quarl-edge bench qat Acrobot-v1 --seeds 0,1,2 --format json
    """
    require_learner("bench")
    check_registered(env)
    chosen = parse_seeds(seeds)
    if make_config(env, settings=settings or []).goal_return is None:
        raise UsageError(f"{env} has no goal to reach", hint="name one: --set goal_return=NUMBER")
    with quit_at_interrupt():
        from quarl_edge.bench.qat import QAT_VARIANTS, summarize, train_variant

    unknown = sorted(set(only or ()) - set(QAT_VARIANTS))
    if unknown:
        raise UsageError(f"--only {unknown[0][:80]!r} is no variant", hint=f"there are {', '.join(QAT_VARIANTS)}")
    rows: list[dict[str, Any]] = []
    for variant in (name for name in QAT_VARIANTS if not only or name in only):
        for seed in chosen:
            rows.append(train_variant(env, variant, seed=seed, settings=settings or [], episodes=episodes))
            if output is Format.TEXT:
                write_line(_line(rows[-1]))
    if output is Format.JSON:
        write_json(
            {
                "env": env,
                "settings": settings or [],
                "episodes": episodes,
                "fresh_seeds_from": make_config(env, settings=settings or []).fresh_seed,
                "runtime": _runtime(rows),
                "machine": describe_machine(),
                "summary": summarize(rows),
                "runs": rows,
            }
        )
        return
    for found in summarize(rows):
        write_line(
            f"{found['variant']}: {found['solved']} of {found['seeds']} solved, {found['env_steps_median']:,.0f} steps "
            f"median, fresh starts {found['file_fresh_return_mean_mean']:.1f} (float "
            f"{found['float_fresh_return_mean_mean']:.1f}), {found['agreement_mean']:.1%} of actions as float's"
        )
    write_line(f"{_runtime(rows)}; {describe_machine()}")


def _runtime(rows: Sequence[Mapping[str, Any]]) -> str:
    return next((str(row["runtime"]) for row in rows if "runtime" in row), "")


def _line(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return f"{row['variant']}, seed {row['seed']}: {row['error']}"
    return (
        f"{row['variant']}, seed {row['seed']}: {'solved' if row['solved'] else 'not solved'} at "
        f"{row['env_steps']:,} steps, {row['train_s']:.0f} s; fresh starts {row['file_fresh_return_mean']:.1f} "
        f"(float {row['float_fresh_return_mean']:.1f}), {row['agreement']:.1%} of actions as float's"
    )
