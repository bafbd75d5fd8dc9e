"""`quarl-edge export`: any trained policy as one verified TFLite file."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from quarl_device.errors import LearnerError, QuarlError, RunNotFound, UsageError
from quarl_device.files import check_target
from quarl_device.inspect.edge_tpu import judge
from quarl_device.policy_file import read_policy_path
from quarl_edge.cli import export_options as given
from quarl_edge.cli import source_options as said
from quarl_edge.cli.calibration import PLAY, environment, journal_observations, named_observations
from quarl_edge.cli.export_options import Io, RangeKind, Runtime, Scheme
from quarl_edge.cli.inspect import compile_where_possible
from quarl_edge.cli.interrupts import quit_at_interrupt
from quarl_edge.cli.output import Format, error_json, hint_where_none, write_error, write_json, write_table
from quarl_edge.cli.source_options import SourceWishes, Squash
from quarl_edge.extras import require_learner
from quarl_edge.progress import Progress, make_progress
from quarl_edge.runs import DEFAULT_ROOT, latest_policy

if TYPE_CHECKING:
    from quarl_export.calibration import CalibrationData, RangeRule
    from quarl_export.checks.report import CheckResult
    from quarl_export.checks.returns import Play
    from quarl_export.export import ExportReport
    from quarl_export.ir import ImportedPolicy
    from quarl_export.networks import HeadOutput as HeadOutputType
    from quarl_export.pipeline import ExportOptions
    from quarl_export.schemes import SchemeOptions


def export(
    model: given.Target,
    source: given.Source = None,
    scheme: given.SchemeOption = Scheme.INT8,
    per_channel: given.PerChannel = False,
    weight_bits: given.WeightBits = None,
    activation_bits: given.ActivationBits = None,
    head_output: given.HeadOutput = None,
    io: given.IoOption = Io.FLOAT32,
    runtime: given.RuntimeOption = Runtime.LITERT,
    env: said.Environment = "",
    calibrate: given.Calibrate = "",
    range_rule: given.RangeOption = None,
    percentile: given.Percentile = None,
    steps: given.Steps = None,
    seed: given.Seed = None,
    episodes: given.Episodes = 50,
    keep_float: given.KeepFloat = None,
    vecnormalize: said.VecNormalize = None,
    head: said.Head = None,
    inputs: said.Inputs = None,
    outputs: said.Outputs = None,
    signature: said.Signature = "",
    stack: said.Stack = None,
    stack_fill: said.StackFill = "",
    action_units: said.Units = None,
    squash: said.SquashOption = Squash.NONE,
    center_q: given.CenterQ = False,
    report_into: given.ReportInto = None,
    edge_tpu: given.EdgeTpu = False,
    force: given.Force = False,
    runs: given.Runs = DEFAULT_ROOT,
    output: given.Output = Format.TEXT,
) -> None:
    """Write a trained policy as one TFLite file with its contract and golden vectors inside.

    Without --from it is the latest run's, as int8. The file is checked before it is written (codes Q01 to Q13), read
    back, and run in the TFLite runtime before the command ends well. Where its environment is known, --episodes of
    it decide: the file must keep 95 % of what the float policy returns more than
    random actions.

    Examples:
      quarl-edge export model.tflite
      quarl-edge export model.tflite --from ppo.zip --env CartPole-v1 --vecnormalize stats.pkl
      quarl-edge export model.tflite --from dqn.zip --env CartPole-v1 --head-output float32
      quarl-edge export model.tflite --from actor.keras --env Pendulum-v1 --calibrate recorded.npz --io int8
      quarl-edge export model.tflite --from q.keras --env CartPole-v1 --stack 4 --stack-fill zeros
      quarl-edge export model.tflite --from actor.h5 --input camera=image --input joints=state --output action=out
    """
    check_target(model)
    wishes = SourceWishes.read(
        env=env, head=head, inputs=inputs, outputs=outputs, signature=signature, stack=stack, stack_fill=stack_fill,
        action_units=action_units, squash=squash, vecnormalize=vecnormalize,
    )  # fmt: skip
    _refuse_lost_input(
        model, {"--from": source, "--vecnormalize": vecnormalize, "--calibrate": Path(calibrate) if calibrate else None}
    )
    if report_into is not None and report_into.exists() and not report_into.is_dir():
        raise UsageError(f"--report {report_into} is a file; a page and its data need a directory")
    checkpoint = _checkpoint(source, runs)
    if vecnormalize is not None and (checkpoint is not None or not zipfile.is_zipfile(source or "")):
        raise UsageError("--vecnormalize is for a Stable-Baselines3 zip; this source has its own normaliser")
    if percentile is not None and range_rule is not RangeKind.PERCENTILE:
        raise UsageError(
            "--percentile is of --range percentile", hint=f"--range percentile --percentile {percentile:g}"
        )
    require_learner("export")
    place = checkpoint or source or Path()
    with closing(make_progress()) as progress:
        progress.note(f"reading {source or checkpoint}")
        _load_library()
        hint = f"another run's: quarl-edge export {model} --from RUN; a new one: quarl-edge demo"
        with hint_where_none(hint, LearnerError):
            trained = _trained_scheme(checkpoint, scheme)
        options = _options(
            scheme=scheme, per_channel=per_channel, io=io,
            weight_bits=weight_bits or trained.weight_bits,
            activation_bits=activation_bits or trained.activation_bits,
            head_output=head_output.value if head_output else trained.head_output,
            runtime=runtime, keep_float=keep_float, range_rule=range_rule, percentile=percentile,
            recalibrate=bool(calibrate), force=force, center_q=center_q,
        )  # fmt: skip
        with hint_where_none(hint, LearnerError):
            policy = _read(place, wishes)
            named = calibrate or (PLAY if checkpoint is None and policy.contract.env_id else "")
            judge = _play(policy, env, episodes=episodes, seed=seed or 0, progress=progress)
            is_judged = judge is not None and scheme is not Scheme.FLOAT32 and not _is_own(checkpoint, options)
            _refuse_idle(named, steps=steps, seed=seed, is_judged=is_judged)
            data = _observations(policy, checkpoint, named, env=env, steps=steps, seed=seed or 0, progress=progress)
            progress.note(f"converting to {scheme.value} and checking the file")
            report = _write(policy, checkpoint, model, options=options, data=data, play=judge)
        extras = _extras(report, report_into, edge_tpu=edge_tpu)
    if output is Format.JSON:
        _write_json(report, str(place), extras)
    else:
        _write_text(report, str(place), extras)
    failed = [extra.error for extra in extras.values() if extra.error is not None]
    for error in failed:
        write_error(error, Format.TEXT)
    if failed:
        raise typer.Exit(failed[0].code)


def _is_own(checkpoint: Path | None, options: ExportOptions) -> bool:
    """Whether the file is a run's own, which training has judged."""
    from quarl_export.checkpoint import load_policy
    from quarl_export.export import keeps_training

    return checkpoint is not None and keeps_training(load_policy(checkpoint).spec.quantization, options)


