"""How `export` makes its file: the source is read, observations are found, and the library converts, checks, writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quarl_device.errors import LearnerError
from quarl_edge.cli.calibration import PLAY, environment, journal_observations, named_observations
from quarl_edge.cli.export_options import Scheme
from quarl_edge.cli.export_wishes import ExportWishes
from quarl_edge.cli.interrupts import quit_at_interrupt
from quarl_edge.cli.output import hint_where_none
from quarl_edge.progress import Progress

if TYPE_CHECKING:
    from quarl_export.calibration import CalibrationData
    from quarl_export.checks.returns import Play
    from quarl_export.export import ExportReport
    from quarl_export.ir import ImportedPolicy
    from quarl_export.pipeline import ExportOptions
    from quarl_export.schemes import SchemeOptions


def make_file(wishes: ExportWishes, progress: Progress) -> ExportReport:
    """Read, convert, check and write; the stages are told to `progress`.

    Raises:
        QuarlError: see `quarl_export.export`.
    """
    from quarl_export.importers import import_policy
    from quarl_export.pipeline import refuse_early

    hint = f"another run's: quarl-edge export {wishes.model} --from RUN; a new one: quarl-edge demo"
    with hint_where_none(hint, LearnerError):
        options = wishes.options(_trained_scheme(wishes))
        policy = import_policy(wishes.place, options=wishes.source.options())
        refuse_early(policy, options)
        data, play = _observations_and_play(wishes, policy, options, progress)
        progress.note(f"converting to {wishes.scheme.value} and checking the file")
        return _write(wishes, policy, options=options, data=data, play=play)


def load_library() -> None:
    """Import what takes seconds where Ctrl-C still ends at once."""
    with quit_at_interrupt():
        import quarl_export.importers
        import quarl_export.pipeline  # noqa: F401


def _trained_scheme(wishes: ExportWishes) -> SchemeOptions:
    """Return the bits and the head of a run's training, where its file can have them; the usual ones otherwise."""
    from quarl_export.checkpoint import load_policy
    from quarl_export.export import trained_scheme
    from quarl_export.schemes import SchemeOptions

    if wishes.checkpoint is None or wishes.scheme is not Scheme.INT8:
        return SchemeOptions()
    return trained_scheme(load_policy(wishes.checkpoint).spec.quantization)


def _observations_and_play(
    wishes: ExportWishes, policy: ImportedPolicy, options: ExportOptions, progress: Progress
) -> tuple[CalibrationData | None, Play | None]:
    """Return what to calibrate with and to judge by, and where the file is played.

    Raises:
        UsageError: options of playing where nothing is played.
    """
    named = wishes.calibrate or (PLAY if wishes.checkpoint is None and policy.contract.env_id else "")
    play = _play(wishes, policy, progress)
    is_judged = play is not None and wishes.scheme is not Scheme.FLOAT32 and not _is_own(wishes, options)
    wishes.refuse_idle(named, is_judged=is_judged)
    return _observations(wishes, policy, named, progress), play


def _is_own(wishes: ExportWishes, options: ExportOptions) -> bool:
    """Whether the file is a run's own, which training has judged."""
    from quarl_export.checkpoint import load_policy
    from quarl_export.export import keeps_training

    if wishes.checkpoint is None:
        return False
    return keeps_training(load_policy(wishes.checkpoint).spec.quantization, options)


def _observations(
    wishes: ExportWishes, policy: ImportedPolicy, named: str, progress: Progress
) -> CalibrationData | None:
    """Return what `named` says; without a name what the run has recorded, `None` where it has not."""
    from quarl_export.calibration.play import DEFAULT_STEPS

    if not named:
        return None if wishes.checkpoint is None else journal_observations(wishes.checkpoint, policy.contract)
    steps, env = wishes.steps or DEFAULT_STEPS, wishes.source.env_id
    progress.note(
        f"playing {steps:,} steps of {env or policy.contract.env_id}" if named == PLAY else f"reading {named}"
    )
    return named_observations(named, policy, env_id=env, steps=steps, seed=wishes.seed or 0)


def _play(wishes: ExportWishes, policy: ImportedPolicy, progress: Progress) -> Play | None:
    """Return where the file is to be played, `None` where nothing names an environment or nobody wants it."""
    from quarl_export.calibration.play import MAX_STEPS
    from quarl_export.checks.returns import Play

    env = wishes.source.env_id
    spec = environment(policy.contract, env)
    if not wishes.episodes or not spec.env_id:
        return None
    # No episode that calibration has played, of which there are at most as many as steps.
    seed = (wishes.seed or 0) + MAX_STEPS
    return Play(env=spec, episodes=wishes.episodes, seed=seed, allow_module=bool(env), tell=progress.note)


def _write(
    wishes: ExportWishes,
    policy: ImportedPolicy,
    *,
    options: ExportOptions,
    data: CalibrationData | None,
    play: Play | None,
) -> ExportReport:
    from quarl_export.export import export_imported, export_policy

    if wishes.checkpoint is not None:
        return export_policy(wishes.checkpoint, wishes.model, options=options, data=data, play=play)
    return export_imported(policy, wishes.model, options=options, data=data, play=play)
