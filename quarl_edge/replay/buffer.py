"""A ring of transitions in preallocated arrays, sampled uniformly or by priority.

The same inserts, the same seed and the same calls of `sample` give the same batches: lockstep runs rest on it. The
place of a transition in the ring is its running number modulo the capacity, so that a ring that was rebuilt from the
journal lies in memory as the lost one did.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import CheckpointError
from quarl_device.wire.block import Block
from quarl_edge.replay.priorities import Priorities
from quarl_edge.replay.transitions import Array, Batch, Transitions, spread

__all__ = ["Batch", "ReplayBuffer"]

_SLOTS = 2
_SPREAD_OVER = 10_000


class ReplayBuffer:
    """Holds the newest `capacity` transitions. One thread may insert while another samples.

    Args:
        capacity: transitions.
        observation: the observation key that is stored, in its dtype on the wire.
        action: the action space.
        seed: of the sampling.
        priorities: draw by these; `None` draws uniformly.

    Attributes:
        inserted: transitions that ever came in; only grows, except through `seek`.
        dropped: transitions that were not taken: none here, see `FrameReplay`.
    """

    def __init__(
        self,
        capacity: int,
        *,
        observation: ObservationSpec,
        action: ActionSpec,
        seed: int,
        priorities: Priorities | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity = {capacity}: expected at least 1")
        self._capacity = capacity
        self._priorities = priorities
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._lock = threading.Lock()
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "observation": (observation.shape, observation.dtype),
            "action": (action.shape, action.dtype),
            "reward": ((), "float32"),
            "discount": ((), "float32"),
            "next_observation": (observation.shape, observation.dtype),
        }
        # numpy's zeros are untouched pages: memory is taken as the ring fills.
        self._ring = {name: np.zeros((capacity, *shape), dtype) for name, (shape, dtype) in shapes.items()}
        # What a batch has of each: a subclass may keep something else.
        self._outputs = {name: (ring.shape[1:], ring.dtype) for name, ring in self._ring.items()}
        self._batches: dict[tuple[int, int], list[Batch]] = {}
        self._turn = 0
        self._forgotten = 0
        self.inserted = 0
        self.dropped = 0

    def __len__(self) -> int:
        return self.inserted - self._oldest

    @property
    def _oldest(self) -> int:
        """Running number of the oldest transition that is here."""
        return max(0, self.inserted - self._capacity, self._forgotten)

    @property
    def _is_short(self) -> bool:
        """Whether some have left that would still have their places."""
        return self._forgotten > max(0, self.inserted - self._capacity)

    @property
    def capacity(self) -> int:
        """Transitions that fit."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the ring when full."""
        return sum(array.nbytes for array in self._ring.values())

    def enter(self, block: Block) -> Block:
        """Return an accepted block as transitions are to be made of it; see `FrameReplay`."""
        return block

    def insert(self, transitions: Transitions) -> int:
        """Copy `transitions` in, over the oldest ones where the ring is full; returns how many were taken."""
        count = len(transitions)
        with self._lock:
            skipped = max(0, count - self._capacity)
            start = (self.inserted + skipped) % self._capacity
            first = min(count - skipped, self._capacity - start)
            for name, ring in self._ring.items():
                source: Array = getattr(transitions, name)
                ring[start : start + first] = source[skipped : skipped + first]
                if skipped + first < count:
                    ring[: count - skipped - first] = source[skipped + first :]
            if self._priorities is not None:
                self._priorities.entered(start, count - skipped)
            self.inserted += count
        return count

    def sample(self, num_batches: int, batch_size: int) -> Batch:
        """Draw transitions, with replacement.

        Args:
            num_batches: K.
            batch_size: B.

        Returns:
            Arrays [K, B, ...] that stay as they are until the next call but one.

        Raises:
            ValueError: nothing has been inserted.
        """
        with self._lock:
            size = len(self)
            if not size:
                raise ValueError("sample() from an empty replay")
            batch = self._next_batch(num_batches, batch_size)
            index = self._draw(size, batch)
            for name, (shape, _) in self._outputs.items():
                out: Array = getattr(batch, name)
                self._fill(name, index, out.reshape(len(index), *shape))
        return batch

    def _fill(self, name: str, index: Array, out: Array) -> None:
        """Write the transitions at the places `index` [count] into `out` [count, ...]."""
        # mode="clip" lets numpy write straight into `out`; the indices are in range anyway.
        np.take(self._ring[name], index, axis=0, out=out, mode="clip")

    def _draw(self, size: int, batch: Batch) -> Array:
        count = batch.reward.size
        if self._priorities is None:
            index: Array = self._rng.integers(0, size, count)
            if self._is_short:
                index = (self._forgotten + index) % self._capacity
        else:
            index, weight = self._priorities.draw(self._rng, count)
            batch.weight.reshape(-1)[:] = weight
        batch.place.reshape(-1)[:] = index
        return index

    def learned(self, batch: Batch, errors: Array) -> None:
        """Note how large the errors were of what a batch holds; without priorities nothing comes of it.

        A transition that has been overwritten since gives its successor its priority until that one is drawn.

        Args:
            batch: as sampled, not yet written again.
            errors: float32[K, B], temporal differences.
        """
        if self._priorities is not None:
            with self._lock:
                place, errors = batch.place.reshape(-1), errors.reshape(-1)
                if self._is_short:
                    here = (place - self._forgotten) % self._capacity < len(self)
                    place, errors = place[here], errors[here]
                if place.size:
                    self._priorities.learned(place, errors)

    def _forget(self, before: int) -> None:
        """Draw no transition again whose running number is below `before`; called with the lock held."""
        oldest = self._oldest
        if before <= oldest:
            return
        if self._priorities is not None:
            self._priorities.left(oldest % self._capacity, before - oldest)
        self._forgotten = before

    def priority_arrays(self) -> dict[str, Array]:
        """Return the priorities as a checkpoint keeps them, {} without."""
        if self._priorities is None:
            return {}
        with self._lock:
            return self._priorities.arrays()

    def restore_priorities(self, arrays: Mapping[str, Array]) -> None:
        """Set the priorities that `priority_arrays` returned.

        Raises:
            CheckpointError: they do not hold, or are of a replay without.
        """
        if (self._priorities is None) != (not arrays):
            raise CheckpointError("the checkpoint's priorities do not go with this run's replay")
        if self._priorities is not None:
            with self._lock:
                self._priorities.restore(arrays)

    def recent_observations(self, count: int) -> Array:
        """Return copies of the newest observations, oldest first: [min(count, len), *shape]."""
        with self._lock:
            return self._filled("observation", self._newest_places(count))

    def _newest_places(self, count: int) -> Array:
        return np.arange(self.inserted - min(count, len(self)), self.inserted) % self._capacity

    def _filled(self, name: str, index: Array) -> Array:
        shape, dtype = self._outputs[name]
        found = np.empty((len(index), *shape), dtype)
        self._fill(name, index, found)
        return found

    def spread_observations(self, count: int) -> Array:
        """Return copies of observations from all over the newest 10,000: [min(count, len), *shape]."""
        with self._lock:
            held = min(_SPREAD_OVER, len(self))
            return self._filled("observation", (self.inserted - held + spread(count, held)) % self._capacity)

    def observations_since(self, seen: int) -> tuple[int, Array]:
        """Return how many transitions ever came in, and copies of the observations of those after the first `seen`.

        Oldest first: [at most len, *shape]; what has left the ring is left out.
        """
        with self._lock:
            return self.inserted, self._filled("observation", self._newest_places(max(0, self.inserted - seen)))

    def newest(self, count: int) -> Transitions:
        """Return copies of the newest transitions, oldest first; at most what the ring holds."""
        with self._lock:
            count = min(count, len(self))
            start = (self.inserted - count) % self._capacity
            end = start + count
            if end <= self._capacity:
                return Transitions(**{name: ring[start:end].copy() for name, ring in self._ring.items()})
            rest = end - self._capacity
            return Transitions(
                **{name: np.concatenate((ring[start:], ring[:rest])) for name, ring in self._ring.items()}
            )

    def seek(self, inserted: int) -> None:
        """Go on at running number `inserted`: a rebuilding from a shortened journal starts in the middle of the count.

        Rows that are jumped over hold zeros or older transitions until they are written; the caller must see to it
        that `capacity` transitions follow.
        """
        with self._lock:
            self.inserted = inserted

    def random_state(self) -> str:
        """Return the state of the sampling as JSON text."""
        return json.dumps(_plain(self._rng.bit_generator.state))

    def set_random_state(self, state: str) -> None:
        """Go on sampling from `state`.

        Raises:
            CheckpointError: `state` did not come from `random_state`.
        """
        try:
            self._rng.bit_generator.state = json.loads(state)
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"the replay's random state does not hold: {error}") from error

    def _next_batch(self, num_batches: int, batch_size: int) -> Batch:
        slots = self._batches.get((num_batches, batch_size))
        if slots is None:
            lead = (num_batches, batch_size)
            slots = [
                Batch(
                    **{name: np.empty(lead + shape, dtype) for name, (shape, dtype) in self._outputs.items()},
                    place=np.empty(lead, np.int64),
                    weight=np.ones(lead, np.float32),
                )
                for _ in range(_SLOTS)
            ]
            # One shape is in use at a time; an old one would only hold memory.
            self._batches = {lead: slots}
        self._turn = (self._turn + 1) % _SLOTS
        return slots[self._turn]


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _plain(value) if isinstance(value, Mapping) else value if isinstance(value, str) else int(value)
        for key, value in state.items()
    }