def _refuse_idle(named: str, *, steps: int | None, seed: int | None, is_judged: bool) -> None:
    """Refuse options of playing where nothing is played."""
    if named == PLAY:
        return
    if steps is not None:
        raise UsageError(
            "--steps is of playing for observations, and none are played for",
            hint="leave it out, or play for them: --calibrate env --env ID",
        )
    if seed is not None and not is_judged:
        raise UsageError(
            "--seed is of playing, and nothing is played",
            hint="leave it out, or play: --calibrate env --env ID for observations, --env ID to compare returns",
        )


def _refuse_lost_input(model: Path, inputs: Mapping[str, Path | None]) -> None:
    for what, path in inputs.items():
        if path is not None and model.exists() and path.exists() and model.samefile(path):
            raise UsageError(f"{model} is what {what} reads; it would be lost", hint="write to another file")


def _load_library() -> None:
    """Import what takes seconds where Ctrl-C still ends at once."""
    with quit_at_interrupt():
        import quarl_export.importers
        import quarl_export.pipeline  # noqa: F401


def _options(
    *,
    scheme: Scheme,
    per_channel: bool,
    weight_bits: int,
    activation_bits: int,
    head_output: HeadOutputType,
    io: Io,
    runtime: Runtime,
    keep_float: list[str] | None,
    range_rule: RangeKind | None,
    percentile: float | None,
    recalibrate: bool,
    force: bool,
    center_q: bool,
) -> ExportOptions:
    """Return the library's options for the command's."""
    from quarl_export.pipeline import ExportOptions
    from quarl_export.schemes import SchemeOptions

    return ExportOptions(
        scheme=SchemeOptions(
            scheme=scheme.value,
            io=io.value,
            per_channel=per_channel,
            keep_float=frozenset(keep_float or ()),
            runtime=runtime.value,
            weight_bits=weight_bits,
            activation_bits=activation_bits,
            head_output=head_output,
        ),
        rule=_rule(range_rule, percentile),
        recalibrate=recalibrate,
        force=force,
        center_q=center_q,
    )


