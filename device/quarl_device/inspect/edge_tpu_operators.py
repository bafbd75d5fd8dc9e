"""One operator held against what the Edge TPU takes."""

from __future__ import annotations

from collections.abc import Iterator

from quarl_device.flatbuffer import Graph, Operator, Tensor
from quarl_device.inspect.edge_tpu_findings import Finding
from quarl_device.inspect.edge_tpu_rules import SUPPORTED, limit_of
from quarl_device.inspect.tensors import WEIGHTED, shown, type_name


def at_an_end(operator: Operator, graph: Graph) -> bool:
    """Return whether the operator only turns the model's float ends into 8 bits."""
    if _is_malformed(operator):
        return False
    if operator.name == "QUANTIZE":
        return operator.inputs[0] in graph.inputs and graph.tensors[operator.inputs[0]].dtype == "float32"
    return operator.name == "DEQUANTIZE" and operator.outputs[0] in graph.outputs


def _is_malformed(operator: Operator) -> bool:
    return (
        not operator.outputs or len(operator.inputs) < (2 if operator.name in WEIGHTED else 1) or operator.inputs[0] < 0
    )


def operator_findings(operator: Operator, graph: Graph) -> Iterator[Finding]:
    """Tell what does not fit about one operator: that it is not there, its types, then its limits."""
    if at_an_end(operator, graph):
        yield _end(operator, graph)
        return
    if operator.name not in SUPPORTED and operator.name != "DEQUANTIZE":
        yield Finding(
            code="E01",
            severity="error",
            operator=operator.index,
            op=operator.name,
            message=f"the Edge TPU has no {operator.name}; it and what follows run on the CPU",
            mend="build the network of dense, convolution, pooling and ReLU layers, or act on the CPU",
        )
        return
    if _is_malformed(operator):
        yield Finding(
            code="E02",
            severity="error",
            operator=operator.index,
            op=operator.name,
            message=f"{operator.name} lacks an input or output",
            mend="convert the model again",
        )
        return
    wide = list(_types(operator, graph))
    yield from wide
    if not wide:
        yield from _limits(operator, graph)


def _end(operator: Operator, graph: Graph) -> Finding:
    index = operator.inputs[0] if operator.name == "QUANTIZE" else operator.outputs[0]
    tensor = graph.tensors[index]
    side = "input" if operator.name == "QUANTIZE" else "output"
    return Finding(
        code="E20",
        severity="warning",
        operator=operator.index,
        op=operator.name,
        tensor=tensor.name,
        message=f"{side} {shown(tensor.name)!r} is float32: {operator.name} runs on the CPU at every call",
        mend="quarl-edge export --io int8",
    )


def _types(operator: Operator, graph: Graph) -> Iterator[Finding]:
    """Name every tensor of the operator that is not 8-bit (biases are int32, axes and shapes are integers)."""
    values = [graph.tensors[n] for n in (*operator.inputs, *operator.outputs) if n >= 0]
    for tensor in values:
        if tensor.dtype in ("int8", "uint8") and tensor.quantization is not None:
            continue
        if tensor.dtype in ("int32", "int64") and tensor.size:
            if tensor.dtype == "int64" and tensor.quantization is not None:
                yield _not_eight(operator, tensor)
            continue
        yield _float(operator, tensor, graph) if tensor.dtype.startswith("float") else _not_eight(operator, tensor)


def _float(operator: Operator, tensor: Tensor, graph: Graph) -> Finding:
    what = "constant" if tensor.size else "input" if tensor.index in graph.inputs else "tensor"
    before = operator.name in ("SUB", "MUL", "MAXIMUM", "MINIMUM") and _leads_to_quantize(operator, graph)
    mend = (
        "quarl-edge export --io int8 lets the device normalise in numpy, before the Edge TPU"
        if before
        else "quarl-edge export --scheme int8; a layer kept in float stays on the CPU"
    )
    return Finding(
        code="E03",
        severity="error",
        operator=operator.index,
        op=operator.name,
        tensor=tensor.name,
        message=f"{what} {shown(tensor.name)!r} of {operator.name} is {tensor.dtype}, the Edge TPU takes 8 bits",
        mend=mend,
    )


def _leads_to_quantize(operator: Operator, graph: Graph) -> bool:
    """Return whether the operator is part of a float prologue: everything it gives ends in a QUANTIZE."""
    reached = set(operator.outputs)
    for later in graph.operators[operator.index + 1 :]:
        if not reached.intersection(later.inputs):
            continue
        if later.name != "QUANTIZE" and later.name not in ("SUB", "MUL", "MAXIMUM", "MINIMUM", "RESHAPE"):
            return False
        if later.name != "QUANTIZE":
            reached.update(later.outputs)
    return bool(reached)


def _not_eight(operator: Operator, tensor: Tensor) -> Finding:
    return Finding(
        code="E04",
        severity="error",
        operator=operator.index,
        op=operator.name,
        tensor=tensor.name,
        message=f"tensor {shown(tensor.name)!r} of {operator.name} is {type_name(tensor)}"
        + (" without a scale" if tensor.dtype in ("int8", "uint8") else "")
        + ", the Edge TPU takes quantized 8 bits",
        mend="quarl-edge export --scheme int8",
    )


def _limits(operator: Operator, graph: Graph) -> Iterator[Finding]:
    if operator.name in WEIGHTED and (operator.inputs[1] < 0 or not graph.tensors[operator.inputs[1]].size):
        yield Finding(
            code="E07",
            severity="error",
            operator=operator.index,
            op=operator.name,
            message=f"the weights of {operator.name} are computed, the Edge TPU needs constants",
            mend="export a network whose weights are constants",
        )
        return
    limit = limit_of(operator, graph)
    if limit is not None:
        yield Finding(
            code="E02" if limit.known else "E23",
            severity="error" if limit.known else "warning",
            operator=operator.index,
            op=operator.name,
            message=f"{operator.name}: {limit.message}",
            mend=limit.mend,
        )
    if operator.name == "FULLY_CONNECTED":
        weights = graph.tensors[operator.inputs[1]]
        if weights.quantization is not None and weights.quantization.scales.size > 1:
            yield Finding(
                code="E22",
                severity="warning",
                operator=operator.index,
                op=operator.name,
                tensor=weights.name,
                message="dense weights have a scale per channel; the documentation says nothing of it",
                mend="quarl-edge export --per-tensor, if the compiler leaves the operator on the CPU",
            )
