"""Puts the normaliser in front of a converted file, in float, as operators of the flatbuffer.

The converter would quantize a normaliser of its own with one scale for all dimensions of the raw observation; in front
of QUANTIZE it stays in float.
"""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from quarl_device.contract import Normalizer
from quarl_device.errors import ConversionError
from quarl_export.float_models import prologue_constants

Float32 = NDArray[np.float32]
_STEPS = {
    "SUB": (schema.BuiltinOptions.SubOptions, schema.SubOptionsT),
    "MUL": (schema.BuiltinOptions.MulOptions, schema.MulOptionsT),
    "MAXIMUM": (schema.BuiltinOptions.MaximumMinimumOptions, schema.MaximumMinimumOptionsT),
    "MINIMUM": (schema.BuiltinOptions.MaximumMinimumOptions, schema.MaximumMinimumOptionsT),
}


def prepend_prologue(model: bytes, normalizer: Normalizer) -> bytes:
    """Return `model` with SUB, MUL and the clip of `normalizer` before each float input that it names.

    Args:
        model: a flatbuffer whose inputs are named by observation key.
        normalizer: constants per key; `where` is not looked at.

    Raises:
        ConversionError: an input that it names is not float32.
    """
    tree = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(bytearray(model), 0))
    graph = tree.subgraphs[0]
    operators: list[Any] = []
    for place, index in enumerate(list(graph.inputs)):
        tensor = graph.tensors[index]
        key = tensor.name.decode()
        constants = prologue_constants(normalizer, key, tuple(int(n) for n in tensor.shape[1:]))
        if constants is None:
            continue
        if tensor.type != schema.TensorType.FLOAT32:
            raise ConversionError(f"input {key!r} is quantized: its normaliser cannot be in the graph")
        steps = [("SUB", constants[0]), ("MUL", constants[1])]
        if normalizer.clip:
            limit = np.full(1, normalizer.clip, np.float32)
            steps += [("MAXIMUM", -limit), ("MINIMUM", limit)]
        raw = source = _add_tensor(tree, key, like=tensor)
        tensor.name = f"{key}/normalized".encode()
        for number, (name, constant) in enumerate(steps):
            last = number == len(steps) - 1
            target = index if last else _add_tensor(tree, f"{key}/{name.lower()}", like=tensor)
            operand = _add_constant(tree, f"{key}/{name.lower()}/constant", constant)
            operators.append(_operator(tree, name, [source, operand], target))
            source = target
        graph.inputs[place] = raw
        _rename_signature(tree, index, raw)
    graph.operators = [*operators, *graph.operators]
    builder = flatbuffers.Builder(len(model) + 4096)
    builder.Finish(tree.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _add_tensor(tree: Any, name: str, *, like: Any) -> int:
    tensor = schema.TensorT()
    tensor.name, tensor.type, tensor.shape, tensor.shapeSignature = name.encode(), like.type, like.shape, None
    if like.shapeSignature is not None:
        tensor.shapeSignature = like.shapeSignature
    tensor.buffer = 0
    tree.subgraphs[0].tensors.append(tensor)
    return len(tree.subgraphs[0].tensors) - 1


def _add_constant(tree: Any, name: str, values: Float32) -> int:
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(values.astype("<f4").tobytes(), np.uint8)
    tree.buffers.append(buffer)
    tensor = schema.TensorT()
    tensor.name, tensor.type = name.encode(), schema.TensorType.FLOAT32
    tensor.shape, tensor.buffer = np.asarray(values.shape, np.int32), len(tree.buffers) - 1
    tree.subgraphs[0].tensors.append(tensor)
    return len(tree.subgraphs[0].tensors) - 1


def _operator(tree: Any, name: str, inputs: list[int], output: int) -> Any:
    kind, options = _STEPS[name]
    operator = schema.OperatorT()
    operator.opcodeIndex = _code(tree, getattr(schema.BuiltinOperator, name))
    operator.inputs, operator.outputs = np.asarray(inputs, np.int32), np.asarray([output], np.int32)
    operator.builtinOptionsType, operator.builtinOptions = kind, options()
    return operator


def _code(tree: Any, builtin: int) -> int:
    for place, code in enumerate(tree.operatorCodes):
        if code.builtinCode == builtin and code.version == 1:
            return place
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = builtin
    code.version = 1
    tree.operatorCodes.append(code)
    return len(tree.operatorCodes) - 1


def _rename_signature(tree: Any, old: int, new: int) -> None:
    for signature in tree.signatureDefs or []:
        for entry in signature.inputs:
            if entry.tensorIndex == old:
                entry.tensorIndex = new
