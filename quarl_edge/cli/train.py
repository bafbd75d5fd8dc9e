"""`quarl-edge train`: a run with any registered environment of discrete actions."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from quarl_device.environments import check_registered, names_module
from quarl_device.errors import KeyFileError, UsageError
from quarl_device.link import BrokerURL, read_password
from quarl_device.link.credentials import Credentials, find_credentials, told_apart
from quarl_device.names import DEFAULT_FLEET, check_name
from quarl_device.paths import config_dir
from quarl_device.wire.keys import LearnerKey
from quarl_edge.algorithms import ALGORITHMS
from quarl_edge.cli.interrupts import quit_at_interrupt
from quarl_edge.cli.output import Format, hint_where_none, write_json, write_table
from quarl_edge.cli.resume import next_budget, resumed_config
from quarl_edge.cli.summary import audit_rows, edge_tpu_rows, refused_rows, selection
from quarl_edge.cli.sweep import SeedRun, left_by_seed, note_unfinished, parse_seeds, show_sweep, sweep
from quarl_edge.config import TrainConfig
from quarl_edge.configure import make_config
from quarl_edge.extras import require_learner, require_metrics
from quarl_edge.flow.lag import LagBound
from quarl_edge.learner.result import StopReason, TrainResult
from quarl_edge.learner.stop import StopSignal
from quarl_edge.local.access import Login, local_credentials
from quarl_edge.progress import make_progress
from quarl_edge.runs import DEFAULT_ROOT, RunDirectory
from quarl_edge.session_log import check_idle
from quarl_edge.task import EMBEDDED_BROKER, check_company, look_at


def train(
    env: Annotated[str, typer.Argument(help="A gymnasium id, such as CartPole-v1 or my_module:MyEnv-v0.")] = "",
    wrappers: Annotated[
        list[str] | None,
        typer.Option("--wrapper", help="Of gymnasium, such as 'TimeLimit(max_episode_steps=200)'; may be given often."),
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help=f"{', '.join(ALGORITHMS)}; by default the first that has a preset for the environment.")
    ] = "",
    actors: Annotated[int | None, typer.Option(help="Actor processes here; 0: all elsewhere, with --broker.")] = None,
    envs_per_actor: Annotated[int | None, typer.Option(help="Environments per actor, stepped as one batch.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Total of environment steps over all sessions of a run, also with --resume.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    seeds: Annotated[str, typer.Option(help="One run after the other for each: '0-4' or '0,1,2'.")] = "",
    broker: Annotated[str, typer.Option(help="'embedded', or mqtt[s]://[user@]host[:port].")] = "embedded",
    fleet: Annotated[str, typer.Option(help="Fleet that this learner serves. Default: 'default'.")] = "",
    run: Annotated[Path | None, typer.Option(help="Run directory. Default: a new one under runs/.")] = None,
    preset: Annotated[str, typer.Option(help="Hyperparameters of another environment's preset.")] = "",
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value; may be given often.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue --run, or what --seeds left, from the latest checkpoint.")
    ] = False,
    lockstep: Annotated[
        bool, typer.Option("--lockstep", help="One actor, bit-identical on repeat and resume.")
    ] = False,
    takeover: Annotated[bool, typer.Option("--takeover", help="Serve the fleet even if another learner does.")] = False,
    password_file: Annotated[Path | None, typer.Option(help="Broker password; else QUARL_MQTT_PASSWORD.")] = None,
    credentials: Annotated[
        Path | None, typer.Option(help="Of the learner, from `broker init`; else QUARL_CREDENTIALS.")
    ] = None,
    actor_credentials: Annotated[
        Path | None, typer.Option(help="Directory with a directory of credentials per local actor.")
    ] = None,
    learner_key: Annotated[Path | None, typer.Option(help="Signing key; made at first use.")] = None,
    edge_tpu: Annotated[
        bool,
        typer.Option("--edge-tpu", help="Compile every 20th push (--set edge_tpu_period_pushes=N) for Coral actors."),
    ] = False,
    edge_tpu_required: Annotated[
        bool, typer.Option("--edge-tpu-required", help="--edge-tpu, and an error where its compiler is not here.")
    ] = False,
    max_policy_lag: Annotated[
        str, typer.Option(help="Refuse older experience: '10' versions, '20000 steps', '30 s'. Default: none.")
    ] = "",
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve /metrics for Prometheus; 0: a free port.", min=0, max=65_535)
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address for /metrics.")] = "127.0.0.1",
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Train a policy: the learner here, int8 actors here or on your boards.

    Examples:
      quarl-edge train CartPole-v1
      quarl-edge train Acrobot-v1 --actors 2 --steps 100000 --seed 3
      quarl-edge train CartPole-v1 --seeds 0-4
      quarl-edge train CartPole-v1 --seeds 0-4 --resume
      quarl-edge train CartPole-v1 --actors 1 --envs-per-actor 16 --set hidden=64,64
      quarl-edge train my_module:MyEnv-v0 --algorithm ppo
      quarl-edge train my_module:Arm --algorithm d4pg --wrapper 'TimeLimit(max_episode_steps=200)'
      quarl-edge train CartPole-v1 --broker mqtt://learner@192.168.1.10 --actors 0
      quarl-edge train CartPole-v1 --credentials broker/clients/learner --actors 0
      quarl-edge train CartPole-v1 --broker mqtt://localhost --max-policy-lag '30 s' --metrics-port 9464
      quarl-edge train CartPole-v1 --credentials broker/clients/learner --actors 0 --edge-tpu
      quarl-edge train --resume --run runs/CartPole-v1-dqn-20260101T120000Z-s0 --steps 100000
    """
    started_s = time.monotonic()
    require_learner("train")
    if metrics_port is not None:
        require_metrics()
    if fleet:
        check_name(fleet, kind="fleet")
    asked: dict[str, Any] = {"actors": actors, "envs_per_actor": envs_per_actor, "steps": steps, "seed": seed}
    asked |= _lag_bound(max_policy_lag) | {"wrappers": tuple(wrappers) if wrappers else None}
    asked |= _edge_tpu(edge_tpu, required=edge_tpu_required)
    swept = _seeds(seeds, seed=seed, run=run, settings=settings or ())
    asked = {name: value for name, value in asked.items() if value is not None}
    if lockstep:
        asked = {"actors": 1, **asked, "lockstep": True}
    wishes = _Wishes(env=env, algorithm=algorithm, preset=preset, asked=asked, settings=tuple(settings or ()))
    config = _resumed(run, wishes) if resume and not swept else _fresh(run, wishes)
    access = _access(
        config,
        broker=broker,
        fleet=fleet,
        held=_learner_credentials(credentials),
        password_file=password_file,
        actor_credentials=actor_credentials,
        learner_key=learner_key,
        takeover=takeover,
        metrics=None if metrics_port is None else (metrics_host, metrics_port),
    )
    if swept:
        _sweep(config, swept, access, output, resume=resume)
        return
    words = _words(
        {
            "--broker": "" if broker == EMBEDDED_BROKER else broker,
            "--fleet": fleet,
            "--credentials": credentials,
            "--actor-credentials": actor_credentials,
            "--password-file": password_file,
            "--learner-key": learner_key,
        }
    )
    directory = RunDirectory(run) if resume and run else RunDirectory.create(config, path=run, root=DEFAULT_ROOT)
    with contextlib.nullcontext() if resume else directory.kept_if_begun():
        result = _run(config, directory, access, resume=resume)
    kept = result.resumable or resume or not directory.discard_if_untouched()
    wall_s = time.monotonic() - started_s
    if output is Format.JSON:
        write_json({**_summary(config, directory, result, wall_s=wall_s), "kept": kept})
    else:
        _show(config, directory, result, wall_s=wall_s, words=words, kept=kept)


