"""What a command writes to standard output: JSON that any reader takes, and an error where nothing can be written."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from quarl_device.errors import QuarlError


def finite(value: Any) -> Any:
    """Return a JSON value with NaN and Inf, which a damaged scale can be and JSON does not know, as null."""
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_result(text: str) -> None:
    """Write a result, which is worth an error when it cannot be written; but nobody may be reading any more.

    Raises:
        QuarlError: standard output cannot be written.
        BrokenPipeError: nobody reads it.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise QuarlError(f"the result cannot be written to standard output: {error.strerror}") from error
