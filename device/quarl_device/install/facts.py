"""What the board says of itself, as far as an installation depends on it: read here, judged in `checks`."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from quarl_device.install import layout
from quarl_device.install.host import Host

_BOOTED = "/run/systemd/system"
_OS_RELEASE = "/etc/os-release"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A board.

    Attributes:
        machine: architecture, such as "aarch64".
        system: of /etc/os-release, "" where it is not there.
        python: version of the interpreter that a release is made with.
        interpreter: its path.
        has_venv: its module `venv` is there.
        has_ensurepip: so is what puts pip into one (Debian's package python3-venv).
        free_bytes: where releases lie.
        now: this board's clock.
        systemd: the system was booted with it, and it can be asked.
        root: this process may do everything.
        own_system: the board is the one that this runs on, not a directory.
    """

    machine: str
    system: str
    python: tuple[int, int, int]
    interpreter: str
    has_venv: bool
    has_ensurepip: bool
    free_bytes: int
    now: datetime
    systemd: bool
    root: bool
    own_system: bool

    @property
    def supervised_by(self) -> str:
        """What starts the agent again: "systemd", or "none"."""
        return "systemd" if self.systemd else "none"


def read_facts(host: Host) -> Facts:
    """Look at the board."""
    return Facts(
        machine=platform.machine(),
        system=_system_name((host.read(_OS_RELEASE) or b"").decode(errors="replace")),
        python=sys.version_info[:3],
        # That of a virtual environment would go when its release does.
        interpreter=getattr(sys, "_base_executable", None) or sys.executable,
        has_venv=_there("venv"),
        has_ensurepip=_there("ensurepip"),
        free_bytes=_free_bytes(Path(host.place(layout.RELEASES))),
        now=datetime.now(UTC),
        systemd=host.own_system and Path(_BOOTED).is_dir() and shutil.which("systemctl") is not None,
        root=os.geteuid() == 0,
        own_system=host.own_system,
    )


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _system_name(text: str) -> str:
    """Return PRETTY_NAME of an os-release file."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip("\"'")[:80]
    return ""


def _free_bytes(path: Path) -> int:
    while not path.is_dir() and path != path.parent:
        path = path.parent
    try:
        said = os.statvfs(path)
    except OSError:
        return 0
    return said.f_bavail * said.f_frsize
