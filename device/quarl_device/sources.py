"""Where a policy file is expected and what such a file is made of is given: say so, and which command reads it.

Told by the first bytes alone; nothing is opened any further, and `quarl-edge` looks again.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from quarl_device.errors import ModelFileError

_FILES = {
    b"PK\x03\x04": "an archive, as Keras (.keras) and Stable-Baselines3 (.zip) write it",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, as Keras writes it",
}
_FOLDERS = {
    "saved_model.pb": "a SavedModel",
    "policy.json": "a policy checkpoint",
    "config.json": "a run",
}


def kind_of_source(path: Path) -> str:
    """Return what kind of source lies at `path`, "" for none that is known."""
    try:
        if path.is_dir():
            return next((kind for name, kind in _FOLDERS.items() if (path / name).is_file()), "")
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            head = file.read(8)
    except OSError:
        return ""
    return next((kind for magic, kind in _FILES.items() if head.startswith(magic)), "")


@contextlib.contextmanager
def pointing_at_export(path: Path) -> Iterator[None]:
    """Have an error over a file that is no policy file say what makes one of it."""
    try:
        yield
    except ModelFileError as error:
        kind = kind_of_source(path)
        if kind:
            name = shlex.quote(str(path))
            error.hint = (
                f"it is {kind}, which a policy file is made of: quarl-edge export model.tflite --from {name}; "
                f"quarl-edge inspect {name} lists its layers"
            )
        raise
