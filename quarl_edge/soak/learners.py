"""The two learners of a soak as command lines: one that only stores, one that trains and resumes from checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FLEET = "soak"
_ENDLESS_STEPS = 1_000_000_000
# As much of every part as leaves a small machine time for the rest. No journal is deleted: the books are read there.
_TRAINING = {
    "samples_per_insert": 4,
    "push_period_updates": 640,
    "evaluate_period_pushes": 20,
    "checkpoint_period_steps": 3_000,
    "replay_capacity": 2_000_000,
    # An episode of CartPole-v1 returns 500 at most.
    "goal_return": 501,
}


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Where a learner keeps its things, and how it is started.

    Attributes:
        trains: whether it is `quarl-edge train`; else `quarl_edge.soak.learner`.
        folder: of the soak.
        url: of the broker.
        block_steps: rows per block.
    """

    trains: bool
    folder: Path
    url: str
    block_steps: int

    @property
    def journal(self) -> Path:
        """Where its journal is."""
        return self._run / "journal" if self.trains else self.folder / "journal"

    @property
    def key(self) -> Path:
        """Its signing key."""
        return self.folder / "learner.key"

    @property
    def resumable(self) -> bool:
        """Whether it can be killed and go on: one that trains needs a checkpoint."""
        return not self.trains or self._has_checkpoint

    def has_served_since(self, unix_s: float) -> bool:
        """Whether a kill would end more than a start: one that trains must have kept something of its own."""
        return not self.trains or any(path.stat().st_mtime > unix_s for path in self._checkpoints())

    def words(self, epoch: int) -> Sequence[str]:
        """Return the command line of its next life.

        Args:
            epoch: of that life; one that trains finds its own.
        """
        joins = ["--broker", self.url, "--fleet", FLEET]
        if not self.trains:
            return [
                sys.executable, "-m", "quarl_edge.soak.learner", *joins, "--journal", str(self.journal),
                "--epoch", str(epoch), "--key", str(self.key), "--block-steps", str(self.block_steps),
            ]  # fmt: skip
        settings = {**_TRAINING, "block_steps": self.block_steps}
        fresh = ["CartPole-v1", *(word for name, value in settings.items() for word in ("--set", f"{name}={value}"))]
        return [
            sys.executable, "-m", "quarl_edge", "train", *(["--resume"] if self._has_checkpoint else fresh), *joins,
            "--run", str(self._run), "--actors", "0", "--steps", str(_ENDLESS_STEPS), "--learner-key", str(self.key),
            # What was killed is renewed no more, but its successor cannot know that for 30 s.
            "--takeover", "--format", "json",
        ]  # fmt: skip

    @property
    def _run(self) -> Path:
        return self.folder / "run"

    @property
    def _has_checkpoint(self) -> bool:
        return any(self._checkpoints())

    def _checkpoints(self) -> Iterator[Path]:
        return (self._run / "checkpoints").glob("ckpt-*")
