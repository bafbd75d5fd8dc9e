"""`quarl-edge evaluate`: play a policy file in the TFLite runtime."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Annotated

import typer

from quarl_device.environments import EnvSpec
from quarl_device.errors import ModelError, UsageError
from quarl_device.evaluate import MAX_EPISODES, Evaluation
from quarl_device.evaluate import evaluate as play
from quarl_device.policy_file import read_policy_path
from quarl_device.runtime import find_runtime
from quarl_edge.cli.output import Format, hint_where_none, write_json, write_table
from quarl_edge.progress import EpisodeProgress
from quarl_edge.video import Film, filming

# Leaves the last episode of any number a seed that gymnasium takes.
_MAX_SEED = 2**31 - 1 - MAX_EPISODES


def evaluate(
    model: Annotated[Path, typer.Argument(help="A policy file made by 'quarl-edge export'.", show_default=False)],
    episodes: Annotated[int, typer.Option(help="Greedy episodes to play.", min=1, max=100_000)] = 20,
    seed: Annotated[int, typer.Option(help="Episode i starts from seed + i.", min=0, max=_MAX_SEED)] = 1000,
    env: Annotated[str, typer.Option(help="Another gymnasium id than the file's contract names.")] = "",
    runtime: Annotated[str, typer.Option(help="Runtime to play in: litert or tflite-runtime.")] = "",
    video: Annotated[Path | None, typer.Option(help="Film the first episodes: a .mp4 or .gif file.")] = None,
    video_episodes: Annotated[int, typer.Option(help="How many of them, for --video.", min=1, max=1_000)] = 1,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Play a policy file greedily in the TFLite runtime and report its returns.

    Examples:
      quarl-edge evaluate model.tflite
      quarl-edge evaluate model.tflite --episodes 100 --seed 7 --format json
      quarl-edge evaluate model.tflite --episodes 3 --video film.mp4 --video-episodes 3
    """
    with hint_where_none("make one with: quarl-edge export model.tflite", ModelError):
        policy = read_policy_path(model)
    if not (env or policy.contract.env_id):
        raise UsageError(
            f"the policy file {model} names no environment",
            hint=f"name the one that it acts in: quarl-edge evaluate {shlex.quote(str(model))} --env ID",
        )
    spec = EnvSpec(env_id=env) if env else EnvSpec(env_id=policy.contract.env_id, kwargs=policy.contract.env_kwargs)
    with contextlib.ExitStack() as stack:
        film = None
        if video is not None:
            film = stack.enter_context(Film(video, episodes=video_episodes))
            spec = filming(spec.env_id, dict(spec.kwargs))
        progress = stack.enter_context(EpisodeProgress(episodes))
        result = play(
            policy,
            episodes=episodes,
            seed=seed,
            env=spec,
            runtime=find_runtime(runtime or None),
            progress=progress.advance,
            watch=None if film is None else film.watch,
            allow_module=bool(env),
        )
    if output is Format.JSON:
        _write_json(result, film)
    else:
        _write_table(model, result, film)


def _write_json(result: Evaluation, film: Film | None) -> None:
    write_json(
        {
            "env": result.env_id,
            "episodes": result.episodes,
            "seed": result.seed,
            "return_mean": result.return_mean,
            "return_std": result.return_std,
            "returns": list(result.returns),
            "runtime": result.runtime,
            "sha256": result.sha256,
            "act_us_p50": result.act_us_p50,
            **({} if film is None else {"video": film.to_json()}),
        }
    )


def _write_table(model: Path, result: Evaluation, film: Film | None) -> None:
    low, high, last = min(result.returns), max(result.returns), result.seed + result.episodes - 1
    rows = [
        ("environment", result.env_id),
        ("return", f"{result.return_mean:.1f} ± {result.return_std:.1f}  (min {low:.1f}, max {high:.1f})"),
        ("episodes", f"{result.episodes}, start seeds {result.seed}..{last}, greedy"),
        ("act", f"{result.act_us_p50:.1f} µs p50"),
        ("runtime", result.runtime),
    ]
    if film is not None:
        filmed = f"{film.filmed} episode{'' if film.filmed == 1 else 's'}"
        cut = ", full before the last one ended" if film.cut else ""
        rows.append(("video", f"{film.path}: {film.frames:,} frames at {film.fps:g}/s, {filmed}{cut}"))
    write_table(str(model), rows, below=[f"sha256 {result.sha256}"])
