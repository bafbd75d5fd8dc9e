"""How `quarl-edge deploy` speaks: a line per step as it happens, the outcome and the next commands at the end."""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import asdict

from quarl_edge.cli.output import Format, write_json, write_table
from quarl_edge.deploy.events import Event, Tell
from quarl_edge.deploy.starting import more_about
from quarl_edge.deploy.wish import Deployed, Wish

_MARKS = {
    "begins": "...",
    "goes on": "   ",
    "done": "ok ",
    "unchanged": "ok ",
    "planned": "plan",
    "undone": "undo",
    "warning": "warn",
    "failed": "FAIL",
}
_STEP_WIDTH = 13


def make_teller(output: Format) -> Tell:
    """Return what shows steps: JSON lines on stdout; lines for people on stderr, and stdout has the outcome alone."""
    return _tell_json if output is Format.JSON else _tell_text


def show_deployed(wish: Wish, done: Deployed, output: Format) -> None:
    """Write the outcome and the commands to try next."""
    if output is Format.JSON:
        write_json({**asdict(done), "board": str(wish.target), "device": wish.settings.name if wish.settings else ""})
        return
    from rich.markup import escape

    rows = [("board", str(wish.target)), ("result", done.result)]
    if wish.settings is not None:
        rows.append(("device", f"{wish.settings.name}, fleet {wish.settings.fleet}, mode {wish.settings.mode}"))
    facts = {
        "release": done.release,
        "before it": done.previous,
        "supervised by": done.supervised_by,
        "agent": done.said,
    }
    rows += [(name, value) for name, value in facts.items() if value]
    # Some of it the board has said, and what stands in brackets would be markup.
    write_table(str(wish.target), [(name, escape(value)) for name, value in rows], _next(wish, done))


def _next(wish: Wish, done: Deployed) -> list[str]:
    if done.result == "planned":
        return ["the same command without --dry-run"]
    if wish.settings is None:
        return []
    commands = []
    if wish.settings.broker:
        who = (
            f"--credentials {shlex.quote(str(wish.operator.folder))}"
            if wish.operator is not None
            else (f"--broker {shlex.quote(wish.settings.broker)} --fleet {wish.settings.fleet}")
        )
        commands.append(f"quarl-edge top {who}")
    return [*commands, more_about(wish)[0]]


def _tell_json(event: Event) -> None:
    write_json({key: value for key, value in asdict(event).items() if value not in ("", False)})


def _tell_text(event: Event) -> None:
    place = "board: " if event.on_board else ""
    mend = f"\n     {'':<{_STEP_WIDTH}} mend: {event.mend}" if event.mend else ""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{_MARKS[event.state]:<4} {event.step:<{_STEP_WIDTH}} {place}{event.said}{mend}\n")
        sys.stderr.flush()
