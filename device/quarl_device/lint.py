"""Whether a graph is safe to hand to the interpreter, which checks little itself and dies where it does not.

`read_graph` has shown that every offset lies in the file. This lint shows that the parts fit each other: constants
fill their shapes, each operator has the inputs, types and shapes that its kernel takes for granted, and the declared
shapes are those that the runtime will compute, so that no file makes it allocate more than the caps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from quarl_device.delegate_spec import EDGE_TPU_OPERATOR
from quarl_device.errors import ModelFileError
from quarl_device.flatbuffer import Graph, Operator, Tensor
from quarl_device.lint_rules import KINDS, Misfit

MAX_TENSOR_ELEMENTS = 16 * 1024 * 1024
MAX_ACTIVATION_BYTES = 256 * 1024 * 1024
# XNNPACK dies on scales that are not normal numbers.
MIN_SCALE = 1e-12
MAX_SCALE = 1e12

_ITEM_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float16": 2,
    "int32": 4,
    "int64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "bool": 1,
}
# A prime over MAX_TENSOR_ELEMENTS: no dimension equals it, so what fits so many rows does not fit by chance.
_MANY_ROWS = 16_777_259


def check_runnable(graph: Graph, *, edge_tpu: bool = False) -> None:
    """Refuse a graph that an interpreter could crash on, or that needs more memory than any policy of ours.

    Args:
        graph: of the file.
        edge_tpu: the operator of files compiled for the Edge TPU may run. What it holds is for the delegate to check.

    Raises:
        ModelFileError: naming the tensor or operator and what does not fit.
    """
    for tensor in graph.tensors:
        _check_tensor(tensor)
    activations = sum(_bytes(tensor) for tensor in graph.tensors if not tensor.size)
    if activations > MAX_ACTIVATION_BYTES:
        raise ModelFileError(
            f"the model needs {activations:,} bytes of activations, allowed are {MAX_ACTIVATION_BYTES:,}"
        )
    known = {tensor.index for tensor in graph.tensors if tensor.size}
    for index in graph.inputs:
        if index in known:
            raise ModelFileError(f"input {graph.tensors[index].name!r} is a constant")
        known.add(index)
    tensors = list(graph.tensors)
    for operator in graph.operators:
        if operator.name == EDGE_TPU_OPERATOR:
            _check_compiled(operator, known, edge_tpu=edge_tpu)
        else:
            _check_order(operator, known)
            _check_operator(operator, tensors, graph)
        known.update(operator.outputs)
        _keep_constant(operator, tensors)
    for index in graph.outputs:
        if index not in known:
            raise ModelFileError(f"output {graph.tensors[index].name!r} is computed by no operator")


def is_compiled(graph: Graph) -> bool:
    """Return whether a file was compiled for the Edge TPU: it has the operator of Coral's compiler."""
    return any(operator.name == EDGE_TPU_OPERATOR for operator in graph.operators)


def takes_batches(graph: Graph, batch_size: int) -> bool:
    """Return whether a runnable graph computes each row alone when its inputs are resized to `batch_size` rows.

    Converters write batch 1 into RESHAPE's constants, among others; such a file must be called row by row.
    """
    activations = sum(_bytes(tensor) for tensor in graph.tensors if not tensor.size)
    if activations * batch_size > MAX_ACTIVATION_BYTES:
        return False
    if is_compiled(graph):
        return False
    tensors = list(graph.tensors)
    for operator in graph.operators:
        _keep_constant(operator, tensors)
    for tensor in tensors:
        if tensor.size:
            continue
        if not tensor.shape or tensor.shape[0] != 1:
            return False
        tensors[tensor.index] = replace(tensor, shape=(_MANY_ROWS, *tensor.shape[1:]))
    for operator in graph.operators:
        inputs = [tensors[n] if n >= 0 else None for n in operator.inputs]
        output = tensors[operator.outputs[0]]
        if output.size:
            continue
        try:
            if KINDS[operator.name].rule(operator, inputs, graph) != output.shape:
                return False
        except Misfit:
            return False
    return True


def _keep_constant(operator: Operator, tensors: list[Tensor]) -> None:
    """Take the float32 copy of a constant (float16 weights through DEQUANTIZE) for a constant."""
    if operator.name != "DEQUANTIZE" or not tensors[operator.inputs[0]].size:
        return
    output = tensors[operator.outputs[0]]
    tensors[output.index] = replace(output, size=_bytes(output))


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * _ITEM_BYTES[tensor.dtype]


