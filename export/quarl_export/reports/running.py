"""Runs a file on observations and hands out every tensor of every row.

Intermediate tensors are only there without XNNPACK, which computes several operators as one. LiteRT's reference
kernels agree with XNNPACK to the LSB on the networks that policies have; the outputs are taken from the default
kernels, the ones that act, and how far the two differ is measured and told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import Normalizer
from quarl_device.errors import ModelFileError, NonFiniteError
from quarl_device.flatbuffer import Tensor
from quarl_device.runtime import find_runtime
from quarl_export.reports.side import Side
from quarl_export.reports.structure import Float, dequantize

_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


class TracedFile:
    """A file in two interpreters: the one that acts, and one that keeps its tensors."""

    def __init__(self, side: Side) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        self.side = side
        tensors = side.graph.tensors
        self._outputs: Mapping[str, NDArray[Any]] = {}
        self._acting = find_runtime("litert").load(
            side.data,
            inputs=[tensors[index].name for index in side.inputs],
            outputs=[tensors[index].name for index in side.graph.outputs],
        )
        try:
            self._traced: Any = Interpreter(
                model_content=side.data,
                num_threads=1,
                experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
                experimental_preserve_all_tensors=True,
            )
            self._traced.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            raise ModelFileError(f"LiteRT refuses {side.path or 'the model'}: {str(error)[:200]}") from error

    def run(self, observations: Mapping[str, NDArray[Any]], row: int) -> dict[str, Float]:
        """Run one row on both.

        Args:
            observations: per key ``[rows, *shape]`` as the environment gives them.
            row: which.

        Returns:
            Per observation key, the real values that enter the graph, before any quantization, flattened.
        """
        entering, given = {}, {}
        normalizer = self.side.contract.normalizer if self.side.contract else Normalizer()
        for spec, index in zip(self.side.observations, self.side.inputs, strict=True):
            tensor = self.side.graph.tensors[index]
            values = _normalized(observations[spec.key][row], spec.key, normalizer)
            entering[spec.key] = values.astype(np.float64).ravel()
            given[tensor.name] = quantize(values, tensor).reshape(tensor.shape)
            self._traced.set_tensor(index, given[tensor.name])
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


def _normalized(observation: NDArray[Any], key: str, normalizer: Normalizer) -> NDArray[np.float32]:
    """Return what the device hands to the file: normalised here only where the contract says "device"."""
    values = np.asarray(observation, np.float32)
    if normalizer.where != "device" or key not in normalizer.offset:
        return values
    flat = values.reshape(-1)
    offset, scale = (np.asarray(part[key], np.float32) for part in (normalizer.offset, normalizer.scale))
    if offset.size not in (1, flat.size):
        # Constants of one frame, for a stack of them in the last axis.
        frames = flat.size // offset.size
        shape = (*values.shape[:-1], values.shape[-1] // frames)
        offset = np.concatenate([offset.reshape(shape)] * frames, axis=-1).ravel()
        scale = np.concatenate([scale.reshape(shape)] * frames, axis=-1).ravel()
    result = (flat - offset) * scale
    if normalizer.clip:
        result = np.clip(result, -normalizer.clip, normalizer.clip)
    return np.asarray(result, np.float32)


def quantize(values: NDArray[np.float32], tensor: Tensor) -> NDArray[Any]:
    """Return `values` in the tensor's type, rounded as TFLite's QUANTIZE does (halves away from zero)."""
    if tensor.dtype not in _RANGES or tensor.quantization is None:
        return values.astype(tensor.dtype)
    scale = np.float32(tensor.quantization.scales[0])
    steps = values.astype(np.float32) / scale
    rounded = np.trunc(steps + np.copysign(np.float32(0.5), steps)) + float(tensor.quantization.zero_points[0])
    low, high = _RANGES[tensor.dtype]
    return np.asarray(np.clip(rounded, low, high), tensor.dtype)
