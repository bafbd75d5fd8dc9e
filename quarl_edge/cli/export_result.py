"""What `export` says of the file that it has written: a table for people, one object for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quarl_device.environments import names_module
from quarl_edge.cli.export_extras import Extra
from quarl_edge.cli.output import error_json, write_json, write_table

if TYPE_CHECKING:
    from quarl_export.checks.report import CheckResult
    from quarl_export.export import ExportReport


def write_result_json(report: ExportReport, place: str, extras: Mapping[str, Extra]) -> None:
    """Write `report` of the policy at `place` and what was asked for beside it as one JSON object."""
    failed = [error_json(extra.error) for extra in extras.values() if extra.error is not None]
    write_json(
        {
            "model": str(report.model),
            "bytes": report.bytes,
            "sha256": report.sha256,
            "scheme": report.scheme,
            "env": report.env,
            "head": report.head,
            "assumed": list(report.assumed),
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


def write_result_text(report: ExportReport, place: str, extras: Mapping[str, Extra], *, env: str) -> None:
    """Write the same as a table, what a reader must not miss first; `env` is what `--env` named."""
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
        ("head", report.head),
        *(("assumed", note) for note in report.assumed),
        ("scheme", report.scheme),
        ("size", f"{report.bytes:,} bytes"),
        ("golden vectors", f"{report.golden_vectors}{error}"),
        ("from", place),
    ]
    rows += [(f"{result.code} {result.name}", told(result)) for result in report.checks]
    rows += [(name.replace("_", " "), extra.text) for name, extra in extras.items()]
    # The file does not say which module registers its environment.
    named = f" --env {env}" if names_module(env) else "" if report.env else " --env ID"
    next_one = f"quarl-edge evaluate {report.model}{named}"
    write_table(str(report.model), rows, [next_one], below=[f"sha256 {report.sha256}"])


def told(result: CheckResult) -> str:
    """Return a check's row: how it stands, what it found, and the limit of what is told without one."""
    limit = ""
    if result.limit is not None and result.code in ("Q10", "Q11"):
        limit = f" ({'at least' if result.code == 'Q10' else 'at most'} {result.limit:.0%})"
    # Both words are what the message begins with.
    mark = "" if result.standing in ("undecided", "not judged") else f"{result.standing}: "
    return f"{mark}{result.message}{limit}"