@dataclass(frozen=True, kw_only=True)
class _Wishes:
    """What the command line says about hyperparameters; "" and empty where it says nothing."""

    env: str
    algorithm: str
    preset: str
    asked: Mapping[str, Any]
    settings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Access:
    """How the learner meets its actors; see `run_training`."""

    broker: str
    fleet: str
    key: LearnerKey
    login: Login
    takeover: bool
    metrics: tuple[str, int] | None


def _access(
    config: TrainConfig,
    *,
    broker: str,
    fleet: str,
    held: Credentials | None,
    password_file: Path | None,
    actor_credentials: Path | None,
    learner_key: Path | None,
    takeover: bool,
    metrics: tuple[str, int] | None,
) -> _Access:
    """Put together what options and credentials say, and refuse at once what cannot work."""
    if held is not None:
        broker = str(held.broker_or("" if broker == EMBEDDED_BROKER else broker))
        fleet = held.fleet_or(fleet, default=DEFAULT_FLEET)
    fleet = check_name(fleet or DEFAULT_FLEET, kind="fleet")
    check_company(config, broker)
    if broker != EMBEDDED_BROKER:
        BrokerURL.parse(broker)
    password = None if held is not None else read_password(password_file)
    if held is not None:
        local_credentials(actor_credentials, config.actors, fleet=fleet)
    return _Access(
        broker=broker,
        fleet=fleet,
        key=find_learner_key(learner_key or (held.signing_key if held is not None else None)),
        login=Login(password=password, credentials=held, actor_credentials=actor_credentials),
        takeover=takeover,
        metrics=metrics,
    )


