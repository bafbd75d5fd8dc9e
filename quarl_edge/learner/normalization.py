"""The observation normaliser of a run: constants that the preset gives, or ranges learned from what is observed.

A TFLite input has one scale for all of its dimensions, so a pole angle of ±0.2 beside velocities of ±3 would get 16
of 256 levels. The normaliser brings every dimension to about ±1 before the input is quantized. Extremes do that, and
not standard deviations: the one scale must hold the longest tail, so a dimension with an extreme of 20 deviations would
take the levels of all others. Pixels are of one size: they are divided by 255 from the beginning (`initial_snapshot`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec
from quarl_device.errors import CheckpointError
from quarl_device.frame_stack import input_shape, is_image
from quarl_edge.config import TrainConfig
from quarl_edge.learner.algorithm import Algorithm
from quarl_edge.replay.experience import Experience

Float32 = NDArray[np.float32]
Constants = tuple[Float32, Float32]
PERIOD = 256
"""Observations between two moves of the ends that constants are made of."""
_CONSTANT = 1e-4


def to_unit_range(low: NDArray[Any], high: NDArray[Any], spec: ObservationSpec) -> Constants:
    """Return offset and scale that bring `low` to -1 and `high` to 1.

    A dimension that did not move takes its half range from the space's bounds if they are finite, else it is left as
    it is: dividing by nearly nothing would blow up its first change.

    Args:
        low: float[n], smallest values.
        high: float[n], largest ones.
        spec: of the observation key.

    Returns:
        offset and scale, float32[n] each, for `(observation - offset) * scale`.
    """
    half = (high - low) / 2
    still = half < _CONSTANT
    if still.any():
        half = np.where(still, _half_of_bounds(spec, len(half)), half)
    return ((low + high) / 2).astype(np.float32), (1.0 / half).astype(np.float32)


def _half_of_bounds(spec: ObservationSpec, size: int) -> NDArray[np.float64]:
    if spec.low is None or spec.high is None:
        return np.ones(size)
    # Of stacked frames it is the same in each.
    width = np.resize(np.subtract(spec.high, spec.low, dtype=np.float64) / 2, (size,))
    return np.where((width > _CONSTANT) & np.isfinite(width), width, 1.0)


class RunningRange:
    """Extremes of all that was observed, and ends that follow them ever more slowly.

    After every `PERIOD` observations the ends go one k-th of the way to the extremes, k counting the periods: the
    whole way after the first, half of it after the second. What was never seen before is thus heeded at once at the
    beginning, and cannot disturb what was learned later on. How observations are handed in, one by one or many at a
    time, makes no difference to the bit.

    Args:
        size: dimensions.

    Attributes:
        count: observations so far.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self._extremes = np.stack([np.full(size, np.inf), np.full(size, -np.inf)])
        self._ends = np.zeros((2, size))

    def add(self, observations: NDArray[Any]) -> None:
        """Take observations, float[any, n], in order."""
        rest = observations
        while len(rest):
            part, rest = np.split(rest, [PERIOD - self.count % PERIOD])
            low, high = self._extremes
            np.minimum(low, part.min(axis=0), out=low)
            np.maximum(high, part.max(axis=0), out=high)
            self.count += len(part)
            if self.count % PERIOD == 0:
                self._ends += (self._extremes - self._ends) / (self.count // PERIOD)

    @property
    def ends(self) -> NDArray[np.float64]:
        """Lower and upper ends, float64[2, n]; the extremes themselves before the first period is over."""
        return self._ends if self.count >= PERIOD else self._extremes

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all of it."""
        return {"count": np.array(self.count), "extremes": self._extremes, "ends": self._ends}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` returned."""
        self.count = int(arrays["count"])
        self._extremes, self._ends = arrays["extremes"].copy(), arrays["ends"].copy()


class ObservationNormalizer:
    """Sets the constants of all networks of a run: those that are given, or those that follow what is observed.

    Args:
        config: gives `observation_offset` and `observation_scale`, or neither.
        spec: of the observation key.

    Usage by a session and its loop::

        normalizer.begin(algorithm, played)             # or algorithm.restore and normalizer.restore
        changed = normalizer.follow(experience, algorithm)
    """

    def __init__(self, config: TrainConfig, spec: ObservationSpec) -> None:
        self._spec = spec
        self._given = _given(config)
        self._follows = self._given is None and not is_image(spec)
        self._range = RunningRange(math.prod(input_shape(spec)) if self._follows else 0)
        self._seen = 0
        self._constants: Constants | None = None

    def begin(self, algorithm: Algorithm, played: NDArray[Any]) -> None:
        """Set the first constants: those given, or the range of `played`, float[count, n], observed in random play.

        Those of images are there already.
        """
        if self._given is not None:
            algorithm.set_normalizer(*self._given)
        elif self._follows:
            self._range.add(played)
            self._set(algorithm)

    def follow(self, experience: Experience, algorithm: Algorithm) -> bool:
        """Heed what was observed since the last call; returns whether the constants changed."""
        if not self._follows:
            return False
        self._seen, observations = experience.observations_since(self._seen)
        self._range.add(observations)
        return self._set(algorithm)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a checkpoint keeps beside the networks' own constants, {} where these do not change."""
        return {} if not self._follows else {**self._range.arrays(), "seen": np.array(self._seen)}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` returned; the networks' constants are restored with them.

        Raises:
            CheckpointError: it is of other observations, or of a run whose constants were given or were not.
        """
        wanted = {name: array.shape for name, array in self.arrays().items()}
        found = {name: array.shape for name, array in arrays.items()}
        if found != wanted:
            raise CheckpointError(f"the checkpoint's normaliser holds {found}, this run's {wanted}")
        if wanted:
            self._range.restore(arrays)
            self._seen = int(arrays["seen"])
            self._constants = self._followed()

    def _followed(self) -> Constants:
        low, high = self._range.ends
        return to_unit_range(low, high, self._spec)

    def _set(self, algorithm: Algorithm) -> bool:
        constants = self._followed()
        if self._constants is not None and all(map(np.array_equal, constants, self._constants)):
            return False
        self._constants = constants
        algorithm.set_normalizer(*constants)
        return True


def _given(config: TrainConfig) -> Constants | None:
    scale = config.observation_scale
    if scale is None:
        return None
    offset = config.observation_offset if config.observation_offset is not None else (0.0,) * len(scale)
    return np.asarray(offset, np.float32), np.asarray(scale, np.float32)
