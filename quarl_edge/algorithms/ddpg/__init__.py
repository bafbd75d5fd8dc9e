"""DDPG: a deterministic policy for continuous actions, from replay; `learner` has the updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quarl_device.errors import UsageError
from quarl_edge.config.fields import choice, spec
from quarl_edge.config.replay import ReplayConfig

NOISES = ("gaussian", "ornstein_uhlenbeck")


@dataclass(frozen=True, kw_only=True)
class DeterministicConfig(ReplayConfig):
    """What DDPG and D4PG share.

    Attributes:
        critic_hidden: sizes of the critic's hidden layers; it stays in float.
        critic_layer_norm: normalise the critic's first layer, then tanh, as Acme does.
        critic_learning_rate: of Adam, of the critic.
        action_gradient_norm: norm that dq/da is shortened to, per transition; 0: as it is.
        saturation_weight: of the policy's excess into saturation, beyond the last step of an int8 tanh; 0: none.
        noise: what the actors add to actions: "gaussian" or "ornstein_uhlenbeck".
        noise_initial: its sigma at the start, in half widths of the action space.
        noise_final: its sigma from `noise_steps` on.
        noise_steps: over which sigma falls linearly.
    """

    critic_hidden: tuple[int, ...] = (256, 256)
    critic_layer_norm: bool = False
    critic_learning_rate: float = spec(1e-3, 0, 1, above=True)
    action_gradient_norm: float = spec(0.0, 0, 1e6)
    saturation_weight: float = spec(0.1, 0, 1e6)
    noise: str = choice("gaussian", *NOISES)
    noise_initial: float = spec(0.3, 0, 10)
    noise_final: float = spec(0.1, 0, 10)
    noise_steps: int = spec(10_000, 1, 10**12)

    def check_together(self) -> None:
        """Refuse values that do not go together; see `TrainConfig.check_together`."""
        super().check_together()
        if not 1 <= len(self.critic_hidden) <= 16 or not all(1 <= units <= 8_192 for units in self.critic_hidden):
            raise UsageError(f"critic_hidden = {self.critic_hidden}: expected 1..16 layers of 1..8,192 units")

    def sigma(self, env_steps: int) -> float:
        """Return the noise's sigma after `env_steps` environment steps."""
        part = min(1.0, max(0.0, env_steps / self.noise_steps))
        return self.noise_initial + part * (self.noise_final - self.noise_initial)


@dataclass(frozen=True, kw_only=True)
class DdpgConfig(DeterministicConfig):
    """DDPG (Lillicrap et al. 2016) on n-step transitions."""

    NAME: ClassVar[str] = "ddpg"

    algorithm: str = NAME
