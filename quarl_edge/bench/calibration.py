"""What calibration by playing is worth, seed by seed: int8 files of one policy, judged by returns and by clipping."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from quarl_device.environments import EnvSpec
from quarl_device.evaluate import evaluate
from quarl_export.calibration import CalibrationData, play
from quarl_export.calibration.hold_out import HoldOut
from quarl_export.calibration.play import MAX_STEPS, Way
from quarl_export.checks.chance import random_returns
from quarl_export.checks.paired import Comparison
from quarl_export.ir import ImportedPolicy
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.schemes import SchemeOptions

_JUDGING_SEED = 1_000_000
"""First start seed of the judging episodes, which all files play: beyond every episode that calibration plays."""
_MET_STEPS = 8_192
"""Of the float policy's own episodes on which clipping is counted."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Yardstick:
    """What every file of a policy is measured by.

    Attributes:
        policy: the float one.
        env: where it is played.
        seed: first start seed of the judging episodes.
        float_returns: of the float policy, an episode each.
        random_returns: of random actions, from the same starts.
        met: what the float policy observes in episodes that no calibration has played.
        runtime: name and version of the runtime that acts.
    """

    policy: ImportedPolicy
    env: EnvSpec
    seed: int
    float_returns: tuple[float, ...]
    random_returns: tuple[float, ...]
    met: CalibrationData
    runtime: str

    @property
    def float_return_mean(self) -> float:
        """Mean return of the float policy."""
        return fmean(self.float_returns)

    @property
    def random_return_mean(self) -> float:
        """Mean return of random actions."""
        return fmean(self.random_returns)

    @classmethod
    def of(cls, policy: ImportedPolicy, env: EnvSpec, *, episodes: int) -> Yardstick:
        """Play the float policy and random actions.

        Args:
            policy: the float one.
            env: where.
            episodes: that are judged by.

        Raises:
            QuarlError: what cannot be played, or converted.
        """
        seed = _JUDGING_SEED
        as_float = build_file(policy, ExportOptions(scheme=SchemeOptions(scheme="float32"))).file
        floats = evaluate(as_float, episodes=episodes, seed=seed, env=env)
        return cls(
            policy=policy,
            env=env,
            seed=seed,
            float_returns=floats.returns,
            random_returns=random_returns(env, episodes=episodes, seed=seed),
            met=play(policy, env, steps=_MET_STEPS, seed=seed + MAX_STEPS, turns=["policy"]),
            runtime=floats.runtime,
        )

    def measure(self, *, seed: int, steps: int, turns: Sequence[Way], center_q: bool) -> dict[str, Any]:
        """Return what an int8 file is worth that was calibrated by playing.

        Args:
            seed: of playing.
            steps: see `play`.
            turns: see `play`.
            center_q: see `ExportOptions`.
        """
        played = play(self.policy, self.env, steps=steps, seed=seed, turns=turns)
        options = ExportOptions(scheme=SchemeOptions(scheme="int8"), force=True, center_q=center_q)
        built = build_file(self.policy, options, data=judged_on(played.split()[0], self.met))
        ours = evaluate(built.file, episodes=len(self.float_returns), seed=self.seed, env=self.env).returns
        found = Comparison.of(self.float_returns, ours, self.random_returns)
        value = {check.code: check.value for check in built.checks}
        return {
            "seed": seed,
            "verdict": found.verdict,
            "file_return_mean": found.file_mean,
            "loss": found.loss,
            "standard_error": found.loss_error,
            "clipped": value["Q03"],
            "agreement": value["Q10"],
        }


def judged_on(calibrate: CalibrationData, met: CalibrationData) -> CalibrationData:
    """Return both as one, the second held out: the checks then count on other episodes than calibration's own."""
    rows = {key: np.concatenate([array, met.rows[key]]) for key, array in calibrate.rows.items()}
    held = np.arange(calibrate.count + met.count) >= calibrate.count
    return dataclasses.replace(calibrate, rows=rows, held_out=HoldOut(rows=held, of="of other episodes"))


def measure_seeds(
    yardstick: Yardstick,
    *,
    seeds: Sequence[int],
    steps: int,
    turns: Sequence[Way],
    center_q: bool = False,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Return one row a seed, and what they come to.

    Args:
        yardstick: of the policy.
        seeds: of playing.
        steps: see `play`.
        turns: see `play`.
        center_q: see `ExportOptions`.
        progress: told how many seeds are done.
    """
    rows = []
    for number, seed in enumerate(seeds, start=1):
        rows.append(yardstick.measure(seed=seed, steps=steps, turns=turns, center_q=center_q))
        progress(number)
    return {"turns": list(turns), **summarize(rows), "rows": rows}


def summarize(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many files held, were undecided and lost, and the spread of their measures."""
    verdicts = Counter(row["verdict"] for row in rows)
    return {
        "seeds": len(rows),
        **{verdict: verdicts[verdict] for verdict in ("held", "undecided", "lost")},
        "loss_median": median(row["loss"] for row in rows),
        "loss_max": max(row["loss"] for row in rows),
        "clipped_median": median(row["clipped"] for row in rows),
        "clipped_max": max(row["clipped"] for row in rows),
        "agreement_min": min(row["agreement"] for row in rows),
    }
