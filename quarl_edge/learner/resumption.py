"""What a session begins from: a checkpoint and the journal beside it, or nothing; and that it says which."""

from __future__ import annotations

from quarl_device.errors import CheckpointError, JournalError
from quarl_edge.checkpoint import Checkpoint
from quarl_edge.config import TrainConfig
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.learner.algorithm import Algorithm
from quarl_edge.learner.keeper import better, judged_from_json, kept_judgement
from quarl_edge.learner.normalization import ObservationNormalizer
from quarl_edge.learner.parts import Progression
from quarl_edge.learner.result import TrainResult, nothing_happened
from quarl_edge.local.evaluator import Judged
from quarl_edge.runs import RunDirectory


class Resumption:
    """The start of a session.

    Args:
        run: the run's directory.
        checkpoint: to go on from, `None` for a new run.
        config: of the run.

    Raises:
        CheckpointError: the checkpoint is of another algorithm.
    """

    def __init__(self, run: RunDirectory, checkpoint: Checkpoint | None, config: TrainConfig) -> None:
        self._run = run
        self._checkpoint = checkpoint
        self._lockstep = config.lockstep
        if checkpoint is not None and (found := checkpoint.state.get("algorithm")) != config.algorithm:
            # Two algorithms may well have variables of the same names and shapes.
            raise CheckpointError(
                f"the checkpoint is of {found or 'an earlier version'}, the run {run.path.name} learns with "
                f"{config.algorithm}",
                hint="restore the run's own checkpoints and config.json from a copy, or start a new run",
            )

    @property
    def is_new(self) -> bool:
        """Whether there is nothing to go on from."""
        return self._checkpoint is None

    @property
    def epoch(self) -> int:
        """Of the checkpoint, 0 without."""
        return 0 if self._checkpoint is None else int(self._checkpoint.state["epoch"])

    def progression(self) -> Progression:
        """Return the counters to go on with.

        Raises:
            CheckpointError: written by another version.
        """
        if self._checkpoint is None:
            return Progression()
        try:
            return Progression(**{**self._checkpoint.state["progression"], "reset_due": True})
        except TypeError as error:
            raise CheckpointError(f"checkpoint of another version: {error}") from error

    def restore_learning(self, algorithm: Algorithm, normalizer: ObservationNormalizer) -> None:
        """Set what was learned.

        Raises:
            CheckpointError: it is of another network, or its observations were normalised otherwise.
        """
        if self._checkpoint is None:
            return
        algorithm.restore(self._checkpoint.arrays["algorithm"])
        normalizer.restore(self._checkpoint.arrays.get("normalizer", {}))

    def restore_experience(self, ingest: Ingest) -> None:
        """Fill replay from the journal.

        Raises:
            JournalError: it is damaged, or ends before the checkpoint.
        """
        if self._checkpoint is None:
            return
        state = self._checkpoint.state
        missing = int(state["journal_position"]) - ingest.journal_position
        if missing > 0:
            raise JournalError(
                f"the journal {self._run.journal} ends {missing:,} bytes before the checkpoint: it is damaged or gone",
                hint="restore it from a copy, or start a new run",
            )
        # Lockstep makes the rounds after the checkpoint again; otherwise nothing that was stored is thrown away.
        ingest.rebuild(until=int(state["journal_position"]) if self._lockstep else None)
        ingest.experience.restore(state, self._checkpoint.arrays.get("experience", {}))

    def says(self, env_steps: int) -> str:
        """Return what is gone on from, as a sentence; "" for a new run.

        Args:
            env_steps: of the run, once the experience is restored.
        """
        if self._checkpoint is None:
            return ""
        updates, kept = self.progression().updates, int(self._checkpoint.state["env_steps"])
        if not updates:
            return (
                "resuming a run of which no update was kept: the network starts anew; "
                f"{env_steps:,} steps of experience are kept"
            )
        since = f" and the experience of {env_steps - kept:,} steps since" if env_steps > kept else ""
        return f"resuming from the checkpoint at {kept:,} steps ({updates:,} updates){since}"

    def best(self) -> Judged | None:
        """Return the best policy so far, as it was judged."""
        if self._checkpoint is None:
            return None
        best = judged_from_json(self._checkpoint.state.get("best"))
        # Lockstep judges everything after the checkpoint again. Otherwise a killed learner may have kept a better
        # policy since; a worse one must not take its place.
        return best if self._lockstep else better(best, kept_judgement(self._run.policy))

    def nothing_happened(self) -> TrainResult:
        """Return the result of a session that ends before it begins."""
        state = {} if self._checkpoint is None else self._checkpoint.state
        return nothing_happened(
            env_steps=int(state.get("env_steps", 0)),
            updates=int(state["progression"]["updates"]) if state else 0,
            best=self.best(),
            resumable=self._checkpoint is not None,
        )
