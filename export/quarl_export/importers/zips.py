"""What Python's zipfile raises over archives that are damaged."""

from __future__ import annotations

import struct
import zipfile
import zlib

ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, KeyError, RuntimeError,
)  # fmt: skip
"""Names that are no UTF-8 are a ValueError, encryption and unknown compression are RuntimeErrors."""
