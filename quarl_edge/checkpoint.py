"""Learner checkpoints: everything that a resume needs, whole or not at all.

A checkpoint is a directory ``ckpt-<environment steps, 12 digits>``, with ``.1``, ``.2``, ... behind it where a resume
ended at the same step. It is written beside its place under a name that
starts with a dot, synced, and renamed: one that exists was finished. ``manifest.json`` names each part with its size
and sha256; arrays are in one ``<group>.npz`` per group (never pickled), counters in ``state.json``. A part that is
missing or differs makes loading fail: nothing is ever re-initialised in silence.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device import __version__
from quarl_device.errors import CheckpointError
from quarl_device.files import read_capped, sync_directory

CHECKPOINT_SCHEMA = 2
MAX_PART_BYTES = 2 * 1024**3
MAX_MANIFEST_BYTES = 16 * 1024**2
KEPT = 2
_MANIFEST = "manifest.json"
_STATE = "state.json"
_NAME = re.compile(r"ckpt-(\d{12,})(?:\.(\d{1,6}))?")
_GROUP = re.compile(r"[a-z][a-z0-9_]{0,63}")
_PART = re.compile(r"state\.json|[a-z][a-z0-9_]{0,63}\.npz")

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        state: counters and settings, JSON values only.
        arrays: by group, then by name; no object arrays.
    """

    state: Mapping[str, Any]
    arrays: Mapping[str, Arrays] = field(default_factory=dict)


