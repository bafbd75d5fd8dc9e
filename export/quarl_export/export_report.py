"""The page of an export: its file against a float file of the same policy, on the observations that judged it."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError, QuarlError
from quarl_device.files import write_atomic
from quarl_export.pipeline import BuiltFile, ExportOptions, build_file
from quarl_export.reports import Comparison, compare_files, write_report
from quarl_export.reports.findings import FORCED, forced
from quarl_export.schemes import SchemeOptions


def write_export_report(built: BuiltFile, directory: Path, *, model: Path) -> Path:
    """Compare `built` with a float32 file of the same weights, and write the page into `directory`.

    Args:
        built: what was exported.
        directory: of the page.
        model: where it was written to: the page names it so.

    Returns:
        The page's path.

    Raises:
        UsageError: `directory` is a file.
        ModelFileError: the page cannot be written.
        QuarlError: what a comparison raises.
    """
    subject = built.subject
    twin = build_file(subject.policy, ExportOptions(scheme=SchemeOptions(scheme="float32"), force=True))
    with tempfile.TemporaryDirectory(prefix="quarl-report-") as folder:
        reference, quantized, rows = (Path(folder) / name for name in ("float32.tflite", "model.tflite", "rows.npz"))
        for path, file in ((reference, twin.file), (quantized, built.file)):
            write_atomic(path, file.data, error=ModelFileError, what="report")
        stacks = {spec.key: spec.stack for spec in subject.contract.observations}
        arrays: dict[str, Any] = {key: _joined(array, stacks[key]) for key, array in subject.observations.items()}
        np.savez(rows, **arrays)
        try:
            comparison = compare_files(reference, quantized, observations=rows, same_policy=True)
        except QuarlError as error:
            # The files of a moment ago are gone when a person reads this.
            error.message = error.message.replace(f"{folder}/", "")
            raise
    return write_report(_named(comparison, model), directory, checks=built.checks)


def _named(comparison: Comparison, model: Path) -> Comparison:
    """Return a comparison of passing files under the names that a reader knows."""
    findings = tuple(
        forced(str(model), comparison.quantized.forced) if finding.code == FORCED else finding
        for finding in comparison.findings
    )
    return dataclasses.replace(
        comparison,
        reference=dataclasses.replace(comparison.reference, path=f"{model.name} in float32"),
        quantized=dataclasses.replace(comparison.quantized, path=str(model)),
        observations=f"{comparison.rows:,} that judged the export",
        findings=findings,
    )


def _joined(array: NDArray[Any], stack: int) -> NDArray[Any]:
    """Return ``[rows, stack, *shape]`` with its frames joined along the last axis."""
    if stack == 1 or array.ndim == 2:
        return array
    moved = np.moveaxis(array, 1, -2)
    return moved.reshape(*moved.shape[:-2], -1)
