"""`.keras` archives of Keras 3 (and of tf_keras): read with zipfile and h5py, never with Keras 3."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError
from quarl_device.files import read_capped
from quarl_export.importers.assemble import assemble
from quarl_export.importers.functional import Place, flatten_model
from quarl_export.importers.hdf5 import MAX_FILE_BYTES, open_hdf5, parse_json, read_array
from quarl_export.importers.keras_config import LayerConfig, parse_model
from quarl_export.importers.keras_layers import lower
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.source import SourceNetwork
from quarl_export.importers.zips import ZIP_ERRORS
from quarl_export.ir.policy_graph import ImportedPolicy

_CONFIG, _WEIGHTS, _METADATA = "config.json", "model.weights.h5", "metadata.json"
_MAX_MEMBERS = 64
_MAX_CONFIG_BYTES = 1 << 24
_MAX_ARRAYS = 64


def is_keras_archive(path: Path) -> bool:
    """Return whether a zip file has the members of a `.keras` archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _CONFIG in archive.namelist()
    except ZIP_ERRORS:
        return False


def read_keras_archive(path: Path, *, options: ImportOptions) -> ImportedPolicy:
    """Return the policy in a `.keras` file, compared with the same layers run in TensorFlow.

    Raises:
        ModelFileError: unreadable, damaged, over a cap.
        UnsupportedModel, UnsafeSource: what is in it is not read; names the layer.
        QuarlError: see `assemble`.
    """
    what = f"Keras archive {path.name}"
    members = _members(path, what)
    config = parse_json(members[_CONFIG], what=f"{what}: {_CONFIG}")
    model = parse_model(config)
    metadata = parse_json(members.get(_METADATA, b"{}"), what=f"{what}: {_METADATA}")
    version = str(metadata.get("keras_version", "unknown") if isinstance(metadata, dict) else "unknown")[:40]
    if _WEIGHTS not in members:
        raise ModelFileError(f"{what} has no {_WEIGHTS}", hint="save it with model.save()")
    with open_hdf5(members[_WEIGHTS], what=f"{what}: {_WEIGHTS}") as file:
        flat = flatten_model(model, _WeightsFile(file).read)
    # TensorFlow only where something is to be compared: a file that is refused is refused at once.
    draft = lower(flat)
    from quarl_export.importers.eager import run_layers

    source = SourceNetwork(
        kind="keras archive",
        draft=draft,
        dtypes=flat.dtypes,
        run=lambda inputs: run_layers(flat, inputs),
        provenance={"path": path.name, "saved_by": f"Keras {version}"},
    )
    return assemble(source, options)


def _members(path: Path, what: str) -> dict[str, bytes]:
    """Return the members that are read, each within its cap."""
    data = read_capped(path, cap_bytes=MAX_FILE_BYTES, error=ModelFileError, what=what)
    caps = {_CONFIG: _MAX_CONFIG_BYTES, _METADATA: _MAX_CONFIG_BYTES, _WEIGHTS: MAX_FILE_BYTES}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > _MAX_MEMBERS:
                raise ModelFileError(f"{what} has {len(entries)} members, allowed are {_MAX_MEMBERS}")
            wanted = [entry for entry in entries if entry.filename in caps]
            if len({entry.filename for entry in wanted}) != len(wanted):
                raise ModelFileError(f"{what} has a member twice")
            members = {}
            for entry in wanted:
                with archive.open(entry) as member:
                    # The size in the directory is only a claim.
                    members[entry.filename] = member.read(caps[entry.filename] + 1)
                if len(members[entry.filename]) > caps[entry.filename]:
                    raise ModelFileError(f"{what}: {entry.filename} is over its cap")
    except ZIP_ERRORS as error:
        raise ModelFileError(f"{what} cannot be read: {str(error)[:200]}") from error
    if _CONFIG not in members:
        raise ModelFileError(f"{what} has no {_CONFIG}: it is no model that Keras saved")
    return members


class _WeightsFile:
    """Gives layers their arrays, each read once, however many layers, names and calls share it."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._arrays: dict[int, NDArray[Any]] = {}

    def read(self, place: Place, layer: LayerConfig) -> Sequence[NDArray[Any]]:
        """Return a layer's arrays in order; none for a layer that has no group."""
        variables = _variables(self._file, place)
        if variables is None:
            return ()
        if len(variables) > _MAX_ARRAYS:
            raise ModelFileError(f"layer {layer.name!r} has {len(variables)} arrays in the weights file")
        return [self._array(variables, str(number)) for number in range(len(variables))]

    def _array(self, variables: h5py.Group, name: str) -> NDArray[Any]:
        item = variables.get(name)
        if item is None:
            return read_array(variables, name)
        address = int(h5py.h5o.get_info(item.id).addr)
        if address not in self._arrays:
            self._arrays[address] = read_array(variables, name)
        return self._arrays[address]


def _variables(file: h5py.File, place: Place) -> h5py.Group | None:
    group: Any = file
    for store in place.store:
        inside = next((group[name] for name in ("layers", "_layer_checkpoint_dependencies") if name in group), None)
        group = inside.get(store) if isinstance(inside, h5py.Group) else None
        if not isinstance(group, h5py.Group):
            return None
    variables = group.get("vars")
    return variables if isinstance(variables, h5py.Group) else None
