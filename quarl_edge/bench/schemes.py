"""Trained policies of every kind of source, exported in every scheme and played: the rows of docs/schemes.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quarl_device.environments import EnvSpec
from quarl_device.errors import QuarlError
from quarl_device.evaluate import evaluate
from quarl_device.policy_file import PolicyFile
from quarl_edge.runs import latest_policy
from quarl_export.calibration import CalibrationData, RangeRule, play
from quarl_export.calibration.play import DEFAULT_STEPS, MAX_STEPS, MIXED
from quarl_export.checks.returns import Play
from quarl_export.importers import ImportOptions, import_policy
from quarl_export.ir import ImportedPolicy
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.schemes import SchemeOptions

_CALIBRATION_SEED = 5_000
_JUDGED_EPISODES = 50

SCHEME_COLUMNS: Mapping[str, SchemeOptions] = {
    "float32": SchemeOptions(scheme="float32"),
    "float16": SchemeOptions(scheme="float16"),
    "dynamic": SchemeOptions(scheme="dynamic"),
    "int8": SchemeOptions(scheme="int8"),
    "int8 per channel": SchemeOptions(scheme="int8", per_channel=True),
    "int8 ends": SchemeOptions(scheme="int8", io="int8"),
    "int16x8": SchemeOptions(scheme="int16x8"),
}
"""Column of the table to what it is made with."""


def calibration_used() -> dict[str, Any]:
    """Return what every source but a run of ours is calibrated with, as JSON values."""
    return {"steps": DEFAULT_STEPS, "seed": _CALIBRATION_SEED, "turns": list(MIXED), "rule": RangeRule().kind}


def play_source(
    source: Mapping[str, str], folder: Path, *, episodes: int, seed: int, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Export one source in every scheme and play each file.

    Args:
        source: name, path, env, and vecnormalize or head where the source needs them; paths are relative to `folder`.
        folder: see above.
        episodes: greedy episodes each.
        seed: start seeds are seed, seed + 1, ...
        progress: told how many schemes are done.

    Returns:
        JSON values: what the source says, and per scheme the file's size and return, or why there is none.
    """
    policy, path = _imported(source, folder)
    env = EnvSpec.seen_as(policy.contract.observations, source["env"])
    data = play(policy, env, seed=_CALIBRATION_SEED)
    cells: dict[str, Any] = {}
    for number, (column, options) in enumerate(SCHEME_COLUMNS.items(), start=1):
        try:
            cells[column] = _cell(policy, options, data, env, episodes=episodes, seed=seed)
        except QuarlError as error:
            cells[column] = {"error": f"{type(error).__name__}: {error.message}"}
        progress(number)
    return {
        "name": source["name"],
        "env": source["env"],
        "algorithm": policy.contract.algorithm,
        "head": policy.contract.head.kind,
        "source_bytes": path.stat().st_size if path.is_file() else None,
        "schemes": cells,
    }


def _imported(source: Mapping[str, str], folder: Path) -> tuple[ImportedPolicy, Path]:
    path = folder / source["path"]
    if path.is_dir() and ((path / "config.json").is_file() or (path / "policy.json").is_file()):
        path = latest_policy(source=path)
    statistics = folder / source["vecnormalize"] if "vecnormalize" in source else None
    options = ImportOptions(
        env_id=source["env"],
        head=source.get("head"),  # type: ignore[arg-type]  # checked there
        vecnormalize=statistics,
    )
    return import_policy(path, options=options), path


def _cell(
    policy: ImportedPolicy, options: SchemeOptions, data: CalibrationData, env: EnvSpec, *, episodes: int, seed: int
) -> dict[str, Any]:
    # Forced: the table shows what a file is worth that a check would have stopped, and which check it was.
    # Judged on other episodes than those whose returns are shown.
    judge = Play(env=env, episodes=_JUDGED_EPISODES, seed=_CALIBRATION_SEED + MAX_STEPS)
    built = build_file(policy, ExportOptions(scheme=options, force=True), data=data, play=judge)
    (returns,) = (check for check in built.checks if check.code == "Q13")
    file: PolicyFile = built.file
    result = evaluate(file, episodes=episodes, seed=seed)
    return {
        "bytes": len(file.data),
        "return_mean": result.return_mean,
        "return_std": result.return_std,
        "act_us_p50": result.act_us_p50,
        "runtime": result.runtime,
        "failed_checks": list(built.forced),
        "golden_lsb": built.golden_lsb,
        "returns_check": dict(returns.detail),
    }
