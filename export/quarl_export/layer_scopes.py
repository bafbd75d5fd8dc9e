"""Which layer of a source an operator of its file comes from: the converter keeps the scope that it was made in.

A layer's own name can be anything, a scope cannot. So a scope says a layer's place, and the file's provenance has the
names in that order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from quarl_export.ir import PolicyGraph

LAYERS = "layers"
"""Key of the names under `export` in a file's provenance."""
_SCOPE = re.compile(r"(?:^|/)quarl_layer_(\d{1,6})/")


def layer_scope(place: int) -> str:
    """Return the scope in which the operators of a graph's layer number `place` are made."""
    return f"quarl_layer_{place}"


def scope_names(graph: PolicyGraph) -> list[str]:
    """Return what a file's provenance says of `graph`, as `source_layers` reads it."""
    return [layer.name for layer in graph.layers]


def source_layers(made: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in `export` of a file's provenance; none in foreign files and those of older versions."""
    names = made.get(LAYERS)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


def source_of(tensor: str, names: Sequence[str]) -> str:
    """Return the layer that a tensor comes from, by its name in the file; "" where that does not say.

    Args:
        tensor: its name: those of all operations that became one, from the last to the first, or to the last.
        names: see `source_layers`.
    """
    places = [int(place) for part in tensor.split(";") for place in _SCOPE.findall(part)]
    # An activation joins the operator in front of it: that is the one whose kernel it is.
    return names[min(places)] if places and min(places) < len(names) else ""
