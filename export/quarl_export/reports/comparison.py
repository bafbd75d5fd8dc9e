"""Compares a float policy file with a quantized one of the same network: layers, outputs, actions, saturation."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quarl_device.contract import PolicyContract
from quarl_device.environments import EnvSpec, bare_name
from quarl_device.errors import UsageError
from quarl_export.acting import greedy_actions
from quarl_export.reports.acting import Agreement, agreement
from quarl_export.reports.findings import Finding, find, forced, one_is_centred, unmatched
from quarl_export.reports.layers import LayerPair, LayerReport, input_report, level, pair_layers
from quarl_export.reports.metrics import ErrorMeter, Errors
from quarl_export.reports.observations import (
    DEFAULT_ROWS,
    Observations,
    by_default,
    by_playing,
    from_archive,
    stacked_shape,
)
from quarl_export.reports.running import TracedFile
from quarl_export.reports.saturation import InputMeter, InputSaturation
from quarl_export.reports.side import Side, read_side
from quarl_export.reports.structure import Float, OtherStructure

_FLOAT = ("float32", "float16")
_QUANTIZED = ("int8", "int16x8", "dynamic")


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What a comparison found.

    Attributes:
        reference: the float file.
        quantized: the other one.
        observations: where the rows come from.
        rows: how many.
        recorded: whether they are ones that a policy meets (else random: saturation says little).
        agreement: how the files act; `None` where neither has a contract.
        contract: by which contract they act, `None` likewise.
        outputs: measures over all outputs, as they act.
        layers: one report per quantized input, against what enters it, and per layer, in the float file's order.
        inputs: per observation, saturation by dimension.
        reference_outputs: role or tensor name to float64 ``[rows, width]``; shifted to the other file's mean over
            actions where one of them is centred.
        quantized_outputs: the same of the quantized file.
        traced_gap: largest difference between the acting and the traced run of the quantized file's outputs.
        findings: what a person should know.
    """

    reference: Side = field(repr=False)
    quantized: Side = field(repr=False)
    observations: str
    rows: int
    recorded: bool
    agreement: Agreement | None
    contract: PolicyContract | None = field(repr=False)
    outputs: Errors
    layers: tuple[LayerReport, ...] = field(repr=False)
    inputs: tuple[InputSaturation, ...] = field(repr=False)
    reference_outputs: Mapping[str, Float] = field(repr=False)
    quantized_outputs: Mapping[str, Float] = field(repr=False)
    traced_gap: float
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values; an infinite SNR (no error at all) is infinite here too."""
        acting = self.agreement
        return {
            "float": _side_json(self.reference),
            "int8": _side_json(self.quantized),
            "rows": self.rows,
            "observations": self.observations,
            "recorded": self.recorded,
            "action_agreement": None if acting is None else acting.share,
            "agreement_rule": "" if acting is None else acting.rule,
            "disagreements": None if acting is None else acting.disagreements,
            "gap_mean": None if acting is None else acting.gap_mean,
            "gap_max": None if acting is None else acting.gap_max,
            "gap_relative": None if acting is None else acting.gap_relative,
            **asdict(self.outputs),
            "traced_gap": self.traced_gap,
            "layers": [layer.to_json() for layer in self.layers],
            "saturation": {
                "inputs": {each.key: each.to_json() for each in self.inputs},
                "tensors": {layer.name: layer.saturation_json() for layer in self.layers if layer.grid is not None},
            },
            "findings": [asdict(finding) for finding in self.findings],
        }


def _side_json(side: Side) -> dict[str, Any]:
    return {"path": side.path, "sha256": side.sha256, "scheme": side.scheme, "forced": list(side.forced)}


def compare_files(
    reference: Path,
    quantized: Path,
    *,
    observations: Path | None = None,
    env_id: str = "",
    rows: int = DEFAULT_ROWS,
    seed: int = 0,
    same_policy: bool = False,
) -> Comparison:
    """Compare two files of one network.

    Args:
        reference: the float file.
        quantized: the quantized file, by whatever scheme.
        observations: an `.npz` of recorded observations.
        env_id: an environment to play instead, named by a person: one of another module is imported.
        rows: how many observations, at most.
        seed: of what is random.
        same_policy: both files are known to be of one policy: where a conversion split layers up so that they cannot
            be matched, inputs, outputs and actions are compared all the same, and a finding says so.

    Raises:
        ModelFileError: a file is missing, not TFLite, damaged, or cannot be run.
        ContractError: a contract does not hold.
        UsageError: not the same network, the two in the other order, or observations that do not fit.
        UnknownEnvironment, SpaceMismatch: no such environment, or one that is not the policy's.
        NonFiniteError: a file gives NaN or Inf.
    """
    if observations is not None and env_id:
        raise UsageError("--observations and --env exclude each other")
    left, right = read_side(reference), read_side(quantized)
    _check_order(left, right)
    _check_same_observations(left, right)
    traced = TracedFile(left), TracedFile(right)
    pairs, known = _pairs(left, right, same_policy=same_policy)
    contract = right.contract or left.contract
    given = _observations(traced[0], right, contract, observations=observations, env_id=env_id, rows=rows, seed=seed)
    return _compare(traced[0], traced[1], pairs, given, contract, known=known)


def _pairs(left: Side, right: Side, *, same_policy: bool) -> tuple[tuple[LayerPair, ...], tuple[Finding, ...]]:
    """Return the matched layers, none and a finding where those of one policy cannot be matched."""
    try:
        return pair_layers(left, right), ()
    except OtherStructure:
        if not same_policy:
            raise
        return (), (unmatched(),)


def _check_order(left: Side, right: Side) -> None:
    """Refuse a quantized file as what another is measured by: its own errors would be taken for the other's."""
    if left.scheme in _QUANTIZED and right.scheme in _FLOAT:
        raise UsageError(
            f"{left.path} is {left.scheme} and {right.path} is {right.scheme}: the float file comes first",
            hint=f"quarl-edge compare {shlex.quote(right.path)} {shlex.quote(left.path)}",
        )
    # A file beside itself differs in nothing, by whatever it is measured.
    if left.scheme in _QUANTIZED and right.scheme in _QUANTIZED and left.sha256 != right.sha256:
        raise UsageError(
            f"{left.path} is {left.scheme}: expected a float file first, to measure {right.path} ({right.scheme}) by",
            hint="make one of the same policy: quarl-edge export FLOAT.tflite --scheme float32 --from SOURCE",
        )


