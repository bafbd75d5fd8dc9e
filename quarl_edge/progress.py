"""What a person watches while training runs: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TextIO

from quarl_device.capped_log import Fading

# The spinner and the space behind it, and a last column that stays free: some terminals wrap when it is written.
_SPINNER_WIDTH = 3
# What each reason of the limiter counts (`replay/limiter.py`).
_ROUTINE = "transitions"


@dataclass(frozen=True, kw_only=True)
class Status:
    """A moment of a run.

    Attributes:
        env_steps: environment steps stored.
        budget_steps: environment steps allowed.
        updates: gradient steps done.
        pushes: policies published.
        int8_return: latest judged return of the int8 file, `None` before the first.
        goal_return: where training may stop, `None` without.
        actors: devices online.
        elapsed_s: since the first push.
        blocked: why the learner waits, "" when it does not.
    """

    env_steps: int = 0
    budget_steps: int = 0
    updates: int = 0
    pushes: int = 0
    int8_return: float | None = None
    goal_return: float | None = None
    actors: int = 0
    elapsed_s: float = 0.0
    blocked: str = ""


class Progress(Protocol):
    """Shows moments of a run."""

    def show(self, status: Status) -> None:
        """Show `status`; may drop it when the last one was shown just now."""

    def note(self, text: str) -> None:
        """Show one line that stays."""

    def close(self) -> None:
        """End the display."""


def format_status(status: Status, width: int | None = None) -> str:
    """Return one line.

    Args:
        status: what to tell.
        width: characters that it may take; what matters least goes first. `None`: as long as it is.
    """
    judged = "-" if status.int8_return is None else f"{status.int8_return:.1f}"
    goal = "" if status.goal_return is None else f" (goal {status.goal_return:g})"
    # The limiter's reasons come and go many times a second; any other one stays until somebody does something.
    reason = _Part(f"[{status.blocked}]" if status.blocked else "", 1 if _ROUTINE in status.blocked else 9)
    parts = [
        _Part(f"{status.elapsed_s:6.1f} s", 6),
        _Part(f"steps {status.env_steps:,}", 8),
        _Part(f"updates {status.updates:,}", 4),
        _Part(f"int8 return {judged}{goal}", 7, f"int8 return {judged}"),
        _Part(f"pushes {status.pushes}", 2),
        _Part(f"actors {status.actors}", 3),
        reason,
    ]
    return _fit([part for part in parts if part.text], width)


class _Part(NamedTuple):
    """A piece of a line: its text, how much it matters, and a shorter text that matters a little more."""

    text: str
    weight: int
    short: str = ""


def _fit(parts: list[_Part], width: int | None) -> str:
    """Join parts, leaving out the least important ones, then shortening, until they fit."""
    line = "  ".join(part.text for part in parts)
    if width is None or len(line) <= width:
        return line
    if len(parts) > 1:
        least = min(parts, key=lambda part: part.weight)
        left = [part for part in parts if part is not least]
        if least.short:
            left = [_Part(part.short, part.weight + 1) if part is least else part for part in parts]
        return _fit(left, width)
    return line[: max(0, width - 1)] + "…"


class LineProgress:
    """Plain lines, at most one a `period_s`; for logs, pipes and CI.

    Args:
        stream: where to, stderr by default, so that stdout stays machine-readable.
        period_s: shortest time between two lines.
        clock: for tests.
    """

    def __init__(
        self, stream: TextIO | None = None, *, period_s: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._period_s = period_s
        self._clock = clock
        self._next_s = float("-inf")
        self._same = Fading()

    def show(self, status: Status) -> None:
        """Show `status` unless a line was shown just now; ever seldomer while nothing but the time changes."""
        now = self._clock()
        if now >= self._next_s and self._same.is_due(dataclasses.replace(status, elapsed_s=0.0), now):
            self._next_s = now + self._period_s
            self.note(format_status(status))

    def note(self, text: str) -> None:
        """Show one line."""
        # Nobody may be reading any more (`2>&1 | head`), or the log's disk is full: no reason to end a run.
        with contextlib.suppress(OSError):
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Nothing to end."""


class LiveProgress:
    """One line with a spinner that is redrawn in place, on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.status import Status as Spinner

        self._console = Console(stderr=True)
        self._spinner = Spinner("", console=self._console)
        self._spinner.start()

    def show(self, status: Status) -> None:
        """Redraw the line."""
        from rich.text import Text

        # A `Text`, since a string would be read as markup and lose what stands in brackets.
        line = format_status(status, self._console.width - _SPINNER_WIDTH)
        self._spinner.update(Text(line, no_wrap=True, overflow="ellipsis"))

    def note(self, text: str) -> None:
        """Print one line above the live one."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Remove the live line."""
        self._spinner.stop()


class Silent:
    """Shows nothing; the test double of `Progress`."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.statuses: list[Status] = []

    def show(self, status: Status) -> None:
        """Keep `status`."""
        self.statuses.append(status)

    def note(self, text: str) -> None:
        """Keep `text`."""
        self.notes.append(text)

    def close(self) -> None:
        """Nothing to end."""


def make_progress() -> Progress:
    """Return a live line where stderr is a terminal, plain lines elsewhere."""
    return LiveProgress() if sys.stderr.isatty() else LineProgress()


class EpisodeProgress:
    """A bar over episodes, shown only when it takes longer than a second, and only on a terminal.

    Args:
        episodes: how many there will be.
        what: they are.
    """

    def __init__(self, episodes: int, *, what: str = "episodes") -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar

        self._bar = Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._task = self._bar.add_task(what, total=episodes)

    def __enter__(self) -> EpisodeProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def stage(self, text: str) -> None:
        """Say what takes time now; where nobody sits at a terminal too, as a line."""
        if self._bar.disable:
            LineProgress().note(text)
        else:
            from rich.markup import escape

            self._bar.update(self._task, description=escape(text))

    def advance(self, done: int) -> None:
        """Show that `done` episodes are finished."""
        self._bar.update(self._task, completed=done)
