"""`quarl-edge bench`: the published figures, each by a command."""

from __future__ import annotations

import typer

bench = typer.Typer(help="Measure what the documentation states.", no_args_is_help=True, rich_markup_mode=None)


@bench.callback()
def _group() -> None:
    """Measure what the documentation states."""