def _check_same_observations(left: Side, right: Side) -> None:
    mine, its = ([stacked_shape(spec) for spec in side.observations] for side in (left, right))
    sizes = [[math.prod(shape) for shape in shapes] for shapes in (mine, its)]
    if sizes[0] != sizes[1]:
        raise UsageError(f"the files observe different things: {mine} and {its}")
    if left.contract and right.contract:
        keys = [[spec.key for spec in side.observations] for side in (left, right)]
        if keys[0] != keys[1]:
            raise UsageError(f"the files observe different keys: {keys[0]} and {keys[1]}")


def _observations(
    float_file: TracedFile,
    right: Side,
    contract: PolicyContract | None,
    *,
    observations: Path | None,
    env_id: str,
    rows: int,
    seed: int,
) -> Observations:
    source = right if right.contract else float_file.side
    if observations is not None:
        return from_archive(observations, source.observations, limit=rows)
    if not env_id:
        return by_default(source, rows=rows, seed=seed)
    if contract is None:
        raise UsageError("--env needs a policy contract in one of the files", hint="or pass --observations")
    places = _output_places(float_file.side, contract, source)

    def act(shown: Mapping[str, Any]) -> Any:
        float_file.run(_renamed({key: value[None] for key, value in shown.items()}, source, float_file.side), 0)
        outputs = {role: float_file.output(index)[None] for role, index in places.items()}
        if contract.action.kind == "discrete":
            return contract.action.start + int(outputs[contract.head.kind].argmax())
        return greedy_actions(contract, outputs)[0].astype(np.float32)

    # The file knows how its own environment was made; another one, as the device does it, is made as registered.
    kwargs = contract.env_kwargs if bare_name(env_id) == contract.env_id else {}
    spec = EnvSpec.seen_as(contract.observations, env_id, kwargs, wrappers=contract.wrappers)
    return by_playing(spec, source.observations, act, contract=contract, rows=rows, seed=seed, allow_module=True)


def _renamed(arrays: Mapping[str, Any], source: Side, target: Side) -> dict[str, Any]:
    """Return arrays by `target`'s keys: a file without a contract takes them in order."""
    keys = zip(source.observations, target.observations, strict=True)
    return {its.key: arrays[mine.key] for mine, its in keys}


def _output_places(side: Side, contract: PolicyContract, of: Side) -> dict[str, int]:
    """Return role to output tensor index in `side`; by its own contract, else by the other's order of outputs."""
    if side.contract is not None:
        by_name = {side.graph.tensors[index].name: index for index in side.graph.outputs}
        return {role: by_name[name] for role, name in side.contract.head.outputs.items()}
    order = {of.graph.tensors[index].name: place for place, index in enumerate(of.graph.outputs)}
    if len(side.graph.outputs) != len(of.graph.outputs):
        raise UsageError(f"one file has {len(side.graph.outputs)} outputs, the other {len(of.graph.outputs)}")
    return {role: side.graph.outputs[order[name]] for role, name in contract.head.outputs.items()}


