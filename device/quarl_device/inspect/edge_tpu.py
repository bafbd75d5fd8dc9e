"""What an Edge TPU would make of a file, told without its compiler.

The compiler is a closed x86-64 binary. What it needs is documented (coral.ai, "TensorFlow models on the Edge TPU"):
8-bit tensors, constant shapes and parameters, at most three innermost dimensions over 1, supported operators within
their limits. This module holds a graph against that, and says for everything that does not fit which operator and
tensor it is and what to change. It is a static check: only the compiler itself can say yes for certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from quarl_device.delegate_spec import EDGE_TPU_OPERATOR
from quarl_device.flatbuffer import Graph
from quarl_device.inspect.edge_tpu_findings import Finding
from quarl_device.inspect.edge_tpu_operators import at_an_end, operator_findings
from quarl_device.inspect.tensors import WEIGHTED, measure, shown

CACHE_BYTES = 8 * 1024 * 1024
"""On-chip memory of one Edge TPU; the executable shares it with the parameters."""

USB_CALL_MS = 0.28
"""What one call of a dense policy takes on the USB stick whatever its size (documented, not measured here)."""

SMALL_MULTIPLY_ADDS = 1_000_000


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
    if any(operator.name == EDGE_TPU_OPERATOR for operator in graph.operators):
        return _compiled(graph)
    findings = [*_shapes(graph)]
    mapped, stopped = 0, False
    named: set[tuple[str, str]] = set()
    for operator in graph.operators:
        found = list(operator_findings(operator, graph))
        # A tensor is named where it is made or first read, not again by everything that reads it.
        findings += [each for each in found if not each.tensor or (each.code, each.tensor) not in named]
        named.update((each.code, each.tensor) for each in found)
        if any(each.severity == "error" for each in found):
            stopped = True
        elif not stopped and not at_an_end(operator, graph):
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
        mapped=sum(operator.name == EDGE_TPU_OPERATOR for operator in graph.operators),
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
                mend="convert with batch size 1, as quarl-edge export does; where it must stay, the compiler decides: "
                "quarl-edge inspect MODEL --edge-tpu",
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
