"""A runtime without TFLite: any function of numpy arrays in place of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError
from quarl_device.flatbuffer import IDENTIFIER

Compute = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]


class FakeModel:
    """A loaded model that computes by a function.

    Attributes:
        batch_size: first dimension of inputs and outputs.
        calls: how often it ran.
        infer: see `quarl_device.runtime.LoadedModel`.
    """

    def __init__(
        self, compute: Compute, *, inputs: Mapping[str, tuple[int, ...]], outputs: Sequence[str], batch_size: int
    ) -> None:
        self.batch_size = batch_size
        self.calls = 0
        self._compute, self._inputs, self._outputs = compute, dict(inputs), list(outputs)
        self.infer: Callable[..., Any] = self._infer

    def _infer(self, *observations: NDArray[Any]) -> Any:
        results = self.run(dict(zip(self._inputs, observations, strict=True)))
        values = tuple(results.values())
        return values[0] if len(values) == 1 else values

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run by tensor name. See `quarl_device.runtime.LoadedModel`."""
        if set(inputs) != set(self._inputs):
            raise ModelFileError(f"the model has inputs {sorted(self._inputs)}, given were {sorted(inputs)}")
        for name, shape in self._inputs.items():
            array, wanted = inputs[name], (self.batch_size, *shape)
            if array.shape != wanted or array.dtype != np.float32:
                raise ModelFileError(f"input {name!r} is {array.dtype} {array.shape}, expected float32 {wanted}")
        self.calls += 1
        results = self._compute(inputs)
        return {name: np.array(results[name], np.float32) for name in self._outputs}


class FakeRuntime:
    """A `PolicyRuntime` whose models all compute by one function.

    Args:
        compute: input arrays [B, ...] by tensor name, to output arrays [B, ...] by tensor name; float32.
        inputs: tensor name to shape without batch.
        outputs: tensor names.

    Attributes:
        models: every model that was loaded, in order.
    """

    name = "fake"
    version = "1"

    def __init__(self, compute: Compute, *, inputs: Mapping[str, tuple[int, ...]], outputs: Sequence[str]) -> None:
        self._compute, self._inputs, self._outputs = compute, dict(inputs), list(outputs)
        self.models: list[FakeModel] = []

    def load(
        self,
        model: bytes,
        *,
        inputs: Sequence[str],
        outputs: Sequence[str],
        batch_size: int = 1,
        num_threads: int = 1,
    ) -> FakeModel:
        """Load a model. See `quarl_device.runtime.PolicyRuntime`."""
        del num_threads
        if model[4:8] != IDENTIFIER:
            raise ModelFileError("not a TFLite file")
        if batch_size < 1:
            raise ModelFileError(f"batch size {batch_size} is not positive")
        if set(inputs) != set(self._inputs) or not outputs or not set(outputs) <= set(self._outputs):
            raise ModelFileError(
                f"the model has inputs {sorted(self._inputs)} and outputs {sorted(self._outputs)}, "
                f"asked for were {list(inputs)} and {list(outputs)}"
            )
        shapes = {name: self._inputs[name] for name in inputs}
        loaded = FakeModel(self._compute, inputs=shapes, outputs=outputs, batch_size=batch_size)
        self.models.append(loaded)
        return loaded
