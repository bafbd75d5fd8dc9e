"""What a loop's policy sees of stacked frames: the last ones of every environment, whichever policy acts.

They are the loop's and no policy's: a random action is not asked of a policy, which would miss a frame, and a newer
policy goes on in the middle of an episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec
from quarl_device.frame_stack import FrameHistory, fill_frame

Array = NDArray[Any]


class LastFrames:
    """The stacks of N environments, as the environment gives frames.

    Args:
        seen: the observation, with a stack of more than one frame.
        num_envs: N.

    Attributes:
        stacks: [stack, N, *shape], oldest frame first; a view that holds until the next frame.
    """

    def __init__(self, seen: ObservationSpec, *, num_envs: int) -> None:
        self._history = FrameHistory(
            depth=seen.stack, envs=num_envs, shape=seen.shape, dtype=np.dtype(seen.dtype), fill=fill_frame(seen)
        )
        self.stacks: Array = self._history.windows[0]

    def begin(self, frames: Array) -> None:
        """Take the first frames [N, *shape] of new episodes of all environments."""
        self._history.begin()
        self.push(frames)

    def push(self, frames: Array, starts: NDArray[np.bool_] | None = None) -> None:
        """Take the next frames [N, *shape]; those of environments whose `starts` [N] is true begin episodes."""
        history = self._history
        if starts is not None:
            history.begin(starts)
        history.latest[...] = frames
        self.stacks = history.windows[history.push()]
