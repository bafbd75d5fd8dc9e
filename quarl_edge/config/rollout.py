"""What learns from rounds of rollouts, each made by one policy and used once."""

from __future__ import annotations

from dataclasses import dataclass

from quarl_device.errors import UsageError
from quarl_edge.config.fields import spec
from quarl_edge.config.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(TrainConfig):
    """A run in rounds: push, so many steps of every environment with that policy, updates.

    Attributes:
        round_steps: T, rows that every actor makes with one policy version.
        round_actors: actors whose rollouts make a round; 0: as many as `actors`.
        round_timeout_s: a round to which nothing came for so long is begun anew.
        gae_lambda: of the generalised advantage estimates.
        epochs: passes over a round.
        minibatches: gradient steps per pass.
        value_learning_rate: of Adam, of the value network.
        value_hidden: sizes of the hidden layers of the value network, which stays in float.
        entropy_cost: weight of the policy's entropy.
        standardize_advantages: to mean 0 and deviation 1 over a round's minibatch.
    """

    round_steps: int = spec(128, 1, 65_535)
    round_actors: int = spec(0, 0, 256)
    round_timeout_s: float = spec(30.0, 0, 86_400, above=True)
    gae_lambda: float = spec(0.95, 0, 1)
    epochs: int = spec(1, 1, 1_000)
    minibatches: int = spec(1, 1, 10_000)
    value_learning_rate: float = spec(1e-3, 0, 1, above=True)
    value_hidden: tuple[int, ...] = (64, 64)
    entropy_cost: float = spec(0.0, 0, 10)
    standardize_advantages: bool = True

    def check_together(self) -> None:
        """Refuse values that do not go together; see `TrainConfig.check_together`."""
        super().check_together()
        if self.edge_tpu:
            raise UsageError(
                f"edge_tpu = true: {self.algorithm} learns from rounds, each made by the newest policy alone, which is "
                "not compiled yet",
                hint="an algorithm with a replay: --algorithm dqn, ddpg or d4pg",
            )
        if not 1 <= len(self.value_hidden) <= 16 or not all(1 <= units <= 8_192 for units in self.value_hidden):
            raise UsageError(f"value_hidden = {self.value_hidden}: expected 1..16 layers of 1..8,192 units")
        if self.lockstep and self.round_steps != self.block_steps:
            raise UsageError(
                f"round_steps = {self.round_steps}: in lockstep a round is a block of block_steps = {self.block_steps}",
                hint=f"--set block_steps={self.round_steps}",
            )
        if not (self.round_actors or self.actors):
            raise UsageError(
                "round_actors = 0 and actors = 0: a round would have no actor",
                hint="--set round_actors=N, as many as will join",
            )
