"""How many observations lie outside of what the quantized file's input can hold, dimension by dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.flatbuffer import Graph, Tensor
from quarl_device.inspect.tensors import grid_range
from quarl_export.reports.metrics import ErrorMeter, Errors, GridMeter
from quarl_export.reports.running import TracedFile
from quarl_export.reports.side import Side
from quarl_export.reports.structure import Float, real_constant

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
        steps_by_dimension: how many of the grid's steps each dimension's values span; empty as `by_dimension`.
        errors: of rounding and clipping here, the first error of all; `None` where the input is never quantized.
        in_range_snr_db: of `errors`, without what is clipped; `None` likewise.
        grid: the values on the input's grid, `None` likewise.
        dtype: of the input's grid, "" likewise.
    """

    key: str
    low: float
    high: float
    share: float
    by_dimension: tuple[float, ...] = field(repr=False)
    worst: int
    worst_share: float
    steps_by_dimension: tuple[float, ...] = field(default=(), repr=False)
    errors: Errors | None = None
    in_range_snr_db: float | None = None
    grid: GridMeter | None = field(default=None, repr=False)
    dtype: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "range": [self.low, self.high],
            "share": self.share,
            "by_dimension": list(self.by_dimension),
            "worst_dimension": self.worst,
            "worst_share": self.worst_share,
            "steps_by_dimension": list(self.steps_by_dimension),
        }


class InputMeter:
    """Counts what is rounded and clipped where an observation becomes quantized, in the quantized file.

    Args:
        side: that file.
        reference: the float file, whose graph says where observations are clipped on purpose.
    """

    def __init__(self, side: Side, reference: Side | None = None) -> None:
        self._rows = 0
        self._meters = {
            spec.key: _KeyMeter(spec.key, *_where_quantized(side.graph, index), clip=_clip(side, reference, place))
            for place, (spec, index) in enumerate(zip(side.observations, side.inputs, strict=True))
        }

    def add(self, file: TracedFile, entering: Mapping[str, Float]) -> None:
        """Take the row that `file` has just run; `entering` is what its `run` returned."""
        self._rows += 1
        for key, meter in self._meters.items():
            meter.add(file, entering[key])

    def result(self) -> tuple[InputSaturation, ...]:
        """Return the shares over all rows."""
        return tuple(meter.result(self._rows) for meter in self._meters.values())


def _clip(side: Side, reference: Side | None, place: int) -> float:
    """Return where the policy clips an observation after normalising it, 0 for nowhere."""
    if side.contract is not None and side.contract.normalizer.clip:
        return side.contract.normalizer.clip
    if reference is None:
        return 0.0
    graph, index = reference.graph, reference.inputs[place]
    for operator in graph.operators:
        if index not in operator.inputs or operator.name not in _PASSES_ON:
            continue
        index = operator.outputs[0]
        bounds = [real_constant(graph, n) for n in operator.inputs if operator.name == "MINIMUM"]
        for bound in bounds:
            if bound is not None and bound.size:
                return max(0.0, float(bound.max()))
    return 0.0


class _KeyMeter:
    def __init__(self, key: str, before: int, tensor: Tensor | None, *, clip: float) -> None:
        self._clip = clip
        self._key, self._before, self._tensor = key, before, tensor
        self._range = None if tensor is None else grid_range(tensor)
        self._errors, self._in_range, self._grid = ErrorMeter(), ErrorMeter(), None
        if self._range is not None and tensor is not None and tensor.quantization is not None:
            self._grid = GridMeter(
                dtype=tensor.dtype,
                scale=float(tensor.quantization.scales[0]),
                zero_point=int(tensor.quantization.zero_points[0]),
            )
        self._outside: NDArray[np.int64] | None = None
        self._low: Float | None = None
        self._high: Float | None = None

    def add(self, file: TracedFile, entering: Float) -> None:
        if self._grid is None or self._range is None or self._tensor is None:
            return
        values = entering if self._before < 0 else file.traced(self._before)
        if self._clip:
            # What the policy itself cuts off is no loss: an int8 input does it by its range.
            values = np.clip(values, -self._clip, self._clip)
        low, high = self._range
        # Half a step over an end still rounds onto it.
        slack = self._grid.scale / 2
        outside = ((values < low - slack) | (values > high + slack)).astype(np.int64)
        self._outside = outside if self._outside is None else self._outside + outside
        self._low = values if self._low is None else np.minimum(self._low, values)
        self._high = values if self._high is None else np.maximum(self._high, values)
        found = file.traced(self._tensor.index)
        self._errors.add(values, found)
        self._in_range.add(np.clip(values, low, high), found)
        self._grid.add(file.stored(self._tensor.index), values)

    def result(self, rows: int) -> InputSaturation:
        if self._grid is None or self._outside is None or self._low is None or self._high is None:
            return InputSaturation(
                key=self._key, low=-np.inf, high=np.inf, share=0.0, by_dimension=(), worst=-1, worst_share=0.0
            )
        shares = self._outside / max(1, rows)
        worst = int(shares.argmax()) if shares.max() > 0 else -1
        low, high = self._range or (-np.inf, np.inf)
        spans = (self._high - self._low) / self._grid.scale
        listed = shares.size <= MAX_LISTED
        return InputSaturation(
            key=self._key,
            low=low,
            high=high,
            share=float(shares.mean()),
            by_dimension=tuple(float(share) for share in shares) if listed else (),
            worst=worst,
            worst_share=float(shares[worst]) if worst >= 0 else 0.0,
            steps_by_dimension=tuple(float(span) for span in spans) if listed else (),
            errors=self._errors.result(),
            in_range_snr_db=self._in_range.result().snr_db,
            grid=self._grid,
            dtype="" if self._tensor is None else self._tensor.dtype,
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