def _check_tensor(tensor: Tensor) -> None:
    where = f"tensor {tensor.index} ({tensor.name[:80]!r})"
    if not tensor.plain:
        raise ModelFileError(f"{where} is sparse, variable, external or custom-quantized, which policies are not")
    if tensor.dtype not in _ITEM_BYTES:
        raise ModelFileError(f"{where} has a type that policies do not use: {tensor.dtype}")
    if any(n < 1 for n in tensor.shape) or math.prod(tensor.shape) > MAX_TENSOR_ELEMENTS:
        raise ModelFileError(f"{where} has shape {tensor.shape}, allowed are 1 to {MAX_TENSOR_ELEMENTS:,} elements")
    if len(tensor.shape_signature) != len(tensor.shape):
        raise ModelFileError(f"{where} has shape {tensor.shape} but signature {tensor.shape_signature}")
    if any(s not in (-1, n) for s, n in zip(tensor.shape_signature, tensor.shape, strict=True)):
        raise ModelFileError(f"{where} has shape {tensor.shape} but signature {tensor.shape_signature}")
    if tensor.size and tensor.size != _bytes(tensor):
        raise ModelFileError(f"{where} holds {tensor.size} bytes, its shape and type need {_bytes(tensor)}")
    if tensor.start % min(4, _ITEM_BYTES[tensor.dtype]):
        raise ModelFileError(f"{where} has misaligned constants at byte {tensor.start}")
    _check_quantization(tensor, where)


def _check_quantization(tensor: Tensor, where: str) -> None:
    quantization = tensor.quantization
    if quantization is None:
        if tensor.dtype in ("int8", "int16", "uint8"):
            raise ModelFileError(f"{where} is {tensor.dtype} without a scale")
        return
    channels = quantization.scales.size
    if channels != quantization.zero_points.size:
        raise ModelFileError(f"{where} has {channels} scales but {quantization.zero_points.size} zero points")
    if channels != 1 and not (
        0 <= quantization.axis < len(tensor.shape) and tensor.shape[quantization.axis] == channels
    ):
        raise ModelFileError(f"{where} has {channels} scales on axis {quantization.axis} of shape {tensor.shape}")
    # Written so that NaN fails too. A bias has the product of two scales.
    low_scale = MIN_SCALE**2 if tensor.dtype in ("int32", "int64") else MIN_SCALE
    if not ((quantization.scales >= low_scale) & (quantization.scales <= MAX_SCALE)).all():
        raise ModelFileError(f"{where} has a scale outside of {low_scale:g}..{MAX_SCALE:g}")
    low, high = {"uint8": (0, 255), "int8": (-128, 127)}.get(tensor.dtype, (0, 0))
    if quantization.zero_points.min() < low or quantization.zero_points.max() > high:
        raise ModelFileError(f"{where} has a zero point outside of {low}..{high}")


def _check_compiled(operator: Operator, known: set[int], *, edge_tpu: bool) -> None:
    where = f"operator {operator.index} ({operator.name})"
    if not edge_tpu:
        raise ModelFileError(
            f"{where}: the file is compiled for the Edge TPU, and no such delegate is in use",
            hint="start with --delegate edgetpu where a Coral is; elsewhere use the file that was compiled",
        )
    if not operator.inputs or not operator.outputs or any(index not in known for index in operator.inputs):
        raise ModelFileError(f"{where} reads what is not computed before it, or nothing at all")
    if len(set(operator.outputs)) != len(operator.outputs) or known & set(operator.outputs):
        raise ModelFileError(f"{where} must compute new tensors")


def _check_order(operator: Operator, known: set[int]) -> None:
    for index in operator.inputs:
        if index >= 0 and index not in known:
            raise ModelFileError(
                f"operator {operator.index} ({operator.name}) reads tensor {index} before it is computed"
            )
    if len(operator.outputs) != 1 or operator.outputs[0] in known:
        raise ModelFileError(f"operator {operator.index} ({operator.name}) must compute one new tensor")


def _check_operator(operator: Operator, tensors: list[Tensor], graph: Graph) -> None:
    where = f"operator {operator.index} ({operator.name})"
    kind = KINDS.get(operator.name)
    if kind is None or not operator.plain:
        raise ModelFileError(f"{where} is not among the operators that policies use: {', '.join(sorted(KINDS))}")
    inputs = [tensors[n] if n >= 0 else None for n in operator.inputs]
    output = tensors[operator.outputs[0]]
    if operator.options_type not in (0, kind.options_type):
        raise ModelFileError(f"{where} has options of another operator")
    if not kind.least <= len(inputs) <= kind.most or any(tensor is None for tensor in inputs[: kind.least]):
        raise ModelFileError(f"{where} has {len(inputs)} inputs, expected {kind.least} to {kind.most}")
    try:
        shape = kind.rule(operator, inputs, graph)
        if shape != output.shape:
            raise Misfit(f"it gives shape {shape}, the file says {output.shape}")
        kind.check_types(inputs, output)
    except Misfit as misfit:
        raise ModelFileError(f"{where} does not fit: {misfit}") from None
