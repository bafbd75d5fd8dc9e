"""The two shapes of experience in the learner: a run of transitions and a stack of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec
from quarl_device.errors import UnsupportedSpace

Array = NDArray[Any]

# Of the golden ratio's multiples, the fractional parts lie evenly whatever their number is, and keep no step with
# episodes, blocks or environments.
_GOLDEN = 0.618_033_988_749_894_9


@dataclass(frozen=True, eq=False, slots=True)
class Transitions:
    """M n-step transitions in order of their first step.

    The arrays may be read-only views of a payload: copy what must outlive it.

    Attributes:
        observation: [M, *shape], dtype as on the wire.
        action: [M, ...], dtype as on the wire.
        reward: float32[M], discounted sum over the m <= n steps of the window.
        discount: float32[M], gamma^m, or 0 where the window ends in a termination.
        next_observation: [M, *shape], where the value is bootstrapped.
    """

    observation: Array
    action: Array
    reward: Array
    discount: Array
    next_observation: Array

    def __len__(self) -> int:
        return len(self.reward)

    def picked(self, rows: Array) -> Transitions:
        """Return copies of those at `rows`, int[any]."""
        return Transitions(
            self.observation[rows],
            self.action[rows],
            self.reward[rows],
            self.discount[rows],
            self.next_observation[rows],
        )


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """K batches of B transitions; fields as in `Transitions` with leading shape [K, B].

    The arrays belong to the buffer that made them and are written again by its next `sample` but one.

    Attributes:
        place: int64[K, B], where each lies in the ring: what `ReplayBuffer.learned` takes.
        weight: float32[K, B], how much each counts: 1 where all are drawn alike.
    """

    observation: Array
    action: Array
    reward: Array
    discount: Array
    next_observation: Array
    place: Array
    weight: Array


def single_observation(observations: Sequence[ObservationSpec]) -> ObservationSpec:
    """Return the only observation key of a space that this replay can hold.

    Raises:
        UnsupportedSpace: several keys.
    """
    if len(observations) != 1:
        keys = ", ".join(repr(spec.key) for spec in observations)
        raise UnsupportedSpace(
            f"replay holds one observation key, this environment has {len(observations)}: {keys}",
            hint="wrap the environment in gymnasium.wrappers.FlattenObservation",
        )
    return observations[0]


def spread(count: int, held: int) -> NDArray[np.int64]:
    """Return places spread evenly over 0..held-1, the same each time: int64[min(count, held)], in no order."""
    if count >= held:
        return np.arange(held)
    return (np.arange(count) * _GOLDEN % 1.0 * held).astype(np.int64)
