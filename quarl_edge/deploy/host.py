"""What a deployment may ask of a board: run a command, watch one, send files. The seam that SSH is behind.

Every implementation passes `tests/quarl_edge/host_conformance.py`. What comes from a board is untrusted: every
output has a cap, every call a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

MAX_OUTPUT_BYTES = 256 * 1024
"""Of a command's standard output; more is refused."""
MAX_STDERR_BYTES = 4096
"""Of its standard error: the end of it is kept."""
MAX_LINE_BYTES = 16 * 1024
"""Of a line that is watched; what is longer is cut."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A command that ended.

    Attributes:
        status: exit status, -1 where a signal ended it.
        stdout: all of it, at most the cap; empty where it was watched.
        stderr: the end of it, untrusted text.
    """

    status: int
    stdout: bytes = field(default=b"", repr=False)
    stderr: str = ""


Sent = Callable[[int], None]
"""Is told how many bytes were sent since the last call."""
Source = Path | bytes


class Host(Protocol):
    """A board that one is connected to."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    async def run(self, command: str, *, data: bytes = b"", timeout_s: float) -> Ran:
        """Run a shell command to its end.

        Args:
            command: for the board's shell.
            data: its standard input.
            timeout_s: until its end.

        Raises:
            BoardUnreachable: the connection was lost, or it did not end in time.
            PayloadRefused: it wrote more than `MAX_OUTPUT_BYTES`.
        """
        ...

    async def watch(
        self, command: str, on_line: Callable[[str], None], *, timeout_s: float | None, terminal: bool = False
    ) -> Ran:
        """Run a shell command and hear each line of its standard output as it comes.

        Args:
            command: for the board's shell.
            on_line: is given lines without their end, at most `MAX_LINE_BYTES` long, untrusted.
            timeout_s: until its end, `None` for a command that goes on until this call is cancelled.
            terminal: give it one, so that a cancelled call ends it as Ctrl-C does.

        Raises:
            BoardUnreachable: the connection was lost, or it did not end in time.
        """
        ...

    async def send(self, files: Mapping[str, Source], *, sent: Sent, timeout_s: float) -> None:
        """Write files, mode 0600, into directories that are there.

        Args:
            files: absolute path on the board to a local file or bytes.
            sent: hears how it goes.
            timeout_s: for all of them.

        Raises:
            BoardUnreachable: the connection was lost, or it took too long.
            BoardRefused: the board does not let files be written.
        """
        ...

    async def close(self) -> None:
        """End the connection; never raises, never hangs."""
        ...
