"""How commands speak: text for people, one JSON object on stdout's last line for programs, numbered exits."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from quarl_device.errors import CheckFailed, QuarlError
from quarl_device.output import finite
from quarl_device.wire.strict_json import one_line

_PIPE_WIDTH = 1_000
MAX_CELL = 160
"""Characters of a cell that are shown."""


class Format(StrEnum):
    """Values of `--format`."""

    TEXT = "text"
    JSON = "json"


def keep_examples(command: Callable[..., None]) -> str:
    """Return a command's docstring as its help, with the lines of its examples kept apart (click's backspace mark)."""
    return (inspect.getdoc(command) or "").replace("\nExamples:\n", "\n\b\nExamples:\n")


class _Logged(logging.Handler):
    """Log records as a person reads them; on the stderr of the moment, which a live line may have put itself before."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"quarl-edge: {record.levelname.lower()}: {self.format(record)}\n")


def log_for_people() -> None:
    """Have warnings of all parts written to stderr; nothing where somebody listens already (tests)."""
    logging.basicConfig(handlers=[_Logged()], format="%(message)s", level=logging.WARNING)


@contextlib.contextmanager
def hint_where_none(hint: str, *kinds: type[QuarlError]) -> Iterator[None]:
    """Add `hint` to errors of `kinds` that come without one."""
    try:
        yield
    except kinds as error:
        error.hint = error.hint or hint
        raise


def write_json(data: Mapping[str, Any]) -> None:
    """Write `data` as one line on stdout; NaN and Inf, which JSON does not know, become null."""
    sys.stdout.write(json.dumps(finite(data), allow_nan=False) + "\n")
    sys.stdout.flush()


def write_line(text: str) -> None:
    """Write one line on stdout."""
    sys.stdout.write(text + "\n")


def error_json(error: QuarlError) -> dict[str, Any]:
    """Return what JSON output says of an error."""
    return {"code": error.code, "kind": type(error).__name__, "message": error.message, "hint": error.hint}


def write_error(error: QuarlError, output: Format) -> None:
    """Write an error: one line on stderr, and in JSON mode an object on stdout too."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"quarl-edge: error: {error}\n")
    if output is not Format.JSON:
        return
    # Stdout itself may be what failed.
    with contextlib.suppress(OSError):
        write_json({"error": error_json(error), **({"checks": error.checks} if isinstance(error, CheckFailed) else {})})


def write_table(
    title: str, rows: Sequence[tuple[str, str]], following: Sequence[str] = (), *, below: Sequence[str] = ()
) -> None:
    """Write a two-column table, lines that must stay whole to be copied, and the commands to try next."""
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
    for line in below:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if following:
        console.print("Next:", style="bold")
        for command in (*_activation(), *following):
            console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)


def write_grid(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], following: Sequence[str] = ()
) -> None:
    """Write a table of many columns, the first one left, the others right, and the commands to try next.

    Its cells are data, never markup: names of runs and values of settings may be anybody's.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A pipe has no width: nothing is folded that a program or a search would want whole.
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left")
    for index, name in enumerate(columns):
        table.add_column(Text(_cell(name)), justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)
    if following:
        console.print("Next:", style="bold")
        for command in (*_activation(), *following):
            console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)


def _cell(text: str) -> str:
    return one_line(text, max_length=MAX_CELL)


def _activation() -> list[str]:
    """Return the command that has the shell find ours, where it would not (after `make demo` in a fresh clone)."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("quarl-edge") or not script.is_file():
        return []
    return [f". {script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script}"]
