"""A strict reader of TFLite flatbuffers: every offset is checked before it is followed.

The `flatbuffers` package has no verifier in Python, and the TFLite interpreter trusts the offsets of a file that it is
given. So this module walks the whole model by the schema itself, refuses whatever does not lie inside the file, and
returns plain frozen data. Its cost follows the number of tensors and operators, not the size of the weights.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError
from quarl_device.flatbuffer_table import I8, I32, U8, U32, U64, Source, Table

IDENTIFIER = b"TFL3"
MAX_MODEL_BYTES = 2**31 - 1
MAX_TENSORS = 4096
MAX_RANK = 8

TENSOR_TYPES: Mapping[int, str] = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    6: "bool",
    7: "int16",
    9: "int8",
    10: "float64",
}

# Layout of an options table by slot: b 1 byte, i int32, f float32, I vector of int32. Only what `lint` lets run.
_OPTIONS: Mapping[int, str] = {
    1: "biibiib",  # Conv2DOptions
    2: "biiibii",  # DepthwiseConv2DOptions
    5: "biiiib",  # Pool2DOptions
    8: "bbbbb",  # FullyConnectedOptions
    9: "f",  # SoftmaxOptions
    10: "ib",  # ConcatenationOptions
    11: "bb",  # AddOptions
    17: "I",  # ReshapeOptions
    21: "b",  # MulOptions
    27: "b",  # ReducerOptions
    28: "bb",  # SubOptions
    36: "",  # LogSoftmaxOptions
    38: "",  # DequantizeOptions
    39: "",  # MaximumMinimumOptions
    75: "f",  # LeakyReluOptions
    89: "",  # QuantizeOptions
    116: "b",  # GeluOptions
}

_NAMES: Mapping[int, str] = {
    0: "ADD",
    1: "AVERAGE_POOL_2D",
    2: "CONCATENATION",
    3: "CONV_2D",
    4: "DEPTHWISE_CONV_2D",
    6: "DEQUANTIZE",
    9: "FULLY_CONNECTED",
    14: "LOGISTIC",
    17: "MAX_POOL_2D",
    18: "MUL",
    19: "RELU",
    21: "RELU6",
    22: "RESHAPE",
    25: "SOFTMAX",
    28: "TANH",
    40: "MEAN",
    41: "SUB",
    50: "LOG_SOFTMAX",
    55: "MAXIMUM",
    57: "MINIMUM",
    74: "SUM",
    76: "RSQRT",
    98: "LEAKY_RELU",
    114: "QUANTIZE",
    150: "GELU",
}

OptionValue = int | float | tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantization:
    """`real = scale * (stored - zero_point)`.

    Attributes:
        scales: float32 [1] or, per channel, [shape[axis]].
        zero_points: int64, same shape.
        axis: the channel axis; meaningless for one scale.
    """

    scales: NDArray[np.float32]
    zero_points: NDArray[np.int64]
    axis: int


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor of the graph.

    Attributes:
        index: its number in the graph, as the interpreter counts.
        name: its name, not necessarily unique.
        shape: as stored, batch 1 in ours.
        shape_signature: shape with -1 where free; equal to `shape` where the file has none.
        dtype: numpy dtype name, or "type-<n>" for one that numpy lacks.
        quantization: `None` for a tensor without scale.
        buffer: number of its buffer.
        start: where its constant bytes begin in the file; 0 where it has none.
        size: how many constant bytes it has; 0 for an activation.
        plain: false if the tensor uses a feature that no policy of ours needs (sparsity, variables, variants,
            external buffers, custom quantization).
    """

    index: int
    name: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...]
    dtype: str
    quantization: Quantization | None
    buffer: int
    start: int
    size: int
    plain: bool


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator call.

    Attributes:
        index: position in execution order.
        code: builtin operator code of the TFLite schema.
        name: its name, such as "FULLY_CONNECTED"; a custom operator has its own in lower case.
        version: version that the runtime must support.
        inputs: tensor indices, -1 for an absent optional input.
        outputs: tensor indices.
        options_type: number of the options union's member, 0 for none.
        options: its fields by slot, `None` where left at the default.
        plain: false if the call uses a feature that no policy of ours needs (custom or second options, variables).
    """

    index: int
    code: int
    name: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options_type: int
    options: tuple[OptionValue, ...]
    plain: bool


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A TFLite model with one subgraph.

    Attributes:
        data: the file.
        tensors: all tensors, by index.
        operators: in execution order.
        inputs: indices of the graph's input tensors.
        outputs: indices of the graph's output tensors.
        metadata: name to (start, size) in the file.
        description: the converter's note.
    """

    data: bytes = field(repr=False)
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    metadata: Mapping[str, tuple[int, int]]
    description: str

    def constant(self, tensor: Tensor) -> NDArray[np.generic]:
        """Return a tensor's constant values as a read-only view of the file, in its shape and dtype.

        Raises:
            ModelFileError: the tensor has no constant, or its bytes do not fill its shape.
        """
        dtype = np.dtype(tensor.dtype) if not tensor.dtype.startswith("type-") else None
        if dtype is None or tensor.size == 0 or tensor.size != math.prod(tensor.shape) * dtype.itemsize:
            raise ModelFileError(
                f"tensor {tensor.name!r} has no constant of type {tensor.dtype} and shape {tensor.shape}"
            )
        count = tensor.size // dtype.itemsize
        values: NDArray[np.generic] = np.frombuffer(self.data, dtype=dtype, count=count, offset=tensor.start)
        return values.reshape(tensor.shape)

    def metadata_bytes(self, name: str) -> memoryview | None:
        """Return a metadata entry's bytes, or `None` if the file has no such entry."""
        place = self.metadata.get(name)
        return None if place is None else memoryview(self.data)[place[0] : place[0] + place[1]]


