"""What a run keeps: the best judged policy, and checkpoints that a resume continues from."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.errors import CheckpointError, JournalError, NonFiniteError, QuarlError, RunNotFound
from quarl_device.evaluate import Evaluation
from quarl_edge.checkpoint import Checkpoint, latest, save_checkpoint
from quarl_edge.judgements import JudgementLog
from quarl_edge.learner.algorithm import Algorithm
from quarl_edge.learner.normalization import ObservationNormalizer
from quarl_edge.learner.publisher import Pushed
from quarl_edge.local.evaluator import Judged
from quarl_edge.replay.experience import Experience
from quarl_edge.runs import RunDirectory
from quarl_export.checkpoint import load_policy, save_policy
from quarl_export.networks import NetworkSpec

if TYPE_CHECKING:
    from quarl_edge.ingest.ingest import Ingest
    from quarl_edge.learner.parts import Progression


_LOG = logging.getLogger(__name__)


class Keeper:
    """Writes a run's `policy/`, `checkpoints/` and `judgements.jsonl`.

    Args:
        run: the run's directory.
        spec: the network.
        contract: goes into the policy checkpoint.
        golden_observations: likewise.
        ingest: its journal position and counters go into a checkpoint.
        experience: its random state and priorities go into a checkpoint.
        normalizer: what it has learned of observations does too.
        epoch: of this session.
        seed: of the run, for the policy's provenance.

    Attributes:
        best: best judged policy so far.
        resumable: whether the run has a checkpoint.
    """

    def __init__(
        self,
        run: RunDirectory,
        *,
        spec: NetworkSpec,
        contract: PolicyContract,
        golden_observations: Any,
        ingest: Ingest,
        experience: Experience,
        normalizer: ObservationNormalizer,
        epoch: int,
        seed: int,
        best: Judged | None = None,
    ) -> None:
        self._run = run
        self._spec = spec
        self._contract = contract
        self._golden = golden_observations
        self._ingest = ingest
        self._experience = experience
        self._normalizer = normalizer
        self._epoch = epoch
        self._seed = seed
        self.best = best
        self.resumable = latest(run.checkpoints) is not None
        self._judgements = JudgementLog(run.judgements)
        self._saved = best
        self._unsaved: tuple[Pushed, Judged] | None = None
        self._complained = False

    def consider(self, judged: Judged, pushed: Pushed) -> None:
        """Note a judgement, and keep `pushed` as the run's policy if it was judged better than the best so far.

        A disk that refuses is no reason to stop learning: `sync` tries again, and `finish` insists.
        """
        self._judgements.append(judged)
        if self.best is not None and judged.return_mean <= self.best.return_mean:
            return
        self.best = judged
        self._unsaved = (pushed, judged)
        self._save_if_possible()

    def sync(self) -> None:
        """Let what is due reach the disk: the journal, and a policy that could not be written before."""
        if self._unsaved is not None:
            self._save_if_possible()
        try:
            self._ingest.sync()
        except JournalError as error:
            self._complain(error)

    def finish(self) -> None:
        """Write what could not be written before.

        Raises:
            CheckpointError: it still cannot.
        """
        if self._unsaved is not None:
            self._save(*self._unsaved)
            self._saved, self._unsaved = self._unsaved[1], None

    def _save_if_possible(self) -> None:
        try:
            self.finish()
            self._complained = False
        except CheckpointError as error:
            self._complain(error)

    def _complain(self, error: QuarlError) -> None:
        if not self._complained:
            _LOG.warning("%s; training goes on, and it is tried again", error)
        self._complained = True

    def _save(self, pushed: Pushed, judged: Judged) -> None:
        """Write `pushed` as the run's policy."""
        provenance: dict[str, Any] = {
            "run": self._run.path.name,
            "seed": self._seed,
            "env_steps": pushed.env_steps,
            "policy_version": pushed.version,
            "pushed_sha256": pushed.sha256,
            "int8_return_mean": judged.result.return_mean,
            "episodes": judged.result.episodes,
            "judged": _judged_to_json(judged),
        }
        save_policy(
            self._run.policy,
            snapshot=pushed.snapshot,
            spec=self._spec,
            contract=self._contract,
            golden_observations=self._golden,
            provenance=provenance,
        )

    def checkpoint(self, algorithm: Algorithm, progression: Progression) -> None:
        """Write a checkpoint of everything.

        Raises:
            CheckpointError: it cannot be written.
            JournalError: the journal cannot be synced, or (after the checkpoint) trimmed.
            NonFiniteError: what was learned holds NaN or Inf, and nobody could go on from it.
        """
        # Only this thread changes what was learned, so no block has to wait for its copy.
        arrays: dict[str, Mapping[str, NDArray[Any]]] = {"algorithm": algorithm.arrays()}
        _check_finite(arrays["algorithm"])
        if learned := self._normalizer.arrays():
            arrays["normalizer"] = learned
        # Under the ingest's lock: the position and the counters belong to one moment.
        with self._ingest.paused() as cut:
            state = {
                "algorithm": self._contract.algorithm,
                "progression": dataclasses.asdict(progression),
                "epoch": self._epoch,
                "journal_position": cut.journal_position,
                "env_steps": cut.env_steps,
                **self._experience.state(),
                # Of what is on disk: a better one that could not be written would keep others away from its place.
                "best": _judged_to_json(self._saved),
            }
            if kept := self._experience.arrays():
                arrays["experience"] = kept
        save_checkpoint(self._run.checkpoints, Checkpoint(state=state, arrays=arrays), env_steps=cut.env_steps)
        self.resumable = True
        self._ingest.checkpointed(cut)


def _check_finite(arrays: Mapping[str, NDArray[np.generic]]) -> None:
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise NonFiniteError(f"checkpoint: {name} holds NaN or Inf")


def _judged_to_json(judged: Judged | None) -> dict[str, Any] | None:
    return None if judged is None else dataclasses.asdict(judged)


def judged_from_json(data: Any) -> Judged | None:
    """Read back what a checkpoint says of the best policy."""
    if data is None:
        return None
    confirmation = data.get("confirmation")
    return Judged(
        version=data["version"],
        env_steps=data["env_steps"],
        result=_evaluation(data["result"]),
        confirmation=None if confirmation is None else _evaluation(confirmation),
    )


def _evaluation(data: Mapping[str, Any]) -> Evaluation:
    return Evaluation(**{**data, "returns": tuple(data["returns"])})


def kept_judgement(policy: Path) -> Judged | None:
    """Read how the policy kept in `policy` was judged; `None` where there is none or it does not hold."""
    try:
        return judged_from_json(load_policy(policy).provenance.get("judged"))
    except RunNotFound:
        return None
    except (QuarlError, KeyError, TypeError) as error:
        _LOG.warning("the kept policy does not hold and will be replaced: %s", error)
        return None


def better(one: Judged | None, other: Judged | None) -> Judged | None:
    """Return the better judged of two, the first where they are equal."""
    if one is None or other is None:
        return one or other
    return other if other.return_mean > one.return_mean else one
