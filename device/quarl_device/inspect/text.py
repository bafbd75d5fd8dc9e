"""An inspection as a page of plain text that fits a terminal on a board."""

from __future__ import annotations

from collections.abc import Iterator

from quarl_device.contract import ObservationSpec, PolicyContract
from quarl_device.flatbuffer import Graph, Tensor
from quarl_device.inspect.edge_tpu import EdgeTpuVerdict
from quarl_device.inspect.edge_tpu_findings import Finding
from quarl_device.inspect.model import Inspection
from quarl_device.inspect.tensors import fused_activation, grid_range, multiply_adds, shown, type_name

_MAX_OPERATORS = 60
_MAX_ALIKE = 4
_MARKS = {True: "yes", False: "NO", None: "?"}
_SEVERITY = {"error": "✗", "warning": "!", "hint": "·"}


def render(inspection: Inspection) -> str:
    """Return the page, with a newline at its end."""
    lines = [
        *_head(inspection),
        "",
        *_contract(inspection),
        "",
        *_table(["", "tensor", "type", "shape", "range"], list(_ends(inspection.graph))),
        "",
        *_operators(inspection.graph),
        "",
        *_runtimes(inspection),
        "",
        *_edge_tpu(inspection.edge_tpu),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def size(count: int) -> str:
    """Return a byte count for people."""
    if count < 10_000:
        return f"{count:,} B"
    return f"{count / 1024:,.1f} KiB" if count < 1024**2 else f"{count / 1024**2:,.2f} MiB"


def _head(inspection: Inspection) -> Iterator[str]:
    measured = inspection.size
    if inspection.forced:
        yield f"! FORCED: written with --force although these checks failed: {shown(', '.join(inspection.forced), 100)}"
    yield f"{inspection.path or 'model'}  {size(inspection.bytes)}, {inspection.scheme}"
    yield f"  sha256      {inspection.sha256}"
    yield (
        f"  parameters  {measured.parameters:,} in {size(measured.parameter_bytes)}; "
        f"{measured.multiply_adds:,} multiply-adds a call; activations {size(measured.peak_activation_bytes)} at least"
    )
    if inspection.min_runtime_version:
        maker = shown(inspection.graph.description) or "-"
        yield f"  converter   {maker}, asks for TFLite {shown(inspection.min_runtime_version)}"
    yield "  quarl acts  " + ("yes" if not inspection.lint else f"NO: {shown(inspection.lint, 300)}")


def _contract(inspection: Inspection) -> Iterator[str]:
    policy = inspection.policy
    if policy is None:
        yield f"contract: none. {shown(inspection.contract_hint, 300)}"
        return
    contract = policy.contract
    yield f"contract: {shown(contract.algorithm)} for {shown(contract.env_id) or 'no environment'}, {contract.scheme}"
    for spec in contract.observations:
        yield f"  observation {spec.key}: {spec.dtype} {list(spec.shape)}{_stack(spec)}, tensor {shown(spec.tensor)!r}"
    yield f"  normaliser  {_normalizer(contract)}"
    outputs = ", ".join(f"{role} from {shown(name)!r}" for role, name in contract.head.outputs.items())
    yield f"  head        {contract.head.kind}: {outputs}"
    yield f"  action      {_action(contract)}"
    for note in inspection.assumed:
        yield f"  assumed     {shown(note, 300)}"
    yield f"  golden      {policy.golden.rows} observations, tolerance {policy.golden.tolerance_lsb} LSB"


def _stack(spec: ObservationSpec) -> str:
    if spec.stack == 1:
        return ""
    if spec.stack_fill is None:
        return f" × {spec.stack} frames, an episode's first one repeated"
    values = sorted(set(spec.stack_fill))
    before = f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} to {values[-1]:g}"
    return f" × {spec.stack} frames, {before} before an episode's first one"


def _normalizer(contract: PolicyContract) -> str:
    where = {"none": "none", "graph": "in the graph, in float", "device": "on the device, in numpy"}
    clip = f", clipped to ±{contract.normalizer.clip:g}" if contract.normalizer.clip else ""
    return where[contract.normalizer.where] + clip


