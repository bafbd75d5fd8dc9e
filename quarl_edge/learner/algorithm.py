"""The seam between the training loop and an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quarl_device.wire.push import Exploration
from quarl_export.qat import QatPolicy


@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """What one call of updates gave.

    Attributes:
        steps: gradient steps.
        metrics: scalars to log, means over the steps.
        errors: float32[K, B], temporal differences, which priorities follow; `None` where there are none.
    """

    steps: int
    metrics: Mapping[str, float]
    errors: NDArray[np.float32] | None = None


class Algorithm(Protocol):
    """Turns batches into a better policy.

    Usage by the loop::

        algorithm.compile()                       # before the first environment step
        learned = algorithm.update(experience.take())
        snapshot = algorithm.policy.snapshot()    # what a push patches into its template

    Attributes:
        policy: the network that acts and is exported.
    """

    policy: QatPolicy

    def compile(self) -> None:
        """Trace and compile the update, leaving every variable as it was."""

    def update(self, experience: Any) -> Learned:
        """Run one call of fused gradient steps.

        Args:
            experience: a `Batch` of leading shape [K, B], or a whole `Rollout`.
        """

    def exploration(self, env_steps: int) -> Exploration:
        """Return how actors explore with the policy as it is after `env_steps` environment steps."""

    def set_normalizer(self, offset: NDArray[np.float32], scale: NDArray[np.float32]) -> None:
        """Normalise observations as ``(observation - offset) * scale``, float32[n], in every network that sees them."""

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return every variable (weights, ranges, optimizer, target, step counter) by a stable name."""

    def restore(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Set every variable from `arrays`.

        Raises:
            CheckpointError: a variable is missing, unknown, or of another shape.
        """
