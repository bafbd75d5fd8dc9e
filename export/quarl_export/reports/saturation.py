"""How many observations lie outside of what the quantized file's input can hold, dimension by dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.flatbuffer import Graph, Tensor
from quarl_device.inspect.tensors import grid_range
from quarl_export.reports.running import TracedFile
from quarl_export.reports.side import Side
from quarl_export.reports.structure import Float

MAX_LISTED = 256
_PASSES_ON = ("SUB", "ADD", "MUL", "DIV", "MINIMUM", "MAXIMUM", "RESHAPE")


@dataclass(frozen=True, kw_only=True)
class InputSaturation:
    """One observation key.

    Attributes:
        key: its name.
        low: smallest normalised value that the input's grid holds; -inf where the input is never quantized.
        high: the largest.
        share: of all values that lie outside, over all dimensions.
        by_dimension: the same per dimension, flattened; empty for more than `MAX_LISTED` of them.
        worst: the dimension with the largest share, -1 where there is none.
        worst_share: its share.
    """

    key: str
    low: float
    high: float
    share: float
    by_dimension: tuple[float, ...] = field(repr=False)
    worst: int
    worst_share: float

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "range": [self.low, self.high],
            "share": self.share,
            "by_dimension": list(self.by_dimension),
            "worst_dimension": self.worst,
            "worst_share": self.worst_share,
        }


class InputMeter:
    """Counts what is clipped where an observation becomes quantized, in the quantized file."""

    def __init__(self, side: Side) -> None:
        self._rows = 0
        self._ends: dict[str, tuple[float, float]] = {}
        self._before: dict[str, int] = {}
        self._outside: dict[str, NDArray[np.int64]] = {}
        for spec, index in zip(side.observations, side.inputs, strict=True):
            before, grid = _where_quantized(side.graph, index)
            held = None if grid is None else grid_range(grid)
            self._before[spec.key] = before
            self._ends[spec.key] = held or (-np.inf, np.inf)

    def add(self, file: TracedFile, entering: Mapping[str, Float]) -> None:
        """Take the row that `file` has just run; `entering` is what its `run` returned."""
        self._rows += 1
        for key, (low, high) in self._ends.items():
            before = self._before[key]
            values = entering[key] if before < 0 else file.traced(before)
            # Half a step over an end still rounds onto it.
            slack = 0.0 if not np.isfinite(high - low) else (high - low) / 510
            outside = (values < low - slack) | (values > high + slack)
            self._outside[key] = self._outside.get(key, np.zeros(values.size, np.int64)) + outside

    def result(self) -> tuple[InputSaturation, ...]:
        """Return the shares over all rows."""
        return tuple(self._one(key) for key in self._ends)

    def _one(self, key: str) -> InputSaturation:
        shares = self._outside.get(key, np.zeros(0, np.int64)) / max(1, self._rows)
        low, high = self._ends[key]
        worst = int(shares.argmax()) if shares.size and shares.max() > 0 else -1
        return InputSaturation(
            key=key,
            low=low,
            high=high,
            share=float(shares.mean()) if shares.size else 0.0,
            by_dimension=tuple(float(share) for share in shares) if shares.size <= MAX_LISTED else (),
            worst=worst,
            worst_share=float(shares[worst]) if worst >= 0 else 0.0,
        )


def _where_quantized(graph: Graph, index: int) -> tuple[int, Tensor | None]:
    """Return the float tensor that is quantized (-1: the caller quantizes), and the tensor it becomes.

    The second is `None` where the observation stays in float.
    """
    tensor = graph.tensors[index]
    if tensor.dtype in ("int8", "uint8", "int16"):
        return -1, tensor
    for operator in graph.operators:
        if index not in operator.inputs:
            continue
        if operator.name == "QUANTIZE":
            return index, graph.tensors[operator.outputs[0]]
        if operator.name in _PASSES_ON:
            index = operator.outputs[0]
            continue
        return index, None
    return index, None
