"""tf_keras models: objects in memory, `.h5` files, and SavedModel directories that Keras wrote.

No file is handed to Keras's own loader, which would look up and call what the file names. Its configuration is read as
data, checked against `keras_classes`, and rebuilt from the settings listed there; then the weights are copied in. The
rebuilt model is also what the reading is compared with.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError, QuarlError, UnsupportedModel
from quarl_device.files import read_capped
from quarl_export.importers.assemble import assemble
from quarl_export.importers.functional import FlatModel, Place, flatten_model
from quarl_export.importers.hdf5 import count_numbers, open_hdf5, parse_json, read_hdf5, read_json_attribute
from quarl_export.importers.keras3_h5 import read_keras3_h5
from quarl_export.importers.keras_classes import ALIASES, LAYERS, MODELS
from quarl_export.importers.keras_config import LayerConfig, ModelConfig, parse_model
from quarl_export.importers.keras_declared import check_declared
from quarl_export.importers.keras_layers import lower
from quarl_export.importers.keras_wiring import plain
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.source import Arrays, SourceNetwork
from quarl_export.ir.policy_graph import ImportedPolicy
from quarl_export.keras2 import keras, tf
from quarl_export.silence import without_tensorflow_noise

_METADATA = "keras_metadata.pb"
_MAX_METADATA_BYTES = 1 << 26
# Of a number in a variable: half precision.
_LEAST_BYTES = 2


def import_keras_model(
    model: Any,
    *,
    options: ImportOptions | None = None,
    kind: str = "tf_keras",
    provenance: Mapping[str, Any] | None = None,
) -> ImportedPolicy:
    """Return the policy of a tf_keras model in memory.

    Args:
        model: Functional or Sequential.
        options: see `ImportOptions`.
        kind: for messages and provenance.
        provenance: JSON values.

    Raises:
        UnsupportedModel: a Keras 3 model, a subclass, or a layer that is not read.
        UnsafeSource: a Lambda or a class of somebody's own.
        QuarlError: see `assemble`.
    """
    data = _description(model)
    parsed = parse_model(data)
    flat = flatten_model(parsed, _weights_of(model))
    source = SourceNetwork(
        kind=kind,
        draft=lower(flat),
        dtypes=flat.dtypes,
        run=_runner(model, flat),
        provenance={"keras": keras.__version__, **(provenance or {})},
    )
    return assemble(source, options or ImportOptions())


def read_h5(path: Path, *, options: ImportOptions) -> ImportedPolicy:
    """Return the policy in an `.h5` file that tf_keras, Keras 2 or Keras 3 saved whole.

    Raises:
        ModelFileError: unreadable, damaged, or weights alone.
        QuarlError: see `import_keras_model`.
    """
    what = f"Keras file {path.name}"
    data = read_hdf5(path, what=what)
    with open_hdf5(data, what=what) as file:
        config = read_json_attribute(file, "model_config", what=what)
        version, stored = str(file.attrs.get("keras_version", ""))[:40], count_numbers(file)
        names = _weighted_layers(file)
        if config is not None and version.startswith("3."):
            return read_keras3_h5(file, config, path=path, version=version, options=options)
    if config is None:
        raise ModelFileError(
            f"{what} holds weights alone, no model",
            hint="save the whole model with model.save(), or load the weights and export from that process",
        )
    parsed = parse_model(config)
    check_declared(parsed, stored=stored, what=what)
    _check_whole(parsed, config, stored, what)
    model = rebuild(parsed, config)
    _check_order(model, names, what)
    with tempfile.TemporaryDirectory() as folder:
        # The bytes that were checked, not whatever the path holds by now.
        copy = Path(folder) / "weights.h5"
        copy.write_bytes(data)
        _load(model, copy, what)
    provenance = {"path": path.name, "saved_by": f"Keras {version}"}
    return import_keras_model(model, options=options, kind="tf_keras h5", provenance=provenance)


def _weighted_layers(file: Any) -> list[str]:
    """Return the names of the layers that have weights, in the order in which Keras will hand them out."""
    group = file.get("model_weights", file)
    names = [_text(name) for name in group.attrs.get("layer_names", ())]
    return [name for name in names if name in group and len(group[name].attrs.get("weight_names", ()))]


def _check_order(model: Any, names: list[str], what: str) -> None:
    """Refuse a file whose weights Keras, which counts and does not look, would give to the wrong layers."""
    expected = [layer.name for layer in model.layers if layer.weights]
    if names and names != expected:
        raise ModelFileError(f"{what}: its weights are of the layers {names[:8]}, its model has {expected[:8]}")


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def is_keras_saved_model(path: Path) -> bool:
    """Return whether a SavedModel directory says how Keras built it."""
    return (path / _METADATA).is_file()


def read_keras_saved_model(path: Path, *, options: ImportOptions) -> ImportedPolicy:
    """Return the policy in a SavedModel directory that tf_keras wrote.

    The graph in it is never loaded: the model is rebuilt from its configuration, and its variables are read.

    Raises:
        ModelFileError: unreadable or damaged.
        QuarlError: see `import_keras_model`.
    """
    what = f"SavedModel {path.name}"
    content = read_capped(path / _METADATA, cap_bytes=_MAX_METADATA_BYTES, error=ModelFileError, what=what)
    config = _root_config(content, what)
    parsed = parse_model(config)
    size = sum(part.stat().st_size for part in (path / "variables").glob("variables.data-*"))
    check_declared(parsed, stored=size // _LEAST_BYTES, what=what)
    _check_whole(parsed, config, size // _LEAST_BYTES, what)
    model = rebuild(parsed, config)
    _load(model, path / "variables" / "variables", what)
    return import_keras_model(model, options=options, kind="tf_keras SavedModel", provenance={"path": path.name})


def _root_config(content: bytes, what: str) -> Any:
    from google.protobuf.message import DecodeError
    from tf_keras.protobuf import saved_metadata_pb2

    metadata = saved_metadata_pb2.SavedMetadata()
    try:
        metadata.ParseFromString(content)
    except DecodeError as error:
        raise ModelFileError(f"{what}: {_METADATA} is damaged: {error}") from error
    root = next((node for node in metadata.nodes if node.node_path == "root"), None)
    if root is None:
        raise ModelFileError(f"{what}: {_METADATA} describes no model")
    described = parse_json(root.metadata, what=f"{what}: {_METADATA}")
    if not isinstance(described, dict):
        raise ModelFileError(f"{what}: {_METADATA} describes no model")
    shape = described.get("build_input_shape")
    return {**described, "config": described.get("config") or {}, "build_config": {"input_shape": shape}}


def _description(model: Any) -> Any:
    """Return what `model` is, as the JSON that Keras writes."""
    module = type(model).__module__.split(".")[0]
    if not isinstance(model, keras.Model):
        if any(base.__module__.split(".")[0] == "keras" for base in type(model).__mro__):
            raise UnsupportedModel(
                f"{type(model).__name__} is a Keras 3 model, this toolkit trains and converts with tf_keras (Keras 2)",
                hint="model.save('policy.keras') and import that file: its weights are copied",
            )
        raise UnsupportedModel(f"{type(model).__name__} of {module} is not a Keras model")
    if not isinstance(model, keras.Sequential) and not getattr(model, "_is_graph_network", False):
        # A subclass: let the parser say so by name.
        return {"class_name": type(model).__name__, "config": {"name": model.name}}
    return json.loads(model.to_json())


def rebuild(parsed: ModelConfig, data: Any) -> Any:
    """Return a tf_keras model of a checked description, made of the settings that are read and no others.

    Args:
        parsed: what `parse_model` made of `data`: all classes are known ones.
        data: the description.

    Raises:
        UnsupportedModel: Keras cannot build it.
    """
    maker = keras.Sequential if parsed.sequential else keras.Model
    try:
        with without_tensorflow_noise():
            model = maker.from_config(_clean(data)["config"])
            if not model.built:
                model.build(tuple(parsed.input_shape or ()))
    # Whatever Keras raises over a description that is not its own.
    except Exception as error:
        raise UnsupportedModel(f"Keras cannot rebuild model {parsed.name!r}: {_short(error)}") from error
    return model


def _check_whole(parsed: ModelConfig, data: Any, stored: int, what: str) -> None:
    """Refuse a model whose layers, those that no output depends on included, have more parameters than are stored.

    It is built in a graph that is thrown away, where variables are names and nothing is allocated.
    """
    with tf.Graph().as_default():
        count = rebuild(parsed, data).count_params()
    if count > stored:
        raise ModelFileError(f"{what} declares {count:,} parameters, its file holds at most {stored:,}")


def _clean(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return one layer's or model's description with the settings of `LAYERS` alone."""
    class_name, config = str(entry["class_name"]), entry["config"]
    if isinstance(config, list):
        config = {"name": None, "layers": config}
    kept: dict[str, Any] = {"class_name": class_name}
    if class_name in MODELS:
        kept["config"] = {"name": config.get("name"), "layers": [_clean(layer) for layer in config["layers"]]}
        for key in ("input_layers", "output_layers", "build_input_shape"):
            if key in config:
                kept["config"][key] = plain(config[key])
    elif class_name == "TFOpLambda":
        kept["config"] = {"name": config["name"], "function": config["function"]}
    else:
        names = LAYERS[ALIASES.get(class_name, class_name)]
        kept["config"] = {key: _setting(key, config[key]) for key in names if key in config}
        kept["config"]["name"] = config["name"]
        if "batch_input_shape" in config and class_name != "InputLayer":
            kept["config"]["batch_input_shape"] = plain(config["batch_input_shape"])
    if "name" in entry:
        kept["name"] = entry["name"]
    if "inbound_nodes" in entry:
        kept["inbound_nodes"] = plain(entry["inbound_nodes"])
    return kept


