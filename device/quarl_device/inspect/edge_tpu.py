"""What an Edge TPU would make of a file, told without its compiler.

The compiler is a closed x86-64 binary. What it needs is documented (coral.ai, "TensorFlow models on the Edge TPU"):
8-bit tensors, constant shapes and parameters, at most three innermost dimensions over 1, supported operators within
their limits. This module holds a graph against that, and says for everything that does not fit which operator and
tensor it is and what to change. It is a static check: only the compiler itself can say yes for certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from quarl_device.flatbuffer import Graph, Operator, Tensor
from quarl_device.inspect.edge_tpu_rules import SUPPORTED, limit_of
from quarl_device.inspect.tensors import WEIGHTED, measure, shown, type_name

CACHE_BYTES = 8 * 1024 * 1024
"""On-chip memory of one Edge TPU; the executable shares it with the parameters."""

USB_CALL_MS = 0.28
"""What one call of a dense policy takes on the USB stick whatever its size (documented, not measured here)."""

SMALL_MULTIPLY_ADDS = 1_000_000
_ALREADY = "edgetpu-custom-op"

Severity = Literal["error", "warning", "hint"]

CODES: Mapping[str, str] = {
    "E01": "operator that the Edge TPU does not have",
    "E02": "operator over a limit of the Edge TPU",
    "E03": "float tensor inside the model",
    "E04": "16-bit, 4-bit or other tensor that is not 8-bit",
    "E05": "shape that is not constant",
    "E06": "batch size that is not 1",
    "E07": "weights that are not constant",
    "E08": "more than three innermost dimensions over 1",
    "E09": "no operator that the Edge TPU could run",
    "E20": "float input or output: converted on the CPU",
    "E21": "parameters over the on-chip memory",
    "E22": "per-channel dense weights, which are not documented",
    "E23": "limit that a static check cannot see",
    "E24": "batch that is free in the file",
    "E30": "small dense policy: the CPU will be faster",
    "E31": "compiled for the Edge TPU already",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that does not fit, or that is good to know.

    Attributes:
        code: a key of `CODES`.
        severity: "error": the operator stays on the CPU; "warning": it may, or it costs; "hint": good to know.
        operator: its index, `None` where the finding is not about one.
        op: its name, "" likewise.
        tensor: a tensor's name, "" likewise.
        message: what was found and what is needed.
        mend: what to do.
    """

    code: str
    severity: Severity
    message: str
    mend: str = ""
    operator: int | None = None
    op: str = ""
    tensor: str = ""


@dataclass(frozen=True, kw_only=True)
class EdgeTpuVerdict:
    """The static verdict.

    Attributes:
        compatible: no finding is an error: by the documentation all but the float ends runs on the Edge TPU.
        findings: in graph order.
        mapped: operators before the first that has to stay on the CPU; the compiler makes one piece of them.
        operators: how many operators there are.
        parameter_bytes: of all constants; the compiler pads dense weights, so what it needs can be far more.
        cache_bytes: `CACHE_BYTES`.
    """

    compatible: bool
    findings: tuple[Finding, ...]
    mapped: int
    operators: int
    parameter_bytes: int
    cache_bytes: int = CACHE_BYTES

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {**asdict(self), "findings": [asdict(finding) for finding in self.findings]}


def judge(graph: Graph) -> EdgeTpuVerdict:
    """Return the verdict on a graph of any origin."""
    if any(operator.name == _ALREADY for operator in graph.operators):
        return _compiled(graph)
    findings = [*_shapes(graph)]
    mapped, stopped = 0, False
    named: set[tuple[str, str]] = set()
    for operator in graph.operators:
        found = list(_operator_findings(operator, graph))
        # A tensor is named where it is made or first read, not again by everything that reads it.
        findings += [each for each in found if not each.tensor or (each.code, each.tensor) not in named]
        named.update((each.code, each.tensor) for each in found)
        if any(each.severity == "error" for each in found):
            stopped = True
        elif not stopped and not _at_an_end(operator, graph):
            mapped += 1
    if not mapped:
        findings.append(_nothing(graph))
    findings += _whole(graph)
    return EdgeTpuVerdict(
        compatible=not any(each.severity == "error" for each in findings),
        findings=tuple(findings),
        mapped=mapped,
        operators=len(graph.operators),
        parameter_bytes=measure(graph).parameter_bytes,
    )


