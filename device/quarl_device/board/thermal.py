"""How hot a board is, and whether it runs slower for it.

Temperatures are those of the kernel's thermal zones. Throttling is known on a Raspberry Pi alone, from its firmware
(`vcgencmd get_throttled`, documented at raspberrypi.com, "os.html#get_throttled").
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quarl_device.board.sysfs import entries, read_int

_ZONES = Path("/sys/class/thermal")
_VCGENCMD = ("vcgencmd", "get_throttled")
_TIMEOUT_S = 2.0
_SENSIBLE_C = (-40.0, 150.0)
_BITS = ("under-voltage", "frequency capped", "throttled", "soft temperature limit")
_SINCE_BOOT = 16


@dataclass(frozen=True, kw_only=True)
class Throttling:
    """What a Raspberry Pi's firmware says.

    Attributes:
        now: what holds at this moment, of "under-voltage", "frequency capped", "throttled", "soft temperature limit".
        since_boot: what has held at some time.
    """

    now: tuple[str, ...]
    since_boot: tuple[str, ...]


def read_temperature_c(zones: Path = _ZONES) -> float | None:
    """Return the temperature of the hottest zone in degrees Celsius, `None` where no sensor says a sensible one."""
    found = [read_int(zone / "temp") for zone in entries(zones, "thermal_zone*")]
    low, high = _SENSIBLE_C
    sensible = [value / 1000 for value in found if value is not None and low <= value / 1000 <= high]
    return round(max(sensible), 1) if sensible else None


def read_throttling(command: Sequence[str] = _VCGENCMD, *, timeout_s: float = _TIMEOUT_S) -> Throttling | None:
    """Ask the firmware; `None` where there is no such command, or no answer."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_throttled(done.stdout[:200].decode("utf-8", "replace")) if done.returncode == 0 else None


def parse_throttled(text: str) -> Throttling | None:
    """Read ``throttled=0x50005``."""
    match = re.fullmatch(r"throttled=0x([0-9a-fA-F]{1,8})", text.strip())
    if match is None:
        return None
    bits = int(match[1], 16)
    now, since = (
        tuple(name for bit, name in enumerate(_BITS) if bits >> (bit + shift) & 1) for shift in (0, _SINCE_BOOT)
    )
    return Throttling(now=now, since_boot=since)
