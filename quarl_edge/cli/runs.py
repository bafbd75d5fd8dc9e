"""`quarl-edge runs`: what was trained, and how runs differ."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quarl_device.errors import UsageError
from quarl_edge.cli.output import Format, keep_examples, write_grid, write_json, write_line
from quarl_edge.run_view import (
    RunView,
    differences_from_preset,
    differing_settings,
    find_run,
    list_runs,
    look_at_run,
)
from quarl_edge.runs import DEFAULT_ROOT
from quarl_edge.session_log import RunState

MAX_COMPARED = 32
_SHOWN_JUDGEMENTS = 10
_NONE = "-"

runs = typer.Typer(help="List, show and compare runs.", no_args_is_help=True, rich_markup_mode=None)
_Root = Annotated[Path, typer.Option("--runs", help="Where runs are kept.")]
_Output = Annotated[Format, typer.Option("--format", help="text or json.")]


@runs.callback()
def _group() -> None:
    """List, show and compare runs."""


def ls(root: _Root = DEFAULT_ROOT, output: _Output = Format.TEXT) -> None:
    """List the runs of a directory, the newest last.

    'best' and 'last' are mean returns of exported int8 files over the run's judging episodes. A run whose session was
    killed is 'unknown'. One that is damaged is listed with what cannot be read.

    Examples:
      quarl-edge runs ls
      quarl-edge runs ls --runs /data/runs --format json
    """
    found = list_runs(root)
    if output is Format.JSON:
        write_json({"runs": [view.to_json() for view in found]})
        return
    if not found:
        write_line(f"no runs under {root}; make one with: quarl-edge train CartPole-v1")
        return
    write_grid(f"runs under {root}", _COLUMNS, [_row(view) for view in found])
    _write_damage(found)


def show(
    run: Annotated[str, typer.Argument(help="A run's directory, or its name under --runs.", show_default=False)],
    root: _Root = DEFAULT_ROOT,
    output: _Output = Format.TEXT,
) -> None:
    """Show one run: how it stands, its settings beside the preset's, judgements, checkpoints and policy.

    Examples:
      quarl-edge runs show CartPole-v1-dqn-20260101T120000Z-s0
      quarl-edge runs show runs/mine --format json
    """
    view = look_at_run(find_run(run, root))
    changed = {} if view.config is None else differences_from_preset(view.config)
    if output is Format.JSON:
        write_json(_show_json(view, changed))
        return
    write_grid(str(view.path), ("", "value"), _facts(view))
    if changed:
        rows = [(name, _value(mine), _value(usual)) for name, (mine, usual) in changed.items()]
        write_grid("settings that differ from the preset", ("setting", "run", "preset"), rows)
    points = view.judgements.points
    if points:
        shown = [
            (f"{point.env_steps:,}", f"{point.return_mean:.1f}", f"{point.return_std:.1f}", str(point.episodes))
            for point in points[-_SHOWN_JUDGEMENTS:]
        ]
        title = f"judgements of int8 files, the last {len(shown)} of {len(points):,}"
        write_grid(title, ("env steps", "mean return", "std", "episodes"), shown)
    _write_damage([view])


def compare(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Two runs or more.", show_default=False)],
    root: _Root = DEFAULT_ROOT,
    output: _Output = Format.TEXT,
) -> None:
    """Compare runs: their int8 files' returns side by side, and the settings in which they differ.

    Examples:
      quarl-edge runs compare runs/CartPole-v1-dqn-*
      quarl-edge runs compare runs/one runs/other --format json
    """
    if not 2 <= len(names) <= MAX_COMPARED:
        raise UsageError(
            f"{len(names)} run given: expected 2 to {MAX_COMPARED}",
            hint="quarl-edge runs compare RUN RUN; one alone: quarl-edge runs show RUN",
        )
    views = [look_at_run(find_run(name, root)) for name in names]
    differing = differing_settings([view.config for view in views])
    if output is Format.JSON:
        settings = {name: [_plain(value) for value in values] for name, values in differing.items()}
        write_json({"runs": [view.to_json() for view in views], "settings": settings})
        return
    facts = [dict(_compared(view)) for view in views]
    rows = [(name, *(each[name] for each in facts)) for name in facts[0]]
    rows += [(name, *map(_value, values)) for name, values in differing.items()]
    write_grid("returns and settings that differ", ("", *(view.name for view in views)), rows)
    _write_damage(views)


for _command in (ls, show, compare):
    runs.command(help=keep_examples(_command))(_command)

_COLUMNS = ("run", "env", "algorithm", "seed", "state", "steps", "best", "last", "size")


def _row(view: RunView) -> tuple[str, ...]:
    config = view.config
    known = (_NONE,) * 3 if config is None else (config.env_id, config.algorithm, str(config.seed))
    steps, size = f"{view.env_steps:,}", size_text(view.size_bytes)
    return (view.name, *known, _state(view), steps, _number(view.best_return), _number(view.last_return), size)


def _facts(view: RunView) -> list[tuple[str, str]]:
    config = view.config
    budget = "" if config is None else f" of {config.steps:,}"
    goal = "" if config is None or config.goal_return is None else f" (goal {config.goal_return:g})"
    known = (
        [] if config is None else [(name, _value(getattr(config, name))) for name in ("env_id", "algorithm", "seed")]
    )
    checkpoints = ", ".join(f"{each.env_steps:,} ({size_text(each.size_bytes)})" for each in view.checkpoints)
    return [
        *known,
        ("state", _state(view)),
        ("sessions", f"{view.sessions.count}, training {view.sessions.train_s:.1f} s"),
        ("env steps", f"{view.env_steps:,}{budget}"),
        ("best int8 return", f"{_number(view.best_return)}{goal}"),
        ("last int8 return", _number(view.last_return)),
        ("checkpoints at", checkpoints or "none"),
        ("policy sha256", view.policy_sha256 or "none kept"),
        ("size", size_text(view.size_bytes)),
    ]


def _compared(view: RunView) -> list[tuple[str, str]]:
    return [
        ("best int8 return", _number(view.best_return)),
        ("last int8 return", _number(view.last_return)),
        ("judgements", str(len(view.judgements.points))),
        ("env steps", f"{view.env_steps:,}"),
        ("state", _state(view)),
    ]


def _show_json(view: RunView, changed: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {
        **view.to_json(),
        "sessions": view.sessions.count,
        "train_s": view.sessions.train_s,
        "policy_sha256": view.policy_sha256 or None,
        "settings_changed": {name: {"run": _plain(a), "preset": _plain(b)} for name, (a, b) in changed.items()},
        "checkpoints": [
            {"name": each.name, "env_steps": each.env_steps, "size_bytes": each.size_bytes} for each in view.checkpoints
        ],
        "judgements": [
            {
                "env_steps": point.env_steps,
                "policy_version": point.version,
                "return_mean": point.return_mean,
                "return_std": point.return_std,
                "episodes": point.episodes,
                "sha256": point.sha256,
                "runtime": point.runtime,
            }
            for point in view.judgements.points
        ],
    }


def _state(view: RunView) -> str:
    if view.damage:
        return "damaged"
    ended = view.sessions.state is RunState.ENDED and view.sessions.reason
    return f"ended: {view.sessions.reason}" if ended else view.sessions.state.value


def _write_damage(views: Sequence[RunView]) -> None:
    for view in views:
        for words in view.damage:
            write_line(f"damaged: {shlex.quote(view.name)}: {words}")


def size_text(size_bytes: int) -> str:
    """Return a size for people."""
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if size_bytes >= 1000**power:
            return f"{size_bytes / 1000**power:.1f} {unit}"
    return f"{size_bytes} B"


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1f}"


def _value(value: Any) -> str:
    return "none" if value is None else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
