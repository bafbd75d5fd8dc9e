"""Keeps TensorFlow's C++ chatter off the terminal without losing anybody else's words."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

# glog lines of levels below error, and the notice that precedes them.
_NOISE = re.compile(
    rb"^(?:[IW]\d{4} [\d:. ]+|[IW]\d{10}|\d{4}-\d\d-\d\d [\d:.]+: [IW] |WARNING: All log messages before)"
)
_LOCK = threading.Lock()


@contextlib.contextmanager
def without_tensorflow_noise() -> Iterator[None]:
    """Hold back what arrives on the process's stderr, then pass on all but TensorFlow's info and warning lines.

    C++ code writes to file descriptor 2 itself, so Python-level redirection does not see it.
    """
    with _LOCK, tempfile.TemporaryFile() as held:
        try:
            sys.stderr.flush()
            original = os.dup(2)
        except (OSError, AttributeError, ValueError):  # no stderr at all: nothing to keep clean
            yield
            return
        try:
            os.dup2(held.fileno(), 2)
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)
            _pass_on(held.fileno())


def _pass_on(held: int) -> None:
    os.lseek(held, 0, os.SEEK_SET)
    with os.fdopen(os.dup(held), "rb") as lines:
        for line in lines:
            if not _NOISE.match(line):
                os.write(2, line)
