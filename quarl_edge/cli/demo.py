"""`quarl-edge demo`: the whole loop on this machine, CartPole solved by an int8 file, in seconds."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from quarl_device.environments import check_registered
from quarl_device.errors import NotSolved, UsageError
from quarl_device.files import check_target
from quarl_device.wire.keys import LearnerKey
from quarl_edge.cli.interrupts import quit_at_interrupt
from quarl_edge.cli.output import Format, write_json, write_table
from quarl_edge.cli.summary import audit_rows, milliseconds, selection
from quarl_edge.config import TrainConfig
from quarl_edge.configure import make_config
from quarl_edge.extras import require_learner
from quarl_edge.learner.result import StopReason, TrainResult
from quarl_edge.machine import describe_machine
from quarl_edge.progress import make_progress
from quarl_edge.runs import DEFAULT_ROOT, RunDirectory
from quarl_edge.task import EMBEDDED_BROKER, check_company, look_at

DEMO_ENV = "CartPole-v1"


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """What the demo measured; its fields are the keys of `--format json`.

    Attributes:
        env: gymnasium id.
        algorithm: "dqn".
        seed: of everything random.
        solved: whether the exported int8 file reached the goal, on the starts of judgements and on those that confirm.
        wall_s: the whole command, set-up and judging included.
        train_s: first push, before the first environment step, to the last update, everything included.
        env_steps: environment steps stored in replay.
        updates: gradient steps.
        updates_per_s: over `train_s`.
        actor_steps_per_s: environment steps over `train_s`, both actors together, held back by the limiter.
        pushes: policies published.
        audited: pushes compared with a real conversion.
        audit_failures: of these, how many differed.
        conversion_reason: why pushes were converted; "" where they were patched.
        push_ms_p50: variables read to verified, self-tested and ready for an actor's next step.
        prepare_ms_p50: variables read to signed bytes, the learner's part of the push.
        int8_return_mean: greedy, of the exported file.
        float_return_mean: greedy, of the same weights unquantized, in the same runtime, on the same start seeds.
        confirmation_return_mean: of the same file as it was pushed, on the starts that confirm a goal that was reached;
            `None` where none was.
        fresh_return_mean: of the exported file on start seeds that no judgement of this run has seen.
        judgements: of int8 files while training; the exported file is the best of them, on the same start seeds.
        last_return_mean: of the last judgement, which need not be the best.
        episodes: of each of these means.
        episode_seed: first of the start seeds.
        goal_return: what counts as solved.
        policy_bytes: size of the int8 file.
        float_bytes: size of the float file.
        act_us_p50: observation in, action out, in the exported file.
        runtime: that all returns and latencies are from.
        machine: that all of it ran on.
        model: the exported file.
        run: the run's directory.
    """

    env: str
    algorithm: str
    seed: int
    solved: bool
    wall_s: float
    train_s: float
    env_steps: int
    updates: int
    updates_per_s: float
    actor_steps_per_s: float
    pushes: int
    audited: int
    audit_failures: int
    conversion_reason: str
    push_ms_p50: float | None
    prepare_ms_p50: float | None
    int8_return_mean: float
    float_return_mean: float
    confirmation_return_mean: float | None
    fresh_return_mean: float
    judgements: int
    last_return_mean: float | None
    episodes: int
    episode_seed: int
    goal_return: float
    policy_bytes: int
    float_bytes: int
    act_us_p50: float
    runtime: str
    machine: str
    model: str
    run: str


def demo(
    env: Annotated[str, typer.Option(help="Another environment whose preset names a goal.")] = DEMO_ENV,
    model: Annotated[Path, typer.Option("--out", help="Where to write the solved policy.")] = Path("model.tflite"),
    seed: Annotated[int, typer.Option(help="Of everything random.", min=0, max=2**31 - 1)] = 0,
    actors: Annotated[int, typer.Option(help="Actor processes.", min=1, max=16)] = 2,
    steps: Annotated[int | None, typer.Option(help="Give up after so many environment steps.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value; may be given often.")] = None,
    runs: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_ROOT,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Train int8 actors over MQTT until CartPole is solved, and write model.tflite.

    Starts an embedded broker, a TensorFlow learner and two TensorFlow-free actor processes on this machine. Ends well
    only if the exported int8 file reaches a greedy mean of 475 over 20 episodes.

    Examples:
      quarl-edge demo
      quarl-edge demo --seed 3 --out cartpole.tflite --format json
    """
    started = time.monotonic()
    require_learner("demo")
    check_target(model)
    check_registered(env)
    asked = {"seed": seed, "actors": actors, "steps": steps}
    config = make_config(env, asked={k: v for k, v in asked.items() if v is not None}, settings=settings or [])
    if config.goal_return is None:
        raise UsageError(f"{env} has no goal to reach", hint="name one: --set goal_return=NUMBER")
    check_company(config, EMBEDDED_BROKER)
    look_at(config)
    report, reason = _run(config, runs, model, started)
    _show(report, output)
    if not report.solved:
        raise NotSolved(
            f"{env} was not solved: the int8 file reached {report.int8_return_mean:.1f} of {report.goal_return:g} "
            f"in {report.env_steps:,} steps ({reason})",
            hint="another --seed, or more --steps",
        )


