"""Outputs into actions: the four heads of the contract, greedy and sampled.

* ``q_values``: the action of the largest value.
* ``logits``: the same; sampled by softmax, in float on the device (int8 probabilities underflow).
* ``action``: ``output * scale + offset``, clipped to the bounds, in the shape of the space.
* ``gaussian``: the mean, sampled ``mean + exp(log_std) * noise``; through tanh where it says so; then as ``action``.

Quantized outputs become ``(stored - zero_point) * scale`` first, except where only their order matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, PolicyContract
from quarl_device.errors import ContractError, UnsupportedSpace
from quarl_device.flatbuffer import Graph, Tensor

Array = NDArray[Any]
Decide = Callable[[Any], Any]
Sample = Callable[[Any, np.random.Generator], Any]
OUTPUT_DTYPES = ("float32", "int8", "uint8", "int16")
# A standard deviation beyond e^±20 is no wish of any policy, and its square leaves float32.
MAX_LOG_STD = 20.0
FEW = 8
"""So many numbers are faster one by one in Python than as an array."""
_HEADS_OF = {"discrete": ("q_values", "logits"), "box": ("action", "gaussian")}


@dataclass(frozen=True, kw_only=True, eq=False)
class OutputBinding:
    """One role of the head and the output tensor that has it.

    Attributes:
        role: "q_values", "logits", "action", "mean" or "log_std".
        tensor: its name.
        scale: of a quantized tensor; 0 for float32.
        zero_point: of a quantized tensor.
        flat: the tensor is [batch, elements] without further axes.
        dtype: of the tensor.
    """

    role: str
    tensor: str
    scale: float = 0.0
    zero_point: int = 0
    flat: bool = True
    dtype: str = "float32"


def check_head(contract: PolicyContract) -> None:
    """Refuse a head that cannot act in the contract's action space.

    Raises:
        UnsupportedSpace: naming both.
    """
    head, action = contract.head.kind, contract.action
    if head not in _HEADS_OF[action.kind]:
        wanted = " or ".join(_HEADS_OF[action.kind])
        raise UnsupportedSpace(f"the head {head} cannot act in a {action.kind} action space; expected {wanted}")


def action_size(contract: PolicyContract) -> int:
    """Return how many elements the head's outputs have: discrete actions, or elements of a box action."""
    return contract.action.n if contract.action.kind == "discrete" else math.prod(contract.action.shape)


def float32_bounds(action: ActionSpec) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a box action's bounds, float64 [*shape], as its own dtype can hold them."""
    with np.errstate(over="ignore"):
        low, high = (
            np.array(bound, np.float64).astype(np.float32).astype(np.float64).reshape(action.shape)
            for bound in (action.low, action.high)
        )
    return low, high


def bind_outputs(contract: PolicyContract, graph: Graph | None = None) -> tuple[OutputBinding, ...]:
    """Return the head's roles with their output tensors, found by name; the mean comes first.

    Args:
        contract: of the file.
        graph: of the file; without it every output is taken to be float32.

    Raises:
        ContractError: a tensor is of a type that means no number.
    """
    tensors = {} if graph is None else {graph.tensors[n].name: graph.tensors[n] for n in graph.outputs}
    roles = sorted(contract.head.outputs, key=lambda role: role == "log_std")
    return tuple(_bind(role, contract.head.outputs[role], tensors.get(contract.head.outputs[role])) for role in roles)


def _bind(role: str, name: str, tensor: Tensor | None) -> OutputBinding:
    if tensor is None or tensor.dtype == "float32":
        return OutputBinding(role=role, tensor=name, flat=tensor is None or len(tensor.shape) == 2)
    if tensor.dtype not in OUTPUT_DTYPES:
        raise ContractError(f"output {role!r} is {tensor.dtype}; expected {', '.join(OUTPUT_DTYPES)}")
    if tensor.quantization is None or tensor.quantization.scales.size != 1:
        raise ContractError(f"output {role!r}: its {tensor.dtype} tensor has not exactly one scale")
    return OutputBinding(
        role=role,
        tensor=name,
        scale=float(tensor.quantization.scales[0]),
        zero_point=int(tensor.quantization.zero_points[0]),
        flat=len(tensor.shape) == 2,
        dtype=tensor.dtype,
    )


def real_output(binding: OutputBinding, values: Array) -> NDArray[np.float32]:
    """Return an output in its own units, float32, in the shape given; a new array for quantized ones alone."""
    if not binding.scale:
        return values
    # Widened before the zero point is taken off: int8 would wrap.
    real: NDArray[np.float32] = (values.astype(np.float32) - np.float32(binding.zero_point)) * np.float32(binding.scale)
    return real


def softmax(logits: Array) -> NDArray[np.float64]:
    """Return probabilities float64 [..., n] of logits [..., n]."""
    shifted = np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True)
    weights = np.exp(shifted)
    probabilities: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return probabilities