def _compiled(graph: Graph) -> EdgeTpuVerdict:
    finding = Finding(code="E31", severity="hint", message="the file is compiled for the Edge TPU already")
    return EdgeTpuVerdict(
        compatible=True,
        findings=(finding,),
        mapped=sum(operator.name == _ALREADY for operator in graph.operators),
        operators=len(graph.operators),
        parameter_bytes=measure(graph).parameter_bytes,
    )


def _nothing(graph: Graph) -> Finding:
    first = graph.operators[0].name if graph.operators else "nothing"
    return Finding(
        code="E09",
        severity="error",
        message=f"no operator would run on the Edge TPU: the graph begins with {first}, and what comes behind an "
        "operator that stays on the CPU stays there too",
        mend="quarl-edge export --scheme int8 --io int8",
    )


def _at_an_end(operator: Operator, graph: Graph) -> bool:
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


def _operator_findings(operator: Operator, graph: Graph) -> Iterator[Finding]:
    if _at_an_end(operator, graph):
        yield _end(operator, graph)
        return
    where = {"operator": operator.index, "op": operator.name}
    if operator.name not in SUPPORTED and operator.name != "DEQUANTIZE":
        yield Finding(
            **where,  # type: ignore[arg-type]
            code="E01",
            severity="error",
            message=f"the Edge TPU has no {operator.name}; it and what follows run on the CPU",
            mend="build the network of dense, convolution, pooling and ReLU layers, or act on the CPU",
        )
        return
    if _is_malformed(operator):
        yield Finding(
            **where,  # type: ignore[arg-type]
            code="E02",
            severity="error",
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


def _shapes(graph: Graph) -> Iterator[Finding]:
    constants = {tensor.index for tensor in graph.tensors if tensor.size}
    used = {n for operator in graph.operators for n in (*operator.inputs, *operator.outputs) if n >= 0}
    for index in sorted(used - constants):
        tensor = graph.tensors[index]
        name = shown(tensor.name)
        free = [place for place, n in enumerate(tensor.shape_signature) if n < 0]
        if any(place > 0 for place in free) or any(n < 1 for n in tensor.shape):
            yield Finding(
                code="E05", severity="error", tensor=tensor.name,
                message=f"tensor {name!r} has shape {list(tensor.shape_signature)}, the Edge TPU needs constant shapes",
                mend="convert with constant shapes",
            )  # fmt: skip
        elif len(tensor.shape) > 1 and tensor.shape[0] != 1 and index in graph.inputs:
            yield Finding(
                code="E06", severity="error", tensor=tensor.name,
                message=f"input {name!r} has batch size {tensor.shape[0]}, the Edge TPU needs 1",
                mend="convert with batch size 1",
            )  # fmt: skip
        elif free and index in graph.inputs:
            yield Finding(
                code="E24", severity="warning", tensor=tensor.name,
                message=f"input {name!r} has a free batch in its signature; stored is {list(tensor.shape)}",
                mend="convert with batch size 1, if the compiler complains of dynamic tensors",
            )  # fmt: skip
        if sum(n > 1 for n in tensor.shape[:-3]):
            yield Finding(
                code="E08", severity="error", tensor=tensor.name,
                message=f"tensor {name!r} has shape {list(tensor.shape)}; only the 3 innermost may be over 1",
                mend="convert with batch size 1",
            )  # fmt: skip


def _whole(graph: Graph) -> Iterator[Finding]:
    size = measure(graph)
    if size.parameter_bytes > CACHE_BYTES:
        yield Finding(
            code="E21",
            severity="warning",
            message=f"{size.parameter_bytes:,} bytes of parameters do not fit the {CACHE_BYTES:,} bytes on the chip; "
            "the rest is sent over USB or PCIe at every call",
            mend="make the layers narrower",
        )
    weighted = [operator.name for operator in graph.operators if operator.name in WEIGHTED]
    dense = weighted and all(name == "FULLY_CONNECTED" for name in weighted)
    if dense and size.multiply_adds <= SMALL_MULTIPLY_ADDS:
        yield Finding(
            code="E30",
            severity="hint",
            message=f"a dense policy of {size.multiply_adds:,} multiply-adds: the CPU will be faster than the USB "
            f"stick, which takes about {USB_CALL_MS} ms a call whatever the size",
            mend="act on the CPU: quarl-device bench MODEL",
        )