def read_graph(data: bytes) -> Graph:
    """Return the graph of a TFLite file of any origin.

    Raises:
        ModelFileError: not a TFLite file, truncated, an offset leads astray, or not one plain subgraph.
    """
    if len(data) < 8 or data[4:8] != IDENTIFIER:
        raise ModelFileError(f"not a TFLite file: {len(data):,} bytes without the identifier {IDENTIFIER.decode()!r}")
    if len(data) > MAX_MODEL_BYTES:
        raise ModelFileError(f"TFLite file of {len(data):,} bytes is over the format's 2 GiB")
    try:
        return _read_model(data)
    except (struct.error, IndexError, ValueError, OverflowError) as error:  # pragma: no cover - the checks come first
        raise ModelFileError(f"TFLite file is damaged: {error}") from error


def operator_name(code: int) -> str:
    """Return the schema's name of a builtin operator code."""
    if code in _NAMES:
        return _NAMES[code]
    from tflite import BuiltinOperator  # costs 30 ms, and only odd files come here

    names = (name for name, value in vars(BuiltinOperator).items() if value == code and name.isupper())
    return str(next(names, f"operator-{code}"))


def _read_model(data: bytes) -> Graph:
    model = Table(Source(data), int(U32.unpack_from(data, 0)[0]), "the model", 10)
    version = model.integer(0, U32)
    if version != 3:
        raise ModelFileError(f"TFLite schema version {version} is not 3")
    if any(model.vector(slot, 4)[1] for slot in (8, 9)):
        raise ModelFileError("TFLite file keeps weights in external files, which a policy cannot")
    codes = model.tables(1, "operator code", 4, _read_code)
    buffers = model.tables(4, "buffer", 3, _read_buffer)
    model.integers(5, MAX_TENSORS)
    metadata = dict(model.tables(6, "metadata", 2, lambda _, table: _read_metadata(table, buffers)))
    graphs = model.tables(
        2,
        "subgraph",
        6,
        lambda _, table: (
            table.tables(0, "tensor", 11, lambda n, t: _read_tensor(n, t, buffers)),
            table.tables(3, "operator", 14, lambda n, t: _read_operator(n, t, codes)),
            table.integers(1, MAX_TENSORS),
            table.integers(2, MAX_TENSORS),
            table.text(4),
        ),
    )
    if len(graphs) != 1:
        raise ModelFileError(f"TFLite file has {len(graphs)} subgraphs, expected 1")
    tensors, operators, inputs, outputs, _ = graphs[0]
    model.tables(7, "signature", 5, lambda _, table: _check_signature(table, len(tensors)))
    _check_indices(tensors, operators, inputs, outputs)
    return Graph(
        data=data,
        tensors=tensors,
        operators=operators,
        inputs=inputs,
        outputs=outputs,
        metadata=metadata,
        description=model.text(3),
    )


def _read_code(_: int, table: Table) -> tuple[int, int, str]:
    code = max(table.integer(0, I8), table.integer(3, I32))
    return code, table.integer(2, I32, 1), table.text(1)


def _read_buffer(number: int, table: Table) -> tuple[int, int]:
    if table.integer(1, U64) > 1 or table.integer(2, U64) > 1:
        raise ModelFileError(f"TFLite file keeps buffer {number} outside of the flatbuffer, which a policy cannot")
    return table.vector(0, 1)


