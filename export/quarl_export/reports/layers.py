"""One layer in two files: its weights, and what comes out of it, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from quarl_device.flatbuffer import Graph
from quarl_device.inspect.tensors import grid_range
from quarl_export.reports.metrics import ErrorMeter, Errors, GridMeter
from quarl_export.reports.on_purpose import cut, saturation_of
from quarl_export.reports.running import TracedFile
from quarl_export.reports.saturation import InputSaturation
from quarl_export.reports.side import Side
from quarl_export.reports.structure import Float, Layer, layer_names, layers_of, match, real_constant, source_name

FIXED_RANGE_KINDS = ("TANH", "LOGISTIC", "SOFTMAX")
"""Their kernels have one range for all: tanh ends at 127/128, so that its +1 is always "outside"."""
_GRIDS = ("int8", "uint8", "int16")


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightGrid:
    """Quantized weights of a layer on their grid.

    Attributes:
        counts: how many weights each of the 255 steps from -127 to 127 has.
        channels: how many scales there are.
        scale_min: the smallest of them.
        scale_max: the largest.
        max_abs_error: against the float file's weights, Inf for NaN; `None` where these are not stored in that shape.
        error_steps: the same in the largest of the scales.
    """

    counts: tuple[int, ...] = field(repr=False)
    channels: int
    scale_min: float
    scale_max: float
    max_abs_error: float | None
    error_steps: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerReport:
    """How far a layer is from its float twin.

    Attributes:
        name: short name.
        kind: operator.
        activation: what it applies.
        elements: of its result.
        dtype: of its result in the quantized file.
        errors: measures over all rows.
        step: size of one step of its result, 0 where it is float.
        value_range: smallest and largest value that its result can hold, `None` where it is float.
        grid: counts over that range, `None` likewise.
        weights: its weights' grid, `None` where it has none or they are float.
        reads_observation: whether nothing but a normaliser stands between it and an observation.
        source: the layer of its source that it is, as `--keep-float` takes it; "" where the file does not say.
        keep: the layer that `--keep-float` makes this one finer with: itself, or what an activation of its own reads.
        in_range_snr_db: of `errors`, without what its range clips; `None` where it is float.
        limit: beyond this distance from zero its values change nothing and are not compared, 0 for nowhere.
        beyond: share of the float file's values that are.
    """

    name: str
    kind: str
    activation: str
    elements: int
    dtype: str
    errors: Errors
    step: float
    value_range: tuple[float, float] | None
    grid: GridMeter | None = field(repr=False)
    weights: WeightGrid | None = field(repr=False)
    reads_observation: bool = field(default=False, repr=False)
    source: str = ""
    keep: str = ""
    in_range_snr_db: float | None = None
    limit: float = 0.0
    beyond: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values, without histograms."""
        weights = None if self.weights is None else asdict(self.weights)
        if weights is not None:
            del weights["counts"]
        return {
            "name": self.name,
            "source": self.source,
            "op": self.kind,
            "activation": self.activation,
            "elements": self.elements,
            "dtype": self.dtype,
            **asdict(self.errors),
            "step": self.step,
            "max_error_steps": self.errors.max_abs_error / self.step if self.step else None,
            "range": None if self.value_range is None else list(self.value_range),
            "range_used": None if self.grid is None else self.grid.used,
            "limit": self.limit or None,
            "beyond_limit": self.beyond,
            "weights": weights,
        }

    def saturation_json(self) -> dict[str, Any]:
        """Return how many values are over its range and at its ends, as shares."""
        if self.grid is None:
            return {}
        return {"clipped": self.grid.clipped, "at_limit": self.grid.at_limit}


def input_report(saturation: InputSaturation, *, elements: int) -> LayerReport | None:
    """Return an observation's way onto the grid as the first of the layers; `None` where it stays in float."""
    if saturation.grid is None or saturation.errors is None:
        return None
    return LayerReport(
        name=saturation.key,
        kind="QUANTIZE",
        activation="none",
        elements=elements,
        dtype=saturation.dtype,
        errors=saturation.errors,
        step=saturation.grid.scale,
        value_range=(saturation.low, saturation.high),
        grid=saturation.grid,
        weights=None,
        in_range_snr_db=saturation.in_range_snr_db,
    )


