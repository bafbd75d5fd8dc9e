"""How much memory this process has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from quarl_device.board.sysfs import read_text

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Resident memory of a process.

    Attributes:
        rss_bytes: now, `None` where it is unknown.
        peak_rss_bytes: at most so far.
    """

    rss_bytes: int | None
    peak_rss_bytes: int | None


def parse_status(text: str) -> Memory:
    """Read `/proc/<pid>/status`."""
    kib = {key: int(value) for key, value in re.findall(r"^(VmRSS|VmHWM):\s*(\d{1,15}) kB$", text, re.MULTILINE)}
    rss, peak = (kib[key] * 1024 if key in kib else None for key in ("VmRSS", "VmHWM"))
    return Memory(rss_bytes=rss, peak_rss_bytes=peak)


def read_memory(status: Path = _STATUS) -> Memory:
    """Return the memory of this process."""
    return parse_status(read_text(status) or "")
