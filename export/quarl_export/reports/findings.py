"""What a person should know of a comparison, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from quarl_export.reports.acting import Agreement
from quarl_export.reports.layers import LayerReport
from quarl_export.reports.saturation import InputSaturation

GOOD_AGREEMENT = 0.99
NARROW_USE = 0.25
CLIPPED = 0.01
STEEP_DB = 6.0
FEW_STEPS = 16
POOR_DB = 20.0
# Rounding moves a weight by half a step; a range that has not followed it clips it by little more.
WEIGHT_STEPS = 4.0
FORCED = "R10"
UNMATCHED = "R13"

# Their kernels have one range for all: tanh ends at 127/128, so that its +1 is always "outside".
_FIXED_RANGE = ("TANH", "LOGISTIC", "SOFTMAX")
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
) -> tuple[Finding, ...]:
    """Return what stands out, gravest first."""
    found = [*_acting(acting), *_inputs(inputs, recorded), *_layers(layers)]
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


def _inputs(inputs: Sequence[InputSaturation], recorded: bool) -> Iterator[Finding]:
    for each in inputs:
        if each.worst_share > CLIPPED:
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


def _layers(layers: Sequence[LayerReport]) -> Iterator[Finding]:
    before = math.inf
    for layer in layers:
        snr = layer.errors.snr_db
        if snr < POOR_DB and before - snr > STEEP_DB:
            came_from = "" if math.isinf(before) else f", from {before:.1f} dB in the layer before"
            yield Finding(
                code="R04",
                severity="warning",
                message=f"layer {layer.name!r}: the error rises here, {snr:.1f} dB{came_from}",
                mend="widen its range, quantize per channel, or keep it in float",
            )
        before = min(before, snr)
        yield from _weights(layer)
        if layer.grid is None or layer.kind in (*_FIXED_RANGE, *_SAID_BY_DIMENSION):
            continue
        if layer.grid.clipped > CLIPPED:
            yield Finding(
                code="R05",
                severity="warning",
                message=f"layer {layer.name!r}: {layer.grid.clipped:.1%} of the float values lie outside of its range",
                mend="its range is too narrow: calibrate or train on",
            )
        if 0.0 < layer.grid.used < NARROW_USE:
            yield Finding(
                code="R06",
                severity="warning",
                message=f"layer {layer.name!r}: the values span {layer.grid.used:.0%} of its range, "
                f"{-math.log2(layer.grid.used):.1f} bits are lost",
                mend="its range is too wide: calibrate with the policy's own observations",
            )
