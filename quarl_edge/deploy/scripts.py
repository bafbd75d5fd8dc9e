"""Small programs of ours for the board's own python3: sent as an argument, since nothing is installed there yet."""

from __future__ import annotations

import shlex
from importlib import resources

from quarl_device.errors import BoardUnfit
from quarl_device.wire.strict_json import one_line
from quarl_edge.deploy.host import Host, Ran

_SHOWN = 400


def on_board(module: str) -> str:
    """Return the shell command that runs a module of this package by the board's python3.

    Isolated (-I): no file that lies in the user's home directory is taken for a module of the standard library.
    """
    text = resources.files("quarl_edge.deploy").joinpath(f"{module}.py").read_text()
    return f"python3 -I -c {shlex.quote(text)}"


def no_python(host: Host) -> BoardUnfit:
    """Return the error of a board without python3."""
    return BoardUnfit(f"{host.name} has no python3", hint="there: sudo apt-get install -y python3 python3-venv")


def said_of(ran: Ran) -> str:
    """Return what a command that failed said last, fit to be shown."""
    lines = [line for line in ran.stderr.splitlines() if line.strip()] or [f"it ended with status {ran.status}"]
    return one_line(lines[-1].strip(), max_length=_SHOWN)
