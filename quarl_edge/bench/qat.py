"""Runs that differ in one option of quantization-aware training, each judged by the file that it exports."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quarl_device.errors import JournalError, NotSolved, QuarlError
from quarl_device.evaluate import evaluate
from quarl_device.policy_file import PolicyFile, read_policy, read_policy_path
from quarl_device.wire.keys import LearnerKey
from quarl_edge.config import TrainConfig
from quarl_edge.configure import make_config
from quarl_edge.learner.result import StopReason
from quarl_edge.learner.stop import StopSignal
from quarl_edge.local.training import run_training
from quarl_edge.progress import Silent
from quarl_edge.replay.recorded import recorded_observations
from quarl_edge.runs import RunDirectory
from quarl_export.export import export_policy, float_policy
from quarl_export.file_runner import run_file

QAT_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "base": {},
    "no centring": {"center_q": False},
    "float32 head": {"head_output": "float32"},
    "int16 head": {"head_output": "int16"},
    "6 bits": {"weight_bits": 6, "activation_bits": 6},
    "4 bits": {"weight_bits": 4, "activation_bits": 4},
    "4-bit weights": {"weight_bits": 4},
    "2-bit weights": {"weight_bits": 2},
}
"""Row of the table to what it sets beside the preset; "base" is the preset: 8 bits, an int8 head, centred."""

_COMPARED = 2_000


def train_variant(env_id: str, variant: str, *, seed: int, settings: Sequence[str], episodes: int) -> dict[str, Any]:
    """Train one run in lockstep, where nothing depends on the machine's speed, and judge what it exports.

    Args:
        env_id: whose preset names a goal.
        variant: of `QAT_VARIANTS`.
        seed: of everything random.
        settings: `key=value` for every variant.
        episodes: greedy episodes on each set of start seeds.

    Returns:
        JSON values. `agreement` is the share of recorded observations on which file and float twin act alike.

    Raises:
        NotSolved: the run was interrupted.
    """
    try:
        return {"variant": variant, "seed": seed} | _trained(env_id, variant, seed, settings, episodes)
    except QuarlError as error:
        if isinstance(error, NotSolved):
            raise
        # A row, not the end of all the others.
        return {"variant": variant, "seed": seed, "error": f"{type(error).__name__}: {error.message}"}


def _trained(env_id: str, variant: str, seed: int, settings: Sequence[str], episodes: int) -> dict[str, Any]:
    asked = {"seed": seed, "actors": 1, "lockstep": True, **QAT_VARIANTS[variant]}
    config = make_config(env_id, asked=asked, settings=settings)
    with tempfile.TemporaryDirectory(prefix="quarl-qat-") as folder:
        run = RunDirectory.create(config, root=Path(folder))
        with StopSignal() as stop:
            result = run_training(
                config, run, broker="embedded", fleet="bench", key=LearnerKey.generate(), progress=Silent(), stop=stop
            )
        if result.reason is StopReason.INTERRUPTED:
            raise NotSolved(f"interrupted in {variant}, seed {seed}")
        export_policy(run.policy, Path(folder) / "model.tflite")
        file = read_policy_path(Path(folder) / "model.tflite")
        twin = read_policy(float_policy(run.policy))
        agreement = _agreement(file, twin, run.journal)
    goal, best = config.goal_return, result.best
    row = {
        "solved": goal is not None and best is not None and best.return_mean >= goal,
        "env_steps": result.env_steps,
        "updates": result.updates,
        "train_s": round(result.train_s, 2),
        "audited": result.audited,
        "audit_failures": result.audit_failures,
        "policy_bytes": len(file.data),
        "agreement": agreement,
    }
    return row | _returns(file, twin, config, episodes)


def _returns(file: PolicyFile, twin: PolicyFile, config: TrainConfig, episodes: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, played in (("file", file), ("float", twin)):
        judged = evaluate(played, episodes=episodes, seed=config.evaluate_seed)
        fresh = evaluate(played, episodes=episodes, seed=config.fresh_seed)
        found |= {f"{name}_return_mean": judged.return_mean, f"{name}_fresh_return_mean": fresh.return_mean}
        if played is file:
            found |= {"act_us_p50": judged.act_us_p50, "runtime": judged.runtime}
    return found


def _agreement(file: PolicyFile, twin: PolicyFile, journal: Path) -> float:
    recorded = recorded_observations(journal, file.contract)
    if recorded is None:
        raise JournalError(f"{journal} holds no observation to compare actions on")
    rows = recorded.observations
    count = len(next(iter(rows.values())))
    picked = np.unique(np.linspace(0, count - 1, min(count, _COMPARED)).astype(int))
    compared = {key: values[picked] for key, values in rows.items()}
    actions = [run_file(one.data, one.contract, compared)["q_values"].argmax(axis=1) for one in (file, twin)]
    return float(np.mean(actions[0] == actions[1]))


def summarize(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per variant, in the order of `QAT_VARIANTS`: medians and means over its seeds."""
    summary = []
    for variant in QAT_VARIANTS:
        tried = [row for row in rows if row["variant"] == variant]
        mine = [row for row in tried if "error" not in row]
        if not mine:
            continue
        summary.append(
            {
                "variant": variant,
                "seeds": len(tried),
                "errors": len(tried) - len(mine),
                "solved": sum(row["solved"] for row in mine),
                "env_steps_median": statistics.median(row["env_steps"] for row in mine),
                "policy_bytes": mine[0]["policy_bytes"],
                **{
                    f"{name}_mean": statistics.mean(row[name] for row in mine)
                    for name in ("file_fresh_return_mean", "float_fresh_return_mean", "agreement", "train_s")
                },
            }
        )
    return summary
