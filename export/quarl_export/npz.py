"""Observations in an `.npz`: plain arrays under caps, never a pickle, one clear error whatever the file is."""

from __future__ import annotations

import io
import tokenize
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UsageError
from quarl_device.files import read_capped
from quarl_export.importers.zips import ZIP_ERRORS

MAX_NPZ_BYTES = 256 * 1024 * 1024
MAX_UNPACKED_BYTES = 1024 * 1024 * 1024
# NumPy reads the header of an array as Python source, which can be wrong in as many ways.
_DAMAGED = (*ZIP_ERRORS, MemoryError, ArithmeticError, SyntaxError, RuntimeError, tokenize.TokenError)


def read_npz(path: Path, *, what: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name.

    Args:
        path: the file.
        what: it is for, as in "calibration file".

    Raises:
        UsageError: missing, a directory, unreadable, over the caps, no npz, or pickled.
    """
    data = read_capped(path, cap_bytes=MAX_NPZ_BYTES, error=UsageError, what=what)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_UNPACKED_BYTES:
            raise UsageError(f"{what} {path} unpacks to {unpacked:,} bytes, allowed are {MAX_UNPACKED_BYTES:,}")
        with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except _DAMAGED as error:
        raise UsageError(
            f"{what} {path} is not an .npz of plain arrays: {str(error)[:120]}",
            hint="write it with numpy.savez(path, observation=rows)",
        ) from error
