"""A replay that keeps each frame once: transitions refer to frames, and stacks are made when they are sampled.

An 84x84 game with four frames stacked would keep each frame eight times, in two stacks of every transition. Here a
block's frames go into a ring of their own, and everything that makes transitions is given their running numbers in the
place of pixels (`stacking.with_places`).
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.frame_stack import input_shape
from quarl_device.wire.block import Block
from quarl_device.wire.limits import MAX_BLOCK_BYTES
from quarl_edge.replay.buffer import ReplayBuffer
from quarl_edge.replay.priorities import Priorities
from quarl_edge.replay.stacking import fill_stacks, frames_of, with_places
from quarl_edge.replay.transitions import Array, Transitions

_OBSERVATIONS = ("observation", "next_observation")
# The rows at a block's end wait for the device's next one (n-step), and others send theirs meanwhile.
_REACH_BLOCKS = 16
_SPARE_SHARE = 1 / 8


class FrameReplay(ReplayBuffer):
    """Holds the newest `capacity` transitions, and fewer where their frames need more room than there is.

    Frames leave in order, and take the transitions along that refer to them: those that came in while a frame was not
    `reach` frames old, which is why older ones are not referred to.

    Args:
        capacity: transitions.
        observation: the observation key, one frame as it travels.
        action: the action space.
        seed: of the sampling.
        priorities: draw by these; `None` draws uniformly.
        block_rows: rows of a full block, each of which has one frame.

    Attributes:
        inserted: transitions that ever came in; only grows, except through `seek`.
        dropped: those that were not taken, since their first frames had left before their last ones came.
        frame_capacity: frames that fit: a block's, for all transitions, an eighth more for what ends episodes, and
            what may be referred to.
    """

    def __init__(
        self,
        capacity: int,
        *,
        observation: ObservationSpec,
        action: ActionSpec,
        seed: int,
        priorities: Priorities | None = None,
        block_rows: int,
    ) -> None:
        places = ObservationSpec(key=observation.key, shape=(observation.stack,), dtype="int64")
        super().__init__(capacity, observation=places, action=action, seed=seed, priorities=priorities)
        shape, dtype = input_shape(observation), np.dtype(observation.dtype)
        self._outputs |= dict.fromkeys(_OBSERVATIONS, (shape, dtype))
        self._seen = observation
        per_transition = (block_rows + observation.stack) / block_rows + _SPARE_SHARE
        self._reach = _reach_frames(observation)
        self.frame_capacity = math.ceil(capacity * per_transition) + self._reach
        self._frames = np.zeros((self.frame_capacity, *observation.shape), dtype)
        self._added = 0
        # Of each insertion: frames that were there, transitions that were there after it.
        self._insertions: deque[tuple[int, int]] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes of the rings when full."""
        return super().nbytes + self._frames.nbytes

    def enter(self, block: Block) -> Block:
        """Copy a block's frames in; returns the block with their running numbers in the place of its observations."""
        with self._lock:
            base = self._added
            for frames in frames_of(block, self._seen.key):
                self._keep(frames)
            self._forget_overwritten()
        return with_places(block, self._seen, base=base)

    def _keep(self, frames: Array) -> None:
        start = self._added % self.frame_capacity
        first = min(len(frames), self.frame_capacity - start)
        self._frames[start : start + first] = frames[:first]
        self._frames[: len(frames) - first] = frames[first:]
        self._added += len(frames)

    def _forget_overwritten(self) -> None:
        gone = self._added - self.frame_capacity
        while self._insertions and self._insertions[0][0] - self._reach < gone:
            self._forget(self._insertions.popleft()[1])

    def insert(self, transitions: Transitions) -> int:
        """Copy `transitions`, whose observations are running numbers, in; returns how many were taken."""
        held = transitions.observation.min(axis=1) >= self._added - self._reach
        if not held.all():
            self.dropped += int((~held).sum())
            transitions = transitions.picked(np.flatnonzero(held))
        taken = super().insert(transitions)
        if taken:
            with self._lock:
                self._insertions.append((self._added, self.inserted))
        return taken

    def newest(self, count: int) -> Transitions:
        """See `ReplayBuffer.newest`."""
        with self._lock:
            index = self._newest_places(count)
            return Transitions(**{name: self._filled(name, index) for name in self._ring})

    def _fill(self, name: str, index: Array, out: Array) -> None:
        if name not in _OBSERVATIONS:
            super()._fill(name, index, out)
            return
        fill_stacks(out, self._frames, self._ring[name][index] % self.frame_capacity, self._seen)


def _reach_frames(seen: ObservationSpec) -> int:
    """Return how old a frame may be, in frames, that a new transition refers to: those of the largest blocks."""
    return _REACH_BLOCKS * MAX_BLOCK_BYTES // (math.prod(seen.shape) * np.dtype(seen.dtype).itemsize)
