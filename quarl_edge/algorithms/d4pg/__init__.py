"""D4PG: DDPG whose critic gives a distribution over returns; `learner` has the updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quarl_device.errors import UsageError
from quarl_edge.algorithms.ddpg import DeterministicConfig
from quarl_edge.config.fields import spec


@dataclass(frozen=True, kw_only=True)
class D4pgConfig(DeterministicConfig):
    """D4PG (Barth-Maron et al. 2018) on n-step transitions.

    Attributes:
        atoms: of the critic's distribution.
        value_min: the lowest atom, in scaled rewards: the least discounted return.
        value_max: the highest atom.
    """

    NAME: ClassVar[str] = "d4pg"

    algorithm: str = NAME
    atoms: int = spec(51, 2, 1_001)
    value_min: float = spec(-150.0, -1e6, 1e6)
    value_max: float = spec(150.0, -1e6, 1e6)

    def check_together(self) -> None:
        """Refuse values that do not go together; see `TrainConfig.check_together`."""
        super().check_together()
        if self.value_min >= self.value_max:
            raise UsageError(f"value_min = {self.value_min:g}: expected less than value_max = {self.value_max:g}")
