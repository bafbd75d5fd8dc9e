"""Runs a file as a device does: one raw observation at a time in, outputs in their own units out.

Tensors are bound by name. The normaliser runs here where the contract gives it to the device; integer ends are
quantized and dequantized by the tensors' own scales.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from quarl_device.contract import Normalizer, PolicyContract
from quarl_device.errors import ModelFileError
from quarl_device.runtime import PolicyRuntime, find_runtime
from quarl_export.graph import output_scale

Float32 = NDArray[np.float32]
_DTYPES: Mapping[int, Any] = {
    schema.TensorType.INT8: np.int8,
    schema.TensorType.UINT8: np.uint8,
    schema.TensorType.INT16: np.int16,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class _End:
    """One end of the file: dtype, scale (0: float) and zero point of its tensor, and its shape without batch."""

    tensor: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    scale: float = 0.0
    zero_point: int = 0

    @classmethod
    def of(cls, tensor: Any) -> _End:
        """Return the end at a flatbuffer `tensor`."""
        dtype = np.dtype(_DTYPES.get(tensor.Type(), np.float32))
        quantization = tensor.Quantization() if dtype.kind in "iu" else None
        return cls(
            tensor=tensor.Name().decode(),
            dtype=dtype,
            shape=tuple(int(n) for n in tensor.ShapeAsNumpy()[1:]),
            scale=0.0 if quantization is None else float(quantization.Scale(0)),
            zero_point=0 if quantization is None else int(quantization.ZeroPoint(0)),
        )

    def stored(self, values: Float32) -> NDArray[Any]:
        """Return `values` in the tensor's type. TFLite's own QUANTIZE multiplies by the inverse and rounds to even."""
        if not self.scale:
            return values
        info = np.iinfo(self.dtype)
        steps = np.rint(values * (np.float32(1.0) / np.float32(self.scale))) + np.float32(self.zero_point)
        # Clipped before the cast, which would wrap.
        clipped: NDArray[Any] = np.clip(steps, info.min, info.max).astype(self.dtype)
        return clipped

    def real(self, values: NDArray[Any]) -> Float32:
        """Return a result of the tensor in its own units."""
        if not self.scale:
            return values.astype(np.float32)
        return (values.astype(np.float32) - np.float32(self.zero_point)) * np.float32(self.scale)


@functools.lru_cache(maxsize=1)
def default_runtime() -> PolicyRuntime:
    """Return the first installed runtime; looking through the entry points takes longer than a whole push."""
    return find_runtime()


def run_file(
    model: bytes,
    contract: PolicyContract,
    observations: Mapping[str, NDArray[Any]],
    *,
    runtime: PolicyRuntime | None = None,
) -> dict[str, Float32]:
    """Run `model` on each observation alone.

    Args:
        model: a file whose ends have the names that `contract` gives them.
        contract: as the file has it.
        observations: per key ``[count, *shape]`` as the environment gives them.
        runtime: default: the first installed.

    Returns:
        Per role, float32 ``[count, ...]``.

    Raises:
        ModelFileError: the runtime does not take the file, or there is no observation.
    """
    roles = dict(contract.head.outputs)
    names = [spec.tensor for spec in contract.observations]
    loaded = (runtime or default_runtime()).load(model, inputs=names, outputs=list(roles.values()))
    inputs, outputs = _ends(model)  # only now: the runtime has taken the bytes
    fed = {
        spec.tensor: inputs[spec.tensor].stored(
            device_normalized(contract.normalizer, spec.key, observations[spec.key], inputs[spec.tensor].shape)
        )
        for spec in contract.observations
    }
    count = len(next(iter(fed.values())))
    if not count:
        raise ModelFileError("no observation to run the file on")
    rows: dict[str, list[Float32]] = {role: [] for role in roles}
    for index in range(count):
        results = loaded.run({name: values[index : index + 1] for name, values in fed.items()})
        for role, tensor in roles.items():
            rows[role].append(outputs[tensor].real(np.array(results[tensor][0])))
    return {role: np.stack(values) for role, values in rows.items()}


def device_normalized(normalizer: Normalizer, key: str, observations: NDArray[Any], shape: tuple[int, ...]) -> Float32:
    """Return what a device feeds for raw `observations` of `key`: float32 ``[count, *shape]``."""
    rows = np.asarray(observations)
    values: Float32 = np.ascontiguousarray(rows.reshape(len(rows), *shape), np.float32)
    if normalizer.where != "device" or key not in normalizer.offset:
        return values
    size = int(np.prod(shape))
    offset, scale = (
        np.broadcast_to(np.asarray(part[key], np.float32), (size,)).reshape(shape)
        for part in (normalizer.offset, normalizer.scale)
    )
    values = (values - offset) * scale
    return np.clip(values, -normalizer.clip, normalizer.clip).astype(np.float32) if normalizer.clip else values


def output_step(model: bytes, name: str) -> float:
    """Return the size of a step of the output `name`, of the integer behind a float end too; 0 where there is none."""
    for end in _ends(model)[1].values():
        if end.tensor == name and end.scale:
            return end.scale
    return output_scale(model, name) or 0.0


def _ends(model: bytes) -> tuple[dict[str, _End], dict[str, _End]]:
    # Reads only what it needs: goldens are run in every push.
    subgraph = schema.Model.GetRootAsModel(model, 0).Subgraphs(0)
    inputs = [_End.of(subgraph.Tensors(subgraph.Inputs(place))) for place in range(subgraph.InputsLength())]
    outputs = [_End.of(subgraph.Tensors(subgraph.Outputs(place))) for place in range(subgraph.OutputsLength())]
    return {end.tensor: end for end in inputs}, {end.tensor: end for end in outputs}