def _places(side: Side, contract: PolicyContract | None, of: Side) -> dict[str, int]:
    if contract is None:
        return {f"output_{place}": index for place, index in enumerate(side.graph.outputs)}
    return _output_places(side, contract, of)


def _elements(side: Side, place: int) -> int:
    return math.prod(stacked_shape(side.observations[place]))


class _Outputs:
    """What two files answer, row by row, and how far apart that is.

    Args:
        left: the float file.
        right: the other one.
        places: role to output tensor index, of each.
        centred: one of them gives Q values less their mean, so the float one's are brought to the other's.

    Attributes:
        meter: over all outputs.
        traced_gap: largest difference between the acting and the traced run of `right`.
    """

    def __init__(
        self, left: TracedFile, right: TracedFile, places: tuple[dict[str, int], dict[str, int]], *, centred: bool
    ) -> None:
        self._files, self._places, self._centred = (left, right), places, centred
        self._rows: tuple[dict[str, list[Float]], ...] = tuple({role: [] for role in places[0]} for _ in places)
        self.meter, self.traced_gap = ErrorMeter(), 0.0

    def add(self) -> None:
        """Take in what both files have just answered.

        Raises:
            UsageError: an output has another size in the other file.
        """
        left, right = self._files
        for role, place in self._places[0].items():
            wanted, found = left.output(place), right.output(self._places[1][role])
            if wanted.size != found.size:
                raise UsageError(
                    f"output {role!r} has {wanted.size} elements in one file and {found.size} in the other"
                )
            if self._centred and role == "q_values":
                wanted = level(wanted, found)
            self.meter.add(wanted, found)
            gap = float(np.abs(found - right.traced(self._places[1][role])).max())
            self.traced_gap = max(self.traced_gap, gap)
            for rows, values in zip(self._rows, (wanted, found), strict=True):
                rows[role].append(values)

    def stacked(self) -> tuple[dict[str, Float], ...]:
        """Return role to float64 ``[rows, width]``, of each file."""
        return tuple({role: np.stack(rows) for role, rows in each.items()} for each in self._rows)


def _compare(
    left: TracedFile,
    right: TracedFile,
    pairs: tuple[LayerPair, ...],
    given: Observations,
    contract: PolicyContract | None,
    *,
    known: tuple[Finding, ...] = (),
) -> Comparison:
    source = right.side if right.side.contract else left.side
    centred = left.side.centered_q != right.side.centered_q
    places = (_places(left.side, contract, source), _places(right.side, contract, source))
    answers = _Outputs(left, right, places, centred=centred)
    saturation = _run_both(left, right, pairs, given, source, answers)
    outputs = answers.stacked()
    acting = None if contract is None else agreement(contract, outputs[0], outputs[1])
    entry = (input_report(each, elements=_elements(source, place)) for place, each in enumerate(saturation))
    layers = (*(report for report in entry if report is not None), *(pair.report() for pair in pairs))
    found = find(
        acting,
        layers,
        saturation,
        recorded=given.recorded,
        traced_gap=answers.traced_gap,
        scheme=right.side.scheme,
        cut_share=right.side.cut_share,
    )
    return Comparison(
        reference=left.side,
        quantized=right.side,
        observations=given.source,
        rows=given.rows,
        recorded=given.recorded,
        agreement=acting,
        contract=contract,
        outputs=answers.meter.result(),
        layers=layers,
        inputs=saturation,
        reference_outputs=outputs[0],
        quantized_outputs=outputs[1],
        traced_gap=answers.traced_gap,
        findings=(*_of_sides((left.side, right.side), centred=centred), *found, *known),
    )


def _run_both(
    left: TracedFile,
    right: TracedFile,
    pairs: tuple[LayerPair, ...],
    given: Observations,
    source: Side,
    answers: _Outputs,
) -> tuple[InputSaturation, ...]:
    """Run both files on every row, let `pairs` and `answers` take it in, and return how far the inputs saturate."""
    inputs = InputMeter(right.side, left.side)
    arrays = tuple(_renamed(given.arrays, source, each.side) for each in (left, right))
    for row in range(given.rows):
        left.run(arrays[0], row)
        inputs.add(right, right.run(arrays[1], row))
        for pair in pairs:
            pair.add(left, right)
        answers.add()
    return inputs.result()


def _of_sides(sides: tuple[Side, Side], *, centred: bool) -> tuple[Finding, ...]:
    """Return what a person should know of a file by itself."""
    return (
        *(forced(side.path, side.forced) for side in sides if side.forced),
        *(one_is_centred(side.path) for side in sides if centred and side.centered_q),
    )
