"""A converted flatbuffer laid open: numpy views on its tensors, and changes that need repacking.

Files come from our own converter here; reading files of others is `quarl_device.flatbuffer`'s job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

_OPERATOR_NAMES = {value: name for name, value in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
_DTYPES: Mapping[int, Any] = {
    schema.TensorType.FLOAT32: np.float32,
    schema.TensorType.INT8: np.int8,
    schema.TensorType.UINT8: np.uint8,
    schema.TensorType.INT16: np.int16,
    schema.TensorType.INT32: np.int32,
    schema.TensorType.INT64: np.int64,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorView:
    """One tensor. Arrays are views: over a bytearray they write into the file.

    Attributes:
        index: its place in the subgraph.
        name: its name.
        shape: its shape.
        dtype: numpy dtype, or `None` for a type that no policy of ours has.
        data: its constant as ``dtype[shape]``, `None` where it has none.
        scale: float32 ``[channels]``, `None` where it is not quantized.
        zero_point: int64 ``[channels]``, likewise.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: Any
    data: NDArray[Any] | None
    scale: NDArray[np.float32] | None
    zero_point: NDArray[np.int64] | None


@dataclass(frozen=True, kw_only=True)
class OperatorView:
    """One operator: its name, version, fused activation (0: none), settings and tensor indices (-1: absent)."""

    name: str
    version: int
    activation: int
    options: tuple[tuple[str, Any], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphView:
    """The single subgraph of a model: tensors and operators in file order, and its ends by tensor index."""

    tensors: tuple[TensorView, ...]
    operators: tuple[OperatorView, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def with_fixed_batch(model: bytes) -> bytes:
    """Return `model` with a batch of 1 stated where the converter left it free.

    A free batch is a -1 in a tensor's shape signature, beside a stored shape that has 1. Runtimes go by the stored
    shape and resize either (`act_batch`); compilers of accelerators may take a -1 for a graph of dynamic size.
    """
    data = bytearray(model)
    subgraph = schema.Model.GetRootAsModel(data, 0).Subgraphs(0)
    for index in range(subgraph.TensorsLength()):
        tensor = subgraph.Tensors(index)
        if tensor.ShapeSignatureLength() and tensor.ShapeSignature(0) == -1 and tensor.Shape(0) == 1:
            tensor.ShapeSignatureAsNumpy()[0] = 1
    return bytes(data)


def view(model: bytes | bytearray) -> GraphView:
    """Lay `model` open; over a bytearray the views write through."""
    root = schema.Model.GetRootAsModel(model, 0)
    subgraph = root.Subgraphs(0)
    return GraphView(
        tensors=tuple(_tensor(root, subgraph, index) for index in range(subgraph.TensorsLength())),
        operators=tuple(_operator(root, subgraph.Operators(i)) for i in range(subgraph.OperatorsLength())),
        inputs=tuple(int(subgraph.Inputs(i)) for i in range(subgraph.InputsLength())),
        outputs=tuple(int(subgraph.Outputs(i)) for i in range(subgraph.OutputsLength())),
    )


def operator_version(model: bytearray, name: str) -> NDArray[np.int32] | None:
    """Return a view ``[1]`` on the version that `model` asks for all its operators `name`; `None` where that is 1."""
    root = schema.Model.GetRootAsModel(model, 0)
    for place in range(root.OperatorCodesLength()):
        code = root.OperatorCodes(place)
        if _code_name(code) == name:
            table = code._tab
            field = table.Offset(8)  # slot 2 of the schema's OperatorCode
            return np.frombuffer(model, "<i4", count=1, offset=table.Pos + field) if field else None
    return None


def has_signature(model: bytes) -> bool:
    """Whether the model names its inputs and outputs."""
    return bool(schema.Model.GetRootAsModel(model, 0).SignatureDefsLength())


def signature(model: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """Return the tensor indices of the model's single signature: inputs and outputs by name."""
    definition = schema.Model.GetRootAsModel(model, 0).SignatureDefs(0)
    inputs = (definition.Inputs(place) for place in range(definition.InputsLength()))
    outputs = (definition.Outputs(place) for place in range(definition.OutputsLength()))
    return (
        {entry.Name().decode(): int(entry.TensorIndex()) for entry in inputs},
        {entry.Name().decode(): int(entry.TensorIndex()) for entry in outputs},
    )


def output_scale(model: bytes, name: str) -> float | None:
    """Return the scale behind the float output tensor `name`, `None` where the output was never quantized.

    Reads only what it needs: this runs in every push.
    """
    root = schema.Model.GetRootAsModel(model, 0)
    subgraph = root.Subgraphs(0)
    for place in reversed(range(subgraph.OperatorsLength())):
        operator = subgraph.Operators(place)
        if subgraph.Tensors(operator.Outputs(0)).Name() == name.encode():
            quantization = subgraph.Tensors(operator.Inputs(0)).Quantization()
            quantized = quantization is not None and quantization.ScaleLength() == 1
            return float(quantization.Scale(0)) if quantized else None
    return None


def repack(
    model: bytes,
    *,
    names: Mapping[int, str] | None = None,
    metadata: Mapping[str, bytes] | None = None,
) -> bytes:
    """Return `model` with tensors renamed by index and metadata entries set; deterministic.

    Every tensor gets a buffer of its own: the converter lets equal constants share one (two kernels of a single weight
    are always both 127), and writing one of them would write the other.

    Args:
        model: a TFLite flatbuffer.
        names: tensor index to new name; others keep theirs.
        metadata: entry name to content; an entry of the same name is replaced.
    """
    tree = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(bytearray(model), 0))
    for index, name in (names or {}).items():
        tree.subgraphs[0].tensors[index].name = name.encode()
    _unshare_buffers(tree)
    for name, content in (metadata or {}).items():
        _set_metadata(tree, name, content)
    builder = flatbuffers.Builder(len(model) + 4096)
    builder.Finish(tree.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tensor(root: Any, subgraph: Any, index: int) -> TensorView:
    tensor = subgraph.Tensors(index)
    buffer = root.Buffers(tensor.Buffer())
    quantization = tensor.Quantization()
    quantized = quantization is not None and quantization.ScaleLength() > 0
    shape = tuple(int(n) for n in tensor.ShapeAsNumpy()) if tensor.ShapeLength() else ()
    dtype = _DTYPES.get(tensor.Type())
    data = None
    if buffer.DataLength() and dtype is not None:
        data = buffer.DataAsNumpy().view(dtype).reshape(shape)
    return TensorView(
        index=index,
        name=tensor.Name().decode(),
        shape=shape,
        dtype=dtype,
        data=data,
        scale=quantization.ScaleAsNumpy() if quantized else None,
        zero_point=quantization.ZeroPointAsNumpy() if quantized else None,
    )


def _operator(root: Any, operator: Any) -> OperatorView:
    code = root.OperatorCodes(operator.OpcodeIndex())
    options = _options(operator)
    return OperatorView(
        name=_code_name(code),
        version=code.Version(),
        activation=int(dict(options).get("fusedActivationFunction", 0)),
        options=options,
        inputs=tuple(int(operator.Inputs(i)) for i in range(operator.InputsLength())),
        outputs=tuple(int(operator.Outputs(i)) for i in range(operator.OutputsLength())),
    )


def _code_name(code: Any) -> str:
    builtin = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    return str(_OPERATOR_NAMES.get(builtin, builtin))


def _options(operator: Any) -> tuple[tuple[str, Any], ...]:
    """Return the operator's settings by name: strides, padding, fused activation and the like."""
    settings = schema.BuiltinOptionsCreator(operator.BuiltinOptionsType(), operator.BuiltinOptions())
    found = vars(settings).items() if settings is not None else ()
    return tuple(sorted((name, tuple(v.tolist()) if isinstance(v, np.ndarray) else v) for name, v in found))


def _unshare_buffers(tree: Any) -> None:
    taken: set[int] = set()
    for tensor in tree.subgraphs[0].tensors:
        if tensor.buffer in taken and tree.buffers[tensor.buffer].data is not None:
            copy = schema.BufferT()
            copy.data = tree.buffers[tensor.buffer].data
            tree.buffers.append(copy)
            tensor.buffer = len(tree.buffers) - 1
        taken.add(tensor.buffer)


def _set_metadata(tree: Any, name: str, content: bytes) -> None:
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(content, np.uint8)
    tree.metadata = tree.metadata or []
    for entry in tree.metadata:
        if entry.name == name.encode():
            tree.buffers[entry.buffer] = buffer
            return
    entry = schema.MetadataT()
    entry.name, entry.buffer = name, len(tree.buffers)
    tree.buffers.append(buffer)
    tree.metadata.append(entry)
