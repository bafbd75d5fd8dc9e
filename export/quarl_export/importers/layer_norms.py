"""LayerNormalizations in a file of operators, which does not know them as layers: found, so that they can be named."""

from __future__ import annotations

import os

from quarl_device.errors import UnsupportedModel
from quarl_device.flatbuffer import Graph, Operator

_DEVIATIONS = ("SQUARED_DIFFERENCE", "MUL", "SQUARE")
_SHOWN = 4


def refuse_layer_norms(graph: Graph) -> None:
    """Refuse a file that computes a LayerNormalization by single operators, none of which `--keep-float` could name.

    Raises:
        UnsupportedModel: names every one of them.
    """
    names = [_scope(graph, parts) for parts in _found(graph)]
    if not names:
        return
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise UnsupportedModel(
        f"layer {', '.join(map(repr, names[:_SHOWN]))}{more} is a LayerNormalization, which this file holds as single "
        "operators: there is no layer in it that --keep-float could keep",
        hint="export the Keras model itself, model.save('policy.keras'), with --keep-float of its LayerNormalization "
        "layers (quarl-edge inspect policy.keras lists them); or train without",
    )


def _found(graph: Graph) -> list[tuple[Operator, Operator, Operator]]:
    """Return (squares of deviations, their mean, its inverse root) of each: rsqrt(mean((x - mean(x))²) + epsilon)."""
    maker = {output: operator for operator in graph.operators for output in operator.outputs}

    def behind(operator: Operator, *kinds: str) -> Operator | None:
        made = (maker.get(index) for index in operator.inputs)
        return next((each for each in made if each is not None and each.name in kinds), None)

    found = []
    for root in graph.operators:
        if root.name != "RSQRT":
            continue
        shifted = behind(root, "ADD")
        mean = behind(shifted or root, "MEAN", "SUM")
        squares = None if mean is None else behind(mean, *_DEVIATIONS)
        if mean is not None and squares is not None:
            found.append((squares, mean, root))
    return found


def _scope(graph: Graph, parts: tuple[Operator, Operator, Operator]) -> str:
    """Return what the names of a layer's tensors begin with, its place in the file where they share nothing."""
    names = [graph.tensors[part.outputs[0]].name.split(";")[0] for part in parts]
    shared = os.path.commonpath(names) if all(name and not name.startswith("/") for name in names) else ""
    return "".join(c if c.isprintable() else "?" for c in shared)[:80] or f"operator {parts[-1].index}"
