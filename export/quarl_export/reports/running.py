"""Runs a file on observations and hands out every tensor of every row.

Intermediate tensors are only there without XNNPACK, which computes several operators as one. LiteRT's reference
kernels agree with XNNPACK to the LSB on the networks that policies have; the outputs are taken from the default
kernels, the ones that act, and how far the two differ is measured and told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec
from quarl_device.errors import ModelFileError, NonFiniteError
from quarl_device.flatbuffer import Tensor
from quarl_device.preprocess import InputBinding, bind_inputs, to_tensor
from quarl_device.runtime import find_runtime
from quarl_export.reports.side import Side
from quarl_export.reports.structure import Float, dequantize


class TracedFile:
    """A file in two interpreters: the one that acts, and one that keeps its tensors."""

    def __init__(self, side: Side) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        self.side = side
        self._bindings = _bindings(side)
        tensors = side.graph.tensors
        self._outputs: Mapping[str, NDArray[Any]] = {}
        self._acting = find_runtime("litert").load(
            side.data,
            inputs=[tensors[index].name for index in side.inputs],
            outputs=[tensors[index].name for index in side.graph.outputs],
        )
        kernels = OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        self._traced: Any = _first_that_loads(side, kernels, Interpreter)

    def run(self, observations: Mapping[str, NDArray[Any]], row: int) -> dict[str, Float]:
        """Run one row on both.

        Args:
            observations: per key ``[rows, *shape]`` as the environment gives them, or ``[rows, stack, *shape]``.
            row: which.

        Returns:
            Per observation key, the real values that enter the graph, before any quantization, flattened as the tensor
            lies.
        """
        entering, given = {}, {}
        for binding, index in zip(self._bindings, self.side.inputs, strict=True):
            key, name = binding.spec.key, self.side.graph.tensors[index].name
            frames = observations[key][row : row + 1]
            in_float = dataclasses.replace(binding, dtype=np.dtype(np.float32), scale=0.0)
            entering[key] = to_tensor(in_float, frames).astype(np.float64).ravel()
            given[name] = to_tensor(binding, frames)
            self._traced.set_tensor(index, given[name])
        self._outputs = self._acting.run(given)
        self._traced.invoke()
        return entering

    def output(self, index: int) -> Float:
        """Return an output of the row as it acts, in real numbers, flattened."""
        return self._real(self._outputs[self.side.graph.tensors[index].name], index)

    def traced(self, index: int) -> Float:
        """Return any tensor of the row in real numbers, flattened."""
        return self._real(self._traced.get_tensor(index), index)

    def stored(self, index: int) -> NDArray[Any]:
        """Return any tensor of the row as it is stored, flattened."""
        values: NDArray[Any] = self._traced.get_tensor(index)
        return values.ravel()

    def _real(self, stored: NDArray[Any], index: int) -> Float:
        values = dequantize(stored, self.side.graph.tensors[index]).ravel()
        if not np.isfinite(values).all():
            raise NonFiniteError(f"{self.side.path or 'the model'}: tensor {index} is NaN or Inf on an observation")
        return values


def _first_that_loads(side: Side, kernels: tuple[Any, ...], interpreter: Any) -> Any:
    """Return what keeps all tensors, in the first of `kernels` that has every operator: the reference ones lack ELU.

    Raises:
        ModelFileError: none has.
    """
    refused: Exception | None = None
    for resolver in kernels:
        try:
            traced = interpreter(
                model_content=side.data,
                num_threads=1,
                experimental_op_resolver_type=resolver,
                experimental_preserve_all_tensors=True,
            )
            traced.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            refused = error
        else:
            return traced
    told = " ".join(str(refused).split())[:200]
    raise ModelFileError(f"LiteRT refuses {side.path or 'the model'}: {told}") from refused


def _bindings(side: Side) -> tuple[InputBinding, ...]:
    """Return what the device binds observations to; a file without a contract takes them as they are."""
    if side.contract is not None:
        return bind_inputs(side.contract, side.graph)
    return tuple(
        _binding(spec, side.graph.tensors[index]) for spec, index in zip(side.observations, side.inputs, strict=True)
    )


def _binding(spec: ObservationSpec, tensor: Tensor) -> InputBinding:
    quantization = tensor.quantization if tensor.dtype != "float32" else None
    return InputBinding(
        spec=spec,
        shape=tensor.shape[1:],
        dtype=np.dtype(tensor.dtype),
        scale=0.0 if quantization is None else float(quantization.scales[0]),
        zero_point=0 if quantization is None else int(quantization.zero_points[0]),
    )
