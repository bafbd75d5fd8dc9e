"""Files that grow by one JSON object a line: a kill tears the last one at most, and is allowed for.

A writer ends what was torn before it goes on. A reader leaves out what is no object, and says how many lines that were.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from quarl_device.errors import QuarlError, RunNotFound
from quarl_device.files import read_capped
from quarl_device.output import finite

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Lines:
    """What such a file holds.

    Attributes:
        objects: one per line that holds, in order.
        damaged: lines that do not; a torn last one, which any kill may leave, is not counted.
    """

    objects: tuple[dict[str, Any], ...] = ()
    damaged: int = 0


def append_line(file: BinaryIO, data: Mapping[str, Any], *, cap_bytes: int = MAX_FILE_BYTES) -> bool:
    """Append one object to `file`, which is open for reading and appending, and flush it to the system.

    Returns:
        Whether it was written: where the file, or the line, would be over its cap, the file stays as it is.

    Raises:
        OSError: it cannot be written.
    """
    line = json.dumps(finite(data), allow_nan=False).encode() + b"\n"
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            line = b"\n" + line
    if size + len(line) > cap_bytes or len(line) > MAX_LINE_BYTES:
        return False
    file.write(line)
    file.flush()
    return True


def read_lines(path: Path, *, what: str, error: type[QuarlError] = RunNotFound) -> Lines:
    """Read a file of at most `MAX_FILE_BYTES`; one that is missing holds nothing.

    Args:
        path: of the file.
        what: it is, for messages.
        error: class of what is raised.

    Raises:
        QuarlError: of class `error`: unreadable, or over the cap.
    """
    if not path.exists():
        return Lines()
    *whole, _torn = read_capped(path, cap_bytes=MAX_FILE_BYTES, error=error, what=what).split(b"\n")
    decoded = [_decode(line) for line in whole if line]
    objects = tuple(each for each in decoded if each is not None)
    return Lines(objects=objects, damaged=len(decoded) - len(objects))


def _decode(line: bytes) -> dict[str, Any] | None:
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
