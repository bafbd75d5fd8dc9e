"""The command `quarl-edge`, one module per subcommand.

This module imports nothing that takes time: an interrupt must find `main` in charge from the first moment on.
"""

from __future__ import annotations

import os
import sys

from quarl_edge.cli.interrupts import INTERRUPTED, quit_at_interrupt


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; `None` for those of this process.

    Returns:
        The exit code: 0 done, 1 ran and failed, 2 wrong usage, 130 interrupted, or the error's own (see
        `quarl_device.errors`).
    """
    _open_standard_streams()
    try:
        with quit_at_interrupt():
            from quarl_edge.cli.app import run
        return _flushed(run(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return INTERRUPTED


def _open_standard_streams() -> None:
    """Give streams that the shell closed (`>&-`) a place to go, lest the next file that is opened becomes stdout."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - a descriptor, open until the end
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _flushed(code: int) -> int:
    """Write what is left for stdout; a command that could not deliver ends with 1, quietly if its reader has gone."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes once more when it ends, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"quarl-edge: error: stdout: {error.strerror}\n")
        return code or 1
    return code


if __name__ == "__main__":
    sys.exit(main())