def _run(config: TrainConfig, runs: Path, model: Path, started: float) -> tuple[DemoReport, str]:
    """Train, export and judge; returns the report and why training ended."""
    with quit_at_interrupt():
        from quarl_edge.learner.stop import StopSignal
        from quarl_edge.local.training import run_training

    directory = RunDirectory.create(config, root=runs)
    progress = make_progress()
    try:
        progress.note(
            f"{config.env_id}, seed {config.seed}: an embedded broker, a learner and {config.actors} actors; "
            f"run {directory.path}"
        )
        with StopSignal() as stop, directory.kept_if_begun():
            result = run_training(
                config,
                directory,
                broker=EMBEDDED_BROKER,
                fleet="demo",
                # Made for this run alone: the user's own key signs nothing in a demo.
                key=LearnerKey.generate(),
                progress=progress,
                stop=stop,
            )
        if result.best is None:
            raise NotSolved(f"ended ({result.reason.value}) before the first policy was judged")
        progress.note("exporting and judging the file")
        return _judge(config, directory, result, model, started), result.reason.value
    finally:
        progress.close()


def _judge(
    config: TrainConfig, directory: RunDirectory, result: TrainResult, model: Path, started: float
) -> DemoReport:
    from quarl_device.evaluate import evaluate
    from quarl_device.policy_file import read_policy, read_policy_path
    from quarl_export.export import export_policy, float_policy

    # `demo` has refused a configuration without one.
    goal = math.inf if config.goal_return is None else config.goal_return
    exported = export_policy(directory.policy, model)
    file = read_policy_path(model)
    episodes, seed = config.evaluate_episodes, config.evaluate_seed
    int8 = evaluate(file, episodes=episodes, seed=seed)
    fresh = evaluate(file, episodes=episodes, seed=config.fresh_seed)
    float_file = read_policy(float_policy(directory.policy))
    unquantized = evaluate(float_file, episodes=episodes, seed=seed)
    return DemoReport(
        env=config.env_id,
        algorithm=config.algorithm,
        seed=config.seed,
        solved=result.reason is StopReason.SOLVED and int8.return_mean >= goal,
        wall_s=time.monotonic() - started,
        train_s=result.train_s,
        env_steps=result.env_steps,
        updates=result.updates,
        updates_per_s=result.updates / max(result.train_s, 1e-9),
        actor_steps_per_s=result.actor_steps_per_s,
        pushes=result.pushes,
        audited=result.audited,
        audit_failures=result.audit_failures,
        conversion_reason=result.conversion_reason,
        push_ms_p50=result.push_ms_p50,
        prepare_ms_p50=result.prepare_ms_p50,
        int8_return_mean=int8.return_mean,
        float_return_mean=unquantized.return_mean,
        confirmation_return_mean=_confirmation(result),
        fresh_return_mean=fresh.return_mean,
        judgements=result.judgements,
        last_return_mean=result.last_return_mean,
        episodes=episodes,
        episode_seed=seed,
        goal_return=goal,
        policy_bytes=exported.bytes,
        float_bytes=len(float_file.data),
        act_us_p50=int8.act_us_p50,
        runtime=int8.runtime,
        machine=describe_machine(),
        model=str(model),
        run=str(directory.path),
    )


def _confirmation(result: TrainResult) -> float | None:
    confirmation = None if result.best is None else result.best.confirmation
    return None if confirmation is None else confirmation.return_mean


def _show(report: DemoReport, output: Format) -> None:
    if output is Format.JSON:
        write_json(asdict(report))
        return
    following = [
        f"quarl-edge evaluate {report.model} --episodes 100",
        f"tensorboard --logdir {report.run}/tb",
        "quarl-edge train Acrobot-v1",
        "quarl-device run --help     (an actor on a Raspberry Pi)",
    ]
    write_table(f"{report.env} · {report.algorithm} · seed {report.seed} · {report.model}", _rows(report), following)


def _rows(report: DemoReport) -> list[tuple[str, str]]:
    seeds = f"{report.episodes} greedy episodes, start seeds {report.episode_seed}.."
    ready, made = milliseconds(report.push_ms_p50), milliseconds(report.prepare_ms_p50)
    return [
        ("solved", "yes" if report.solved else "no"),
        ("int8 return", f"{report.int8_return_mean:.1f}  ({seeds}; goal {report.goal_return:g})"),
        ("chosen as", selection(report.judgements, report.episodes, report.last_return_mean)),
        *_confirmed(report),
        ("float return", f"{report.float_return_mean:.1f}  (same weights unquantized, same starts)"),
        ("int8, fresh starts", f"{report.fresh_return_mean:.1f}  (start seeds that nothing of the run has seen)"),
        ("training", f"{report.train_s:.1f} s  ({report.wall_s:.1f} s with set-up and judging)"),
        ("env steps", f"{report.env_steps:,}  ({report.actor_steps_per_s:,.0f}/s, held back by the replay limiter)"),
        ("updates", f"{report.updates:,}  ({report.updates_per_s:,.0f}/s)"),
        ("pushes", f"{report.pushes}  ({ready} p50 to ready on an actor, {made} in the learner)"),
        *audit_rows(report.audited, report.audit_failures, report.conversion_reason),
        ("file", f"{report.policy_bytes:,} bytes int8, {report.float_bytes:,} bytes float"),
        ("act", f"{report.act_us_p50:.1f} µs p50, observation in, action out"),
        ("runtime", report.runtime),
        ("machine", report.machine),
    ]


def _confirmed(report: DemoReport) -> list[tuple[str, str]]:
    if report.confirmation_return_mean is None:
        return []
    return [("confirmed by", f"{report.confirmation_return_mean:.1f}  (as many other starts, before training ended)")]
