"""A comparison as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from quarl_export.reports.comparison import Comparison
from quarl_export.reports.page import decibel, number


def render_text(comparison: Comparison) -> str:
    """Return the page, with a newline at its end."""
    return "\n".join(line.rstrip() for line in _lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    acting, outputs = comparison.agreement, comparison.outputs
    yield f"float  {comparison.reference.path}  {comparison.reference.scheme}, {len(comparison.reference.data):,} bytes"
    yield f"int8   {comparison.quantized.path}  {comparison.quantized.scheme}, {len(comparison.quantized.data):,} bytes"
    yield f"on {comparison.rows:,} observations: {comparison.observations}"
    yield ""
    if acting is not None:
        yield f"  action agreement  {acting.share:.2%}  ({acting.rule})"
        yield f"  where they differ {acting.disagreements} rows, {acting.gap_relative:.2%} {acting.gap}, "
        yield f"                    {number(acting.gap_mean)} on average, {number(acting.gap_max)} at most"
    yield (
        f"  output error      {number(outputs.max_abs_error)} at most, {number(outputs.mean_abs_error)} on average, "
        f"{decibel(outputs.snr_db)}, cosine {outputs.cosine:.5f}"
    )
    for each in comparison.inputs:
        worst = "" if each.worst < 0 else f", dimension {each.worst} in {each.worst_share:.1%} of the rows"
        yield f"  out of range      {each.share:.2%} of {each.key}{worst}"
    yield ""
    yield from _table(comparison)
    yield ""
    for finding in comparison.findings:
        yield f"{'!' if finding.severity == 'warning' else '·'} {finding.code} {finding.message}"
        if finding.mend:
            yield f"      → {finding.mend}"


def _table(comparison: Comparison) -> Iterator[str]:
    rows = [["layer", "operator", "SNR", "max error", "steps", "mean error", "clipped", "used"]]
    for layer in comparison.layers:
        errors, grid = layer.errors, layer.grid
        rows.append(
            [
                layer.name,
                layer.kind + ("" if layer.activation == "none" else f" + {layer.activation}"),
                decibel(errors.snr_db),
                number(errors.max_abs_error),
                number(errors.max_abs_error / layer.step) if layer.step else "float",
                number(errors.mean_abs_error),
                "" if grid is None else f"{grid.clipped:.2%}",
                "" if grid is None else f"{grid.used:.0%}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for place, row in enumerate(rows):
        cells = [cell.ljust(w) if n < 2 else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))]
        yield "  " + "  ".join(cells)
        if place == 0:
            yield "  " + "  ".join("─" * width for width in widths)
