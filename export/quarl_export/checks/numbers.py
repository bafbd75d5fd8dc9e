"""Checks of numbers before and after the conversion: Q01 finite, Q02 ranges, Q03 saturation, Q04 bias, Q05 constant."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_export.calibration.coverage import told
from quarl_export.checks.report import CheckResult
from quarl_export.checks.subject import Subject
from quarl_export.ir.layers import WEIGHTED
from quarl_export.ir.reference import run_graph
from quarl_export.range_health import MAX_BITS_LOST, MAX_CLIPPED_SHARE, bits_lost
from quarl_export.ranges import MIN_WIDTH, saturation_limits

MAX_SATURATED = 0.05
# So many are chance where there are few observations.
_CHANCE = 5
_DEGENERATE = 1.01 * MIN_WIDTH
# Where stock quantizers start every range; one that is still there was never adapted.
_START = 6.0
_TWO_STEPS = 2.0


def check_finite(subject: Subject) -> CheckResult:
    """Q01: nothing that enters the file is NaN or Inf in float32; nor is what comes out, once there is a file."""
    named: dict[str, Any] = dict(subject.policy.weights)
    normalizer = subject.policy.contract.normalizer
    for key in normalizer.offset:
        named[f"normaliser of {key}"] = [*normalizer.offset[key], *normalizer.scale[key]]
    for site, limits in (subject.ranges or {}).items():
        named[f"range of {site}"] = limits
    if subject.model:
        named |= {f"output {role}": values for role, values in subject.file_outputs.items()}
    bad = [name for name, values in named.items() if not _is_finite(values)]
    message = f"{', '.join(bad[:4])} hold NaN, Inf or more than float32 does" if bad else "all numbers are finite"
    return CheckResult(code="Q01", passed=not bad, value=float(len(bad)), limit=0.0, message=message)


def _is_finite(values: Any) -> bool:
    with np.errstate(over="ignore"):  # what float32 does not hold becomes Inf, as in the file
        return bool(np.isfinite(np.asarray(values, np.float64).astype(np.float32)).all())


def check_ranges(subject: Subject) -> CheckResult:
    """Q02: every range was set, fits what flows through its site, and is not degenerate."""
    if subject.ranges is None or subject.network is None:
        return CheckResult(code="Q02", passed=True, message=f"scheme {subject.options.scheme} has no explicit ranges")
    tensors = run_graph(subject.policy.graph, subject.policy.weights, subject.inputs)
    worst, faults = 0.0, []
    # Inputs are Q03's; what saturates behind itself is cut on purpose.
    meant = {*subject.inputs, *saturation_limits(subject.policy)}
    for site in subject.network.plan.sites:
        low, high = subject.ranges[site]
        if site in subject.unset:
            faults.append(f"the range of {site!r} was never set: it is still ({low:.3g}, {high:.3g}), its start")
            continue
        if high - low <= _DEGENERATE and (why := _too_narrow(subject, site, tensors[site])):
            faults.append(f"the range of {site!r} is degenerate ({low:.3g}, {high:.3g}): {why}")
            continue
        clipped = 0.0 if site in meant else float(((tensors[site] < low) | (tensors[site] > high)).mean())
        if clipped > MAX_CLIPPED_SHARE and subject.binding:
            faults.append(f"the range of {site!r} ({low:.3g}, {high:.3g}) clips {clipped:.0%} of its values")
        lost = bits_lost(low, high, tensors[site])
        worst = max(worst, lost) if subject.recorded else worst
        if lost > MAX_BITS_LOST and subject.binding:
            start = " as stock quantizers start it" if (low, high) in ((-_START, _START), (0.0, _START)) else ""
            faults.append(
                f"the range of {site!r} ({low:.3g}, {high:.3g}){start} costs {lost:.1f} of 8 bits: values are in "
                f"({tensors[site].min():.3g}, {tensors[site].max():.3g}); {_narrower(subject, site)}"
            )
    return CheckResult(
        code="Q02",
        passed=not faults,
        value=round(worst, 3),
        limit=MAX_BITS_LOST,
        message="; ".join(faults[:3]) or f"{len(subject.network.plan.sites)} ranges, at most {worst:.1f} bits unused",
    )


def _narrower(subject: Subject, site: str) -> str:
    """Return what makes the range of `site` narrower: one of extremes is that of the rarest of all observations."""
    if site in subject.source.ranges:
        return "calibrate anew with --calibrate"
    return "--range percentile leaves out the rare values that calibration has met"


def _too_narrow(subject: Subject, site: str, values: NDArray[Any]) -> str:
    """Return why `site` has no more than the least range, and what mends it; "" where its values fill that enough."""
    low, high = float(values.min()), float(values.max())
    if high - low > MIN_WIDTH:
        return f"its values are in ({low:.3g}, {high:.3g}); calibrate anew with --calibrate"
    if (high - low) * 2**MAX_BITS_LOST >= MIN_WIDTH:
        return ""
    what = f"observation {site!r}" if site in subject.inputs else f"layer {site!r}"
    if low == high:
        # Behind a normaliser whatever stands still is 0.
        stood = "the same" if site in subject.inputs else f"{low:.3g}"
        return f"{what} was {stood} in all {subject.count} observations; calibrate with some in which it moves"
    mend = "scale the observation up"
    if site not in subject.inputs:
        mend = f"scale what it gives up (rewards, for Q values), or keep it in float with --keep-float {site}"
    return f"{what} moves by {high - low:.2g}, less than the least int8 range of {MIN_WIDTH:g}; {mend}"


def check_saturation(subject: Subject, *, decided: bool = False) -> CheckResult:
    """Q03: how many held-out values of each observation dimension the input's range clips.

    What no observation shows is told beside it: how little of its bounds a dimension has visited.

    Args:
        subject: before or after the conversion.
        decided: whether returns have judged the file; it is then told, and does not fail.
    """
    found = _clipped(subject, binding=subject.binding and not decided)
    if not (coverage := told(subject.visited)):
        return found
    detail = {"visited": {key: list(shares) for key, shares in subject.visited.items()}}
    return dataclasses.replace(found, message=f"{found.message}; {coverage}", detail=detail)


def _clipped(subject: Subject, *, binding: bool) -> CheckResult:
    if subject.ranges is None or not subject.recorded:
        return CheckResult(
            code="Q03", passed=True, message="not judged: it needs recorded observations and an int8 input"
        )
    worst, where = 0.0, ""
    for key, dimension, share in saturation(subject):
        if share > worst:
            worst, where = share, f"observation {key!r}[{dimension}]"
    limit = max(MAX_SATURATED, _CHANCE / subject.count)
    message = f"{where} is clipped in {worst:.1%}" if worst else "nothing is clipped"
    message += f", {subject.judged_on}"
    if worst > limit and binding:
        message += "; calibrate with more of them (a larger file, more --steps), from more episodes"
    return CheckResult(
        code="Q03",
        passed=worst <= limit or not binding,
        value=round(worst, 5),
        limit=round(limit, 5),
        advisory=not binding,
        message=message,
    )


def saturation(subject: Subject) -> list[tuple[str, int, float]]:
    """Return (key, flattened dimension, share of clipped values) of every input with a range of its own."""
    shares = []
    clip = subject.policy.contract.normalizer.clip
    for key, values in subject.inputs.items():
        if subject.ranges is None or key not in subject.ranges:
            continue
        low, high = subject.ranges[key]
        # Half a step outside still rounds to the last one. What the normaliser itself clips is meant to be.
        slack = (high - low) / 510.0
        below, above = values < low - slack, values > high + slack
        if clip:
            below, above = below & (values > -clip), above & (values < clip)
        flat = (below | above).reshape(len(values), -1).mean(axis=0)
        shares += [(key, dimension, float(share)) for dimension, share in enumerate(flat)]
    return shares


def check_biases(subject: Subject) -> CheckResult:
    """Q04: a bias that does not fit int32 opens the scale of its kernel until it does, and the weights lose bits."""
    if subject.network is None:
        return CheckResult(code="Q04", passed=True, message=f"scheme {subject.options.scheme} has no int32 bias")
    worst, name = 0.0, ""
    for layer in subject.policy.graph.layers:
        if layer.kind in WEIGHTED and layer.use_bias and layer.name not in subject.network.plan.floats:
            lost = subject.network.bits_lost_to_bias(layer)
            worst, name = (lost, layer.name) if lost > worst else (worst, name)
    passed = worst <= MAX_BITS_LOST
    message = f"biases cost the weights of {name!r} {worst:.1f} bits" if worst else "every bias fits int32"
    if not passed:
        message = (
            f"the bias of layer {name!r} drowns its kernel: to fit int32 it costs the weights {worst:.1f} of "
            f"{subject.options.weight_bits} bits; keep the layer in float with --keep-float {name}"
        )
    return CheckResult(code="Q04", passed=passed, value=round(worst, 3), limit=MAX_BITS_LOST, message=message)


def check_constant(subject: Subject) -> CheckResult:
    """Q05: outputs that move with the observation in float move in the file.

    An output may stand still in the file that moves by less than two steps of it, or of the coarsest hidden layer,
    taken as a share of what the outputs beside it move by.
    """
    alike = len(np.unique(np.concatenate([v.reshape(subject.count, -1) for v in subject.inputs.values()], 1), axis=0))
    if alike < 2:
        return CheckResult(code="Q05", passed=True, message="not judged: all observations are the same")
    moving, stuck = 0, []
    for role, values in subject.file_outputs.items():
        moves = np.ptp(values.reshape(subject.count, -1), axis=0) > 0
        wanted = np.ptp(subject.float_outputs[role].reshape(subject.count, -1).astype(np.float64), axis=0)
        hidden = _TWO_STEPS / (2**subject.options.activation_bits - 1) * float(wanted.max(initial=0.0))
        stuck += [f"{role}[{n}]" for n in np.flatnonzero(~moves & (wanted > max(hidden, 2 * subject.steps[role])))]
        moving += int(moves.sum())
    message = f"{moving} outputs move over {subject.count} observations"
    if stuck:
        message = f"{', '.join(stuck[:4])} move in float and not in the file, over {subject.count} observations"
    if not moving:
        message = f"the file gives the same whatever it sees, over {subject.count} observations"
    return CheckResult(
        code="Q05",
        passed=bool(moving) and not stuck,
        value=float(moving),
        limit=float(max(1, moving + len(stuck))),
        message=message,
    )
