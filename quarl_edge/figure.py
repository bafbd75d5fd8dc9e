"""Learning curves as a figure: a panel per environment, a colour and a dash per curve. Needs the extra `plot`."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quarl_device.wire.strict_json import one_line
from quarl_edge.curves import INTERVAL, Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS, MAX_CURVES = 12, 16
# Okabe and Ito's, which people with any kind of colour vision tell apart; yellow left out, too faint on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)))
_PANEL_INCHES = (7.2, 4.2)
_DPI = 150
_MAX_TEXT = 120


def draw(curves: Sequence[Curve], *, kind: str, title: str = "") -> bytes:
    """Return the figure as the bytes of a file.

    Args:
        curves: at least one; at most `MAX_PANELS` environments, and `MAX_CURVES` curves in each.
        kind: "png" or "svg". The same curves give the same bytes.
        title: above all panels.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        panels.setdefault(curve.env_id, []).append(curve)
    width, height = _PANEL_INCHES
    # Without pyplot no window system is looked for, and no state is left behind. A dollar is a dollar.
    style = {"svg.hashsalt": "quarl-edge", "svg.fonttype": "none", "text.parse_math": False}
    with warnings.catch_warnings(), mpl.rc_context(style):
        # A letter that the font lacks is a box in the figure, and nothing that a person must hear of.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width, height * len(panels)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axis, (env_id, members) in zip(axes, panels.items(), strict=True):
            _panel(axis, env_id, members)
        if title:
            figure.suptitle(_text(title))
        return _bytes(figure, kind)


def _panel(axis: Axes, env_id: str, curves: Sequence[Curve]) -> None:
    for index, curve in enumerate(curves):
        colour, dash = _COLOURS[index % len(_COLOURS)], _DASHES[index % len(_DASHES)]
        several = len(curve.lines) > 1
        for line in curve.lines if several else ():
            axis.plot(line.env_steps, line.returns, color=colour, linewidth=0.7, alpha=0.35)
        steps, mean = (curve.env_steps, curve.mean) if several else (curve.lines[0].env_steps, curve.lines[0].returns)
        # A dot where there is one judgement alone, of which a line shows nothing.
        marker = "o" if len(steps) == 1 else ""
        axis.plot(steps, mean, color=colour, linestyle=dash, linewidth=1.8, marker=marker, label=_text(curve.label))
        if several:
            axis.fill_between(curve.env_steps, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    for goal in sorted({curve.goal_return for curve in curves if curve.goal_return is not None}):
        axis.axhline(goal, color="#555555", linestyle=":", linewidth=1.2, label=f"goal {goal:g}")
    axis.set_title(_text(env_id), loc="left")
    axis.set_xlabel("environment steps")
    axis.set_ylabel("mean return of the int8 file")
    axis.xaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}")
    axis.grid(visible=True, color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    note = f"band: {INTERVAL}; thin: single runs" if any(len(curve.lines) > 1 for curve in curves) else None
    axis.legend(title=note, title_fontsize="x-small", fontsize="small", frameon=False, loc="best")


def _text(said: str) -> str:
    """Return what a run's files say as one line of a figure: an SVG with a control character could not be opened."""
    return one_line(said, max_length=_MAX_TEXT)


def _bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()
