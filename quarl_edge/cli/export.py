"""`quarl-edge export`: any trained policy as one verified TFLite file."""

from __future__ import annotations

import sys
import zipfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quarl_device.errors import LearnerError, RunNotFound, UsageError
from quarl_device.inspect.edge_tpu import judge
from quarl_device.policy_file import read_policy_path
from quarl_edge.cli.calibration import PLAY, environment, journal_observations, named_observations
from quarl_edge.cli.inspect import compile_where_possible
from quarl_edge.cli.interrupts import quit_at_interrupt
from quarl_edge.cli.output import Format, check_target, hint_where_none, write_json, write_table
from quarl_edge.extras import require_learner
from quarl_edge.progress import Progress, Silent, make_progress
from quarl_edge.runs import DEFAULT_ROOT, latest_policy

if TYPE_CHECKING:
    from quarl_export.calibration import CalibrationData
    from quarl_export.checks.returns import Play
    from quarl_export.export import ExportReport
    from quarl_export.ir import ImportedPolicy
    from quarl_export.pipeline import ExportOptions


# Start seeds of the comparison lie beyond those that calibration plays, and gymnasium takes them.
MAX_SEED = 2_000_000_000


class Scheme(StrEnum):
    """Values of `--scheme`."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    DYNAMIC = "dynamic"
    INT8 = "int8"
    INT16X8 = "int16x8"


class Io(StrEnum):
    """Values of `--io`."""

    FLOAT32 = "float32"
    INT8 = "int8"
    UINT8 = "uint8"


class Runtime(StrEnum):
    """Values of `--runtime`."""

    LITERT = "litert"
    TFLITE_2_14 = "tflite-2.14"


class RangeKind(StrEnum):
    """Values of `--range`."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    BOUNDS = "bounds"


class HeadName(StrEnum):
    """Values of `--head`."""

    Q_VALUES = "q_values"
    LOGITS = "logits"
    ACTION = "action"
    GAUSSIAN = "gaussian"


