"""`quarl-edge train`: a run with any registered environment of discrete actions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from quarl_device.environments import check_registered
from quarl_device.errors import UsageError
from quarl_device.names import DEFAULT_FLEET, check_name
from quarl_device.paths import config_dir
from quarl_device.wire.keys import LearnerKey
from quarl_edge.cli.output import Format, write_json, write_table
from quarl_edge.config import TrainConfig, make_config
from quarl_edge.extras import require_learner
from quarl_edge.runs import DEFAULT_ROOT, RunDirectory
from quarl_edge.task import look_at


def train(
    env: Annotated[str, typer.Argument(help="A registered gymnasium id, such as CartPole-v1.")] = "",
    algorithm: Annotated[str, typer.Option(help="dqn.")] = "dqn",
    actors: Annotated[int | None, typer.Option(help="Actor processes on this machine; 0: all elsewhere.")] = None,
    envs_per_actor: Annotated[int | None, typer.Option(help="Environments per actor, stepped as one batch.")] = None,
    steps: Annotated[int | None, typer.Option(help="Environment steps allowed.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    broker: Annotated[str, typer.Option(help="'embedded', or mqtt[s]://[user@]host[:port].")] = "embedded",
    fleet: Annotated[str, typer.Option(help="Fleet that this learner serves.")] = DEFAULT_FLEET,
    run: Annotated[Path | None, typer.Option(help="Run directory. Default: a new one under runs/.")] = None,
    preset: Annotated[str, typer.Option(help="Hyperparameters of another environment's preset.")] = "",
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value; may be given often.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue --run from its latest checkpoint.")] = False,
    lockstep: Annotated[
        bool, typer.Option("--lockstep", help="One actor, bit-identical on repeat and resume.")
    ] = False,
    takeover: Annotated[bool, typer.Option("--takeover", help="Serve the fleet even if another learner does.")] = False,
    password_file: Annotated[Path | None, typer.Option(help="Broker password; else QUARL_MQTT_PASSWORD.")] = None,
    learner_key: Annotated[Path | None, typer.Option(help="Signing key; made at first use.")] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Train a policy: the learner here, int8 actors here or on your boards.

    Examples:
      quarl-edge train CartPole-v1
      quarl-edge train Acrobot-v1 --actors 2 --steps 100000 --seed 3
      quarl-edge train CartPole-v1 --actors 1 --envs-per-actor 16 --set hidden=64,64
      quarl-edge train CartPole-v1 --broker mqtt://learner@192.168.1.10 --actors 0
      quarl-edge train --resume --run runs/CartPole-v1-dqn-20260101T120000Z-s0
    """
    require_learner("train")
    check_name(fleet, kind="fleet")
    asked: dict[str, Any] = {"actors": actors, "envs_per_actor": envs_per_actor, "steps": steps, "seed": seed}
    asked = {name: value for name, value in asked.items() if value is not None}
    if lockstep:
        asked = {"actors": 1, **asked, "lockstep": True}
    config, directory = (
        _resumed(run, env, asked, settings) if resume else _fresh(run, env, algorithm, preset, asked, settings)
    )
    from quarl_device.link import read_password
    from quarl_edge.learner.stop import StopSignal
    from quarl_edge.local.training import run_training
    from quarl_edge.progress import make_progress

    key = LearnerKey.load_or_create(learner_key or config_dir() / "learner.key")
    progress = make_progress()
    try:
        progress.note(f"run {directory.path}")
        with StopSignal() as stop:
            result = run_training(
                config,
                directory,
                broker=broker,
                fleet=fleet,
                key=key,
                progress=progress,
                stop=stop,
                password=read_password(password_file),
                takeover=takeover,
                resume=resume,
            )
    finally:
        progress.close()
    _report(config, directory, result, output)


def _fresh(
    run: Path | None, env: str, algorithm: str, preset: str, asked: dict[str, Any], settings: list[str] | None
) -> tuple[TrainConfig, RunDirectory]:
    if not env:
        raise UsageError("which environment?", hint="quarl-edge train CartPole-v1")
    check_registered(env)
    config = make_config(env, algorithm=algorithm, preset=preset or None, asked=asked, settings=settings or [])
    look_at(config)
    directory = RunDirectory.create(config, path=run, root=DEFAULT_ROOT)
    return config, directory


def _resumed(
    run: Path | None, env: str, asked: dict[str, Any], settings: list[str] | None
) -> tuple[TrainConfig, RunDirectory]:
    if run is None:
        raise UsageError("--resume needs the run to continue", hint="add --run runs/NAME")
    if settings:
        raise UsageError("--set cannot change a run that is resumed", hint="start a new run without --resume")
    directory = RunDirectory.open(run)
    config = directory.config
    if env and env != config.env_id:
        raise UsageError(f"{run} trains {config.env_id}, not {env}")
    # The budget and the number of actors may change; what was learned under other settings may not.
    allowed = {name: asked[name] for name in ("steps", "actors") if name in asked}
    refused = [name for name in asked if name not in allowed and asked[name] != getattr(config, name)]
    if refused:
        raise UsageError(f"--{refused[0].replace('_', '-')} cannot change in a run that is resumed")
    return config.replace(**allowed), directory


def _report(config: TrainConfig, directory: RunDirectory, result: Any, output: Format) -> None:
    best = result.best
    if output is Format.JSON:
        write_json(
            {
                "run": str(directory.path),
                "env": config.env_id,
                "algorithm": config.algorithm,
                "seed": config.seed,
                "reason": result.reason.value,
                "env_steps": result.env_steps,
                "updates": result.updates,
                "pushes": result.pushes,
                "train_s": result.train_s,
                "prepare_ms_p50": result.prepare_ms_p50,
                "push_ms_p50": result.push_ms_p50,
                "samples_per_insert": result.samples_per_insert,
                "int8_return_mean": None if best is None else best.result.return_mean,
                "best_env_steps": None if best is None else best.env_steps,
                "runtime": None if best is None else best.result.runtime,
                "audited": result.audited,
                "audit_failures": result.audit_failures,
            }
        )
        return
    judged = "none yet" if best is None else f"{best.result.return_mean:.1f} at {best.env_steps:,} steps (int8 file)"
    rows = [
        ("ended", result.reason.value),
        ("best return", judged),
        ("env steps", f"{result.env_steps:,}"),
        ("updates", f"{result.updates:,}"),
        ("pushes", f"{result.pushes}"),
        ("time", f"{result.train_s:.1f} s"),
    ]
    following = [f"quarl-edge train --resume --run {directory.path} --steps {2 * config.steps}"]
    if best is not None:
        following.insert(0, f"quarl-edge export model.tflite --from {directory.path}")
    write_table(f"{config.env_id} · {config.algorithm} · seed {config.seed}", rows, following)