def _read_metadata(table: Table, buffers: tuple[tuple[int, int], ...]) -> tuple[str, tuple[int, int]]:
    number = table.integer(1, U32)
    if number >= len(buffers):
        raise ModelFileError(f"TFLite file is damaged: metadata names buffer {number} of {len(buffers)}")
    return table.text(0), buffers[number]


def _read_tensor(index: int, table: Table, buffers: tuple[tuple[int, int], ...]) -> Tensor:
    number = table.integer(2, U32)
    if number >= len(buffers):
        raise ModelFileError(f"TFLite file is damaged: tensor {index} names buffer {number} of {len(buffers)}")
    shape = table.integers(0, MAX_RANK)
    kind = table.integer(1, I8)
    quantization, plain = _read_quantization(table.table(4, f"quantization of tensor {index}", 7))
    start, size = buffers[number]
    return Tensor(
        index=index,
        name=table.text(3),
        shape=shape,
        shape_signature=table.integers(7, MAX_RANK) or shape,
        dtype=TENSOR_TYPES.get(kind, f"type-{kind}"),
        quantization=quantization,
        buffer=number,
        start=start if size else 0,
        size=size,
        plain=plain
        and not table.has(6)
        and not table.has(9)
        and not table.integer(5, U8)
        and not table.integer(10, U32),
    )


def _read_quantization(table: Table | None) -> tuple[Quantization | None, bool]:
    if table is None:
        return None, True
    scales = table.array(2, "<f4").astype(np.float32, copy=False)
    zero_points = table.array(3, "<i8").astype(np.int64, copy=False)
    for slot in (0, 1):
        table.vector(slot, 4)
    plain = not table.has(5)
    if not scales.size:
        return None, plain and not zero_points.size
    return Quantization(scales=scales, zero_points=zero_points, axis=table.integer(6, I32)), plain


def _read_operator(index: int, table: Table, codes: tuple[tuple[int, int, str], ...]) -> Operator:
    number = table.integer(0, U32)
    if number >= len(codes):
        raise ModelFileError(f"TFLite file is damaged: operator {index} names operator code {number} of {len(codes)}")
    code, version, custom = codes[number]
    options_type = table.integer(3, U8)
    plain = not any(table.vector(slot, width)[1] for slot, width in ((5, 1), (7, 1), (8, 4)))
    plain = plain and not any(table.has(slot) for slot in (9, 10, 12)) and not custom
    return Operator(
        index=index,
        code=code,
        name=custom.lower() if custom else operator_name(code),
        version=version,
        inputs=table.integers(1, MAX_TENSORS),
        outputs=table.integers(2, MAX_TENSORS),
        options_type=options_type,
        options=_read_options(index, table, options_type),
        plain=plain,
    )


def _read_options(index: int, operator: Table, options_type: int) -> tuple[OptionValue, ...]:
    layout = _OPTIONS.get(options_type)
    table = operator.table(4, f"options of operator {index}", 64 if layout is None else len(layout))
    if table is None or layout is None:
        return ()
    return tuple(_read_option(table, slot, kind) for slot, kind in enumerate(layout))


def _read_option(table: Table, slot: int, kind: str) -> OptionValue:
    if not table.has(slot):
        return None
    if kind == "f":
        return table.real(slot)
    if kind == "I":
        return table.integers(slot, MAX_RANK)
    return table.integer(slot, I8 if kind == "b" else I32)


def _check_signature(table: Table, tensors: int) -> None:
    table.text(2)
    if table.integer(4, U32) != 0:
        raise ModelFileError("TFLite file is damaged: a signature names another subgraph than 0")
    for slot in (0, 1):
        for index in table.tables(slot, "signature entry", 2, lambda _, entry: (entry.text(0), entry.integer(1, U32))):
            if index[1] >= tensors:
                raise ModelFileError(f"TFLite file is damaged: signature entry {index[0]!r} names tensor {index[1]}")


def _check_indices(
    tensors: tuple[Tensor, ...], operators: tuple[Operator, ...], inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    count = len(tensors)
    for what, indices in (("inputs", inputs), ("outputs", outputs)):
        if not indices or any(not 0 <= n < count for n in indices) or len(set(indices)) != len(indices):
            raise ModelFileError(f"TFLite file is damaged: the graph's {what} {indices[:8]} of {count} tensors")
    for operator in operators:
        if any(not -1 <= n < count for n in operator.inputs) or any(not 0 <= n < count for n in operator.outputs):
            raise ModelFileError(f"TFLite file is damaged: operator {operator.index} ({operator.name}) names no tensor")
