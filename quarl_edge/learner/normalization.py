"""The observation normaliser of a run: given by the preset, or taken once from the first experience.

A TFLite input has one scale for all of its dimensions, so a pole angle of ±0.2 beside velocities of ±3 would get 16
of 256 levels. The normaliser brings every dimension to about ±1 before the input is quantized.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec
from quarl_edge.config import TrainConfig
from quarl_edge.learner.algorithm import Algorithm
from quarl_edge.replay.experience import Experience
from quarl_export.qat import QatPolicy

Float32 = NDArray[np.float32]
_SAMPLE = 10_000
_CONSTANT = 1e-4


def from_observations(observations: Float32, spec: ObservationSpec) -> tuple[Float32, Float32]:
    """Return offset and scale that bring `observations` to within ±1.

    Centre and half range come from the data. A dimension that did not move takes its half range from the space's
    bounds if they are finite, else it is left as it is: dividing by nearly nothing would blow up its first change.

    Args:
        observations: float32[count, n], recorded under the first, random actions.
        spec: of the observation key.

    Returns:
        offset and scale, float32[n] each, for `(observation - offset) * scale`.
    """
    low, high = observations.min(axis=0), observations.max(axis=0)
    offset = (low + high) / 2
    half = (high - low) / 2
    still = half < _CONSTANT
    if still.any():
        half = np.where(still, _half_of_bounds(spec, observations.shape[1]), half)
    return offset.astype(np.float32), (1.0 / half).astype(np.float32)


def _half_of_bounds(spec: ObservationSpec, size: int) -> Float32:
    if spec.low is None or spec.high is None:
        return np.ones(size, np.float32)
    width = np.broadcast_to(np.subtract(spec.high, spec.low, dtype=np.float64) / 2, (size,))
    return np.where(width > _CONSTANT, width, 1.0).astype(np.float32)


class NormalizerPlan:
    """When and from what the normaliser's constants are set.

    Args:
        config: gives `observation_offset` and `observation_scale`, or neither.
        spec: of the observation key.

    Attributes:
        pending: whether the constants still have to come from data.
    """

    def __init__(self, config: TrainConfig, spec: ObservationSpec) -> None:
        self._spec = spec
        self._given = config.observation_scale
        self._offset = config.observation_offset
        self.pending = config.observation_scale is None

    def begin(self, policy: QatPolicy) -> None:
        """Set constants that the preset gives, on a fresh policy."""
        if self._given is None:
            return
        offset = self._offset if self._offset is not None else (0.0,) * len(self._given)
        policy.set_normalizer(offset, self._given)

    def settle(self, experience: Experience, algorithm: Algorithm) -> None:
        """Set constants from what came in by now, once, in all networks of `algorithm`."""
        algorithm.set_normalizer(*from_observations(experience.recent_observations(_SAMPLE), self._spec))
        self.pending = False
