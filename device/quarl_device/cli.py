"""The command `quarl-device`: what a person or systemd starts on a board.

This module imports next to nothing, so that Ctrl-C ends the command without a traceback from its first moment on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130
_STANDARD = (0, 1, 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; `None` for those of this process.

    Returns:
        The exit code: 0 done, 1 ran and failed, 2 wrong usage, 130 interrupted, or the error's own (see
        `quarl_device.errors`).
    """
    try:
        _open_standard_files()
        from quarl_device.commands import run_command

        try:
            return run_command(sys.argv[1:] if arguments is None else list(arguments))
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads the result any more (`| head`): an end, not a fault. Python would complain at its exit.
        _discard_output()
        return 0


def _open_standard_files() -> None:
    """Put /dev/null where a standard file is closed, or the broker's socket would take its number, and its output."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _discard_output() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