def _action(contract: PolicyContract) -> str:
    action = contract.action
    if action.kind == "discrete":
        return f"one of {action.n}" + (f", from {action.start}" if action.start else "")
    return f"box {list(action.shape)}, {min(action.low):g} to {max(action.high):g}"


def _ends(graph: Graph) -> Iterator[list[str]]:
    for side, indices in (("in", graph.inputs), ("out", graph.outputs)):
        for index in indices:
            tensor = graph.tensors[index]
            yield [side, shown(tensor.name, 40), type_name(tensor), _shape(tensor), _range(tensor)]


def _shape(tensor: Tensor) -> str:
    return "×".join(str(n) for n in tensor.shape_signature) or "scalar"


def _range(tensor: Tensor) -> str:
    held = grid_range(tensor)
    return "" if held is None else f"{held[0]:.4g} to {held[1]:.4g}"


def _operators(graph: Graph) -> Iterator[str]:
    rows = []
    for operator in graph.operators[:_MAX_OPERATORS]:
        result = graph.tensors[operator.outputs[0]] if operator.outputs else None
        fused = fused_activation(operator)
        macs = multiply_adds(operator, graph)
        rows.append(
            [
                str(operator.index),
                shown(operator.name, 30) + (f" + {fused}" if fused != "none" else ""),
                f"v{operator.version}",
                "" if result is None else f"{_types(operator.inputs, graph)} → {type_name(result)}",
                "" if result is None else _shape(result),
                "" if result is None else _range(result),
                f"{macs:,}" if macs else "",
            ]
        )
    yield from _table(["#", "operator", "", "types", "shape", "range", "multiply-adds"], rows)
    if len(graph.operators) > _MAX_OPERATORS:
        yield f"  … and {len(graph.operators) - _MAX_OPERATORS} more; --format json has all"


def _types(indices: tuple[int, ...], graph: Graph) -> str:
    """Name the types of the values and weights; a bias says nothing new."""
    names = list(dict.fromkeys(type_name(graph.tensors[n]) for n in indices[:2] if n >= 0))
    return "×".join(names)


def _runtimes(inspection: Inspection) -> Iterator[str]:
    probed = {each.runtime: each for each in inspection.probes}
    rows = []
    for row in inspection.table:
        probe = probed.get(row.runtime)
        here = "not tried" if probe is None else probe.detail if probe.loads is None else _MARKS[probe.loads]
        if probe is not None and probe.loads is not None:
            here += f", {probe.version}" + (f": {shown(probe.detail, 120)}" if probe.detail else "")
        rows.append([f"{row.runtime} {row.version}", _MARKS[row.loads], here, shown(row.reason, 100)])
    yield from _table(["runtime", "loads", "tried here", "why"], rows)


def _edge_tpu(verdict: EdgeTpuVerdict) -> Iterator[str]:
    answer = "compatible by the documentation" if verdict.compatible else "NOT compatible"
    yield (
        f"edge tpu: {answer} (static check); {verdict.mapped} of {verdict.operators} operators mapped, "
        f"{size(verdict.parameter_bytes)} of {size(verdict.cache_bytes)} cache"
    )
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in verdict.findings:
        alike.setdefault((finding.code, finding.mend), []).append(finding)
    for (code, mend), findings in alike.items():
        first = findings[0]
        where = "" if first.operator is None else f"#{first.operator} "
        yield f"  {_SEVERITY[first.severity]} {code} {where}{first.message}"
        if len(findings) > 1:
            others = dict.fromkeys(shown(each.tensor, 40) or f"#{each.operator}" for each in findings[1:])
            more = f" and {len(others) - _MAX_ALIKE} more" if len(others) > _MAX_ALIKE else ""
            yield f"        also {', '.join([*others][:_MAX_ALIKE])}{more}"
        if mend:
            yield f"        → {mend}"


def _table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Lay out columns; one that is empty in every row is left out."""
    kept = [column for column in range(len(header)) if any(row[column] for row in rows)]
    cells = [[row[column] for column in kept] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(kept))]
    for number, row in enumerate(cells):
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        if number == 0:
            yield "  " + "  ".join("─" * width for width in widths)
