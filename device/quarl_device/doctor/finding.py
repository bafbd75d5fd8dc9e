"""What a check says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from quarl_device.errors import QuarlError

Level = Literal["ok", "warning", "problem"]
_ORDER: tuple[Level, ...] = ("ok", "warning", "problem")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One answer.

    Attributes:
        check: what was looked at, such as "clock".
        level: "problem" keeps a device from its work, "warning" may do so later or tells a risk.
        found: what was found.
        mend: the command or step that mends it, "" where nothing has to be.
    """

    check: str
    level: Level
    found: str
    mend: str = ""


def ok(check: str, found: str) -> Finding:
    """Nothing has to be mended."""
    return Finding(check=check, level="ok", found=found)


def warning(check: str, found: str, mend: str) -> Finding:
    """Something to know, or to mend before it becomes a problem."""
    return Finding(check=check, level="warning", found=found, mend=mend)


def problem(check: str, found: str, mend: str) -> Finding:
    """Something that keeps the device from its work."""
    return Finding(check=check, level="problem", found=found, mend=mend)


def of_error(check: str, error: QuarlError) -> Finding:
    """An error of ours as a problem."""
    return problem(check, f"{error.message} (code {error.code})", error.hint)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the highest level; "ok" of nothing."""
    return _ORDER[max((_ORDER.index(finding.level) for finding in findings), default=0)]
