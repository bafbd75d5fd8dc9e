"""What `export` was asked for, read before anything that takes time: what cannot be is refused here."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quarl_device.errors import RunNotFound, UsageError
from quarl_edge.cli.calibration import PLAY
from quarl_edge.cli.export_options import HeadOutputName, Io, RangeKind, Runtime, Scheme
from quarl_edge.cli.source_options import SourceWishes
from quarl_edge.runs import latest_policy

if TYPE_CHECKING:
    from quarl_export.calibration import RangeRule
    from quarl_export.pipeline import ExportOptions
    from quarl_export.schemes import SchemeOptions


@dataclass(frozen=True, kw_only=True)
class ExportWishes:
    """The options of the command that make the file, by their names there.

    Attributes:
        model: where to write.
        place: what to read.
        checkpoint: the policy directory of a run, `None` for a source of another kind.
        source: what `place` itself cannot say.
    """

    model: Path
    place: Path
    checkpoint: Path | None
    source: SourceWishes
    scheme: Scheme
    per_channel: bool
    weight_bits: int | None
    activation_bits: int | None
    head_output: HeadOutputName | None
    io: Io
    runtime: Runtime
    calibrate: str
    range_rule: RangeKind | None
    percentile: float | None
    steps: int | None
    seed: int | None
    episodes: int
    keep_float: frozenset[str]
    center_q: bool
    force: bool

    def options(self, trained: SchemeOptions) -> ExportOptions:
        """Return the library's options; bits and head are those of `trained` where nothing is said."""
        from quarl_export.pipeline import ExportOptions
        from quarl_export.schemes import SchemeOptions

        return ExportOptions(
            scheme=SchemeOptions(
                scheme=self.scheme.value,
                io=self.io.value,
                per_channel=self.per_channel,
                keep_float=self.keep_float,
                runtime=self.runtime.value,
                weight_bits=self.weight_bits or trained.weight_bits,
                activation_bits=self.activation_bits or trained.activation_bits,
                head_output=self.head_output.value if self.head_output else trained.head_output,
            ),
            rule=self._rule(),
            recalibrate=bool(self.calibrate),
            force=self.force,
            center_q=self.center_q,
        )

    def check_scheme(self) -> None:
        """Refuse what does not go together whatever the policy is; needs no TensorFlow.

        Raises:
            QuarlError: see `SchemeOptions` and `RangeRule`.
        """
        from quarl_export.scheme_options import SchemeOptions

        SchemeOptions(
            scheme=self.scheme.value,
            io=self.io.value,
            per_channel=self.per_channel,
            runtime=self.runtime.value,
            weight_bits=self.weight_bits or 8,
            activation_bits=self.activation_bits or 8,
            head_output=self.head_output.value if self.head_output else "int8",
        )
        self._rule()

    def _rule(self) -> RangeRule | None:
        from quarl_export.calibration import RangeRule

        if self.range_rule is None:
            return None
        rule = RangeRule(kind=self.range_rule.value)
        return rule if self.percentile is None else dataclasses.replace(rule, percentile=self.percentile)

    def refuse_idle(self, observations: str, *, is_judged: bool) -> None:
        """Refuse options of playing where nothing is played.

        Args:
            observations: what they are taken from.
            is_judged: whether the file is played.
        """
        if observations == PLAY:
            return
        if self.steps is not None:
            raise UsageError(
                "--steps is of playing for observations, and none are played for",
                hint="leave it out, or play for them: --calibrate env --env ID",
            )
        if self.seed is not None and not is_judged:
            raise UsageError(
                "--seed is of playing, and nothing is played",
                hint="leave it out, or play: --calibrate env --env ID for observations, --env ID to compare returns",
            )


def check_wishes(wishes: ExportWishes, *, source: Path | None, report_into: Path | None) -> None:
    """Refuse what cannot be before the library is loaded.

    Args:
        wishes: as given.
        source: `--from`.
        report_into: `--report`.

    Raises:
        UsageError: an option that nothing would use, or a place that the command would write over.
    """
    vecnormalize, calibrate = wishes.source.vecnormalize, wishes.calibrate
    inputs = {"--from": source, "--vecnormalize": vecnormalize}
    _refuse_lost_input(wishes.model, {**inputs, "--calibrate": Path(calibrate) if calibrate else None})
    if report_into is not None and report_into.exists() and not report_into.is_dir():
        raise UsageError(f"--report {report_into} is a file; a page and its data need a directory")
    if vecnormalize is not None and (wishes.checkpoint is not None or not zipfile.is_zipfile(wishes.place)):
        raise UsageError("--vecnormalize is for a Stable-Baselines3 zip; this source has its own normaliser")
    if wishes.percentile is not None and wishes.range_rule is not RangeKind.PERCENTILE:
        raise UsageError(
            "--percentile is of --range percentile", hint=f"--range percentile --percentile {wishes.percentile:g}"
        )


def _refuse_lost_input(model: Path, inputs: Mapping[str, Path | None]) -> None:
    for what, path in inputs.items():
        if path is not None and model.exists() and path.exists() and model.samefile(path):
            raise UsageError(f"{model} is what {what} reads; it would be lost", hint="write to another file")


def checkpoint_of(source: Path | None, runs: Path) -> Path | None:
    """Return the policy directory of a run, `None` for a source of another kind."""
    if source is not None and not source.exists():
        raise RunNotFound(f"there is nothing at {source}", hint="give a run, a model file or an agent's zip")
    if source is None:
        return latest_policy(source=source, root=runs)
    ours = any((source / name).is_file() for name in ("policy.json", "policy/policy.json", "config.json"))
    return latest_policy(source=source, root=runs) if ours else None
