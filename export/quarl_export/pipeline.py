"""From an imported policy to a complete, checked file: ranges, conversion, contract, golden vectors, checks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import quarl_export
from quarl_device.errors import ModelFileError, UsageError
from quarl_device.policy_file import GoldenVectors, PolicyFile, read_policy
from quarl_export.calibration import CalibrationData, RangeRule, with_input_normalizer
from quarl_export.calibration.coverage import visited_shares
from quarl_export.centering import centered_q
from quarl_export.checks.agreement import golden_tolerance_lsb
from quarl_export.checks.refusal import explained
from quarl_export.checks.report import CheckResult, refuse_failed
from quarl_export.checks.returns import Judged, Play, judge_returns, not_judged
from quarl_export.checks.run import checks_after, checks_before
from quarl_export.checks.subject import Subject
from quarl_export.compare import difference
from quarl_export.golden import run_goldens
from quarl_export.ir import ImportedPolicy
from quarl_export.layer_scopes import LAYERS, scope_names
from quarl_export.metadata import attach, complete_policy
from quarl_export.observations import Judging, golden_rows, judging
from quarl_export.quantizers import MIN_WEIGHT_RANGE
from quarl_export.range_plan import QuantizationOptions
from quarl_export.ranges import find_ranges
from quarl_export.schemes import Ranges, SchemeOptions, check_layers, convert, resolved

MAX_SAMPLES = 512
_MIN_CONVERTED_RANGE = QuantizationOptions().min_weight_range


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How to export.

    Attributes:
        scheme: what the file is like.
        rule: how ranges follow from observations; `None`: by their extremes. One is refused where it would not be used.
        recalibrate: find ranges from observations although training has found some.
        force: write a file whose checks fail; its provenance then names them.
        center_q: take the mean over actions out of Q values: see `centering`.
    """

    scheme: SchemeOptions = field(default_factory=SchemeOptions)
    rule: RangeRule | None = None
    recalibrate: bool = False
    force: bool = False
    center_q: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class BuiltFile:
    """A complete file before it is written.

    Attributes:
        file: read back from the bytes.
        checks: all of them, in the order of their codes.
        subject: what was checked.
    """

    file: PolicyFile
    checks: tuple[CheckResult, ...]
    subject: Subject

    @property
    def forced(self) -> tuple[str, ...]:
        """Codes of the checks that did not pass."""
        return tuple(result.code for result in self.checks if not result.passed)

    @property
    def judged_lsb(self) -> int | None:
        """Largest difference to the fake-quantized network over the judging observations, `None` without one."""
        (parity,) = (result for result in self.checks if result.code == "Q09")
        return None if self.subject.network is None or parity.value is None else int(parity.value)

    @property
    def golden_lsb(self) -> int | None:
        """The same over the golden vectors that the file records."""
        golden, subject = self.file.golden, self.subject
        if subject.network is None:
            return None
        reference = subject.network.run(subject.network.normalized(golden.observations))
        errors = [
            np.rint(np.abs(values - reference[role].reshape(values.shape)) / golden.lsb[role]).max()
            for role, values in golden.outputs.items()
        ]
        return int(max(errors))


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A policy ready to be converted.

    Attributes:
        policy: with the normaliser that the file will have.
        ranges: of every site, `None` for schemes that take none.
        samples: what int16x8 takes its ranges from.
        held_out: what was not calibrated with.
        found_by: how the ranges were found, for the provenance.
        visited: share of the bounds of each dimension of the observations that they were found with: see `coverage`.
    """

    policy: ImportedPolicy
    ranges: Ranges | None
    samples: Mapping[str, Any] | None
    held_out: CalibrationData | None
    found_by: Mapping[str, Any]
    visited: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def refuse_early(source: ImportedPolicy, options: ExportOptions) -> None:
    """Refuse what needs no observations to be refused, before minutes of playing for some.

    Raises:
        UsageError, ConversionError: see `build_file`.
    """
    source = centered_q(source) if options.center_q else source
    check_layers(source, resolved(options.scheme, source))
    _check_rule(source, options)


def build_file(
    source: ImportedPolicy,
    options: ExportOptions,
    *,
    data: CalibrationData | None = None,
    complete: PolicyFile | None = None,
    unset: frozenset[str] = frozenset(),
    play: Play | None = None,
) -> BuiltFile:
    """Return the complete file of `source` with every check's answer.

    Args:
        source: the policy.
        options: how.
        data: recorded observations: most to calibrate with, where that is needed, the rest to judge by.
        complete: a run's own file, made by patching, of the same ranges; only checked here. Default: made here.
        unset: sites whose ranges `complete` has from no training.
        play: where the file is played to be judged by its returns; `None`: nowhere.

    Raises:
        CheckFailed: a check did not pass, and `options` does not force it.
        UsageError: options or observations that do not fit the policy, or none where they are needed.
        ConversionError, PatchError, NonFiniteError: the policy cannot be made into a right file, forced or not.
    """
    source = centered_q(source) if options.center_q else source
    options = dataclasses.replace(options, scheme=resolved(options.scheme, source))
    check_layers(source, options.scheme)
    ready = prepare(source, options, data)
    judged = judging(ready.policy, ready.held_out, ready.ranges or {})
    ours = complete is not None
    subject = _subject(source, options, ready, judged, ours=ours, unset=unset)
    checks = checks_before(subject)
    if not options.force:
        refuse_failed(checks)
    if complete is None:
        model = convert(ready.policy, options.scheme, ranges=ready.ranges, samples=ready.samples)
        subject = dataclasses.replace(subject, model=model)
        golden = _goldens(subject, golden_rows(source, judged))
        provenance = _provenance(source, options, ready)
        complete = _with_metadata(model, subject, golden, provenance)
    else:
        subject = dataclasses.replace(subject, model=complete.data, contract=complete.contract)
    returns = functools.partial(_returns, complete, source, options, play, ours=ours)
    checks = tuple(sorted((*checks, *checks_after(subject, complete.data, returns)), key=lambda check: check.code))
    failed = [result.code for result in checks if not result.passed]
    if failed and not options.force:
        refuse_failed(checks)
    if failed:
        marked = {**complete.provenance, "forced": failed}
        complete = _with_metadata(complete.data, subject, complete.golden, marked)
    return BuiltFile(file=complete, checks=checks, subject=subject)


def _goldens(subject: Subject, rows: Mapping[str, Any]) -> GoldenVectors:
    try:
        tolerance = golden_tolerance_lsb(subject.source.graph)
        return run_goldens(subject.model, subject.contract, rows, tolerance_lsb=tolerance)
    except ModelFileError as error:
        raise explained(error, subject.network) from error


def _returns(
    file: PolicyFile, source: ImportedPolicy, options: ExportOptions, play: Play | None, *, ours: bool
) -> Judged:
    """Return what playing says of `file`, or why it is not asked."""
    if ours:
        return not_judged("a run's own file is the one that training was judged by")
    if options.scheme.scheme == "float32":
        return not_judged("a float32 file is the float policy, which Q09 compares it with")
    if play is None:
        return not_judged("no environment to play in, or no episodes asked for")
    # Checked as any file is, so that what is compared with is what the policy's arithmetic says.
    as_float = ExportOptions(scheme=SchemeOptions(scheme="float32"))
    return judge_returns(file, lambda: build_file(source, as_float).file, play)


def _subject(
    source: ImportedPolicy,
    options: ExportOptions,
    ready: Prepared,
    judged: Judging,
    *,
    ours: bool,
    unset: frozenset[str],
) -> Subject:
    """Return what is checked before there is a file; `ours` for one that a run of ours has made already."""
    return Subject(
        source=source,
        policy=ready.policy,
        options=options.scheme,
        ranges=ready.ranges,
        contract=complete_policy(
            ready.policy, scheme=options.scheme.scheme, io=options.scheme.io, keep_float=options.scheme.keep_float
        ),
        observations=judged.rows,
        judged_on=judged.title,
        recorded=judged.recorded,
        judged_by_returns=ours,
        unset=unset,
        visited=ready.visited,
        min_weight_range=MIN_WEIGHT_RANGE if ours else _MIN_CONVERTED_RANGE,
    )


def _with_metadata(model: bytes, subject: Subject, golden: GoldenVectors, provenance: Mapping[str, Any]) -> PolicyFile:
    data = attach(model, subject.contract, golden, provenance)
    # The metadata must not have moved anything that computes.
    if difference(model, data):
        raise ModelFileError("repacking the model with its metadata changed it")
    return read_policy(data)


def prepare(source: ImportedPolicy, options: ExportOptions, data: CalibrationData | None) -> Prepared:
    """Find what the conversion needs beside the weights.

    Raises:
        UsageError: observations are needed, and there are none; or a rule for ranges is given that nothing follows.
        NonFiniteError: a site's values are NaN or Inf.
    """
    scheme = options.scheme
    calibrate, held_out = (None, None) if data is None else data.split()
    _check_rule(source, options)
    if scheme.scheme not in ("int8", "int16x8"):
        return Prepared(policy=source, ranges=None, samples=None, held_out=data, found_by={})
    if _has_ranges(source, options):
        trained = {site: source.ranges[site] for site in source.graph.range_sites(keep_float=scheme.keep_float)}
        return Prepared(policy=source, ranges=trained, samples=None, held_out=data, found_by={"by": "training"})
    if calibrate is None:
        raise UsageError(
            f"scheme {scheme.scheme} needs observations to find ranges with",
            hint="give --calibrate FILE.npz, --calibrate RUN, or --calibrate env --env ID",
        )
    rule = options.rule or RangeRule()
    policy = with_input_normalizer(source, calibrate, rule)
    found_by = {"by": rule.kind, "observations": calibrate.source, "rows": calibrate.count}
    if rule.kind == "percentile":
        found_by["percentile"] = rule.percentile
    ranges, samples = None, None
    if scheme.scheme == "int16x8":
        thin = calibrate.thinned(MAX_SAMPLES)
        samples, found_by = thin.rows, {**found_by, "by": "converter", "rows": thin.count}
    else:
        ranges = find_ranges(policy, calibrate, rule, keep_float=scheme.keep_float)
    visited = visited_shares(source.contract.observations, calibrate)
    return Prepared(
        policy=policy, ranges=ranges, samples=samples, held_out=held_out, found_by=found_by, visited=visited
    )


def _has_ranges(source: ImportedPolicy, options: ExportOptions) -> bool:
    """Whether the ranges of training serve, so that none are found from observations."""
    if options.scheme.scheme != "int8" or options.recalibrate:
        return False
    return set(source.graph.range_sites(keep_float=options.scheme.keep_float)) <= set(source.ranges)


def _check_rule(source: ImportedPolicy, options: ExportOptions) -> None:
    if options.rule is None:
        return
    scheme, kind = options.scheme.scheme, options.rule.kind
    if scheme not in ("int8", "int16x8"):
        raise UsageError(
            f"--range {kind} means nothing with scheme {scheme}: it has no integer activations",
            hint="leave it out, or use --scheme int8",
        )
    if scheme == "int16x8" and kind != "minmax":
        raise UsageError(
            f"--range {kind} means nothing with scheme int16x8: TensorFlow's converter finds its ranges, by extremes",
            hint="leave it out, or use --scheme int8",
        )
    if _has_ranges(source, options):
        raise UsageError(
            f"--range {kind} means nothing where the ranges of training are kept",
            hint="leave it out, or find them anew: --calibrate env, --calibrate RUN or --calibrate FILE.npz",
        )


def _provenance(source: ImportedPolicy, options: ExportOptions, ready: Prepared) -> dict[str, Any]:
    scheme = options.scheme
    made = {
        "io": scheme.io,
        "per_channel": scheme.per_channel,
        "keep_float": sorted(scheme.keep_float),
        "weight_bits": scheme.weight_bits,
        "activation_bits": scheme.activation_bits,
        "head_output": scheme.head_output,
        "runtime": scheme.runtime,
        "center_q": options.center_q,
        "ranges": dict(ready.found_by),
    }
    if scheme.scheme == "int8":
        made[LAYERS] = scope_names(source.graph)
    return {**source.provenance, "quarl_export": quarl_export.__version__, "export": made}
