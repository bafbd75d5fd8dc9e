"""Whether a board can be installed on: a pure function of what was read."""

from __future__ import annotations

from datetime import UTC, datetime

from quarl_device.errors import BoardUnfit, UsageError
from quarl_device.install.bundle import Bundle
from quarl_device.install.facts import Facts

_OLDEST_PYTHON = (3, 11)
_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)
_MACHINES = ("aarch64", "x86_64", "armv7l", "armv6l", "arm64")
_UNPACKED_RATIO = 4.0
"""Installed and compiled, wheels take up to about so many times their own size."""
_FETCHED_BYTES = 400 * 2**20
_SPARE_BYTES = 64 * 2**20


def check_rights(facts: Facts) -> None:
    """Refuse what needs root and has it not; raises UsageError."""
    if facts.own_system and not facts.root:
        raise UsageError("installing on this board needs root", hint="sudo, or --dry-run to see what would be done")


def check_board(facts: Facts, bundle: Bundle, *, new_release: bool) -> None:
    """Refuse a board that an agent would not run on.

    Args:
        facts: of the board.
        bundle: what is installed.
        new_release: whether one is to be made, which takes room.

    Raises:
        BoardUnfit: with what is missing, and the command that mends it.
    """
    shown = ".".join(map(str, facts.python))
    if facts.python[:2] < _OLDEST_PYTHON:
        raise BoardUnfit(f"Python {shown} is here; 3.11 or newer is needed", hint="Raspberry Pi OS Bookworm has 3.11")
    if facts.machine not in _MACHINES:
        raise BoardUnfit(f"no runtime is known for {facts.machine}", hint=f"there are some for {', '.join(_MACHINES)}")
    if not facts.has_venv:
        raise BoardUnfit("Python's module venv is missing", hint="sudo apt-get install -y python3-venv")
    if not facts.has_ensurepip and bundle.pip_wheel is None:
        raise BoardUnfit(
            "there is no pip for a virtual environment, neither on this board nor in the bundle",
            hint="sudo apt-get install -y python3-venv, or a bundle with wheels",
        )
    if facts.now < _EARLIEST:
        raise BoardUnfit(
            f"this board's clock says {facts.now:%Y-%m-%d}: certificates cannot be judged",
            hint="sudo timedatectl set-ntp true; timedatectl status",
        )
    needed_bytes = needed(bundle) if new_release else _SPARE_BYTES
    if facts.free_bytes < needed_bytes:
        raise BoardUnfit(
            f"{facts.free_bytes / 2**20:,.0f} MiB are free for releases; {needed_bytes / 2**20:,.0f} MiB are needed",
            hint="free some space: du -xh / | sort -h | tail",
        )


def needed(bundle: Bundle) -> int:
    """Return how many bytes a new release may take."""
    if bundle.wheelhouse is None:
        return _FETCHED_BYTES
    return int(bundle.size_bytes * _UNPACKED_RATIO) + _SPARE_BYTES