def _rule(kind: RangeKind | None, percentile: float | None) -> RangeRule | None:
    from quarl_export.calibration import RangeRule

    if kind is None:
        return None
    return RangeRule(kind=kind.value) if percentile is None else RangeRule(kind=kind.value, percentile=percentile)


def _trained_scheme(checkpoint: Path | None, scheme: Scheme) -> SchemeOptions:
    """Return the bits and the head of a run's training, where its file can have them; the usual ones otherwise."""
    from quarl_export.checkpoint import load_policy
    from quarl_export.export import trained_scheme
    from quarl_export.schemes import SchemeOptions

    if checkpoint is None or scheme is not Scheme.INT8:
        return SchemeOptions()
    return trained_scheme(load_policy(checkpoint).spec.quantization)


def _read(place: Path, wishes: SourceWishes) -> ImportedPolicy:
    from quarl_export.importers import import_policy

    return import_policy(place, options=wishes.options())


def _observations(
    policy: ImportedPolicy,
    checkpoint: Path | None,
    named: str,
    *,
    env: str,
    steps: int | None,
    seed: int,
    progress: Progress,
) -> CalibrationData | None:
    """Return what to calibrate with and to judge by.

    Without a name: what the run has recorded, `None` where it has not.
    """
    from quarl_export.calibration.play import DEFAULT_STEPS

    if named:
        steps = steps or DEFAULT_STEPS
        progress.note(
            f"playing {steps:,} steps of {env or policy.contract.env_id}" if named == PLAY else f"reading {named}"
        )
        return named_observations(named, policy, env_id=env, steps=steps, seed=seed)
    return None if checkpoint is None else journal_observations(checkpoint, policy.contract)


def _play(policy: ImportedPolicy, env: str, *, episodes: int, seed: int, progress: Progress) -> Play | None:
    """Return where the file is to be played, `None` where nothing names an environment or nobody wants it."""
    from quarl_export.calibration.play import MAX_STEPS
    from quarl_export.checks.returns import Play

    spec = environment(policy.contract, env)
    if not episodes or not spec.env_id:
        return None
    # No episode that calibration has played, of which there are at most as many as steps.
    return Play(env=spec, episodes=episodes, seed=seed + MAX_STEPS, allow_module=bool(env), tell=progress.note)


def _write(
    policy: ImportedPolicy,
    checkpoint: Path | None,
    model: Path,
    *,
    options: ExportOptions,
    data: CalibrationData | None,
    play: Play | None,
) -> ExportReport:
    from quarl_export.export import export_imported, export_policy

    if checkpoint is not None:
        return export_policy(checkpoint, model, options=options, data=data, play=play)
    return export_imported(policy, model, options=options, data=data, play=play)


@dataclass(frozen=True, kw_only=True)
class _Extra:
    """What was asked for beside the file.

    Attributes:
        value: for JSON.
        text: for people.
        error: why there is none; the file itself was written before.
    """

    value: Any = None
    text: str
    error: QuarlError | None = None


