"""SavedModels that Keras did not describe (of TF-Agents, tf.Module, or Keras 3): the one function in them that acts.

Such a directory holds several functions (act, initial state, train step, ...); only the acting one is taken. Loading a
SavedModel runs parts of it, so the whole file is checked first, as data, against a list of what may be in it
(`saved_graph`). What TensorFlow's converter then loads is a copy of what was checked, in a directory of our own and in
a process with a cap on its memory (`saved_convert`); the float file that comes out is imported.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from quarl_device.errors import ModelFileError, UnsupportedModel, UsageError
from quarl_device.files import read_capped
from quarl_export.importers.hdf5 import MAX_FILE_BYTES
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.saved_convert import convert_saved_model
from quarl_export.importers.saved_graph import check_saved_graph
from quarl_export.importers.tflite_float import import_tflite
from quarl_export.ir.policy_graph import ImportedPolicy

_MODEL = "saved_model.pb"
_MAX_MODEL_BYTES = 1 << 28
_MAX_FILES = 64
_PREFERRED = ("action", "serving_default")
_INTERNAL = "__saved_model_init_op"


def read_signature(path: Path, *, options: ImportOptions) -> ImportedPolicy:
    """Return the policy in one signature of a SavedModel.

    Args:
        path: the directory.
        options: `signature` names it; else "action", "serving_default", or the only one.

    Raises:
        ModelFileError: unreadable or damaged.
        UsageError: no such signature, or several and none of the usual names.
        UnsafeSource: anything in the file could do more than compute, whether the signature reaches it or not.
        ConversionError: TensorFlow cannot convert it, or not within a cap on memory and time.
        QuarlError: see `import_tflite`.
    """
    what = f"SavedModel {path.name}"
    content = read_capped(path / _MODEL, cap_bytes=_MAX_MODEL_BYTES, error=ModelFileError, what=what)
    model = _saved_model(content, what)
    graph = model.meta_graphs[0]
    name = _choose(sorted(key for key in graph.signature_def if key != _INTERNAL), options.signature, what)
    check_saved_graph(graph, what=what)
    with tempfile.TemporaryDirectory() as folder:
        # What was checked, not whatever the path holds by now or the loader would prefer.
        (Path(folder) / _MODEL).write_bytes(model.SerializeToString())
        stored = _copy_variables(path / "variables", Path(folder) / "variables", what)
        data = convert_saved_model(Path(folder), name, weight_bytes=stored + len(content), what=what)
    return import_tflite(data, options=options, name=path.name, kind=f"SavedModel signature {name}")


def _saved_model(content: bytes, what: str) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise ModelFileError(f"{what}: {_MODEL} is damaged: {error}") from error
    if len(model.meta_graphs) != 1:
        raise ModelFileError(f"{what} has {len(model.meta_graphs)} graphs, expected 1")
    return model


def _copy_variables(source: Path, target: Path, what: str) -> int:
    """Copy the variables and return how many bytes they are."""
    try:
        files = [file for file in sorted(source.glob("variables.*")) if file.is_file()]
        if len(files) > _MAX_FILES or sum(file.stat().st_size for file in files) > MAX_FILE_BYTES:
            raise ModelFileError(f"{what}: its variables are over the cap of {MAX_FILE_BYTES:,} bytes")
        target.mkdir()
        for file in files:
            shutil.copyfile(file, target / file.name)
        return sum(file.stat().st_size for file in target.iterdir())
    except OSError as error:
        raise ModelFileError(f"{what}: its variables cannot be read: {error.strerror or error}") from error


def _choose(names: list[str], wanted: str, what: str) -> str:
    if wanted:
        if wanted not in names:
            raise UsageError(f"{what} has no signature {wanted!r}; it has {names}", hint="--signature NAME")
        return wanted
    if not names:
        raise UnsupportedModel(
            f"{what} has no signatures: nothing says which of its functions acts",
            hint="save it with signatures={'action': function}, one observation in, the outputs of the head out",
        )
    usual = [name for name in _PREFERRED if name in names]
    if not usual and len(names) > 1:
        raise UsageError(f"{what} has the signatures {names}", hint="say which one acts: --signature NAME")
    return usual[0] if usual else names[0]
