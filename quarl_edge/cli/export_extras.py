"""What is made beside an exported file: the page against its float twin, and what an Edge TPU would make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_device.errors import QuarlError
from quarl_device.inspect.edge_tpu import judge
from quarl_device.policy_file import read_policy_path
from quarl_edge.cli.inspect import compile_where_possible

if TYPE_CHECKING:
    from quarl_export.export import ExportReport


@dataclass(frozen=True, kw_only=True)
class Extra:
    """What was asked for beside the file.

    Attributes:
        value: for JSON.
        text: for people.
        error: why there is none; the file itself was written before.
    """

    value: Any = None
    text: str
    error: QuarlError | None = None


def make_extras(report: ExportReport, directory: Path | None, *, edge_tpu: bool) -> dict[str, Extra]:
    """Return what was asked for beside the file, by name; one that fails takes neither the file nor the other away."""
    wanted: dict[str, Callable[[], Extra]] = {}
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
            extras[name] = Extra(text=f"FAILED: {error.message}", error=error)
    return extras


def _page(report: ExportReport, directory: Path) -> Extra:
    from quarl_export.export_report import write_export_report

    if report.built is None:
        return Extra(text="none")
    page = str(write_export_report(report.built, directory, model=report.model))
    return Extra(value=page, text=page)


def _edge_tpu(model: Path) -> Extra:
    verdict = judge(read_policy_path(model).graph)
    compiled = compile_where_possible(model)
    told = "edgetpu_compiler is not on the PATH; the static check says " if compiled is None else ""
    told += compiled[1] if compiled else "compatible" if verdict.compatible else "not compatible"
    return Extra(value={**verdict.to_json(), "compiler": compiled[0] if compiled else None}, text=told)
