"""Where `quarl-edge export` takes observations from: a file, a run's journal, or playing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from quarl_device.contract import PolicyContract
from quarl_device.environments import EnvSpec, bare_name
from quarl_device.errors import UsageError

if TYPE_CHECKING:
    from quarl_export.calibration import CalibrationData
    from quarl_export.ir import ImportedPolicy

PLAY = "env"


def named_observations(
    calibrate: str, policy: ImportedPolicy, *, env_id: str, steps: int, seed: int
) -> CalibrationData:
    """Return the observations that `--calibrate` names.

    Args:
        calibrate: "env", an npz file, or a run.
        policy: whose observations they must be, and who plays.
        env_id: `--env`; "" for the policy's own.
        steps: of playing.
        seed: of playing.

    Raises:
        UsageError: nothing of that name, no environment to play, or observations that do not fit.
        JournalError: the run's journal cannot be read.
    """
    from quarl_export.calibration import load_npz, play

    if calibrate == PLAY:
        if not (env_id or policy.contract.env_id):
            raise UsageError(
                "--calibrate env: the policy names no environment", hint="name it: --calibrate env --env ID"
            )
        return play(policy, environment(policy.contract, env_id), steps=steps, seed=seed, allow_module=bool(env_id))
    path = Path(calibrate)
    if path.is_dir():
        found = journal_observations(path, policy.contract)
        if found is None:
            raise UsageError(f"--calibrate {path}: no recorded observations in it", hint="give a run with a journal")
        return found
    if not path.exists():
        raise UsageError(f"--calibrate {path}: no such file", hint="give an npz file, a run, or env")
    return load_npz(path, policy.contract)


def environment(contract: PolicyContract, env_id: str) -> EnvSpec:
    """Return the environment that `--env` names, "" for the contract's own, whose arguments the contract knows."""
    name = env_id or contract.env_id
    own = bare_name(name) == contract.env_id
    kwargs = contract.env_kwargs if own else {}
    return EnvSpec.seen_as(contract.observations, name, kwargs, wrappers=contract.wrappers)


def journal_observations(run: Path, contract: PolicyContract) -> CalibrationData | None:
    """Return what the journal of `run` (or of the run that a policy directory is in) has recorded, `None` if nothing.

    Raises:
        JournalError: the journal cannot be read.
        UsageError: observations that do not fit the policy, or frames to be stacked.
    """
    from quarl_edge.replay.recorded import recorded_observations
    from quarl_export.calibration import CalibrationData

    journal = next((place / "journal" for place in (run, run.parent) if (place / "journal").is_dir()), None)
    if journal is None:
        return None
    recorded = recorded_observations(journal, contract)
    if recorded is None or len(recorded.episodes) < _FEW:
        return None
    return CalibrationData.checked(
        contract, recorded.observations, source=f"journal of {journal.parent.name}", episodes=recorded.episodes
    )


# Fewer say nothing of a policy.
_FEW = 64
