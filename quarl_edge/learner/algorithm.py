"""The seam between the training loop and an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quarl_device.wire.push import Exploration
from quarl_edge.replay.buffer import Batch
from quarl_export.qat import QatPolicy


class Algorithm(Protocol):
    """Turns batches into a better policy.

    Usage by the loop::

        algorithm.compile()                       # before the first environment step
        metrics = algorithm.update(replay.sample(K, B))
        snapshot = algorithm.policy.snapshot()    # what a push patches into its template

    Attributes:
        policy: the network that acts and is exported.
    """

    policy: QatPolicy

    def compile(self) -> None:
        """Trace and compile the update, leaving every variable as it was."""

    def update(self, batch: Batch) -> Mapping[str, float]:
        """Run K fused gradient steps.

        Args:
            batch: arrays of leading shape [K, B].

        Returns:
            Scalars to log, means over the K steps.
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
