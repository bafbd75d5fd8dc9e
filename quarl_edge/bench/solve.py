"""A whole run of one seed, and what the int8 file that it picked returns on starts that nothing of the run has seen."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from quarl_device.environments import EnvSpec
from quarl_device.errors import NotSolved
from quarl_device.evaluate import evaluate
from quarl_device.policy_file import PolicyFile, read_policy, read_policy_path
from quarl_device.wire.keys import LearnerKey
from quarl_edge.config import TrainConfig
from quarl_edge.curves import interval
from quarl_edge.judgements import read_judgements
from quarl_edge.learner.result import StopReason
from quarl_edge.learner.stop import StopSignal
from quarl_edge.local.training import run_training
from quarl_edge.progress import Progress
from quarl_edge.runs import RunDirectory
from quarl_edge.task import EMBEDDED_BROKER
from quarl_export.export import export_policy, float_policy


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A file beside its float twin (the same weights unquantized, in the same runtime), start by start.

    Attributes:
        int8_return_mean: of the file.
        int8_return_std: of its episodes.
        float_return_mean: of the twin.
        difference: the file's return less the twin's, on average.
        difference_low: of the 95 % t-interval of that mean over the starts.
        difference_high: likewise.
        difference_share: `difference` as a share of the twin's mean return (its size); `None` where that is 0.
    """

    int8_return_mean: float
    int8_return_std: float
    float_return_mean: float
    difference: float
    difference_low: float
    difference_high: float
    difference_share: float | None

    @classmethod
    def of(cls, file: Sequence[float], twin: Sequence[float]) -> Self:
        """Compare the returns of episodes that began alike, of two at least."""
        ours, theirs = (np.asarray(returns, np.float64) for returns in (file, twin))
        if ours.shape != theirs.shape or ours.size < 2:
            raise ValueError(f"{ours.size} and {theirs.size} returns are no pairs")
        mean, low, high = (float(each) for each in interval(ours - theirs))
        whole = abs(float(theirs.mean()))
        return cls(
            int8_return_mean=float(ours.mean()),
            int8_return_std=float(ours.std()),
            float_return_mean=float(theirs.mean()),
            difference=mean,
            difference_low=low,
            difference_high=high,
            difference_share=mean / whole if whole else None,
        )


@dataclass(frozen=True, kw_only=True)
class SeedReport:
    """What one seed came to.

    Attributes:
        seed: of everything random.
        solved: whether the picked file's mean return on the fresh starts is at least the target.
        reason: why training ended.
        wall_s: with set-up, export and judging.
        train_s: first push, before the first environment step, to the last update, everything included.
        env_steps: stored until training ended.
        updates: gradient steps.
        pushes: policies published.
        prepare_ms_p50: variables read to signed bytes, median over the pushes.
        push_ms_p50: variables read to ready for an actor's next step, median over the actors.
        audited: pushes compared with a real conversion.
        audit_failures: of these, how many differed.
        picked_env_steps: behind the file that was picked, the best judged one of the run.
        judged_return_mean: of that file on the starts that every judgement of the run has; the choice flatters it.
        confirmation_return_mean: of it on the starts that confirm a goal that was reached; `None` where none was.
        fresh: of it and its float twin, on starts that nothing of the run has seen.
        policy_bytes: size of the file.
        curve: (environment steps, mean return) of every judged file.
        runtime: that all returns are from.
    """

    seed: int
    solved: bool
    reason: str
    wall_s: float
    train_s: float
    env_steps: int
    updates: int
    pushes: int
    prepare_ms_p50: float | None
    push_ms_p50: float | None
    audited: int
    audit_failures: int
    picked_env_steps: int
    judged_return_mean: float
    confirmation_return_mean: float | None
    fresh: Paired
    policy_bytes: int
    curve: tuple[tuple[int, float], ...]
    runtime: str


def solve_seed(
    config: TrainConfig, *, target: float, episodes: int, progress: Progress, stop: StopSignal, runs: Path | None = None
) -> SeedReport:
    """Train one run and play what it picked.

    Args:
        config: of the run.
        target: least mean return on the fresh starts that counts as solved.
        episodes: fresh starts, from `config.fresh_seed` on.
        progress: what a person watches.
        stop: asks for a clean end.
        runs: where the run is kept; `None`: it is thrown away.

    Raises:
        NotSolved: it was interrupted, or ended before a policy was judged.
        QuarlError: see `run_training`, `export_policy` and `evaluate`.
    """
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quarl-solve-") as folder:
        run = RunDirectory.create(config, root=runs or Path(folder))
        result = run_training(
            config, run, broker=EMBEDDED_BROKER, fleet="bench", key=LearnerKey.generate(), progress=progress, stop=stop
        )
        if result.reason is StopReason.INTERRUPTED:
            raise NotSolved(f"seed {config.seed}: interrupted at {result.env_steps:,} steps")
        best = result.best
        if best is None:
            raise NotSolved(
                f"seed {config.seed}: ended after {result.env_steps:,} steps, before the first policy was judged",
                hint="more --steps, or --set evaluate_period_pushes=1",
            )
        progress.note(f"seed {config.seed}: playing {episodes} fresh starts, the int8 file and its float twin")
        model = Path(folder) / "model.tflite"
        export_policy(run.policy, model)
        file, twin = read_policy_path(model), read_policy(float_policy(run.policy))
        fresh = Paired.of(*(_returns(each, config, episodes) for each in (file, twin)))
        points = read_judgements(run.judgements).points
    return SeedReport(
        seed=config.seed,
        solved=fresh.int8_return_mean >= target,
        reason=result.reason.value,
        wall_s=round(time.monotonic() - started_s, 2),
        train_s=round(result.train_s, 2),
        env_steps=result.env_steps,
        updates=result.updates,
        pushes=result.pushes,
        prepare_ms_p50=result.prepare_ms_p50,
        push_ms_p50=result.push_ms_p50,
        audited=result.audited,
        audit_failures=result.audit_failures,
        picked_env_steps=best.env_steps,
        judged_return_mean=best.result.return_mean,
        confirmation_return_mean=None if best.confirmation is None else best.confirmation.return_mean,
        fresh=fresh,
        policy_bytes=len(file.data),
        curve=tuple((point.env_steps, point.return_mean) for point in points),
        runtime=best.result.runtime,
    )


def _returns(file: PolicyFile, config: TrainConfig, episodes: int) -> tuple[float, ...]:
    played = evaluate(
        file, env=EnvSpec(env_id=config.env_id), episodes=episodes, seed=config.fresh_seed, allow_module=True
    )
    return played.returns