class LayerPair:
    """A layer and its twin, with the meters that rows go into.

    Args:
        left: the float file.
        layer: of it.
        right: the quantized file.
        twin: of it.
        name: to show.
        source: see `LayerReport`.
        keep: see `LayerReport`.
        shifted: see `level`.
        limit: see `LayerReport`.
    """

    def __init__(
        self,
        left: Side,
        layer: Layer,
        right: Side,
        twin: Layer,
        *,
        name: str,
        source: str = "",
        keep: str = "",
        shifted: bool = False,
        limit: float = 0.0,
    ) -> None:
        self._layer, self._twin, self._name, self._source, self._shifted = layer, twin, name, source, shifted
        self._keep, self._limit, self._beyond, self._count = keep, limit, 0, 0
        self._meter, self._in_range = ErrorMeter(), ErrorMeter()
        self._tensor = right.graph.tensors[twin.output]
        self._value_range = grid_range(self._tensor)
        quantization = self._tensor.quantization
        self._grid = None
        if quantization is not None and quantization.scales.size == 1 and self._tensor.dtype in _GRIDS:
            self._grid = GridMeter(
                dtype=self._tensor.dtype,
                scale=float(quantization.scales[0]),
                zero_point=int(quantization.zero_points[0]),
            )
        self._weights = _weight_grid(left.graph, layer, right.graph, twin, shifted=shifted)

    def add(self, left: TracedFile, right: TracedFile) -> None:
        """Take the row that both files have just run."""
        wanted, found = left.traced(self._layer.output), right.traced(self._twin.output)
        wanted = level(wanted, found) if self._shifted else wanted
        self._count += wanted.size
        self._beyond += int((np.abs(wanted) > self._limit).sum()) if self._limit else 0
        wanted, found = cut(wanted, self._limit), cut(found, self._limit)
        self._meter.add(wanted, found)
        if self._grid is not None and self._value_range is not None:
            self._in_range.add(np.clip(wanted, *self._value_range), found)
            self._grid.add(right.stored(self._twin.output), wanted)

    def report(self) -> LayerReport:
        """Return what all rows together say."""
        return LayerReport(
            name=self._name,
            kind=self._layer.kind,
            activation=self._layer.activation,
            elements=self._layer.elements,
            dtype=self._tensor.dtype,
            errors=self._meter.result(),
            step=0.0 if self._grid is None else self._grid.scale,
            value_range=self._value_range,
            grid=self._grid,
            weights=self._weights,
            reads_observation=any(place < 0 for place in self._layer.inputs),
            source=self._source,
            keep=self._keep,
            in_range_snr_db=None if self._grid is None else self._in_range.result().snr_db,
            limit=self._limit,
            beyond=self._beyond / max(1, self._count),
        )


def level(wanted: Float, found: Float) -> Float:
    """Return `wanted` with the mean of `found` along the first axis.

    Where one of two files has its Q values centred, only differences between actions can be the same in both.
    """
    shifted: Float = wanted + (found.mean(axis=0) - wanted.mean(axis=0))
    return shifted


def pair_layers(left: Side, right: Side) -> tuple[LayerPair, ...]:
    """Return the layers of both files, matched, in `left`'s order.

    Raises:
        UsageError: not the same network.
    """
    ours, theirs = layers_of(left.graph, left.inputs), layers_of(right.graph, right.inputs)
    pairs = match(left.graph, ours, right.graph, theirs)
    # Centring changes the one layer that no other reads.
    read = {place for layer in ours for place in layer.inputs}
    last = {place for place in range(len(ours)) if place not in read}
    centred = left.centered_q != right.centered_q
    sources = [source_name(right.graph, theirs[its], right.source_layers) for _, its in pairs]
    names = layer_names([((left.graph, ours[mine]), (right.graph, theirs[its])) for mine, its in pairs], sources)
    limits = saturation_of(right.graph, theirs, right.contract)
    return tuple(
        LayerPair(
            left,
            ours[mine],
            right,
            theirs[its],
            name=name,
            source=source,
            keep=_kept_for(right, theirs, its),
            shifted=centred and mine in last,
            limit=limits.get(its, 0.0),
        )
        for (mine, its), name, source in zip(pairs, names, sources, strict=True)
    )


def _kept_for(side: Side, layers: Sequence[Layer], place: int) -> str:
    """Return the layer whose float result makes the one at `place` finer, "" where the file does not name it.

    A steep activation shows the rounding of what it reads; that layer takes it with it into float.
    """
    layer = layers[place]
    reads = layer.inputs[0] if layer.kind in FIXED_RANGE_KINDS and layer.inputs else -1
    return source_name(side.graph, layers[reads] if reads >= 0 else layer, side.source_layers)


def _weight_grid(left: Graph, layer: Layer, right: Graph, twin: Layer, *, shifted: bool) -> WeightGrid | None:
    if twin.weights < 0:
        return None
    tensor = right.tensors[twin.weights]
    if tensor.dtype != "int8" or tensor.quantization is None:
        return None
    stored = right.constant(tensor).ravel().astype(np.int64)
    counts = np.bincount(np.clip(stored, -127, 127) + 127, minlength=255)
    scales = tensor.quantization.scales
    mine, its = real_constant(left, layer.weights), real_constant(right, twin.weights)
    if shifted and mine is not None and its is not None and mine.shape == its.shape:
        mine = level(mine, its)
    error = _weight_error(mine, its)
    return WeightGrid(
        counts=tuple(int(n) for n in counts),
        channels=int(scales.size),
        scale_min=float(scales.min()),
        scale_max=float(scales.max()),
        max_abs_error=error,
        error_steps=None if error is None else error / float(scales.max()),
    )


def _weight_error(mine: Float | None, its: Float | None) -> float | None:
    """Return the largest difference of the weights, Inf where one is NaN, `None` where there are not two to compare."""
    if mine is None or its is None or mine.shape != its.shape:
        return None
    error = float(np.abs(mine - its).max())
    return math.inf if math.isnan(error) else error
