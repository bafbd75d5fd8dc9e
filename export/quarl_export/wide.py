"""int16 outputs: what their dense layers read is widened to int16, in steps 128 times as fine.

TensorFlow's converter makes an operator of int8 inputs and an int16 output, for which no runtime has a right kernel:
LiteRT 2.3 and tflite-runtime 2.14 load it and compute nonsense. Both have one of int16 inputs, int8 weights and int16
outputs. LiteRT also has one that turns int8 into int16, and with 128 times finer steps that loses nothing: every int8
value less its zero point, times 128, fits int16.
"""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

FINER = 128
"""Steps of the widened tensor to one of the int8 tensor that it copies."""

# Of operators that read or give int16, as TensorFlow's own tables of versions say.
_QUANTIZE_VERSION, _DENSE_VERSION = 2, 7


def widened(model: bytes) -> bytes:
    """Return `model` with an int16 copy of its int8 input before every dense operator that gives int16.

    New tensors go behind the others, which keep their places.
    """
    tree = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(bytearray(model), 0))
    graph = tree.subgraphs[0]
    operators = []
    for operator in graph.operators:
        if _is_narrow(tree, operator):
            operators.append(_widen(tree, operator))
        operators.append(operator)
    graph.operators = operators
    builder = flatbuffers.Builder(len(model) + 4096)
    builder.Finish(tree.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _is_narrow(tree: Any, operator: Any) -> bool:
    code = tree.operatorCodes[operator.opcodeIndex]
    if max(code.builtinCode, code.deprecatedBuiltinCode) != schema.BuiltinOperator.FULLY_CONNECTED:
        return False
    types = [tree.subgraphs[0].tensors[index].type for index in (operator.inputs[0], operator.outputs[0])]
    return types == [schema.TensorType.INT8, schema.TensorType.INT16]


def _widen(tree: Any, dense: Any) -> Any:
    """Make `dense` read int16; return the operator that gives it."""
    graph = tree.subgraphs[0]
    source = dense.inputs[0]
    quantize = schema.OperatorT()
    quantize.opcodeIndex = _code(tree, schema.BuiltinOperator.QUANTIZE, _QUANTIZE_VERSION)
    quantize.inputs, quantize.outputs = [source], [len(graph.tensors)]
    quantize.builtinOptionsType, quantize.builtinOptions = (
        schema.BuiltinOptions.QuantizeOptions,
        schema.QuantizeOptionsT(),
    )
    graph.tensors.append(_copy(graph.tensors[source]))
    dense.opcodeIndex = _code(tree, schema.BuiltinOperator.FULLY_CONNECTED, _DENSE_VERSION)
    dense.inputs = [quantize.outputs[0], *dense.inputs[1:]]
    if len(dense.inputs) > 2 and dense.inputs[2] >= 0:
        _widen_bias(tree, graph.tensors[dense.inputs[2]])
    return quantize


def _copy(source: Any) -> Any:
    tensor = schema.TensorT()
    tensor.name, tensor.type, tensor.buffer = source.name + b"/int16", schema.TensorType.INT16, 0
    tensor.shape, tensor.shapeSignature, tensor.hasRank = source.shape, source.shapeSignature, source.hasRank
    tensor.quantization = schema.QuantizationParametersT()
    tensor.quantization.scale = np.float32(source.quantization.scale) / FINER
    tensor.quantization.zeroPoint = np.zeros(1, np.int64)
    return tensor


def _widen_bias(tree: Any, bias: Any) -> None:
    """Store the same bias in int64, in the finer steps of the product."""
    steps = np.frombuffer(bytes(tree.buffers[bias.buffer].data), np.int32).astype(np.int64) * FINER
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(steps.tobytes(), np.uint8)
    bias.type, bias.buffer = schema.TensorType.INT64, len(tree.buffers)
    tree.buffers.append(buffer)
    bias.quantization.scale = np.float32(bias.quantization.scale) / FINER


def _code(tree: Any, builtin: int, version: int) -> int:
    """Return the index of the operator code, added where `tree` has none."""
    for place, code in enumerate(tree.operatorCodes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == builtin and code.version == version:
            return place
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = builtin
    code.version = version
    tree.operatorCodes.append(code)
    return len(tree.operatorCodes) - 1
