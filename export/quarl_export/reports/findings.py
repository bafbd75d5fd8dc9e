"""What a person should know of a comparison, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from quarl_export.reports.acting import Agreement
from quarl_export.reports.layers import FIXED_RANGE_KINDS, LayerReport
from quarl_export.reports.mends import INPUT, finer
from quarl_export.reports.metrics import CLIPPED
from quarl_export.reports.saturation import InputSaturation

GOOD_AGREEMENT = 0.99
NARROW_USE = 0.25
STEEP_DB = 6.0
FEW_STEPS = 16
POOR_DB = 20.0
# Rounding moves a weight by half a step; a range that has not followed it clips it by little more.
WEIGHT_STEPS = 4.0
FORCED = "R10"
UNMATCHED = "R13"
ON_PURPOSE = "R14"

# R03 and R07 say it by dimension.
_SAID_BY_DIMENSION = ("QUANTIZE",)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence, with what to do about it."""

    code: str
    severity: Literal["warning", "note"]
    message: str
    mend: str = ""


def find(
    acting: Agreement | None,
    layers: Sequence[LayerReport],
    inputs: Sequence[InputSaturation],
    *,
    recorded: bool,
    traced_gap: float,
    scheme: str = "int8",
    cut_share: float = 0.0,
) -> tuple[Finding, ...]:
    """Return what stands out, gravest first.

    Args:
        acting: how the files act, `None` where neither has a contract.
        layers: from the first to the last.
        inputs: one per observation.
        recorded: whether the rows are ones that a policy meets.
        traced_gap: how far the kernels that show layers are from those that act.
        scheme: of the quantized file.
        cut_share: see `Side`.
    """
    found = [
        *_acting(acting),
        *_inputs(inputs, recorded, cut_share),
        *_layers(layers, scheme, cut_share),
        *_saturated(layers),
    ]
    if not recorded:
        found.append(
            Finding(
                code="R08",
                severity="note",
                message="the observations are random, not what the policy meets: agreement and saturation are rough",
                mend="pass --observations with recorded ones, or --env to play",
            )
        )
    if traced_gap > 0.0:
        found.append(
            Finding(
                code="R09",
                severity="note",
                message=f"outputs of the kernels that act are up to {traced_gap:.3g} from those that show layers",
            )
        )
    return tuple(sorted(found, key=lambda finding: finding.severity == "note"))


def forced(path: str, codes: Sequence[str]) -> Finding:
    """Return what to know of a file that was written in spite of checks that failed."""
    return Finding(
        code=FORCED,
        severity="warning",
        message=f"{path or 'the file'} was written with --force although these checks failed: {', '.join(codes)}",
        mend="play it before it is used: quarl-edge evaluate; or export it again without --force",
    )


def unmatched() -> Finding:
    """Return what to know of two files of one policy whose operators differ too much to tell layer by layer."""
    return Finding(
        code=UNMATCHED,
        severity="note",
        message="the two files compute this policy with different operators, so its layers are not compared one by one",
    )


def one_is_centred(path: str) -> Finding:
    """Return what to know where the Q values of one file are centred and the other's are not."""
    return Finding(
        code="R12",
        severity="note",
        message=f"the Q values of {path or 'one file'} have no mean over actions (--center-q): values are compared up "
        "to a shift of all actions, which changes none",
    )


def _acting(acting: Agreement | None) -> Iterator[Finding]:
    if acting is None:
        yield Finding(
            code="R01",
            severity="note",
            message="neither file has a contract: outputs are compared, not actions",
            mend="quarl-edge export writes one",
        )
    elif acting.share < GOOD_AGREEMENT:
        yield Finding(
            code="R02",
            severity="warning",
            message=f"the files act differently on {acting.disagreements} observations ({1 - acting.share:.1%}); "
            f"where they do, it is {acting.gap_relative:.2%} {acting.gap}",
            mend="small: near-ties, harmless; large: look for the layer below where the error begins",
        )


def _allowed(cut_share: float) -> float:
    """Return what share of clipped values needs no other reason than the rule that the ranges were found by."""
    return cut_share + CLIPPED if cut_share else 0.0


def _asked_for(what: str, clipped: float, cut_share: float) -> Finding:
    return Finding(
        code=ON_PURPOSE,
        severity="note",
        message=f"{what}: {clipped:.1%} of the values lie outside of its range, on purpose: --range percentile leaves "
        f"out up to {cut_share:.1%} of those that it was found with",
        mend="a larger --percentile cuts less and gives coarser steps",
    )


def _saturated(layers: Sequence[LayerReport]) -> Iterator[Finding]:
    for layer in layers:
        if layer.beyond > CLIPPED:
            yield Finding(
                code=ON_PURPOSE,
                severity="note",
                message=f"layer {layer.name!r}: {layer.beyond:.1%} of the float values lie beyond ±{layer.limit:g}, on "
                "purpose: the tanh or sigmoid behind it moves no more there, so neither its range nor this comparison "
                "goes further",
            )