class BoxHead:
    """From a runtime's results to box actions.

    `output * scale + offset` and the clipping are computed in float64 and rounded once, so that an int8 tanh of
    127/128 under a scale of 128/127 is the bound itself.

    Args:
        contract: with a box action and an `action` or `gaussian` head.
        outputs: as `bind_outputs` gives them.
        shape: shape of what comes out: the action's, or [B, *action's].
    """

    def __init__(self, contract: PolicyContract, outputs: tuple[OutputBinding, ...], *, shape: tuple[int, ...]) -> None:
        action, size = contract.action, action_size(contract)
        self._shape, self._rows = shape, (-1, size)
        self._outputs, self._many = outputs, len(outputs) > 1
        self._log_std = np.array(contract.head.log_std, np.float64)
        self._squash = contract.head.squash == "tanh"
        self._scale = np.array(action.scale or [1.0] * size, np.float64)
        self._offset = np.array(action.offset or [0.0] * size, np.float64)
        self._low, self._high = (bound.ravel() for bound in float32_bounds(action))
        self.greedy: Decide = self._greedy
        if shape == action.shape and size <= FEW and outputs[0].flat:
            if outputs[0].dtype in ("int8", "uint8"):
                self.greedy = self._few_stored()
            elif not (self._many or self._squash or outputs[0].scale):
                self.greedy = self._one_number() if shape == (1,) else self._few_numbers()

    def _greedy(self, results: Any) -> NDArray[np.float32]:
        """Return the action, or the mean's, as a fresh float32 array."""
        return self._finish(self._wide(results[0] if self._many else results, 0))

    def _wide(self, values: Array, number: int) -> NDArray[np.float64]:
        """Return output `number` in its own units, float64 [B, size]."""
        output = self._outputs[number]
        wide = values.astype(np.float64).reshape(self._rows)
        if output.scale:
            np.subtract(wide, output.zero_point, out=wide)
            np.multiply(wide, output.scale, out=wide)
        return wide

    def _one_number(self) -> Decide:
        """Return the same for one float32 number, in Python's own floats and the runtime's own fresh array."""
        [(scale, offset, low, high)] = self._numbers()

        def greedy(results: Array) -> Array:
            value = results.item() * scale + offset
            results.fill(low if value < low else high if value > high else value)
            action: Array = results[0]
            return action

        return greedy

    def _few_numbers(self) -> Decide:
        numbers = self._numbers()
        empty = np.zeros(len(numbers), np.float32)
        shape = self._shape

        def greedy(results: Array) -> NDArray[np.float32]:
            values = []
            for value, (scale, offset, low, high) in zip(results.tolist()[0], numbers, strict=True):
                number = value * scale + offset
                values.append(low if number < low else high if number > high else number)
            action = empty.copy()
            action[...] = values
            return action.reshape(shape)

        return greedy

    def _few_stored(self) -> Decide:
        """Return the same for few 8-bit numbers: each of the 256 stored values has one answer."""
        stored = np.arange(256, dtype=np.uint8).view(self._outputs[0].dtype)
        columns = np.repeat(stored[:, None], self._scale.size, axis=1)
        tables = self._answers(self._wide(columns, 0)).T.tolist()
        empty, many, shape = np.zeros(len(tables), np.float32), self._many, self._shape

        def greedy(results: Any) -> Array:
            row = (results[0] if many else results).tolist()[0]
            action = empty.copy()
            # A negative number counts from the table's end, as its bits do.
            action[...] = [table[value] for table, value in zip(tables, row, strict=True)]
            return action.reshape(shape)

        return greedy

    def _numbers(self) -> list[tuple[float, float, float, float]]:
        arrays = (self._scale, self._offset, self._low, self._high)
        return list(zip(*(array.tolist() for array in arrays), strict=True))

    def sample(self, results: Any, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return an action drawn from the gaussian, float32."""
        mean, log_std = self._distribution(results)
        return self._finish(mean + np.exp(log_std) * rng.standard_normal(mean.shape))

    def _distribution(self, results: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and log standard deviation, [B, size] and what broadcasts to it."""
        mean = self._wide(results[0] if self._many else results, 0)
        log_std = self._wide(results[1], 1) if self._many else self._log_std
        return mean, np.clip(log_std, -MAX_LOG_STD, MAX_LOG_STD)

    def _finish(self, wide: NDArray[np.float64]) -> NDArray[np.float32]:
        return self._answers(wide).reshape(self._shape)

    def _answers(self, wide: NDArray[np.float64]) -> NDArray[np.float32]:
        if self._squash:
            np.tanh(wide, out=wide)
        np.multiply(wide, self._scale, out=wide)
        np.add(wide, self._offset, out=wide)
        np.maximum(wide, self._low, out=wide)
        np.minimum(wide, self._high, out=wide)
        return wide.astype(np.float32)


def first_largest(row: list[float]) -> int:
    """Return the place of the largest value, as `argmax` does: of equal ones the first, and NaN is the largest."""
    # A NaN anywhere makes the sum one.
    return int(np.argmax(row)) if math.isnan(sum(row)) else row.index(max(row))


def greedy_index(output: OutputBinding, n: int, start: int) -> Decide:
    """Return what picks the largest of `n` values of one observation, as an `int` counted from `start`.

    Few values are compared in Python, which is faster than `argmax`; see `first_largest`.
    """
    if not output.flat or n > 32:

        def act_many(values: Array) -> int:
            return start + int(values.argmax())

        return act_many

    def act(values: Array) -> int:
        return start + first_largest(values.tolist()[0])

    def act_stored(values: Array) -> int:
        # An integer is never NaN.
        [row] = values.tolist()
        largest: int = row.index(max(row))
        return start + largest

    return act if output.dtype == "float32" else act_stored


def greedy_indices(output: OutputBinding, batch_size: int, dtype: np.dtype[Any]) -> Decide:
    """Return what picks the largest of each row, counted from 0, as [batch_size] of `dtype`."""

    def act_flat(values: Array) -> Array:
        actions: Array = values.argmax(axis=1).astype(dtype)
        return actions

    def act_rows(values: Array) -> Array:
        return act_flat(values.reshape(batch_size, -1))

    return act_flat if output.flat else act_rows


def sample_index(output: OutputBinding, start: int) -> Sample:
    """Return what draws an action of one observation from the softmax of its logits."""

    def sample(values: Array, rng: np.random.Generator) -> int:
        shares = softmax(real_output(output, values).ravel()).cumsum()
        # The last share may be 1 - 1e-16, and a draw beyond it.
        return start + min(int(shares.searchsorted(rng.random(), side="right")), shares.size - 1)

    return sample
