"""What a board's facts mean for a deployment: pure functions, a check each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from quarl_edge.deploy.facts import BoardFacts

Level = Literal["ok", "warning", "problem"]
MACHINES = ("aarch64", "armv7l", "x86_64")
_MIN_PYTHON = (3, 11)
_NEWEST_PYTHON = (3, 13)
_MIN_GLIBC = (2, 28)
_MIB = 1024 * 1024
_MIN_FREE_MIB, _LOW_FREE_MIB = 600, 1200  # a venv takes some 400; an upgrade has two beside each other
_MIN_HOME_FREE_MIB = 200
_CLOCK_OFF_S, _CLOCK_WRONG_S = 120.0, 86_400.0
_HOT_C = 80.0
_NOW = {0x1: "the supply's voltage is too low", 0x2: "its frequency is capped", 0x4: "it is throttled by heat"}
_BEFORE = {0x10000: "under-voltage", 0x20000: "capping", 0x40000: "throttling"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One check.

    Attributes:
        check: its name.
        level: "problem" where nothing can be deployed.
        found: one line.
        mend: what mends it, "" where nothing is wrong.
    """

    check: str
    level: Level
    found: str
    mend: str = ""


def judge(facts: BoardFacts) -> tuple[Verdict, ...]:
    """Return a verdict for every check, in the order in which a person reads them."""
    return tuple(check(facts) for check in _CHECKS)


def _machine(facts: BoardFacts) -> Verdict:
    name = f"{facts.model or 'a board'}, {facts.machine}, {facts.bits}-bit Python"
    if facts.system != "Linux" or facts.machine not in MACHINES:
        return _problem("architecture", f"{facts.system} on {facts.machine}", f"boards run Linux on {_any(MACHINES)}")
    if facts.bits == 32 and facts.machine != "armv7l":
        return _problem(
            "architecture",
            f"{name}: pip there would look for wheels of the kernel's kind, which that Python cannot load",
            "a 64-bit system; or the 32-bit kernel: arm_64bit=0 in /boot/firmware/config.txt, then reboot",
        )
    return _ok("architecture", name)


def _system(facts: BoardFacts) -> Verdict:
    if facts.glibc is None:
        return _problem(
            "system", f"{facts.os_name} has no glibc", "a system with glibc, such as Raspberry Pi OS Bookworm"
        )
    found = f"{facts.os_name}, glibc {_dotted(facts.glibc)}"
    if facts.glibc < _MIN_GLIBC:
        return _problem(
            "system", found, f"runtimes need glibc {_dotted(_MIN_GLIBC)}: Raspberry Pi OS Bookworm has 2.36"
        )
    return _ok("system", found)


def _python(facts: BoardFacts) -> Verdict:
    found = f"Python {_dotted(facts.python)}"
    if facts.implementation != "cpython":
        return _problem(
            "python", f"{found} is {facts.implementation}", "install CPython: sudo apt-get install -y python3"
        )
    if facts.python < _MIN_PYTHON:
        wanted = _dotted(_MIN_PYTHON)
        return _problem(
            "python", f"{found} is older than {wanted}", "upgrade the system: Raspberry Pi OS Bookworm has 3.11"
        )
    if facts.machine == "armv7l" and facts.python >= (3, 12):
        return _problem(
            "python",
            f"{found}: tflite-runtime has no wheel for 32-bit boards from 3.12 on",
            "a 64-bit system, or Raspberry Pi OS Bookworm, whose Python is 3.11",
        )
    if facts.python[:2] > _NEWEST_PYTHON:
        return _warning("python", f"{found} is newer than what was tested", "runtimes may have no wheel for it yet")
    return _ok("python", found)


def _disk(facts: BoardFacts) -> Verdict:
    free, home = facts.free_bytes / _MIB, facts.home_free_bytes / _MIB
    found = f"{free:,.0f} MiB free for /opt/quarl-edge, {home:,.0f} MiB in {facts.home}"
    mend = "sudo apt-get clean; df -h"
    if free < _MIN_FREE_MIB or home < _MIN_HOME_FREE_MIB:
        return _problem("disk", f"{found}; {_MIN_FREE_MIB} and {_MIN_HOME_FREE_MIB} are needed", mend)
    if free < _LOW_FREE_MIB:
        return _warning("disk", f"{found}; an upgrade needs {_LOW_FREE_MIB} for a while", mend)
    return _ok("disk", found)


def _clock(facts: BoardFacts) -> Verdict:
    off_s = abs(facts.clock_ahead_s)
    mend = "there: sudo timedatectl set-ntp true; timedatectl status"
    if off_s > _CLOCK_OFF_S:
        way = "ahead of" if facts.clock_ahead_s > 0 else "behind"
        said = f"its clock says {_when(facts.unix_s)}, {_span(off_s)} {way} this computer's"
        if off_s > _CLOCK_WRONG_S:
            return _problem("clock", f"{said}: certificates would not hold", mend)
        return _warning("clock", said, mend)
    return _ok("clock", f"within {max(1.0, off_s):.0f} s of this computer's")


def _heat(facts: BoardFacts) -> Verdict:
    if facts.temperature_c is None:
        return _ok("temperature", "it does not say")
    if facts.temperature_c >= _HOT_C:
        return _warning(
            "temperature", f"{facts.temperature_c:.0f} °C", "a heat sink or a fan: it throttles at 80 to 85 °C"
        )
    return _ok("temperature", f"{facts.temperature_c:.0f} °C")


def _throttling(facts: BoardFacts) -> Verdict:
    if facts.throttled is None:
        return _ok("throttling", "it does not say")
    now = [said for flag, said in _NOW.items() if facts.throttled & flag]
    before = [said for flag, said in _BEFORE.items() if facts.throttled & flag]
    if now:
        return _warning(
            "throttling", "; ".join(now), "a supply of 5 V and 3 A or more, cooling; vcgencmd get_throttled"
        )
    if before:
        return _warning(
            "throttling", f"since its start: {', '.join(before)}", "watch vcgencmd get_throttled under load"
        )
    return _ok("throttling", "none since its start")


_CHECKS: tuple[Callable[[BoardFacts], Verdict], ...] = (_machine, _system, _python, _disk, _clock, _heat, _throttling)


def _ok(check: str, found: str) -> Verdict:
    return Verdict(check=check, level="ok", found=found)


def _warning(check: str, found: str, mend: str) -> Verdict:
    return Verdict(check=check, level="warning", found=found, mend=mend)


def _problem(check: str, found: str, mend: str) -> Verdict:
    return Verdict(check=check, level="problem", found=found, mend=mend)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _any(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _when(unix_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M}Z"
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:.0f} s after 1970"


def _span(seconds: float) -> str:
    for unit, length_s in (("years", 365 * 86_400.0), ("days", 86_400.0), ("hours", 3600.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:,.0f} {unit}"
    return f"{seconds / 60:.0f} minutes"
