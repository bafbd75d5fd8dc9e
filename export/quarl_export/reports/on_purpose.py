"""Where a file's ranges end before the values do, because what lies beyond changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quarl_device.contract import PolicyContract
from quarl_device.flatbuffer import Graph
from quarl_export.ir.policy_graph import SATURATED
from quarl_export.ranges import SQUASHED
from quarl_export.reports.structure import Float, Layer, output_places

_KINDS = {"TANH": "tanh", "LOGISTIC": "sigmoid"}
# A scale is float32: the limit itself may come out a hair beyond the range's end.
_HAIR = 1e-6


def saturation_of(graph: Graph, layers: Sequence[Layer], contract: PolicyContract | None) -> dict[int, float]:
    """Return beyond which distance from zero a layer's values change nothing, by place, of layers that have one.

    Those are layers that a tanh or sigmoid alone reads, and the mean of a squashed gaussian: `find_ranges` cuts there.

    Args:
        graph: a file.
        layers: its layers.
        contract: of the policy, `None` where it has none.
    """
    given = output_places(graph, layers)
    found = {}
    for place in range(len(layers)):
        readers = {layer.kind for layer in layers if place in layer.inputs}
        if len(readers) == 1 and readers <= set(_KINDS) and place not in given.values():
            found[place] = SATURATED[_KINDS[readers.pop()]]
    if contract is not None and contract.head.squash == "tanh":
        name = contract.head.outputs.get("mean")
        for index, place in given.items():
            if graph.tensors[index].name == name and not any(place in layer.inputs for layer in layers):
                found[place] = SQUASHED
    return found


def cut(values: Float, limit: float) -> Float:
    """Return `values` without what lies beyond `limit`, all of them where it is 0."""
    if not limit:
        return values
    kept: Float = np.clip(values, -limit * (1 - _HAIR), limit * (1 - _HAIR))
    return kept
