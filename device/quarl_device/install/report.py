"""What a person, or the machine that sent the bundle, is told: as things happen, then the result."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

State = Literal["begins", "goes on", "done", "unchanged", "failed", "planned", "undone"]
MAX_SAID = 500


class Tell(Protocol):
    """Takes what happens."""

    def __call__(self, step: str, state: State, said: str) -> None:
        """Take one event."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of it; the fields are those of the last line of JSON.

    Attributes:
        result: installed, unchanged, removed, planned or failed.
        release: that is wanted, "" where it is not known.
        previous: that was current before, `None` for none.
        step: that failed, `None` for none.
        code: exit code.
        error: what failed, one line, "" for nothing.
        supervised_by: "systemd" or "none".
        command: runs the agent in the foreground, "" where systemd runs it.
    """

    result: Literal["installed", "unchanged", "removed", "planned", "failed"]
    release: str = ""
    previous: str | None = None
    step: str | None = None
    code: int = 0
    error: str = ""
    supervised_by: str = "none"
    command: str = ""


def json_teller(write: Callable[[str], object]) -> Tell:
    """Return what writes events as lines of JSON."""

    def tell(step: str, state: State, said: str) -> None:
        _write(write, json.dumps({"step": step, "state": state, "said": one_line(said)}))

    return tell


def text_teller(write: Callable[[str], object]) -> Tell:
    """Return what writes events as lines of text."""

    def tell(step: str, state: State, said: str) -> None:
        _write(write, f"{step:8} {state:9} {one_line(said)}")

    return tell


def write_result_line(write: Callable[[str], object], result: Result, *, as_json: bool) -> None:
    """Write the end."""
    _write(write, json.dumps(asdict(result)) if as_json else _as_text(result))


def one_line(text: str) -> str:
    """Return a text made fit for one line: what cannot be printed is a space."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= MAX_SAID else f"{line[: MAX_SAID - 3]}..."


def _as_text(result: Result) -> str:
    if result.result == "failed":
        at = f" at step {result.step}" if result.step else ""
        kept = f"\nrelease {result.previous} is there as before" if result.previous else ""
        return f"failed{at}, code {result.code}: {result.error}{kept}"
    lines = [f"{result.result}: release {result.release}" if result.release else result.result]
    if result.previous and result.result == "installed":
        lines[0] += f"; {result.previous} is kept as the previous one"
    if result.result in ("installed", "unchanged"):
        lines.append(
            f"next: {result.command}"
            if result.command
            else "next: systemctl status quarl-device; journalctl -fu quarl-device"
        )
    return "\n".join(lines)


def _write(write: Callable[[str], object], line: str) -> None:
    # Whoever was listening may be gone: an installation goes on to its end, or is undone, all the same.
    with contextlib.suppress(OSError, ValueError):
        write(f"{line}\n")