def save_checkpoint(directory: Path, checkpoint: Checkpoint, *, env_steps: int) -> Path:
    """Write a checkpoint, and delete all but the last two.

    Args:
        directory: of all checkpoints of a run; made if missing.
        checkpoint: what to keep.
        env_steps: gives it its name.

    Returns:
        Its directory.

    Raises:
        CheckpointError: it cannot be written, or holds what no checkpoint can; the older ones are untouched.
    """
    name = f"ckpt-{env_steps:012d}"
    temporary = ""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.mkdtemp(prefix=f".{name}.", dir=directory)
        _write_parts(Path(temporary), checkpoint, env_steps)
        target = _free_name(directory, name)
        Path(temporary).replace(target)
        temporary = ""
        sync_directory(directory)
        _delete_old(directory)
    except OSError as cause:
        raise CheckpointError(f"checkpoint cannot be written: {directory / name}: {cause.strerror}") from cause
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check every part of it.

    Raises:
        CheckpointError: a part is missing, damaged, or of another schema; names it.
    """
    manifest = _read_json(path / _MANIFEST, what="checkpoint manifest")
    schema, version = manifest.get("schema"), manifest.get("version", "unknown")
    if schema != CHECKPOINT_SCHEMA:
        raise CheckpointError(
            f"checkpoint {path}: schema {schema!r} is not {CHECKPOINT_SCHEMA}",
            hint=f"it was written by quarl-edge {version}, this is {__version__}",
        )
    parts = manifest.get("parts")
    if not isinstance(parts, dict) or _STATE not in parts or not all(_PART.fullmatch(name) for name in parts):
        raise CheckpointError(f"checkpoint manifest does not hold: {path / _MANIFEST}")
    state: dict[str, Any] = {}
    arrays: dict[str, dict[str, NDArray[Any]]] = {}
    for name, described in parts.items():
        data = _read_part(path / name, described)
        if name == _STATE:
            state = _decode_json(data, path / name)
        else:
            arrays[name.removesuffix(".npz")] = _decode_arrays(data, path / name, described)
    return Checkpoint(state=state, arrays=arrays)


def latest(directory: Path) -> Path | None:
    """Return the newest finished checkpoint under `directory`, `None` where there is none."""
    found = finished(directory)
    return found[-1] if found else None


def finished(directory: Path) -> list[Path]:
    """Return the finished checkpoints under `directory`, oldest first; none where it cannot be read."""
    try:
        found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    except OSError:
        return []
    return sorted(found, key=_order)


def env_steps_of(path: Path) -> int:
    """Return the environment steps that a finished checkpoint is named after."""
    return _order(path)[0]


def load_latest(directory: Path) -> Checkpoint:
    """Read the newest finished checkpoint under `directory`.

    Raises:
        CheckpointError: there is none, or it does not hold: an older one is never taken in silence.
    """
    path = latest(directory)
    if path is None:
        raise CheckpointError(f"no checkpoint to resume from under {directory}", hint="start the run without --resume")
    try:
        return load_checkpoint(path)
    except CheckpointError as error:
        older = finished(directory)[:-1]
        if not older:
            raise
        raise CheckpointError(error.message, hint=f"to go back to {older[-1].name}: rm -r {path}") from error


def _write_parts(folder: Path, checkpoint: Checkpoint, env_steps: int) -> None:
    parts: dict[str, dict[str, Any]] = {}
    try:
        state = json.dumps(checkpoint.state, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint state is not JSON: {error}") from error
    parts[_STATE] = _write_part(folder / _STATE, state)
    for group, arrays in checkpoint.arrays.items():
        if not _GROUP.fullmatch(group):
            raise CheckpointError(f"checkpoint group {group[:80]!r}: expected a-z, 0-9 and '_'")
        names = list(arrays)
        for name in names:
            if arrays[name].dtype.hasobject:
                raise CheckpointError(f"checkpoint array {group}/{name} holds Python objects")
        buffer = io.BytesIO()
        # Names of variables can be anything, "file" included; in the archive arrays have numbers.
        np.savez(buffer, allow_pickle=False, **{f"a{i}": arrays[name] for i, name in enumerate(names)})
        parts[f"{group}.npz"] = {**_write_part(folder / f"{group}.npz", buffer.getbuffer()), "names": names}
    manifest = {"schema": CHECKPOINT_SCHEMA, "version": __version__, "env_steps": env_steps, "parts": parts}
    _write_part(folder / _MANIFEST, json.dumps(manifest, indent=1).encode())
    sync_directory(folder)


def _write_part(path: Path, data: bytes | memoryview) -> dict[str, Any]:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _read_part(path: Path, described: Any) -> bytes:
    if not isinstance(described, dict):
        raise CheckpointError(f"checkpoint manifest does not hold: part {path.name!r}")
    data = read_capped(path, cap_bytes=MAX_PART_BYTES, error=CheckpointError, what="checkpoint part")
    if len(data) != described.get("bytes") or hashlib.sha256(data).hexdigest() != described.get("sha256"):
        raise CheckpointError(f"checkpoint part is damaged: {path}")
    return data


def _decode_arrays(data: bytes, path: Path, described: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            names = described["names"]
            if len(archive.files) != len(names):
                raise ValueError(f"{len(archive.files)} arrays for {len(names)} names")
            return {name: archive[f"a{i}"] for i, name in enumerate(names)}
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"checkpoint part does not hold: {path}: {error}") from error


def _read_json(path: Path, *, what: str) -> dict[str, Any]:
    return _decode_json(read_capped(path, cap_bytes=MAX_MANIFEST_BYTES, error=CheckpointError, what=what), path)


def _decode_json(data: bytes, path: Path) -> dict[str, Any]:
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint part is damaged: {path}: {error}") from None
    if not isinstance(decoded, dict):
        raise CheckpointError(f"checkpoint part is damaged: {path}: no object")
    return decoded


def _order(path: Path) -> tuple[int, int]:
    """Return (environment steps, how many of that step were there before)."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def _free_name(directory: Path, name: str) -> Path:
    """Return a path after those of the same step: a full directory cannot be renamed over."""
    taken = [_order(path)[1] for path in finished(directory) if path.name.split(".")[0] == name]
    return directory / (f"{name}.{max(taken) + 1}" if taken else name)


def _delete_old(directory: Path) -> None:
    for path in finished(directory)[:-KEPT]:
        # Renamed first, so that a half deleted one is never taken for a finished one.
        doomed = path.with_name(f".{path.name}.old")
        path.replace(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    for path in directory.glob(".ckpt-*"):
        shutil.rmtree(path, ignore_errors=True)
