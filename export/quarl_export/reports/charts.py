"""Charts as inline SVG: strings out of numbers, no script, coloured by the page's style.

A chart is drawn about as wide as a phone, so that its text stays readable when it is scaled to a column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 320
_HIGH = 96
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 8, 6, 18
MAX_POINTS = 1500


def histogram(
    stored: Sequence[int] | NDArray[np.int64],
    wanted: Sequence[int] | NDArray[np.int64] | None,
    *,
    labels: Sequence[tuple[float, str]],
    what: str,
    logarithmic: bool = False,
) -> str:
    """Draw counts over a grid as bars, and another count over the same grid as a line.

    Args:
        stored: counts per step of the grid.
        wanted: the float twin's counts over the same steps, `None` for none.
        labels: (place in 0..1, text) under the axis.
        what: what the chart shows, for those who cannot see it.
        logarithmic: heights grow with the logarithm, so that a peak at zero does not hide the rest.
    """
    bars = _heights(stored, logarithmic)
    line = None if wanted is None else _heights(_grouped(np.asarray(wanted, np.float64)), logarithmic)
    top = max(float(bars.max(initial=0.0)), 0.0 if line is None else float(line.max(initial=0.0))) or 1.0
    parts = [_axis(_HIGH), f'<path class="stored" d="{_steps(bars / top, closed=True)}"/>']
    if line is not None:
        parts.append(f'<path class="twin" d="{_steps(line / top, closed=False)}"/>')
    parts += [_label(place, text, _HIGH + _TOP + 13) for place, text in labels]
    return _svg(_HIGH + _TOP + _BOTTOM, what, parts)


def _grouped(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each count as the mean of four neighbours: a calm line; the two ends, where values pile up, stay alone."""
    result = counts.copy()
    for start in range(1, len(counts) - 1, 4):
        inner = slice(start, min(start + 4, len(counts) - 1))
        result[inner] = counts[inner].mean()
    return result


def _heights(counts: Sequence[int] | NDArray[Any], logarithmic: bool) -> NDArray[np.float64]:
    values = np.asarray(counts, np.float64)
    return np.log1p(values) if logarithmic else values


def _steps(heights: NDArray[np.float64], *, closed: bool) -> str:
    """Return a path over equal steps; steps of the same height are drawn as one."""
    each = (WIDTH - _LEFT - _RIGHT) / max(1, len(heights))
    base = _TOP + _HIGH
    path, last = [f"M{_LEFT} {base}"], None
    for place, height in enumerate(heights):
        y = f"{base - float(height) * _HIGH:.1f}"
        if y != last:
            x = f"{_LEFT + place * each:.1f}"
            path.append(f"H{x}V{y}")
            last = y
    path.append(f"H{WIDTH - _RIGHT}V{base}")
    return "".join(path) + ("Z" if closed else "")


def _axis(high: int) -> str:
    return f'<path class="axis" d="M{_LEFT} {_TOP + high}H{WIDTH - _RIGHT}"/>'


def _label(place: float, text: str, y: float) -> str:
    x = _LEFT + place * (WIDTH - _LEFT - _RIGHT)
    anchor = "start" if place < 0.1 else "end" if place > 0.9 else "middle"
    return f'<text x="{x:.1f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: int, what: str, parts: Sequence[str], width: int = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(what, quote=True)}">{"".join(parts)}</svg>'
    )


def scatter(reference: NDArray[np.float64], found: NDArray[np.float64], agrees: Sequence[bool], *, what: str) -> str:
    """Draw outputs of two files against each other, with the line on which they would be equal.

    Args:
        reference: float64 ``[rows, width]``, across.
        found: the same of the other file, upwards.
        agrees: per row; rows that do not agree are drawn last, as crosses.
        what: what the chart shows.
    """
    rows = _picked(np.asarray(agrees, bool))
    low, high = _padded(reference, found)
    side, left, top = WIDTH - 54, 46, 8
    ticks = [tick for tick in _ticks(low, high) if low <= tick <= high]

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * side

    def y(value: float) -> float:
        return top + side - (value - low) / (high - low) * side

    parts = []
    for tick in ticks:
        parts.append(
            f'<path class="gridline" d="M{left} {y(tick):.1f}H{left + side}M{x(tick):.1f} {top}V{top + side}"/>'
        )
        text = f"{tick:g}".replace("-", "−")
        parts.append(f'<text x="{left - 5}" y="{y(tick) + 4:.1f}" text-anchor="end">{text}</text>')
        parts.append(f'<text x="{x(tick):.1f}" y="{top + side + 14}" text-anchor="middle">{text}</text>')
    parts.append(f'<path class="identity" d="M{left} {top + side}L{left + side} {top}"/>')
    parts += _points(reference, found, agrees, rows, x, y)
    parts.append(f'<text x="{left + side / 2:.0f}" y="{top + side + 30}" text-anchor="middle">float file</text>')
    middle = top + side / 2
    parts.append(f'<text transform="translate(10 {middle:.0f}) rotate(-90)" text-anchor="middle">int8 file</text>')
    return _svg(top + side + 36, what, parts)


def _points(
    reference: NDArray[np.float64],
    found: NDArray[np.float64],
    agrees: Sequence[bool],
    rows: NDArray[np.intp],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> list[str]:
    circles, crosses = [], []
    for row in rows.tolist():
        for mine, its in zip(reference[row], found[row], strict=True):
            px, py = x(float(mine)), y(float(its))
            if agrees[row]:
                circles.append(f'<circle class="same" cx="{px:.1f}" cy="{py:.1f}" r="2"/>')
            else:
                crosses.append(f"M{px - 3:.1f} {py - 3:.1f}l6 6m0-6l-6 6")
    return [*circles, f'<path class="other" d="{"".join(crosses)}"/>' if crosses else ""]


def _picked(agrees: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return every row that does not agree, and an even choice of the others, at most `MAX_POINTS` of each."""
    chosen = []
    for rows in (np.flatnonzero(agrees), np.flatnonzero(~agrees)):
        count = min(len(rows), MAX_POINTS)
        chosen.append(rows[np.linspace(0, max(0, len(rows) - 1), count).astype(int)] if count else rows)
    return np.concatenate(chosen)


def _padded(*arrays: NDArray[np.float64]) -> tuple[float, float]:
    low = min(float(array.min()) for array in arrays)
    high = max(float(array.max()) for array in arrays)
    pad = (high - low) * 0.04 or max(abs(high), 1.0) * 0.1
    return low - pad, high + pad


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers in an interval."""
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step)
    return [0.0 if n == 0 else float(f"{n * step:.10g}") for n in range(first, first + 8)]