def _words(given: Mapping[str, str | Path | None]) -> tuple[str, ...]:
    """Return options as a command line has them, without those that were not given."""
    return tuple(word for name, value in given.items() if value for word in (name, str(value)))


def _lag_bound(text: str) -> dict[str, Any]:
    """Return `--max-policy-lag` as hyperparameters."""
    if not text:
        return {}
    bound = LagBound.parse(text)
    return {"max_lag_versions": bound.versions, "max_lag_steps": bound.steps, "max_lag_s": bound.age_s}


def _edge_tpu(wanted: bool, *, required: bool) -> dict[str, Any]:
    """Return `--edge-tpu` as a hyperparameter; where the compiler is required and not here, that is an error."""
    if required:
        from quarl_export.edgetpu import require_compiler

        require_compiler()
    return {"edge_tpu": True} if wanted or required else {}


def _fresh(run: Path | None, wishes: _Wishes) -> TrainConfig:
    if not wishes.env:
        raise UsageError("which environment?", hint="quarl-edge train CartPole-v1")
    check_registered(wishes.env, allow_module=True)
    config = make_config(
        wishes.env,
        algorithm=wishes.algorithm,
        preset=wishes.preset or None,
        asked=wishes.asked,
        settings=wishes.settings,
    )
    look_at(config)
    return config


def _resumed(run: Path | None, wishes: _Wishes) -> TrainConfig:
    if run is None:
        raise UsageError("--resume needs the run to continue", hint="add --run runs/NAME")
    directory = RunDirectory.open(run)
    directory.check_writable()
    check_idle(directory.sessions)
    return resumed_config(
        directory,
        env=wishes.env,
        algorithm=wishes.algorithm,
        preset=wishes.preset,
        asked=wishes.asked,
        settings=wishes.settings,
    )


def find_learner_key(file: Path | None) -> LearnerKey:
    """Return the signing key in `file`, by default this user's own; made where there is none."""
    try:
        path = file or config_dir() / "learner.key"
    except RuntimeError:
        raise KeyFileError("no home directory to keep the learner's key in", hint="--learner-key FILE") from None
    with hint_where_none("another place for the key: --learner-key FILE", KeyFileError):
        return LearnerKey.load_or_create(path)


def _learner_credentials(folder: Path | None) -> Credentials | None:
    held = find_credentials(folder)
    if held is not None and held.role != "learner":
        raise UsageError(
            f"{held.name!r} is enrolled as a {held.role}, not as a learner",
            hint="the credentials of `quarl-edge broker init`, or: quarl-edge enroll NAME --role learner",
        )
    return held


def _seeds(text: str, *, seed: int | None, run: Path | None, settings: Sequence[str]) -> tuple[int, ...]:
    """Return what `--seeds` says, nothing without, and refuse what does not go with it."""
    if not text:
        return ()
    named = any(setting.partition("=")[0].strip() == "seed" for setting in settings)
    for option, given in (("--seed", seed is not None), ("--set seed", named), ("--run", run)):
        if given:
            raise UsageError(
                f"{option} does not go with --seeds, which has a run for each of them",
                hint="leave one of them out",
            )
    return parse_seeds(text)


def _sweep(config: TrainConfig, seeds: Sequence[int], access: _Access, output: Format, *, resume: bool) -> None:
    left = left_by_seed(config, seeds, DEFAULT_ROOT)
    if not resume:
        note_unfinished(left)
    with StopSignal() as stop:
        done = sweep(
            config,
            seeds,
            make=lambda mine: RunDirectory.create(mine, root=DEFAULT_ROOT),
            train=lambda mine, directory, goes_on: _train(mine, directory, access, stop, resume=goes_on),
            stopped=lambda: stop.requested,
            left=left if resume else {},
        )

    def summary(run: SeedRun, result: TrainResult) -> dict[str, Any]:
        return _summary(run.config, run.directory, result, wall_s=run.wall_s)

    show_sweep(done, len(seeds), output, summary)


