"""A comparison as one HTML file that needs nothing else: no network, no script, no fonts of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from quarl_device.errors import ModelFileError, UsageError
from quarl_device.files import write_atomic
from quarl_export.checks.report import CheckResult
from quarl_export.reports.charts import histogram, scatter
from quarl_export.reports.checks_table import checks_table
from quarl_export.reports.comparison import Comparison
from quarl_export.reports.findings import FEW_STEPS
from quarl_export.reports.layers import LayerReport
from quarl_export.reports.metrics import CLIPPED
from quarl_export.reports.saturation import InputSaturation
from quarl_export.reports.style import CSS

PAGE_NAME = "index.html"
DATA_NAME = "compare.json"
MAX_LAYER_PANELS = 64
MAX_DIMENSIONS = 24
_GOOD_DB = 60.0
_LOW_DB = 20.0

# Whatever a name of a foreign file may hold, the page loads and runs nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(comparison: Comparison, directory: Path, *, checks: Sequence[CheckResult] = ()) -> Path:
    """Write the page and its figures into `directory`, which is made where it is missing.

    Args:
        comparison: what it shows.
        directory: where to.
        checks: of the export that made the quantized file, to show first.

    Returns:
        The page's path.

    Raises:
        UsageError: `directory` is a file.
        ModelFileError: it cannot be written.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"--report {directory} is a file, expected a directory")
    page, data = directory / PAGE_NAME, directory / DATA_NAME
    told = {"checks": [check.to_json() for check in checks]} if checks else {}
    figures = json.dumps(_finite({**comparison.to_json(), **told}), indent=1, allow_nan=False)
    write_atomic(data, figures.encode(), error=ModelFileError, what="report")
    write_atomic(page, render_page(comparison, checks).encode(), error=ModelFileError, what="report")
    return page


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render_page(comparison: Comparison, checks: Sequence[CheckResult] = ()) -> str:
    """Return the whole page; `checks` as `write_report` takes them."""
    title = (
        f"{Path(comparison.quantized.path).name or 'int8'} against {Path(comparison.reference.path).name or 'float'}"
    )
    body = "\n".join(
        [
            *_head(comparison, title),
            *checks_table(checks),
            *_findings(comparison),
            '<div class="pair">',
            *_agreement(comparison),
            *_errors(comparison),
            "</div>",
            *_layers(comparison),
            *_inputs(comparison),
            *_table(comparison),
            *_foot(comparison),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def number(value: float) -> str:
    """Return a figure with three digits that matter."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.3g}".replace("-", "−")


def decibel(value: float) -> str:
    """Return an SNR for people."""
    return "exact" if value == math.inf else f"{value:.1f} dB".replace("-", "−")


def _head(comparison: Comparison, title: str) -> Iterator[str]:
    yield f"<header><h1>{escape(title)}</h1>"
    yield f"<p>{comparison.rows:,} observations: {escape(comparison.observations)}."
    yield f"{len(comparison.quantized.data):,} bytes against {len(comparison.reference.data):,}.</p>"
    for side in (comparison.quantized, comparison.reference):
        if side.path:
            yield f'<p class="path">{escape(side.scheme)}: <code>{escape(side.path)}</code></p>'
    yield "</header>"
    acting, inputs = comparison.agreement, comparison.inputs
    yield '<div class="cards">'
    if acting is not None:
        yield _card(f"{acting.share:.1%}", "of actions agree")
        yield _card(f"{acting.gap_relative:.2%}", f"{acting.gap}, where they differ")
    yield _card(number(comparison.outputs.max_abs_error), "largest output error")
    yield _card(number(comparison.outputs.mean_abs_error), "mean output error")
    yield _card(decibel(comparison.outputs.snr_db), "output signal to noise")
    if inputs:
        yield _card(f"{max(each.share for each in inputs):.1%}", "of inputs out of range")
    yield "</div>"


def _card(value: str, label: str) -> str:
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def _findings(comparison: Comparison) -> Iterator[str]:
    yield '<section id="findings"><h2>Findings</h2><ul class="findings">'
    if not any(finding.severity == "warning" for finding in comparison.findings):
        yield '<li class="fine"><span class="tag">good</span>Nothing here needs a mend.</li>'
    for finding in comparison.findings:
        mend = f"<small>→ {escape(finding.mend)}</small>" if finding.mend else ""
        tag = f'<span class="tag">{finding.severity} {finding.code}</span>'
        yield f'<li class="{finding.severity}">{tag}{escape(finding.message)}{mend}</li>'
    yield "</ul></section>"


def _agreement(comparison: Comparison) -> Iterator[str]:
    acting = comparison.agreement
    agrees = (True,) * comparison.rows if acting is None else acting.agrees
    yield '<section id="agreement"><h2>Outputs, float against int8</h2>'
    if acting is not None:
        yield f"<p>On {acting.disagreements:,} of {comparison.rows:,} observations the files act differently."
        yield f" They act alike where {escape(acting.rule)}.</p>"
    yield '<div class="legend"><span><i></i>agree</span><span><i class="cross">✕</i>act differently</span></div>'
    yield '<div class="wide">'
    for role, mine in comparison.reference_outputs.items():
        its = comparison.quantized_outputs[role]
        chart = scatter(mine, its, agrees, what=f"{role} of the float file against {role} of the int8 file")
        yield f'<figure class="panel scatter"><figcaption>{escape(role)}</figcaption>{chart}</figure>'
    yield "</div></section>"


def _errors(comparison: Comparison) -> Iterator[str]:
    yield '<section id="errors"><h2>Error by layer</h2>'
    yield "<p>Signal to noise of each layer's result against its float twin, from the first layer to the last; a longer"
    yield " bar is a smaller error. Six more decibels are one more bit.</p>"
    yield '<div class="panel bars">'
    for layer in comparison.layers:
        snr = layer.errors.snr_db
        width = max(0.0, min(1.0, snr / _GOOD_DB)) if not math.isinf(snr) else float(snr > 0)
        yield _bar(layer.name, width, decibel(snr), low=snr < _LOW_DB)
    yield "</div></section>"


def _bar(name: str, width: float, value: str, *, low: bool = False) -> str:
    fill = f'<div class="fill" style="width:{width * 100:.1f}%"></div>' if width > 0 else ""
    return (
        f'<div class="bar{" low" if low else ""}"><span class="name" title="{escape(name, quote=True)}">{escape(name)}'
        f'</span><span class="track">{fill}</span>'
        f'<span class="value">{escape(value)}</span></div>'
    )


def _layers(comparison: Comparison) -> Iterator[str]:
    yield '<section id="layers"><h2>Weights and activations on their grid</h2>'
    yield "<p>Bars count what the int8 file stores, step by step of its 8 bits; the line is where the float file's"
    yield " values would lie, four steps together. Activations have logarithmic heights, since zeros are many.</p>"
    yield '<div class="legend"><span><i></i>int8 file</span><span><i class="line"></i>float file</span></div>'
    yield '<div class="wide">'
    for layer in comparison.layers[:MAX_LAYER_PANELS]:
        yield from _panel(layer)
    yield "</div>"
    if len(comparison.layers) > MAX_LAYER_PANELS:
        yield f"<p>{len(comparison.layers) - MAX_LAYER_PANELS} more layers are in the table below.</p>"
    yield "</section>"


def _panel(layer: LayerReport) -> Iterator[str]:
    fused = "" if layer.activation == "none" else f" + {layer.activation}"
    yield f'<article class="panel"><h3>{escape(layer.name)}</h3>'
    yield f'<p class="facts">{escape(layer.kind)}{escape(fused)}, {layer.elements:,} values</p>'
    if layer.weights is not None:
        weights = layer.weights
        scales = "one scale" if weights.channels == 1 else f"{weights.channels} scales, one per channel"
        chart = histogram(
            weights.counts, None, labels=[(0.0, "−127"), (0.5, "0"), (1.0, "127")], what=f"weights of {layer.name}"
        )
        yield f"<figure><figcaption>weights, {scales}</figcaption>{chart}</figure>"
    if layer.grid is not None and layer.value_range is not None:
        grid, (low, high) = layer.grid, layer.value_range
        zero = -low / (high - low)
        labels = [(0.0, number(low)), (1.0, number(high))]
        if 0.15 < zero < 0.85:
            labels.insert(1, (zero, "0"))
        chart = histogram(grid.stored, grid.wanted, labels=labels, what=f"results of {layer.name}", logarithmic=True)
        yield f"<figure><figcaption>results, one step is {number(layer.step)}</figcaption>{chart}</figure>"
        used, out = f"{grid.used:.0%}", f"{grid.clipped:.2%}"
        yield f'<p class="facts">{used} of the range used, {out} of the float values out of it</p>'
    elif layer.weights is None:
        yield '<p class="facts">stays in float</p>'
    yield "</article>"


def _inputs(comparison: Comparison) -> Iterator[str]:
    yield '<section id="inputs"><h2>Observations on the input\'s grid</h2>'
    for each in comparison.inputs:
        if not math.isfinite(each.high - each.low):
            yield f"<p>{escape(each.key)} enters in float: nothing is cut off.</p>"
            continue
        yield f"<p><code>{escape(each.key)}</code> holds {number(each.low)} to {number(each.high)}, normalised;"
        yield f" {each.share:.2%} of all values lie outside. Each dimension spans so many of the 255 steps:</p>"
        if each.by_dimension:
            yield from _dimensions(each)
    yield "</section>"


def _dimensions(each: InputSaturation) -> Iterator[str]:
    """Show how many steps of the grid each dimension spans; of many, the worst."""
    order = sorted(
        range(len(each.by_dimension)), key=lambda n: (-each.by_dimension[n] > -CLIPPED, each.steps_by_dimension[n])
    )
    yield '<div class="panel bars">'
    for place in sorted(order[:MAX_DIMENSIONS]):
        share, steps = each.by_dimension[place], each.steps_by_dimension[place]
        out = f", {share:.1%} out" if share > 0 else ""
        low = share > CLIPPED or 0 < steps < FEW_STEPS
        yield _bar(f"dim {place}{out}", min(1.0, steps / 255), f"{steps:.0f} steps", low=low)
    yield "</div>"


def _table(comparison: Comparison) -> Iterator[str]:
    yield '<section id="table"><h2>All figures</h2><div class="panel scroll"><table><thead><tr>'
    for name in (
        "layer",
        "operator",
        "max error",
        "in steps",
        "mean error",
        "MSE",
        "SNR",
        "cosine",
        "clipped",
        "range used",
    ):
        yield f"<th>{name}</th>"
    yield "</tr></thead><tbody>"
    for layer in comparison.layers:
        errors, grid = layer.errors, layer.grid
        cells = [
            layer.name,
            layer.kind,
            number(errors.max_abs_error),
            number(errors.max_abs_error / layer.step) if layer.step else "–",
            number(errors.mean_abs_error),
            number(errors.mse),
            decibel(errors.snr_db),
            f"{errors.cosine:.5f}",
            "–" if grid is None else f"{grid.clipped:.2%}",
            "–" if grid is None else f"{grid.used:.0%}",
        ]
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></div></section>"


def _foot(comparison: Comparison) -> Iterator[str]:
    yield "<footer>"
    for name, side in (("float", comparison.reference), ("int8", comparison.quantized)):
        yield f"<div>{name}: {escape(side.path)} · {side.scheme} · sha256 <code>{side.sha256}</code></div>"
    yield "<div>Outputs come from the kernels that act, layers from LiteRT's reference kernels.</div></footer>"
