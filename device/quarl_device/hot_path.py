"""Closures that act: fill the kept buffers, run the model, decide. One set per contract, made at load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import BARE_KEY
from quarl_device.fillers import Filler
from quarl_device.heads import Decide, first_largest
from quarl_device.preprocess import InputBinding
from quarl_device.runtime import Infer, LoadedModel

Act = Callable[[Any], Any]
Array = NDArray[Any]


def copies(binding: InputBinding) -> bool:
    """Return whether an observation goes into its tensor as it is."""
    return not binding.scale and binding.factor is None and binding.layout == "joined"


def plain_row(inputs: tuple[InputBinding, ...], fillers: list[Filler]) -> Array | None:
    """Return the row that an observation is copied into where that is all there is to do."""
    if len(inputs) != 1 or inputs[0].spec.key != BARE_KEY or inputs[0].spec.stack != 1 or not copies(inputs[0]):
        return None
    # A view in the observation's own shape, so that assignment casts and copies without reshaping.
    return fillers[0].buffer.reshape(inputs[0].spec.shape)


def compose(results: Callable[[Any], Any], decide: Decide) -> Act:
    """Return what runs the model on an observation and decides on its results."""

    def act(observation: Any) -> Any:
        return decide(results(observation))

    return act


def results_of(inputs: tuple[InputBinding, ...], fillers: list[Filler], infer: Infer) -> Callable[[Any], Any]:
    """Return what fills the kept buffers from an observation and runs the model."""
    buffers = [filler.buffer for filler in fillers]
    fills = [(binding.spec.key, filler.fill) for binding, filler in zip(inputs, fillers, strict=True)]
    if len(fills) == 1:
        return _results_of_one(*fills[0], buffers[0], infer)

    def results(observation: Any) -> Any:
        for key, fill in fills:
            fill(observation[key])
        return infer(*buffers)

    return results


def _results_of_one(key: str, fill: Callable[[Any], None], buffer: Array, infer: Infer) -> Callable[[Any], Any]:
    def bare(observation: Any) -> Any:
        fill(observation)
        return infer(buffer)

    def named(observation: Any) -> Any:
        fill(observation[key] if isinstance(observation, Mapping) else observation)
        return infer(buffer)

    return bare if key == BARE_KEY else named


def filled_act(fill: Callable[[Any], None], buffer: Array, infer: Infer, decide: Decide) -> Act:
    """Return the hot path of an observation that is no dict, with as few Python calls as there can be."""

    def act(observation: Any) -> Any:
        fill(observation)
        return decide(infer(buffer))

    return act


def plain_index(infer: Infer, buffer: Array, row: Array, n: int, start: int) -> Act:
    """Return the hot path of a plain observation: fill a kept buffer, run, take the largest as `first_largest` does."""
    if n == 2:

        def act_two(observation: Any) -> int:
            row[...] = observation
            first, second = infer(buffer).tolist()[0]
            if first >= second:
                return start
            # Neither is so with a NaN.
            return start + 1 if second > first else start + first_largest([first, second])

        return act_two

    if n == 3:

        def act_three(observation: Any) -> int:
            row[...] = observation
            first, second, third = infer(buffer).tolist()[0]
            if first >= second:
                return start if first >= third else start + 2
            if second > first:
                return start + 1 if second >= third else start + 2
            return start + first_largest([first, second, third])

        return act_three

    def act(observation: Any) -> int:
        row[...] = observation
        return start + first_largest(infer(buffer).tolist()[0])

    def act_many(observation: Any) -> int:
        row[...] = observation
        return start + int(infer(buffer).argmax())

    return act if n <= 32 else act_many


def plain_act(infer: Infer, buffer: Array, row: Array, decide: Decide) -> Act:
    """Return the hot path of a plain observation and any head."""

    def act(observation: Any) -> Any:
        row[...] = observation
        return decide(infer(buffer))

    return act


def plain_batch(infer: Infer, shape: tuple[int, ...], binding: InputBinding, decide: Decide) -> Act:
    """Return the hot path of [batch_size, *shape] plain observations."""
    buffer = np.zeros(shape, binding.dtype)

    def act_batch(observations: Any) -> Any:
        buffer[...] = observations.reshape(shape)
        return decide(infer(buffer))

    return act_batch


class RowByRow:
    """A model of batch size 1 in the place of a larger one; see `lint.takes_batches`."""

    def __init__(self, model: LoadedModel, batch_size: int) -> None:
        self.batch_size = batch_size
        self._model = model
        self.infer: Infer = self._infer

    def _infer(self, *inputs: Array) -> Any:
        rows = [self._model.infer(*(array[n : n + 1] for array in inputs)) for n in range(self.batch_size)]
        if isinstance(rows[0], tuple):
            return tuple(np.concatenate(parts) for parts in zip(*rows, strict=True))
        return np.concatenate(rows)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run by tensor name. See `quarl_device.runtime.LoadedModel`."""
        rows = [
            self._model.run({name: array[n : n + 1] for name, array in inputs.items()}) for n in range(self.batch_size)
        ]
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
