"""`quarl-edge bench learn | actors`: what a gradient step costs, and a step of every environment's actor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from quarl_device.actor.bench import MAX_ENVS
from quarl_device.errors import UsageError
from quarl_edge.algorithms import ALGORITHMS
from quarl_edge.cli.bench_policy import sizes_of
from quarl_edge.cli.interrupts import quit_at_interrupt
from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.configure import algorithm_info
from quarl_edge.extras import require_learner
from quarl_edge.machine import describe_machine
from quarl_edge.progress import EpisodeProgress

_HIDDEN = "256,256"


def learn(
    algorithm: Annotated[
        list[str] | None, typer.Option("--algorithm", help="By default all; may be given often.")
    ] = None,
    hidden: Annotated[str, typer.Option(help="Sizes of the hidden layers of every network, with commas.")] = _HIDDEN,
    batch: Annotated[int, typer.Option(help="Transitions per gradient step.", min=1, max=MAX_ENVS)] = 64,
    rounds: Annotated[int, typer.Option(help="Of 32 gradient steps in each of four ways.", min=1, max=10_000)] = 15,
    pixels: Annotated[
        bool, typer.Option("--pixels", help="Four stacked 84x84 frames, through Mnih et al. 2015's convolutions.")
    ] = False,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Time each algorithm's gradient step: 32 fused in a call beside one a call, with QAT and without, in turns.

    Drawing from replay is not in it. Times are by the clock; CPU times, and the ratios, which are of CPU times, leave
    out what else the machine does. Unfused PPO and A2C see a round of one row per call.

    Examples:
      quarl-edge bench learn
      quarl-edge bench learn --algorithm dqn --algorithm ppo --hidden 64,64 --format json
      quarl-edge bench learn --batch 256 --rounds 50 --format json
      quarl-edge bench learn --pixels --hidden 512 --batch 32 --rounds 2
    """
    sizes = sizes_of(hidden)
    names = list(dict.fromkeys(algorithm_info(name).name for name in algorithm or _seeing(pixels)))
    require_learner("bench")
    rows: list[dict[str, Any]] = []
    with quit_at_interrupt():
        from quarl_edge.bench.learn import update_speed
    with EpisodeProgress(len(names) * rounds, what="rounds") as bar:
        for number, name in enumerate(names):
            bar.stage(f"compiling {name}")
            done = number * rounds
            found = update_speed(
                name,
                hidden=sizes,
                batch=batch,
                rounds=rounds,
                pixels=pixels,
                progress=lambda made, done=done: bar.advance(done + made),  # type: ignore[misc]
            )
            rows += [asdict(row) for row in found]
            if output is Format.TEXT:
                for row in rows[-len(found) :]:
                    write_line(_learn_line(row))
    told = {**_circumstances(), "rounds": rounds}
    if output is Format.JSON:
        write_json({**told, "rows": rows})
    else:
        write_line(_circumstances_line(told))


def actors(
    environments: Annotated[
        list[str] | None, typer.Argument(metavar="[ENV]...", help="By default those of the presets' families.")
    ] = None,
    envs: Annotated[str, typer.Option(help="Environments per actor, with commas.")] = "1,64",
    hidden: Annotated[str, typer.Option(help="Sizes of the policy's hidden layers, with commas.")] = _HIDDEN,
    seconds: Annotated[float, typer.Option(help="Of each measurement.", min=0.1, max=600)] = 3.0,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Step environments in the actor's own loop, with an int8 policy of random weights and without a broker.

    Steps per second are by the clock; the split of a step (environment, inference, recording, encoding) is in µs of
    CPU time. Recording is all the rest of the loop: exploration, rows, checks. An environment that cannot be
    measured, because its extra is missing, say, is a row that says so; exit 0 if at least one was.

    Examples:
      quarl-edge bench actors
      quarl-edge bench actors CartPole-v1 Pendulum-v1 --envs 1,16,64 --format json
      quarl-edge bench actors HalfCheetah-v5 --envs 8 --hidden 64,64 --seconds 10

    A policy file of your own: quarl-device bench model.tflite
    """
    sizes, counts = sizes_of(hidden), _counts(envs)
    require_learner("bench")
    rows: list[dict[str, Any]] = []
    with quit_at_interrupt():
        from quarl_edge.bench.actors import ENVIRONMENTS, ActorBench
    names = list(dict.fromkeys(environments or ENVIRONMENTS))
    bench = ActorBench(hidden=sizes, duration_s=seconds)
    with EpisodeProgress(len(names), what="environments") as bar:
        for number, name in enumerate(names):
            bar.stage(f"stepping {name[:80]}")
            found = bench.rows(name, counts)
            rows += found
            bar.advance(number + 1)
            if output is Format.TEXT:
                for row in found:
                    write_line(_actors_line(row))
    told = _circumstances()
    if output is Format.JSON:
        write_json({**told, "rows": rows})
    else:
        write_line(_circumstances_line(told))
    if len(bench.faults) == len(rows):
        raise bench.faults[0]


def _seeing(pixels: bool) -> list[str]:
    return [name for name, info in ALGORITHMS.items() if info.images or not pixels]


def _counts(text: str) -> list[int]:
    try:
        counts = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--envs {text[:80]!r}: expected numbers with commas, such as 1,64") from None
    if not all(1 <= count <= MAX_ENVS for count in counts):
        raise UsageError(f"--envs {text[:80]!r}: expected numbers of 1..{MAX_ENVS:,}, such as 1,64")
    return counts


def _circumstances() -> dict[str, Any]:
    """Return what figures of time must name."""
    import numpy as np
    import tensorflow as tf

    return {
        "machine": describe_machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "versions": {"tensorflow": tf.__version__, "numpy": np.__version__},
    }


def _circumstances_line(told: Mapping[str, Any]) -> str:
    return f"load average {told['load_average']}; TensorFlow {told['versions']['tensorflow']}; {told['machine']}"


def _learn_line(row: Mapping[str, Any]) -> str:
    against = f", {row['qat_ratio']:.2f} times float's" if row["qat"] else ""
    return (
        f"{row['algorithm']}, {'QAT' if row['qat'] else 'float'}, {_joined(row['hidden'])}, batch {row['batch']}: "
        f"{row['ms_per_update']:.3f} ms an update, unfused {row['ms_per_update_unfused']:.3f}; CPU time "
        f"{row['cpu_ms_per_update']:.3f} ms{against}, unfused {row['unfused_ratio']:.2f} times that"
    )


def _actors_line(row: Mapping[str, Any]) -> str:
    if "error" in row:
        hint = f" ({row['hint']})" if row["hint"] else ""
        return f"{row['env'][:80]} x {row['envs']}: not measured: {row['error']}{hint}"
    split = row["split"]
    return (
        f"{row['env']} x {row['envs']}: {row['steps_per_s']:,.0f} steps/s (bare environment "
        f"{row['bare_env_steps_per_s']:,.0f}); a step in µs of CPU: env {split['env_us']:.2f}, inference "
        f"{split['inference_us']:.2f}, record {split['record_us']:.2f}, encode {split['encode_us']:.2f}; "
        f"{row['exploration']}; {row['runtime']}"
    )


def _joined(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))
