"""Which importer reads a path: decided by content, never by the name alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from quarl_device.errors import MissingExtra, ModelFileError
from quarl_export.importers.hdf5 import SIGNATURE
from quarl_export.importers.keras3 import is_keras_archive
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.run_checkpoint import policy_directory
from quarl_export.ir.policy_graph import ImportedPolicy

_SB3 = "quarl_export.importers.sb3"
_TAKEN = (
    "a run or policy checkpoint of quarl-edge, a Keras model (.keras, .h5, SavedModel), a float .tflite, "
    "or a Stable-Baselines3 .zip"
)


@dataclass(frozen=True, kw_only=True)
class Importer:
    """One kind of source.

    Attributes:
        kind: its name.
        matches: whether a path holds one; cheap, and never raises over what it finds.
        read: reads it; TensorFlow and the like are imported only here.
        takes: attributes of `ImportOptions` that mean something to it.
    """

    kind: str
    matches: Callable[[Path], bool]
    read: Callable[[Path, ImportOptions], ImportedPolicy]
    takes: frozenset[str]


def import_policy(path: Path | str, *, options: ImportOptions | None = None) -> ImportedPolicy:
    """Return the trained policy at `path`, in float, compared with its source.

    Args:
        path: a file or directory of any kind that `detect` knows.
        options: what the source cannot say.

    Raises:
        ModelFileError: missing, empty, damaged, or of no known kind.
        UnsupportedModel: something in it has no place in a policy file; names the layer and what to do instead.
        UnsafeSource: it would run code of its own, or reaches outside of itself.
        SourceMismatch: what was read computes otherwise than the source.
        NonFiniteError: NaN or Inf in weights or outputs.
        UsageError, SpaceMismatch, EnvironmentFault: the options do not fit the model, or its kind.
        RunNotFound, CheckpointError: a run without a policy, or with a damaged one.
    """
    place, given = Path(path), options or ImportOptions()
    importer = detect(place)
    given.refuse_all_but(importer.takes, f"a source of the kind {importer.kind!r}")
    return importer.read(place, given)


def detect(path: Path) -> Importer:
    """Return the importer for `path`.

    Raises:
        ModelFileError: missing, empty, or of no known kind.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ModelFileError(f"not a file and not a directory: {path}", hint=f"give {_TAKEN}")
    found = next((importer for importer in IMPORTERS if importer.matches(path)), None)
    if found is not None:
        return found
    if not path.exists():
        raise ModelFileError(f"policy not found: {path}", hint=f"give {_TAKEN}")
    if path.is_dir():
        if (path / "config.json").is_file():
            return _RUN
        raise ModelFileError(f"no policy that is known in the directory {path}", hint=f"expected {_TAKEN}")
    if path.name in ("saved_model.pb", "keras_metadata.pb", "fingerprint.pb"):
        raise ModelFileError(
            f"{path} is one file of a SavedModel, which is a directory", hint=f"give the directory: {path.parent}"
        )
    head = _head(path)
    said = f"begins with {head[:8]!r}, which no known kind does"
    if not head:
        said = "is empty"
    elif head.startswith(b"PK"):
        said = "is a zip archive that was cut off, or holds no policy that is known"
    raise ModelFileError(f"policy file {path} {said}", hint=f"expected {_TAKEN}")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(16)
    except OSError:
        return b""


def _is_h5(path: Path) -> bool:
    return path.is_file() and _head(path).startswith(SIGNATURE)


def _is_tflite(path: Path) -> bool:
    return path.is_file() and _head(path)[4:8] == b"TFL3"


def _is_saved_model(path: Path) -> bool:
    return (path / "saved_model.pb").is_file()


def _is_sb3(path: Path) -> bool:
    if not path.is_file() or not _head(path).startswith(b"PK") or importlib.util.find_spec(_SB3) is None:
        return False
    return bool(importlib.import_module(_SB3).is_sb3(path))


def _read_run(path: Path, options: ImportOptions) -> ImportedPolicy:
    from quarl_export.importers.run_checkpoint import read_run

    return read_run(path, options=options)


def _read_archive(path: Path, options: ImportOptions) -> ImportedPolicy:
    from quarl_export.importers.keras3 import read_keras_archive

    return read_keras_archive(path, options=options)


def _read_h5(path: Path, options: ImportOptions) -> ImportedPolicy:
    from quarl_export.importers.tf_keras_models import read_h5

    return read_h5(path, options=options)


def _read_saved_model(path: Path, options: ImportOptions) -> ImportedPolicy:
    from quarl_export.importers.saved_model import read_saved_model

    return read_saved_model(path, options=options)


def _read_tflite(path: Path, options: ImportOptions) -> ImportedPolicy:
    from quarl_export.importers.tflite_float import read_tflite

    return read_tflite(path, options=options)


def _read_sb3(path: Path, options: ImportOptions) -> ImportedPolicy:
    try:
        module = importlib.import_module(_SB3)
    except ImportError as error:  # pragma: no cover - matched only where it is there
        raise MissingExtra("this build does not read Stable-Baselines3 files") from error
    policy: ImportedPolicy = module.read_sb3(path, options=options)
    return policy


_ENVIRONMENT = frozenset({"env_id", "env_kwargs"})
_SB3_TAKES = _ENVIRONMENT | {"wrappers", "stack", "vecnormalize"}
_ANY_NETWORK = frozenset(part.name for part in fields(ImportOptions)) - {"signature", "vecnormalize"}
_RUN = Importer(kind="run", matches=lambda path: policy_directory(path) is not None, read=_read_run, takes=_ENVIRONMENT)
IMPORTERS: tuple[Importer, ...] = (
    _RUN,
    Importer(kind="savedmodel", matches=_is_saved_model, read=_read_saved_model, takes=_ANY_NETWORK | {"signature"}),
    Importer(kind="keras archive", matches=is_keras_archive, read=_read_archive, takes=_ANY_NETWORK),
    Importer(kind="h5", matches=_is_h5, read=_read_h5, takes=_ANY_NETWORK),
    Importer(kind="tflite", matches=_is_tflite, read=_read_tflite, takes=_ANY_NETWORK),
    Importer(kind="stable-baselines3", matches=_is_sb3, read=_read_sb3, takes=_SB3_TAKES),
)
