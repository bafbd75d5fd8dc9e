"""The hot path into an input tensor: one observation into a kept buffer, by the rule of `preprocess`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.frame_stack import FrameHistory, fill_frame
from quarl_device.preprocess import InputBinding, normalized, stack_view, stored
from quarl_device.staircase import stair_encoder

Array = NDArray[Any]
Float32 = NDArray[np.float32]
Encode = Callable[[Any], None]
_SIGN = np.uint8(0x80)
_ROUND = 1.5 * 2**23
"""A float32 of less than 2**22, added to this, is an integer in its lowest bits: the nearest, of two the even one."""

_FEW = 1024
"""Up to so many numbers one call of numpy is faster than several with longer inner loops."""


class Filler:
    """Writes observations into one kept input buffer.

    Args:
        binding: which tensor.
        batch_size: `None` for observations without a batch axis.
        stacked: observations are whole stacks, [stack, *shape] or [stack, batch_size, *shape], oldest frame first.

    Attributes:
        buffer: [B, *tensor shape] in the tensor's dtype, B = 1 without a batch: what the runtime is given.
        fill: takes one observation [*shape], or [batch_size, *shape], as the environment gives it. With a stack, one
            frame of each environment; the earlier ones are remembered, unless they are given (`stacked`).
    """

    fill: Encode

    def __init__(self, binding: InputBinding, *, batch_size: int | None = None, stacked: bool = False) -> None:
        single = batch_size is None
        self.buffer: Array = np.zeros((batch_size or 1, *binding.shape), binding.dtype)
        self._history: FrameHistory | None = None
        stacks = np.moveaxis(stack_view(binding, self.buffer), 1, 0)
        if binding.spec.stack > 1 and stacked:
            self.fill = _of_stacks(binding, stacks, single=single)
        elif binding.spec.stack > 1:
            self._history, self.fill = _stacking(binding, stacks, single=single)
        else:
            self.fill = _of_frames(binding, stacks[0], single=single)

    def begin(self, starts: NDArray[np.bool_] | None = None) -> None:
        """Forget the frames so far, of all environments or of those whose `starts` [B] is true."""
        if self._history is not None:
            self._history.begin(starts)


def _stacking(binding: InputBinding, stacks: Array, *, single: bool) -> tuple[FrameHistory, Encode]:
    """Return the frames' memory and what takes one frame of each environment into `stacks` [stack, B, *shape]."""
    before = fill_frame(binding.spec)
    # A normaliser that differs from place to place in the stack can only be applied after stacking.
    late = binding.by_frame
    if before is not None:
        before = before.astype(np.float32) if late else stored(binding, normalized(binding, before))
    depth, envs, *shape = stacks.shape
    dtype = np.dtype(np.float32) if late else binding.dtype
    history = FrameHistory(depth=depth, envs=envs, shape=tuple(shape), dtype=dtype, fill=before)
    place = _copier if late else _encoder
    keep = _of_frames(binding, history.latest, single=single, encoder=place)
    push, windows = history.push, history.windows
    if late or stacks.size <= _FEW:
        finish = _encoder(binding, stacks) if late else _copier(binding, stacks)

        def fill(observation: Any) -> None:
            keep(observation)
            finish(windows[push()])

        return history, fill

    planes = [list(zip(_planes(binding, stacks), _planes(binding, window), strict=True)) for window in windows]

    def fill_images(observation: Any) -> None:
        keep(observation)
        for into, plane in planes[push()]:
            into[...] = plane

    return history, fill_images


def _of_stacks(binding: InputBinding, stacks: Array, *, single: bool) -> Encode:
    """Return what writes whole stacks [stack, B, *shape], of one environment without the axis B, into `stacks`."""
    into = _planes(binding, stacks)
    if not binding.scale and binding.factor is None:
        read: Callable[[Any], Array] = np.asarray
    else:
        encoded = np.empty(stacks.shape, binding.dtype)
        encode = _encoder(binding, encoded)

        def read(given: Any) -> Array:
            encode(given)
            return encoded

    def fill(given: Any) -> None:
        found = read(given[:, None] if single else given)
        for target, plane in zip(into, _planes(binding, found), strict=True):
            target[...] = plane

    return fill


def _planes(binding: InputBinding, stacks: Array) -> list[Array]:
    """Cut [stack, B, *shape] into what is copied at once: single channels of images, single frames of all else.

    Frames lie element beside element in a tensor; copied whole, numpy's inner loop would be as short as the stack.
    """
    if len(binding.spec.shape) < 3:
        return list(stacks)
    channels = 2 if binding.layout == "channels_last" else -1
    return [plane for frames in np.moveaxis(stacks, channels, 1) for plane in frames]


def _of_frames(
    binding: InputBinding,
    frames: Array,
    *,
    single: bool,
    encoder: Callable[[InputBinding, Array], Encode] | None = None,
) -> Encode:
    """Return what writes observations into `frames` [B, *shape]; of one environment, without the axis B."""
    encoder = encoder or _encoder
    if single:
        return encoder(binding, frames[0, ...])
    encode, shape = encoder(binding, frames), frames.shape

    def fill(observations: Any) -> None:
        # Without the reshape, one row would be broadcast to all.
        encode(observations.reshape(shape))

    return fill