def _named(layer: LayerReport) -> str:
    return f"observation {layer.name!r} on its grid" if layer.kind == INPUT else f"layer {layer.name!r}"


def _rises(before: float, snr: float) -> bool:
    return snr < POOR_DB and before - snr > STEEP_DB


def _inputs(inputs: Sequence[InputSaturation], recorded: bool, cut_share: float) -> Iterator[Finding]:
    for each in inputs:
        if CLIPPED < each.worst_share <= _allowed(cut_share):
            yield _asked_for(f"observation {each.key!r}, dimension {each.worst}", each.worst_share, cut_share)
        elif each.worst_share > CLIPPED:
            yield Finding(
                code="R03",
                severity="warning" if recorded else "note",
                message=f"observation {each.key!r}: dimension {each.worst} lies outside of the input's range in "
                f"{each.worst_share:.1%} of the rows ({each.low:.4g} to {each.high:.4g}, normalised)",
                mend="calibrate with observations that reach there, or normalise this dimension",
            )
        if recorded:
            yield from _narrow(each)


def _narrow(each: InputSaturation) -> Iterator[Finding]:
    spans = {place: steps for place, steps in enumerate(each.steps_by_dimension) if 0.0 < steps < FEW_STEPS}
    if spans:
        place = min(spans, key=lambda n: spans[n])
        others = "" if len(spans) == 1 else f" ({len(spans)} dimensions have fewer than {FEW_STEPS})"
        yield Finding(
            code="R07",
            severity="warning",
            message=f"observation {each.key!r}: dimension {place} spans {spans[place]:.0f} of the input's 255 steps"
            + others,
            mend="an input has one scale for all: normalise per dimension, or cut outliers of the others off",
        )


def _weights(layer: LayerReport) -> Iterator[Finding]:
    if layer.weights is None or layer.weights.error_steps is None or not layer.weights.error_steps > WEIGHT_STEPS:
        return
    told = f"layer {layer.name!r}: a weight is {layer.weights.error_steps:.1f} steps from the float file's"
    if layer.reads_observation:
        # A converter may multiply a normaliser's scale into the first layer of one file and not of the other.
        yield Finding(
            code="R11",
            severity="note",
            message=f"{told}: a normaliser that one file has folded into it, or other weights",
            mend="if its error is as small as that of the layers behind it, it is a normaliser",
        )
    else:
        yield Finding(
            code="R11",
            severity="warning",
            message=f"{told}: rounding alone moves it by half a step",
            mend="the files are of different weights, or one is damaged: export both again",
        )


def _layers(layers: Sequence[LayerReport], scheme: str, cut_share: float) -> Iterator[Finding]:
    before = math.inf
    for layer in layers:
        snr = layer.errors.snr_db
        # What was cut on purpose is told as that; the error that is left may still be a fault.
        inside = layer.in_range_snr_db if _is_asked_for(layer, cut_share) else snr
        if inside is not None and _rises(before, inside):
            came_from = "" if math.isinf(before) else f", from {before:.1f} dB in the layer before"
            yield Finding(
                code="R04",
                severity="warning",
                message=f"{_named(layer)}: the error rises here, {snr:.1f} dB{came_from}",
                mend=finer(layer, layers, scheme=scheme),
            )
        yield from _weights(layer)
        yield from _range(layer, cut_share, is_felt=_rises(before, snr))
        before = min(before, snr)


def _range(layer: LayerReport, cut_share: float, *, is_felt: bool) -> Iterator[Finding]:
    if layer.grid is None:
        return
    clipped, used, is_by_dimension = layer.grid.clipped, layer.grid.used, layer.kind in _SAID_BY_DIMENSION
    if _is_asked_for(layer, cut_share):
        if is_felt or (clipped > CLIPPED and not is_by_dimension):
            yield _asked_for(_named(layer), clipped, cut_share)
    elif clipped > CLIPPED and not is_by_dimension and layer.kind not in FIXED_RANGE_KINDS:
        yield Finding(
            code="R05",
            severity="warning",
            message=f"layer {layer.name!r}: {clipped:.1%} of the float values lie outside of its range",
            mend="its range is too narrow: calibrate or train on",
        )
    if 0.0 < used < NARROW_USE and not is_by_dimension and layer.kind not in FIXED_RANGE_KINDS:
        yield Finding(
            code="R06",
            severity="warning",
            message=f"layer {layer.name!r}: the values span {used:.0%} of its range, "
            f"{-math.log2(used):.1f} bits are lost",
            mend="its range is too wide: calibrate with the policy's own observations",
        )


def _is_asked_for(layer: LayerReport, cut_share: float) -> bool:
    return layer.grid is not None and 0.0 < layer.grid.clipped <= _allowed(cut_share)