def _setting(key: str, value: Any) -> Any:
    if key == "activation" and isinstance(value, Mapping):
        inner = value.get("config")
        return inner if isinstance(inner, str) else str(value.get("class_name"))
    return plain(value)


def _load(model: Any, weights: Path, what: str) -> None:
    try:
        with without_tensorflow_noise():
            status = model.load_weights(str(weights))
            if status is not None:
                status.assert_existing_objects_matched().expect_partial()
    # Both readers raise what they like, AssertionError among it.
    except Exception as error:
        raise ModelFileError(f"{what}: its weights do not fit its model: {_short(error)}") from error
    for layer in model._flatten_layers(include_self=False):
        layer.finalize_state()


def _weights_of(model: Any) -> Any:
    def read(place: Place, layer: LayerConfig) -> Sequence[NDArray[Any]]:
        found = model
        for name in place.path:
            found = found.get_layer(name)
        arrays: Sequence[NDArray[Any]] = found.get_weights()
        return arrays

    return read


def _runner(model: Any, flat: FlatModel) -> Any:
    """Return the model itself as a function of its inputs and outputs by name."""

    def run(inputs: Arrays) -> dict[str, NDArray[np.float32]]:
        given = {
            name: tf.constant(
                inputs[name].reshape(-1, *shape) if name in inputs else np.zeros((_rows(inputs), *shape)),
                dtype=tf.as_dtype(flat.dtypes[name]),
            )
            for name, shape in flat.inputs.items()
        }
        with without_tensorflow_noise():
            outputs = tf.nest.flatten(model(_as_built(model, given), training=False))
        return {name: np.asarray(value, np.float32) for name, value in zip(flat.outputs, outputs, strict=True)}

    return run


def _rows(inputs: Arrays) -> int:
    return len(next(iter(inputs.values())))


def _as_built(model: Any, given: Mapping[str, Any]) -> Any:
    """Return inputs by name in the form in which the model was built: one, or a dict of its own keys."""
    if len(given) == 1 and not isinstance(model.input, Mapping):
        return next(iter(given.values()))
    return dict(given)


def _short(error: BaseException) -> str:
    if isinstance(error, QuarlError):  # pragma: no cover - ours pass through as they are
        return error.message
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
