"""What learns from a replay of transitions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quarl_device.errors import UsageError
from quarl_edge.config.fields import spec
from quarl_edge.config.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(TrainConfig):
    """A run whose transitions are sampled again and again.

    Attributes:
        batch_size: transitions per gradient step.
        samples_per_insert: how often a transition is sampled; gradient steps per environment step are this over
            `batch_size`.
        error_buffer: half width of the limiter's window, in samples; `None`: as wide as blocks and calls need.
        learning_starts: transitions in replay before the first update.
        replay_capacity: transitions.
        n_step: rewards per transition.
        priority_exponent: alpha: transitions are drawn in proportion to their error to this power; 0: uniformly.
        importance_exponent: beta: how much of that the loss corrects, 0 for nothing, 1 for all.
        target_period_updates: gradient steps between copies to the target networks, whole calls; 0: never.
        target_tau: weight of the online networks in the target, per gradient step; 0: no averaging.
    """

    batch_size: int = spec(64, 1, 65_536)
    samples_per_insert: float = spec(32.0, 0, 1e6, above=True)
    error_buffer: float | None = spec(None, 1, math.inf)
    learning_starts: int = spec(1_000, 1, 10**9)
    replay_capacity: int = spec(100_000, 1, 10**9)
    n_step: int = spec(1, 1, 100)
    priority_exponent: float = spec(0.0, 0, 1)
    importance_exponent: float = spec(0.4, 0, 1)
    target_period_updates: int = spec(128, 0, 10**9)
    target_tau: float = spec(0.0, 0, 1)

    def check_together(self) -> None:
        """Refuse values that do not go together; see `TrainConfig.check_together`."""
        super().check_together()
        if self.learning_starts > self.replay_capacity:
            raise UsageError(
                f"learning_starts = {self.learning_starts}: expected at most replay_capacity = {self.replay_capacity}"
            )
        if not self.target_period_updates and not self.target_tau:
            raise UsageError("target_period_updates = 0 and target_tau = 0: the target network would never change")
        self._check_target_period()

    def _check_target_period(self) -> None:
        """The target is copied after whole calls, so that another period would be a silent lie."""
        period, call = self.target_period_updates, self.updates_per_call
        if not period % call:
            return
        below = period // call * call
        near = " or ".join(f"{n}" for n in (below, below + call) if n)
        raise UsageError(
            f"target_period_updates = {period}: expected a multiple of updates_per_call = {call}",
            hint=f"--set target_period_updates={near}",
        )
