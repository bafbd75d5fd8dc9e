"""The hot path into an input tensor: one observation into a kept buffer, by the rule of `preprocess`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ContractError
from quarl_device.preprocess import InputBinding, frame_slots, normalized, stored

Array = NDArray[Any]
Encode = Callable[[Any, Array], None]
_SIGN = np.uint8(0x80)


class Filler:
    """Writes observations into one kept input buffer.

    Args:
        binding: which tensor.
        batch_size: `None` for observations without a batch axis.

    Attributes:
        buffer: [B, *tensor shape] in the tensor's dtype, B = 1 without a batch: what the runtime is given.
        fill: takes one observation [*shape], or [batch_size, *shape], as the environment gives it. With a stack, one
            frame; the earlier ones are remembered.
    """

    fill: Callable[[Any], None]

    def __init__(self, binding: InputBinding, *, batch_size: int | None = None) -> None:
        stack, frame = binding.spec.stack, binding.spec.shape
        if stack > 1 and batch_size is not None:
            raise ContractError(f"observation {binding.spec.key!r}: a stack of {stack} frames is of one environment")
        self.buffer: Array = np.zeros((batch_size or 1, *binding.shape), binding.dtype)
        slots = frame_slots(binding, self.buffer)
        self._begins = True
        if batch_size is not None:
            self.fill = _batch_fill(slots[0], _encoder(binding, (batch_size, *frame)))
        elif stack == 1:
            self.fill = _single_fill(slots[0][0, ...], _encoder(binding, frame))
        else:
            self._frames = np.zeros((stack, *frame), binding.dtype)
            self._slots = [slot[0, ...] for slot in slots]
            self._encode = _encoder(binding, frame)
            self._newest = 0
            self.fill = self._push

    def begin_episode(self) -> None:
        """Forget the frames of the last episode: the next one fills the whole stack."""
        self._begins = True

    def _push(self, observation: Any) -> None:
        stack = len(self._slots)
        self._newest = newest = (self._newest + 1) % stack
        self._encode(observation, self._frames[newest, ...])
        if self._begins:
            self._frames[...] = self._frames[newest].copy()
            self._begins = False
        for age, slot in enumerate(reversed(self._slots)):
            slot[...] = self._frames[(newest - age) % stack, ...]


def _single_fill(row: Array, encode: Encode | None) -> Callable[[Any], None]:
    if encode is _copy:

        def fill(observation: Any) -> None:
            row[...] = observation

        return fill

    def fill_encoded(observation: Any) -> None:
        encode(observation, row)  # type: ignore[misc]

    return fill_encoded


def _batch_fill(rows: Array, encode: Encode) -> Callable[[Any], None]:
    shape = rows.shape

    def fill(observations: Any) -> None:
        # Without the reshape, one row would be broadcast to all.
        encode(observations.reshape(shape), rows)

    return fill


def _copy(observation: Any, into: Array) -> None:
    into[...] = observation


def _encoder(binding: InputBinding, shape: tuple[int, ...]) -> Encode:
    """Return what normalises and quantizes `shape` numbers into a view of the tensor, in kept memory."""
    if not binding.scale and binding.factor is None:
        return _copy
    uniform = binding.factor is None or (binding.factor.ndim == 0 and binding.offset is not None)
    if (
        binding.scale
        and binding.spec.dtype == "uint8"
        and uniform
        and (binding.offset is None or not binding.offset.ndim)
    ):
        return _table_encoder(binding, shape)
    return _arithmetic_encoder(binding, np.empty(shape, np.float32))


def _table_encoder(binding: InputBinding, shape: tuple[int, ...]) -> Encode:
    """Return the encoder of images: each of the 256 values has one answer."""
    values = np.arange(256, dtype=np.uint8)
    table = stored(binding, normalized(binding, values))
    if np.array_equal(table, values):
        return _copy
    if binding.dtype == np.int8 and np.array_equal(table.view(np.uint8), values ^ _SIGN):
        work = np.empty(shape, np.uint8)

        def shift(observation: Any, into: Array) -> None:
            np.bitwise_xor(observation, _SIGN, out=work, casting="unsafe")
            into[...] = work.view(np.int8)

        return shift
    # `take` would make indices of its own type in every call.
    index, found = np.empty(shape, np.intp), np.empty(shape, binding.dtype)

    def look_up(observation: Any, into: Array) -> None:
        index[...] = observation
        np.take(table, index, out=found, mode="clip")
        into[...] = found

    return look_up


def _arithmetic_encoder(binding: InputBinding, work: NDArray[np.float32]) -> Encode:
    steps: list[tuple[np.ufunc, Any]] = []
    if binding.factor is not None:
        steps += [(np.subtract, binding.offset), (np.multiply, binding.factor)]
    if not binding.scale:
        if binding.factor is not None and binding.clip:
            steps += [(np.maximum, -binding.clip), (np.minimum, binding.clip)]
        return _float_encoder(work, _operands(steps))
    inverse = np.float32(1.0) / np.float32(binding.scale)
    before = _operands([*steps, (np.multiply, inverse)])
    after = _operands([*([(np.add, binding.zero_point)] if binding.zero_point else []), *_clamps(binding, inverse)])
    rint, copyto = np.rint, np.copyto

    def encode(observation: Any, into: Array) -> None:
        work[...] = observation
        for ufunc, operand in before:
            ufunc(work, operand, out=work)
        rint(work, out=work)
        for ufunc, operand in after:
            ufunc(work, operand, out=work)
        copyto(into, work, casting="unsafe")

    return encode


def _clamps(binding: InputBinding, inverse: np.float32) -> list[tuple[np.ufunc, Any]]:
    """Return the tensor's limits, narrowed by the normaliser's clip: what follows that clip only ever grows with it."""
    low, high = (float(limit) for limit in binding.limits)
    if binding.clip:
        reach = np.rint(np.float32(binding.clip) * inverse)
        low, high = max(low, float(binding.zero_point - reach)), min(high, float(binding.zero_point + reach))
    return [(np.maximum, low), (np.minimum, high)]


def _operands(steps: list[tuple[np.ufunc, Any]]) -> tuple[tuple[np.ufunc, NDArray[np.float32]], ...]:
    # A Python or numpy scalar costs a conversion in every call.
    return tuple((ufunc, np.array(operand, np.float32)) for ufunc, operand in steps)


def _float_encoder(work: NDArray[np.float32], steps: tuple[tuple[np.ufunc, NDArray[np.float32]], ...]) -> Encode:
    def encode(observation: Any, into: Array) -> None:
        work[...] = observation
        for ufunc, operand in steps:
            ufunc(work, operand, out=work)
        into[...] = work

    return encode
