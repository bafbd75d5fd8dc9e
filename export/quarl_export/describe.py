"""An imported policy laid open before it is exported: its layers by the names that `--keep-float` takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from quarl_export.ir import ImportedPolicy
from quarl_export.ir.layers import FLOAT_ONLY


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer.

    Attributes:
        name: as `--keep-float` takes it.
        kind: "dense", ...
        inputs: names of layers or observation keys.
        shape: of its result, without batch.
        parameters: numbers that it has learned.
        needs_keep_float: it has no integer kernel: an int8 export needs `--keep-float` for it.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    parameters: int
    needs_keep_float: bool


def layer_rows(policy: ImportedPolicy) -> tuple[LayerRow, ...]:
    """Return the layers in the order in which they compute."""
    graph = policy.graph
    return tuple(
        LayerRow(
            name=layer.name,
            kind=layer.kind,
            inputs=layer.inputs,
            shape=graph.shapes[layer.name],
            parameters=sum(math.prod(graph.weight_shapes[name]) for name in layer.weight_names()),
            needs_keep_float=layer.kind in FLOAT_ONLY,
        )
        for layer in graph.layers
    )


def describe(policy: ImportedPolicy) -> dict[str, Any]:
    """Return a policy as JSON values: its layers, ends and what was assumed of it."""
    contract, rows = policy.contract, layer_rows(policy)
    return {
        "kind": policy.provenance.get("source", policy.provenance.get("kind", "")),
        "algorithm": contract.algorithm,
        "env": contract.env_id,
        "observations": [
            {"key": spec.key, "shape": list(spec.shape), "dtype": spec.dtype, "stack": spec.stack}
            for spec in contract.observations
        ],
        "head": contract.head.kind,
        "actions": contract.action.n if contract.action.kind == "discrete" else list(contract.action.shape),
        "layers": [asdict(row) for row in rows],
        "keep_float": [row.name for row in rows if row.needs_keep_float],
        "assumed": list(policy.provenance.get("assumed", ())),
        "warnings": list(policy.provenance.get("warnings", ())),
    }


def describe_text(description: dict[str, Any]) -> str:
    """Return `describe`'s answer for a terminal."""
    return "\n".join(line.rstrip() for line in _lines(description))


def _lines(said: dict[str, Any]) -> Iterator[str]:
    place = said["env"] or "no named environment"
    yield f"{said['kind'] or 'policy'}: {said['head']} over {said['actions']} for {place}"
    for spec in said["observations"]:
        stack = f" × {spec['stack']} frames" if spec["stack"] > 1 else ""
        yield f"  observation {spec['key']}: {spec['dtype']} {spec['shape']}{stack}"
    for mark, notes in (("!", said["warnings"]), ("·", said["assumed"])):
        for note in notes:
            yield f"  {mark} {'' if mark == '!' else 'assumed: '}{note}"
    yield ""
    table = [["layer", "kind", "reads", "shape", "parameters", "int8"]]
    for row in said["layers"]:
        shape = "×".join(map(str, row["shape"])) or "scalar"
        need = "needs --keep-float" if row["needs_keep_float"] else ""
        table.append([row["name"], row["kind"], ", ".join(row["inputs"]), shape, f"{row['parameters']:,}", need])
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
    for cells in table:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
