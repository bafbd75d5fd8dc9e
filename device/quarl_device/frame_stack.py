"""Stacked frames: what a policy sees of an episode's last K frames, as a rule and in kept memory.

`restack` is the rule, for calibration and reports. `FrameHistory` is the hot path: a ring per environment, nothing
allocated per frame. What lies before an episode's first frame is the contract's `stack_fill`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec
from quarl_device.errors import ContractError

Array = NDArray[Any]


def fill_frame(spec: ObservationSpec) -> Array | None:
    """Return the frame before an episode's first one, [*shape] in the observation's dtype; `None`: the first itself.

    Raises:
        ContractError: the dtype does not hold the contract's values.
    """
    if spec.stack_fill is None:
        return None
    wanted = np.broadcast_to(np.array(spec.stack_fill, np.float64), (int(np.prod(spec.shape, dtype=np.int64)),))
    kind = np.dtype(spec.dtype)
    if kind.kind in "iub":
        low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        # Float64 has no 2**63 - 1: the next value is beyond.
        held = (wanted == np.rint(wanted)) & (wanted >= low) & (wanted <= high) & (wanted < 2.0**63)
    else:
        held = np.abs(wanted) <= np.finfo(kind).max
    if not held.all():
        raise ContractError(
            f"observation {spec.key!r}: {spec.dtype} does not hold the stack_fill {wanted[~held][0]:g}",
            hint="stack frames as floats, or fill with a value that the environment itself can show",
        )
    return wanted.astype(kind).reshape(spec.shape)


def is_image(spec: ObservationSpec) -> bool:
    """Return whether an observation is an image: uint8 with rows and columns, or with channels behind them."""
    return spec.dtype == "uint8" and len(spec.shape) in (2, 3)


def input_shape(spec: ObservationSpec) -> tuple[int, ...]:
    """Return the shape of an observation as our own networks see it, without batch.

    Stacked frames are joined along the last axis, oldest first; an image always has channels.
    """
    shape = (*spec.shape, 1) if is_image(spec) and len(spec.shape) == 2 else spec.shape
    return (*shape[:-1], shape[-1] * spec.stack)


def restack(spec: ObservationSpec, before: Array | None, frame: Array) -> Array:
    """Return the stack that ends in `frame`, [stack, *shape], oldest frame first.

    Args:
        spec: with a stack of more than one frame.
        before: the stack of the step before; `None` at an episode's first frame.
        frame: [*shape].
    """
    if before is not None:
        return np.concatenate([before[1:], frame[None]])
    first = fill_frame(spec)
    return np.stack([frame if first is None else first] * (spec.stack - 1) + [frame])


class FrameHistory:
    """The last frames of N environments.

    A ring of twice the depth: each frame is written half a ring apart, so that the last ones always are one view.

    Args:
        depth: K, how many frames make a stack.
        envs: N.
        shape: of a frame.
        dtype: of what is kept.
        fill: what lies before an episode's first frame, [*shape]; `None`: that frame itself.

    Attributes:
        latest: [N, *shape], where the newest frames are written before `push`.
        windows: K views [depth, N, *shape], oldest frame first; `push` says which of them are the stacks now.
    """

    def __init__(
        self, *, depth: int, envs: int, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Array | None
    ) -> None:
        self.latest: Array = np.zeros((envs, *shape), dtype)
        ring = np.zeros((2, depth, envs, *shape), dtype)
        self._frames = ring.reshape(2 * depth, envs, *shape)
        self._places = [ring[:, n] for n in range(depth)]
        self.windows: list[Array] = [self._frames[n + 1 : n + 1 + depth] for n in range(depth)]
        self._before = self.latest if fill is None else fill
        self._newest = 0
        self._begins = np.ones(envs, np.bool_)
        self._any_begins = True
        self._mask = self._begins.reshape(envs, *(1,) * len(shape))

    def begin(self, starts: NDArray[np.bool_] | None = None) -> None:
        """Forget what came before the next frame, of all environments or of those whose `starts` [N] is true."""
        self._begins[...] = True if starts is None else self._begins | starts
        self._any_begins = bool(self._begins.any())

    def push(self) -> int:
        """Take `latest` in and return which of `windows` has the stacks."""
        self._newest = newest = (self._newest + 1) % len(self._places)
        if self._any_begins:
            np.copyto(self._frames, self._before, where=self._mask)
            self._begins[...] = self._any_begins = False
        self._places[newest][...] = self.latest
        return newest