def _extras(report: ExportReport, directory: Path | None, *, edge_tpu: bool) -> dict[str, _Extra]:
    """Return what was asked for beside the file, by name; one that fails takes neither the file nor the other away."""
    wanted: dict[str, Callable[[], _Extra]] = {}
    if directory is not None:
        wanted["report"] = lambda: _page(report, directory)
    if edge_tpu:
        wanted["edge_tpu"] = lambda: _edge_tpu(report.model)
    extras = {}
    for name, make in wanted.items():
        try:
            extras[name] = make()
        except QuarlError as error:
            error.message = f"{report.model} is written, but --{name.replace('_', '-')} failed: {error.message}"
            extras[name] = _Extra(text=f"FAILED: {error.message}", error=error)
    return extras


def _page(report: ExportReport, directory: Path) -> _Extra:
    from quarl_export.export_report import write_export_report

    if report.built is None:
        return _Extra(text="none")
    page = str(write_export_report(report.built, directory, model=report.model))
    return _Extra(value=page, text=page)


def _edge_tpu(model: Path) -> _Extra:
    verdict = judge(read_policy_path(model).graph)
    compiled = compile_where_possible(model)
    told = "edgetpu_compiler is not on the PATH; the static check says " if compiled is None else ""
    told += compiled[1] if compiled else "compatible" if verdict.compatible else "not compatible"
    return _Extra(value={**verdict.to_json(), "compiler": compiled[0] if compiled else None}, text=told)


def _checkpoint(source: Path | None, runs: Path) -> Path | None:
    """Return the policy directory of a run, `None` for a source of another kind."""
    if source is not None and not source.exists():
        raise RunNotFound(f"there is nothing at {source}", hint="give a run, a model file or an agent's zip")
    if source is None:
        return latest_policy(source=source, root=runs)
    ours = any((source / name).is_file() for name in ("policy.json", "policy/policy.json", "config.json"))
    return latest_policy(source=source, root=runs) if ours else None


def _write_json(report: ExportReport, place: str, extras: dict[str, _Extra]) -> None:
    failed = [error_json(extra.error) for extra in extras.values() if extra.error is not None]
    write_json(
        {
            "model": str(report.model),
            "bytes": report.bytes,
            "sha256": report.sha256,
            "scheme": report.scheme,
            "env": report.env,
            "golden_vectors": report.golden_vectors,
            "max_lsb_error": report.max_lsb_error,
            "from": place,
            "runtime": report.runtime,
            "checks": [result.to_json() for result in report.checks],
            "forced": list(report.forced),
            "warnings": list(report.warnings),
            **{name: extra.value for name, extra in extras.items()},
            **({"error": failed[0]} if failed else {}),
        }
    )


def _told(result: CheckResult) -> str:
    """Return a check's row: how it stands, what it found, and the limit of what is told without one."""
    limit = ""
    if result.limit is not None and result.code in ("Q10", "Q11"):
        limit = f" ({'at least' if result.code == 'Q10' else 'at most'} {result.limit:.0%})"
    # Both words are what the message begins with.
    mark = "" if result.standing in ("undecided", "not judged") else f"{result.standing}: "
    return f"{mark}{result.message}{limit}"


def _write_text(report: ExportReport, place: str, extras: dict[str, _Extra]) -> None:
    error = (
        "" if report.max_lsb_error is None else f", max error {report.max_lsb_error} LSB against the fake-quant network"
    )
    undecided = [f"{result.code} {result.message}" for result in report.checks if result.standing == "undecided"]
    marks = [("WARNING", warning) for warning in (*report.warnings, *undecided)]
    if report.forced:
        marks.insert(0, ("FORCED", f"written although these checks failed: {', '.join(report.forced)}"))
    rows = [
        *marks,
        ("environment", report.env or "not named"),
        ("scheme", report.scheme),
        ("size", f"{report.bytes:,} bytes"),
        ("golden vectors", f"{report.golden_vectors}{error}"),
        ("from", place),
    ]
    rows += [(f"{result.code} {result.name}", _told(result)) for result in report.checks]
    rows += [(name.replace("_", " "), extra.text) for name, extra in extras.items()]
    next_one = f"quarl-edge evaluate {report.model}" + ("" if report.env else " --env ID")
    write_table(str(report.model), rows, [next_one], below=[f"sha256 {report.sha256}"])