def _copier(_: InputBinding, into: Array) -> Encode:
    def copy(observation: Any) -> None:
        into[...] = observation

    return copy


def _encoder(binding: InputBinding, into: Array) -> Encode:
    """Return what normalises and quantizes numbers of the shape of `into`, a view of the tensor, in kept memory."""
    if not binding.scale:
        return _float_encoder(binding, into)
    alike = all(part is None or not part.ndim for part in (binding.offset, binding.factor))
    if binding.spec.dtype == "uint8" and alike:
        return _table_encoder(binding, into)
    return stair_encoder(binding, into) or _integer_encoder(binding, into)


def _table_encoder(binding: InputBinding, into: Array) -> Encode:
    """Return the encoder of images: each of the 256 values has one answer."""
    values = np.arange(256, dtype=np.uint8)
    table = stored(binding, normalized(binding, values))
    if np.array_equal(table, values):
        return _copier(binding, into)
    if binding.dtype == np.int8 and np.array_equal(table.view(np.uint8), values ^ _SIGN):
        work = np.empty(into.shape, np.uint8)
        shifted = work.view(np.int8)

        def shift(observation: Any) -> None:
            np.bitwise_xor(observation, _SIGN, out=work, casting="unsafe")
            into[...] = shifted

        return shift
    # `take` would make indices of its own type in every call.
    index, found = np.empty(into.shape, np.intp), np.empty(into.shape, binding.dtype)

    def look_up(observation: Any) -> None:
        index[...] = observation
        np.take(table, index, out=found, mode="clip")
        into[...] = found

    return look_up


def _float_encoder(binding: InputBinding, into: Array) -> Encode:
    if binding.offset is None or binding.factor is None:
        return _copier(binding, into)
    work = np.empty(into.shape, np.float32)
    offset, factor = (_spread(part, binding, into) for part in (binding.offset, binding.factor))
    subtract, multiply, maximum, minimum = np.subtract, np.multiply, np.maximum, np.minimum

    def encode(observation: Any) -> None:
        work[...] = observation
        subtract(work, offset, work)
        multiply(work, factor, work)
        into[...] = work

    if not binding.clip:
        return encode
    low, high = (np.full(into.shape, limit, np.float32) for limit in (-binding.clip, binding.clip))

    def encode_clipped(observation: Any) -> None:
        work[...] = observation
        subtract(work, offset, work)
        multiply(work, factor, work)
        maximum(work, low, out=work)
        minimum(work, high, out=into)

    return encode_clipped


def _integer_encoder(binding: InputBinding, into: Array) -> Encode:
    """Return the encoder of an integer tensor.

    A call of numpy costs more than its work on the few numbers of most observations, so there is one call less where
    adding `_ROUND` rounds: the integers are then the low bytes of the floats, and the zero point is added to these,
    modulo their size, on the way into the tensor. The low bytes of NaN, as numpy and processors make it, are 0.
    """
    flat = np.empty(into.size, np.float32)
    work = flat.reshape(into.shape)
    width = flat.itemsize // binding.dtype.itemsize
    lowest = 0 if sys.byteorder == "little" else width - 1
    integers = flat.view(binding.dtype)[lowest::width].reshape(into.shape)
    inverse = np.full(into.shape, np.float32(1.0) / np.float32(binding.scale), np.float32)
    low, high = (np.full(into.shape, limit, np.float32) for limit in _reach(binding))
    rounding = np.full(into.shape, _ROUND, np.float32)
    zero_point = np.full(into.shape, binding.zero_point, binding.dtype)
    subtract, multiply, maximum, minimum, add = np.subtract, np.multiply, np.maximum, np.minimum, np.add

    def encode(observation: Any) -> None:
        work[...] = observation
        multiply(work, inverse, work)
        maximum(work, low, out=work)
        minimum(work, high, out=work)
        add(work, rounding, work)
        add(integers, zero_point, into)

    if binding.offset is None or binding.factor is None:
        return encode
    offset, factor = (_spread(part, binding, into) for part in (binding.offset, binding.factor))

    def encode_normalized(observation: Any) -> None:
        work[...] = observation
        subtract(work, offset, work)
        multiply(work, factor, work)
        multiply(work, inverse, work)
        maximum(work, low, out=work)
        minimum(work, high, out=work)
        add(work, rounding, work)
        add(integers, zero_point, into)

    return encode_normalized


def _spread(part: Float32, binding: InputBinding, into: Array) -> Float32:
    """Return an offset or factor in the shape of `into`, [*shape], [B, *shape] or [stack, B, *shape]."""
    by_frame = part.ndim > len(binding.spec.shape)
    return np.broadcast_to(part[:, None] if by_frame else part, into.shape).copy()


def _reach(binding: InputBinding) -> tuple[float, float]:
    """Return the limits of a value in steps from the zero point: those of the tensor, or of the normaliser's clip.

    To clip before rounding is the same: the limits are integers, and rounding only ever grows with its value.
    """
    low, high = (float(limit - binding.zero_point) for limit in binding.limits)
    if binding.clip:
        reach = float(np.rint(np.float32(binding.clip) * (np.float32(1.0) / np.float32(binding.scale))))
        low, high = max(low, -reach), min(high, reach)
    return low, high
