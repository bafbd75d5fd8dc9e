"""`quarl-edge bench calibration`: what the seed of a calibration by playing decides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from quarl_device.environments import EnvSpec
from quarl_device.errors import UsageError
from quarl_edge import __version__
from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.cli.source_options import VecNormalize
from quarl_edge.extras import require_learner
from quarl_edge.machine import describe_machine
from quarl_edge.progress import EpisodeProgress


def calibration(
    source: Annotated[Path, typer.Argument(help="A trained policy of any kind that export reads.")],
    env: Annotated[str, typer.Option("--env", help="Where it plays.")],
    vecnormalize: VecNormalize = None,
    seeds: Annotated[int, typer.Option(help="Seeds 0, 1, ... of playing.", min=1, max=1_000)] = 10,
    steps: Annotated[int | None, typer.Option(help="Of playing; export's own by default.", min=2)] = None,
    turns: Annotated[
        list[str] | None,
        typer.Option(help="Who acts, an episode each: policy, noisy or random, with commas; may be given often."),
    ] = None,
    center_q: Annotated[bool, typer.Option("--center-q", help="Of Q values, as in export.")] = False,
    episodes: Annotated[int, typer.Option(help="Episodes that each file plays.", min=10, max=10_000)] = 50,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Calibrate an int8 file by playing, seed after seed, and judge each file by its returns and by what it clips.

    Each is played on the same start seeds as the float policy and as random actions (the rule of check Q13); clipping
    and agreement are counted on the float policy's own episodes, none of which calibration has played.

    Examples:
      quarl-edge bench calibration dqn.zip --env CartPole-v1 --seeds 10 --format json
      quarl-edge bench calibration dqn.zip --env CartPole-v1 --turns policy,noisy,random --turns policy
    """
    require_learner("bench")
    from quarl_edge.bench.calibration import Yardstick, measure_seeds
    from quarl_export.calibration.play import DEFAULT_STEPS, MIXED, WAYS
    from quarl_export.importers import ImportOptions, import_policy

    ways = {str(way): way for way in WAYS}
    named = [words.split(",") for words in turns or [",".join(MIXED)]]
    unknown = sorted({word for words in named for word in words} - set(ways))
    if unknown:
        raise UsageError(f"--turns: {unknown[0][:80]!r} is no way to act", hint=f"there are {', '.join(ways)}")
    mixtures = [tuple(ways[word] for word in words) for words in named]
    policy = import_policy(source, options=ImportOptions(env_id=env, vecnormalize=vecnormalize))
    steps = steps or DEFAULT_STEPS
    with EpisodeProgress(seeds * len(mixtures), what="files") as bar:
        bar.stage("playing the float policy and random actions")
        yardstick = Yardstick.of(policy, EnvSpec(env_id=env), episodes=episodes)
        found = [
            measure_seeds(
                yardstick,
                seeds=range(seeds),
                steps=steps,
                turns=mixture,
                center_q=center_q,
                progress=lambda done, finished=number * seeds: bar.advance(finished + done),  # type: ignore[misc]
            )
            for number, mixture in enumerate(mixtures)
        ]
    if output is Format.JSON:
        write_json(
            {
                "source": source.name,
                "env": env,
                "steps": steps,
                "rule": "minmax",
                "center_q": center_q,
                "episodes": episodes,
                "episodes_seed": yardstick.seed,
                "float_return_mean": yardstick.float_return_mean,
                "random_return_mean": yardstick.random_return_mean,
                "runtime": yardstick.runtime,
                "version": __version__,
                "machine": describe_machine(),
                "mixtures": found,
            }
        )
        return
    for mixture in found:
        write_line(_line(mixture))
    write_line(describe_machine())


def _line(found: Mapping[str, Any]) -> str:
    return (
        f"{','.join(found['turns'])}: {found['held']} held, {found['undecided']} undecided, {found['lost']} lost of "
        f"{found['seeds']}; {found['loss_median']:.3g} less than float (median), {found['loss_max']:.3g} at most; "
        f"{found['clipped_median']:.2%} clipped (median), {found['clipped_max']:.2%} at most"
    )
