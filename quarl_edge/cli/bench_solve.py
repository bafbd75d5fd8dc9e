"""`quarl-edge bench solve`: whole runs by seed, and what their int8 files return on starts that no run has seen."""

from __future__ import annotations

import importlib.metadata
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from quarl_device.errors import NotSolved, QuarlError, UsageError
from quarl_device.files import write_atomic
from quarl_device.output import finite
from quarl_edge.cli.demo import DEMO_ENV
from quarl_edge.cli.interrupts import quit_at_interrupt
from quarl_edge.cli.output import Format, error_json, write_json, write_line
from quarl_edge.cli.sweep import parse_seeds
from quarl_edge.config import TrainConfig
from quarl_edge.configure import make_config
from quarl_edge.extras import require_learner
from quarl_edge.machine import describe_machine
from quarl_edge.progress import make_progress
from quarl_edge.task import EMBEDDED_BROKER, check_company, look_at

_INTERVAL = "95 % t-interval of the mean difference, int8 less float, over the fresh starts"
_VERSIONS = ("quarl-edge", "tensorflow", "ai-edge-litert", "gymnasium", "numpy")


def solve(
    env: Annotated[str, typer.Argument(help="An environment whose preset names a goal.")] = DEMO_ENV,
    algorithm: Annotated[str, typer.Option(help="By default the first that has a preset for the environment.")] = "",
    seeds: Annotated[str, typer.Option(help="Of the runs: 0-4, or 0,1,2.")] = "0,1,2",
    steps: Annotated[int | None, typer.Option(help="Budget of environment steps, instead of the preset's.")] = None,
    target: Annotated[
        float | None, typer.Option(help="Mean return on fresh starts that counts as solved; default: goal_return.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="Fresh starts that file and float twin play.", min=2, max=10_000)] = 20,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value; may be given often.")] = None,
    runs: Annotated[Path | None, typer.Option(help="Keep the runs here; default: thrown away.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file, after every seed.")] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Train one run a seed until its goal or its budget, and play the file that it picked on fresh starts.

    Training ends when a file reaches `goal_return` in a judgement and again on as many other starts. Fresh starts are
    further ones that nothing of the run has seen; the float twin, the same weights unquantized, plays them too.

    Exit 0 only if every seed was solved. A seed that fails is a row, and the next one is trained.

    Examples:
      quarl-edge bench solve
      quarl-edge bench solve CartPole-v1 --algorithm ppo --seeds 0-4 --format json
      quarl-edge bench solve Acrobot-v1 --target -100 --episodes 100 --out acrobot.json
    """
    require_learner("bench")
    asked = {} if steps is None else {"steps": steps}
    config = make_config(env, algorithm=algorithm, asked=asked, settings=settings or ())
    goal = config.goal_return if target is None else target
    if goal is None:
        raise UsageError(
            f"{config.algorithm} has no goal for {env}", hint="name one: --target NUMBER, or --set goal_return=NUMBER"
        )
    trial = _Trial(config=config, target=goal, episodes=episodes, settings=tuple(settings or ()))
    chosen = parse_seeds(seeds)
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"--out: there is no directory {out.parent}", hint=f"mkdir -p {out.parent}")
    check_company(config, EMBEDDED_BROKER)
    look_at(config)
    rows: list[dict[str, Any]] = []
    for row in _rows(trial, chosen, runs):
        rows.append(row)
        if out is not None:
            write_atomic(out, (json.dumps(finite(trial.told(rows))) + "\n").encode(), error=UsageError, what="result")
        if output is Format.TEXT:
            write_line(_line(row))
    told = trial.told(rows)
    if output is Format.JSON:
        write_json(told)
    else:
        write_line(f"{env}, {config.algorithm}: {told['solved']} of {len(chosen)} seeds solved; {told['machine']}")
    if told["solved"] < len(chosen):
        raise NotSolved(f"{len(chosen) - told['solved']} of {len(chosen)} seeds were not solved")


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """What every seed has in common.

    Attributes:
        config: of all runs, but for the seed.
        target: mean return on fresh starts that counts as solved.
        episodes: fresh starts.
        settings: of the command line.
    """

    config: TrainConfig
    target: float
    episodes: int
    settings: tuple[str, ...]

    def told(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the result of the seeds so far, as JSON values."""
        ended = [row for row in rows if "error" not in row]
        return {
            "env": self.config.env_id,
            "algorithm": self.config.algorithm,
            "settings": list(self.settings),
            "budget_steps": self.config.steps,
            "goal_return": self.config.goal_return,
            "target_return": self.target,
            "judged_seeds_from": self.config.evaluate_seed,
            "judged_episodes": self.config.evaluate_episodes,
            "fresh_seeds_from": self.config.fresh_seed,
            "fresh_episodes": self.episodes,
            "interval": _INTERVAL,
            "seeds": [row["seed"] for row in rows],
            "solved": sum(bool(row["solved"]) for row in rows),
            "train_s_median": statistics.median(row["train_s"] for row in ended) if ended else None,
            "machine": describe_machine(),
            "versions": {name: _version(name) for name in _VERSIONS},
            "runs": list(rows),
            "config": self.config.to_json(),
        }


def _rows(trial: _Trial, seeds: Sequence[int], runs: Path | None) -> Iterator[dict[str, Any]]:
    """Train one seed after the other, until all are done or an end is asked for."""
    with quit_at_interrupt():
        from quarl_edge.bench.solve import solve_seed
        from quarl_edge.learner.stop import StopSignal

    progress = make_progress()
    try:
        with StopSignal() as stop:
            for seed in seeds:
                if stop.requested:
                    return
                progress.note(f"{trial.config.env_id}, {trial.config.algorithm}, seed {seed}")
                try:
                    found = solve_seed(
                        trial.config.replace(seed=seed),
                        target=trial.target,
                        episodes=trial.episodes,
                        progress=progress,
                        stop=stop,
                        runs=runs,
                    )
                except QuarlError as error:
                    # A row, not the end of all the others.
                    yield {"seed": seed, "solved": False, "error": error_json(error)}
                else:
                    yield asdict(found)
    finally:
        progress.close()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _line(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return f"seed {row['seed']}: failed: {row['error']['message']}"
    fresh, share = row["fresh"], row["fresh"]["difference_share"]
    of_float = "" if share is None else f", {share:+.1%}"
    return (
        f"seed {row['seed']}: {'solved' if row['solved'] else 'not solved'} ({row['reason']}), {row['train_s']:.1f} s, "
        f"{row['env_steps']:,} steps, {row['updates']:,} updates, {row['pushes']:,} pushes; int8 "
        f"{row['judged_return_mean']:.1f}, on fresh starts {fresh['int8_return_mean']:.1f} (float "
        f"{fresh['float_return_mean']:.1f}: {fresh['difference']:+.1f} [{fresh['difference_low']:+.1f}, "
        f"{fresh['difference_high']:+.1f}]{of_float})"
    )
