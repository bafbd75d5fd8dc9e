"""How commands speak: text for people, one JSON object on stdout's last line for programs, numbered exits."""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from quarl_device.errors import QuarlError


class Format(StrEnum):
    """Values of `--format`."""

    TEXT = "text"
    JSON = "json"


def keep_examples(command: Callable[..., None]) -> str:
    """Return a command's docstring as its help, with the lines of its examples kept apart (click's backspace mark)."""
    return (inspect.getdoc(command) or "").replace("\nExamples:\n", "\n\b\nExamples:\n")


def write_json(data: Mapping[str, Any]) -> None:
    """Write `data` as one line on stdout; NaN and Inf, which JSON does not know, become null."""
    sys.stdout.write(json.dumps(_finite(data), allow_nan=False) + "\n")
    sys.stdout.flush()


def write_line(text: str) -> None:
    """Write one line on stdout."""
    sys.stdout.write(text + "\n")


def write_error(error: QuarlError, output: Format) -> None:
    """Write an error: one line on stderr, and in JSON mode an object on stdout too."""
    sys.stderr.write(f"quarl-edge: error: {error}\n")
    if output is Format.JSON:
        write_json(
            {"error": {"code": error.code, "kind": type(error).__name__, "message": error.message, "hint": error.hint}}
        )


def write_table(title: str, rows: Sequence[tuple[str, str]], following: Sequence[str] = ()) -> None:
    """Write a two-column table and the commands to try next."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=title, box=box.ROUNDED, show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    if following:
        console.print("Next:", style="bold")
        for command in following:
            console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
