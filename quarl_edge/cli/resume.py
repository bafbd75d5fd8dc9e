"""Which configuration a run goes on with: its own, but for its budget, its goal, local actors and what it compiles."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quarl_device.environments import names_module
from quarl_device.errors import CheckpointError, UsageError
from quarl_edge.checkpoint import env_steps_of, latest
from quarl_edge.config import TrainConfig
from quarl_edge.configure import parse_setting, read_preset
from quarl_edge.runs import RunDirectory

# What was learned under other settings may not change; where to stop may, and what is made for whom.
_CHANGEABLE = ("steps", "actors", "goal_return", "edge_tpu", "edge_tpu_period_pushes", "edge_tpu_timeout_s")


def resumed_config(
    directory: RunDirectory,
    *,
    env: str,
    algorithm: str,
    preset: str,
    asked: Mapping[str, Any],
    settings: Sequence[str],
) -> TrainConfig:
    """Return the run's configuration with the changes that a resume may make.

    Args:
        directory: of the run.
        env: gymnasium id from the command line, "" without.
        algorithm: from the command line, "" without.
        preset: from the command line, "" without.
        asked: fields that options name.
        settings: of `--set`.

    Raises:
        UsageError: something asked for contradicts the run's config.json; or nothing is left to do, since the budget is
            used up or the goal reached.
        RunNotFound, CheckpointError: the run's configuration is damaged, or it has no checkpoint.
    """
    stored = directory.config
    _check_module(directory.path, stored, env)
    changes: dict[str, Any] = {}
    for said, name, value in _wishes(stored, env, algorithm, preset, asked, settings):
        found = getattr(stored, name)
        if name in _CHANGEABLE:
            if not said.startswith("--preset"):
                changes[name] = value
        elif value != found:
            raise UsageError(
                f"{said} asks for {name} = {_text(value)}, but the run {directory.path} has {name} = {_text(found)}",
                hint="leave it out, or start a new run without --resume",
            )
    config = stored.replace(**changes)
    done = steps_done(directory)
    _check_goal(directory, config, done=done, usual=stored.steps)
    _check_budget(directory.path, config, done=done, asked="steps" in changes, usual=stored.steps)
    return config


def _check_module(path: Path, stored: TrainConfig, env: str) -> None:
    """Refuse to import a module that only a run's files name: they may come from elsewhere, and importing runs it."""
    if names_module(stored.env_id) and not env:
        raise UsageError(
            f"the run {path} trains in {stored.env_id}: a module that a command line must name to be imported",
            hint=f"quarl-edge train {shlex.quote(stored.env_id)} --resume --run {shlex.quote(str(path))}",
        )


def steps_done(directory: RunDirectory) -> int:
    """Return the environment steps of the run's latest checkpoint.

    Raises:
        CheckpointError: it has none.
    """
    checkpoint = latest(directory.checkpoints)
    if checkpoint is None:
        raise CheckpointError(
            f"the run {directory.path} has no checkpoint to resume from",
            hint=f"start a new one: quarl-edge train {directory.config.env_id}",
        )
    return env_steps_of(checkpoint)


def next_budget(done: int, usual: int) -> int:
    """Return a total of steps that leaves something to do after `done`: the next multiple of the `usual` budget."""
    return (done // usual + 1) * usual


def _wishes(
    stored: TrainConfig, env: str, algorithm: str, preset: str, asked: Mapping[str, Any], settings: Sequence[str]
) -> Iterator[tuple[str, str, Any]]:
    """Yield (what was said, field, value) for all that the command line asks for."""
    if env:
        yield f"the argument {env}", "env_id", env
    if algorithm:
        yield f"--algorithm {algorithm}", "algorithm", algorithm
    for name, value in read_preset(preset, stored.algorithm).items() if preset else ():
        yield f"--preset {preset}", name, value
    for name, value in asked.items():
        yield f"--{name.replace('_', '-')}", name, value
    for text in settings:
        name, value = parse_setting(text, type(stored))
        yield f"--set {name}", name, value


def _check_budget(path: Path, config: TrainConfig, *, done: int, asked: bool, usual: int) -> None:
    if config.steps > done:
        return
    budget = f"--steps {config.steps:,} is" if asked else f"its budget of {config.steps:,} is"
    raise UsageError(
        f"the run {path} has done {done:,} steps, and {budget} their total over all sessions: nothing is left to do",
        hint=f"--steps {next_budget(done, usual)}",
    )


def _check_goal(directory: RunDirectory, config: TrainConfig, *, done: int, usual: int) -> None:
    """Refuse a run whose kept policy has reached the goal: it would load for seconds to end at once.

    Lockstep judges what came after its checkpoint again, and ends by itself where it did.
    """
    reached = None if config.lockstep or config.goal_return is None else directory.kept_return()
    if config.goal_return is None or reached is None or reached < config.goal_return:
        return
    raise UsageError(
        f"the run {directory.path} has reached its goal: its policy returns {reached:.1f} of {config.goal_return:g}; "
        "nothing is left to do",
        hint=f"go on beyond it: --set goal_return=none --steps {next_budget(done, usual)}",
    )


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else "none" if value is None else str(value)
