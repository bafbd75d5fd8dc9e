"""What makes a layer finer, in the options of `export` that it would take."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from quarl_export.reports.layers import FIXED_RANGE_KINDS, LayerReport
from quarl_export.reports.metrics import CLIPPED

_COARSE_SCHEMES = ("int16x8", "dynamic")
INPUT = "QUANTIZE"
"""Kind of an observation's way onto the input's grid, which is no layer."""


def finer(layer: LayerReport, layers: Sequence[LayerReport], *, scheme: str) -> str:
    """Return what helps where the error rises at `layer`.

    Args:
        layer: where.
        layers: all of them.
        scheme: of the quantized file.
    """
    if layer.kind == INPUT:
        return (
            "this is the observation on the input's 8-bit grid, which --keep-float does not reach: normalise each "
            "dimension, or cut outliers off with --range percentile"
        )
    if scheme in _COARSE_SCHEMES:
        return "--scheme float16 keeps the weights that this one rounds"
    if layer.grid is None:
        return "it is in float already: what enters it is what is off"
    ways = []
    if layer.grid.clipped > CLIPPED and layer.kind not in FIXED_RANGE_KINDS:
        ways.append("calibrate with observations that reach beyond its range")
    if layer.kind == "FULLY_CONNECTED" and layer.weights is not None and layer.weights.channels == 1 < layer.elements:
        ways.append("--per-channel")
    if _may_stay_float(layer, layers):
        ways.append(
            f"--keep-float {shlex.quote(layer.keep)}"
            if layer.keep
            else "--keep-float LAYER, by the name that quarl-edge inspect SOURCE lists it under"
        )
    return f"export it again: {', or '.join(ways)}" if ways else "--scheme float16 computes it in float"


def _may_stay_float(layer: LayerReport, layers: Sequence[LayerReport]) -> bool:
    """Return whether `--keep-float` takes a layer on a grid: weights of another one must still be on theirs."""
    return any(each.weights is not None and each is not layer for each in layers)