def export(
    model: Annotated[Path, typer.Argument(help="Where to write, such as model.tflite.", show_default=False)],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A run, a policy checkpoint, a Keras model (.keras, .h5, SavedModel), a float .tflite, or a "
            "Stable-Baselines3 .zip. Default: the latest run.",
        ),
    ] = None,
    scheme: Annotated[Scheme, typer.Option(help="How numbers are kept.")] = Scheme.INT8,
    per_channel: Annotated[
        bool, typer.Option("--per-channel/--per-tensor", help="Scales of dense weights: one per unit, or one.")
    ] = False,
    weight_bits: Annotated[int, typer.Option(help="Of int8 weights; fewer are stored in int8.", min=2, max=8)] = 8,
    activation_bits: Annotated[int, typer.Option(help="Of int8 ReLU layers; fewer need LiteRT.", min=2, max=8)] = 8,
    io: Annotated[Io, typer.Option(help="Inputs and outputs; int8 and uint8 are for Coral.")] = Io.FLOAT32,
    runtime: Annotated[Runtime, typer.Option(help="What must load the file.")] = Runtime.LITERT,
    env: Annotated[str, typer.Option(help="Environment of the policy, where its file does not name one.")] = "",
    calibrate: Annotated[
        str, typer.Option(help="Find ranges with an npz of observations, a run's experience, or by playing: env.")
    ] = "",
    range_rule: Annotated[
        RangeKind, typer.Option("--range", help="Ranges from data; bounds are the space's own.")
    ] = RangeKind.MINMAX,
    percentile: Annotated[float, typer.Option(help="Of --range percentile.")] = 99.9,
    steps: Annotated[int, typer.Option(help="Of playing.", min=2, max=100_000)] = 4_096,
    seed: Annotated[int, typer.Option(help="Of playing.", min=0, max=MAX_SEED)] = 0,
    episodes: Annotated[
        int,
        typer.Option(
            help="Greedy episodes to compare the file's returns with the float policy's; 0: none.",
            min=0,
            max=10_000,
        ),
    ] = 50,
    keep_float: Annotated[list[str] | None, typer.Option(help="A layer to keep in float; may be given often.")] = None,
    vecnormalize: Annotated[Path | None, typer.Option(help="VecNormalize statistics of a Stable-Baselines3 zip.")] = (
        None
    ),
    head: Annotated[HeadName | None, typer.Option(help="What outputs mean; guessed where it is not given.")] = None,
    center_q: Annotated[
        bool, typer.Option("--center-q", help="Take the mean over actions out of Q values: finer steps, same actions.")
    ] = False,
    report_into: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML page against float into this directory.")
    ] = None,
    edge_tpu: Annotated[
        bool, typer.Option("--edge-tpu", help="Compile it for a Coral, if edgetpu_compiler is on the PATH.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write a file whose checks fail, and mark it.")] = False,
    runs: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_ROOT,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Write a trained policy as one TFLite file with its contract and golden vectors inside.

    Without --from it is the latest run's, as int8. The file is checked before it is written (codes Q01 to Q13), read
    back, and run in the TFLite runtime before the command ends well. Where its environment is known, --episodes of
    it decide: the file must return what the float policy returns, within 5 %.

    Examples:
      quarl-edge export model.tflite
      quarl-edge export model.tflite --from ppo.zip --env CartPole-v1 --vecnormalize stats.pkl
      quarl-edge export model.tflite --from actor.keras --env Pendulum-v1 --calibrate recorded.npz --io int8
    """
    check_target(model)
    for what, path in (("--from", source), ("--vecnormalize", vecnormalize), ("--calibrate", Path(calibrate or "."))):
        if path is not None and model.exists() and path.exists() and model.samefile(path):
            raise UsageError(f"{model} is what {what} reads; it would be lost", hint="write to another file")
    if report_into is not None and report_into.exists() and not report_into.is_dir():
        raise UsageError(f"--report {report_into} is a file; a page and its data need a directory")
    checkpoint = _checkpoint(source, runs)
    if vecnormalize is not None and (checkpoint is not None or not zipfile.is_zipfile(source or "")):
        raise UsageError("--vecnormalize is for a Stable-Baselines3 zip; this source has its own normaliser")
    require_learner("export")
    # Elsewhere than on a terminal the answer is enough.
    progress = make_progress() if sys.stderr.isatty() else Silent()
    try:
        progress.note(f"reading {source or checkpoint}")
        with quit_at_interrupt():
            from quarl_export.calibration import RangeRule
            from quarl_export.importers import ImportOptions, import_policy
            from quarl_export.pipeline import ExportOptions
            from quarl_export.schemes import SchemeOptions

        options = ExportOptions(
            scheme=SchemeOptions(
                scheme=scheme.value,
                io=io.value,
                per_channel=per_channel,
                keep_float=frozenset(keep_float or ()),
                runtime=runtime.value,
                weight_bits=weight_bits,
                activation_bits=activation_bits,
            ),
            rule=RangeRule(kind=range_rule.value, percentile=percentile),
            recalibrate=bool(calibrate),
            force=force,
            center_q=center_q,
        )
        given = ImportOptions(env_id=env, head=head.value if head else None, vecnormalize=vecnormalize)
        hint = f"another run's: quarl-edge export {model} --from RUN; a new one: quarl-edge demo"
        with hint_where_none(hint, LearnerError):
            place = checkpoint or source or Path()
            policy = import_policy(place, options=given)
            data = _observations(policy, checkpoint, calibrate, env=env, steps=steps, seed=seed, progress=progress)
            progress.note(f"converting to {scheme.value} and checking the file")
            judge = _play(policy, env, episodes=episodes, seed=seed, progress=progress)
            report = _write(policy, checkpoint, model, options=options, data=data, play=judge)
        extras = _extras(report, report_into, edge_tpu=edge_tpu)
    finally:
        progress.close()
    _show(report, str(place), output, extras)


def _observations(
    policy: ImportedPolicy,
    checkpoint: Path | None,
    calibrate: str,
    *,
    env: str,
    steps: int,
    seed: int,
    progress: Progress,
) -> CalibrationData | None:
    """Return what to calibrate with and to judge by.

    Without --calibrate: what the run has recorded, or what playing the policy's environment shows.
    """
    named = calibrate or (PLAY if checkpoint is None and policy.contract.env_id else "")
    if named:
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


def _extras(report: ExportReport, directory: Path | None, *, edge_tpu: bool) -> dict[str, tuple[Any, str]]:
    """Return what was asked for beside the file: JSON value and text by name."""
    extras: dict[str, tuple[Any, str]] = {}
    if directory is not None and report.built is not None:
        from quarl_export.export_report import write_export_report

        page = str(write_export_report(report.built, directory))
        extras["report"] = page, page
    if edge_tpu:
        verdict = judge(read_policy_path(report.model).graph)
        compiled = compile_where_possible(report.model)
        told = "edgetpu_compiler is not on the PATH; the static check says " if compiled is None else ""
        told += compiled[1] if compiled else "compatible" if verdict.compatible else "not compatible"
        value = {**verdict.to_json(), "compiler": compiled[0] if compiled else None}
        extras["edge_tpu"] = value, told
    return extras


def _checkpoint(source: Path | None, runs: Path) -> Path | None:
    """Return the policy directory of a run, `None` for a source of another kind."""
    if source is not None and not source.exists():
        raise RunNotFound(f"there is nothing at {source}", hint="give a run, a model file or an agent's zip")
    if source is None:
        return latest_policy(source=source, root=runs)
    ours = any((source / name).is_file() for name in ("policy.json", "policy/policy.json", "config.json"))
    return latest_policy(source=source, root=runs) if ours else None


def _show(report: ExportReport, place: str, output: Format, extras: dict[str, tuple[Any, str]]) -> None:
    checks = [result.to_json() for result in report.checks]
    if output is Format.JSON:
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
                "checks": checks,
                "forced": list(report.forced),
                **{name: value for name, (value, _) in extras.items()},
            }
        )
        return
    error = (
        "" if report.max_lsb_error is None else f", max error {report.max_lsb_error} LSB against the fake-quant network"
    )
    rows = [
        ("environment", report.env or "not named"),
        ("scheme", report.scheme),
        ("size", f"{report.bytes:,} bytes"),
        ("golden vectors", f"{report.golden_vectors}{error}"),
        ("from", place),
    ]
    rows += [
        (f"{result.code} {result.name}", ("" if result.passed else "FAILED: ") + result.message)
        for result in report.checks
    ]
    rows += [(name.replace("_", " "), text) for name, (_, text) in extras.items()]
    next_one = f"quarl-edge evaluate {report.model}"
    write_table(str(report.model), rows, [next_one], below=[f"sha256 {report.sha256}"])