def _run(config: TrainConfig, directory: RunDirectory, access: _Access, *, resume: bool) -> TrainResult:
    with quit_at_interrupt():
        import quarl_edge.local.training  # noqa: F401 - seconds, in which an interrupt has nothing to end cleanly

    with StopSignal() as stop:
        return _train(config, directory, access, stop, resume=resume)


def _train(
    config: TrainConfig, directory: RunDirectory, access: _Access, stop: StopSignal, *, resume: bool
) -> TrainResult:
    from quarl_edge.local.training import run_training

    progress = make_progress()
    try:
        progress.note(f"run {directory.path}")
        url = BrokerURL.parse(access.broker) if access.login.credentials is not None else None
        with told_apart(access.login.credentials, url):
            return run_training(
                config,
                directory,
                broker=access.broker,
                fleet=access.fleet,
                key=access.key,
                progress=progress,
                stop=stop,
                login=access.login,
                takeover=access.takeover,
                resume=resume,
                metrics_at=access.metrics,
            )
    finally:
        progress.close()


def _summary(config: TrainConfig, directory: RunDirectory, result: TrainResult, *, wall_s: float) -> dict[str, Any]:
    best = result.best
    return {
        "run": str(directory.path),
        "env": config.env_id,
        "algorithm": config.algorithm,
        "seed": config.seed,
        "reason": result.reason.value,
        "env_steps": result.env_steps,
        "session_env_steps": result.session_env_steps,
        "updates": result.updates,
        "session_updates": result.session_updates,
        "pushes": result.pushes,
        "pushes_held_back": result.pushes_held_back,
        "train_s": result.train_s,
        "wall_s": wall_s,
        "prepare_ms_p50": result.prepare_ms_p50,
        "push_ms_p50": result.push_ms_p50,
        "samples_per_insert": result.samples_per_insert,
        "int8_return_mean": None if best is None else best.result.return_mean,
        "best_env_steps": None if best is None else best.env_steps,
        "judgements": result.judgements,
        "last_return_mean": result.last_return_mean,
        "runtime": None if best is None else best.result.runtime,
        "audited": result.audited,
        "audit_failures": result.audit_failures,
        "conversion_reason": result.conversion_reason,
        "refused": result.ingest_refused,
        "edge_tpu": None if result.edge_tpu is None else dataclasses.asdict(result.edge_tpu),
        "resumable": result.resumable,
    }


def _show(
    config: TrainConfig,
    directory: RunDirectory,
    result: TrainResult,
    *,
    wall_s: float,
    words: Sequence[str] = (),
    kept: bool = True,
) -> None:
    following = []
    if result.best is not None:
        following.append(f"quarl-edge export model.tflite --from {directory.path}")
    if result.resumable:
        steps = next_budget(result.env_steps, config.steps)
        # A run that has reached its goal goes on only where it has none.
        beyond = " --set goal_return=none" if result.reason is StopReason.SOLVED else ""
        # A module is imported only where the command line names it.
        own = f"{config.env_id} " if names_module(config.env_id) else ""
        met = f" {shlex.join(words)}" if words else ""
        following.append(f"quarl-edge train {own}--resume --run {directory.path} --steps {steps}{beyond}{met}")
    rows = _rows(config, result, wall_s=wall_s)
    if not kept:
        rows.append(("run", "removed: it ended before its first checkpoint, with nothing stored"))
    write_table(f"{config.env_id} · {config.algorithm} · seed {config.seed}", rows, following)


def _rows(config: TrainConfig, result: TrainResult, *, wall_s: float) -> list[tuple[str, str]]:
    best, before = result.best, result.env_steps - result.session_env_steps
    rows = [("ended", result.reason.value)]
    if best is None:
        rows.append(("int8 return", "none yet"))
    else:
        chosen = selection(
            result.judgements,
            config.evaluate_episodes,
            result.last_return_mean,
            earlier=not result.judgements or best.env_steps < before,
        )
        rows.append(("int8 return", f"{best.result.return_mean:.1f} at {best.env_steps:,} steps"))
        rows.append(("chosen as", chosen))
    session = (
        f"{result.session_env_steps:,} env steps, {result.session_updates:,} updates, {result.pushes:,} pushes, "
        f"{result.train_s:.1f} s"
    )
    rows.append(("this session", session))
    rows.append(("total time", f"{wall_s:.1f} s, with set-up and judging"))
    rows.append(("whole run", f"{result.env_steps:,} env steps, {result.updates:,} updates"))
    rows += audit_rows(result.audited, result.audit_failures, result.conversion_reason)
    return [*rows, *edge_tpu_rows(result.edge_tpu), *refused_rows(result.ingest_refused)]
