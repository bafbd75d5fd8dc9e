"""Reads the configuration of a Keras model, of version 2 or 3, as data: nothing that it names is imported or called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quarl_device.errors import ModelFileError, UnsafeSource, UnsupportedModel
from quarl_export.importers.keras_classes import (
    ALIASES,
    KERAS2_OPERATIONS,
    KERAS3_OPERATIONS,
    LAYERS,
    MODELS,
    alternative,
)
from quarl_export.importers.keras_wiring import Call, Ref, plain, read_calls, read_ends

MAX_DEPTH = 16
MAX_LAYERS = 1000
OPERATION = "operation:"
"""Prefix of the class of a layer that is an operation on tensors, such as "operation:subtract"."""


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """One layer.

    Attributes:
        name: unique in its model.
        class_name: Keras's, or `OPERATION` and what it does.
        config: the settings of `LAYERS`, as plain JSON values.
        calls: in order; empty in a sequential model.
        model: of a nested model.
        store: its group in a Keras 3 weights file.
        first_call: number by which tensors name its first call.
    """

    name: str
    class_name: str
    config: Mapping[str, Any]
    calls: tuple[Call, ...]
    model: ModelConfig | None = None
    store: str = ""
    first_call: int = 0

    @property
    def is_input(self) -> bool:
        """Whether it is an input of its model."""
        return self.class_name == "InputLayer"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One model, nested ones inside.

    Attributes:
        name: of the model.
        layers: by name, in the file's order.
        inputs: name to tensor; empty in a sequential model.
        outputs: likewise.
        sequential: each layer reads the one before it.
        input_shape: that a sequential model was built for, batch included; `None` where it does not say.
    """

    name: str
    layers: Mapping[str, LayerConfig]
    inputs: Mapping[str, Ref]
    outputs: Mapping[str, Ref]
    sequential: bool
    input_shape: tuple[int | None, ...] | None = None


def parse_model(data: Any) -> ModelConfig:
    """Return the model that ``{"class_name": ..., "config": {...}}`` describes.

    Raises:
        UnsafeSource: a Lambda, or a class of somebody's own.
        UnsupportedModel: a layer or form that is not read; names it and says what to do instead.
        ModelFileError: not such a description.
    """
    try:
        return _model(data, depth=0)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise ModelFileError(f"Keras model does not hold: {type(error).__name__}: {str(error)[:200]}") from error


def _model(data: Any, *, depth: int) -> ModelConfig:
    if depth > MAX_DEPTH:
        raise UnsupportedModel(f"models are nested more than {MAX_DEPTH} deep")
    class_name, config = str(data["class_name"]), data["config"]
    if isinstance(config, list):  # a Sequential of Keras before 2.3
        config = {"layers": config}
    name = str(config.get("name", class_name))[:200]
    if class_name not in MODELS or not isinstance(config.get("layers"), list):
        raise UnsupportedModel(
            f"model {name!r} is a subclass ({class_name[:80]}): what its call() does is not in the file",
            hint="build the acting part as keras.Model(inputs, outputs) of the same layers, and save that",
        )
    _check_origin(name, data)
    entries = config["layers"]
    if len(entries) > MAX_LAYERS:
        raise UnsupportedModel(f"model {name!r} has {len(entries)} layers, allowed are {MAX_LAYERS}")
    names = {str(_entry_name(entry)) for entry in entries}
    stores = _store_names([str(entry["class_name"]) for entry in entries])
    layers = [_layer(entry, names, store, depth=depth) for entry, store in zip(entries, stores, strict=True)]
    sequential = class_name == "Sequential"
    built = config.get("build_input_shape") or (data.get("build_config") or {}).get("input_shape")
    return ModelConfig(
        name=name,
        layers={layer.name: layer for layer in layers},
        inputs={} if sequential else dict(read_ends(config["input_layers"])),
        outputs={} if sequential else dict(read_ends(config["output_layers"])),
        sequential=sequential,
        input_shape=_shape(plain(built)) if sequential else None,
    )


def _entry_name(entry: Mapping[str, Any]) -> Any:
    return entry.get("name") or entry["config"]["name"]


def _check_origin(name: str, data: Mapping[str, Any]) -> None:
    """Refuse classes of somebody's own, which only their code could rebuild."""
    module, registered = data.get("module"), data.get("registered_name")
    ours = module is None or str(module).split(".")[0] in ("keras", "tf_keras", "tensorflow")
    if not ours or (registered is not None and ">" in str(registered)):
        raise UnsafeSource(
            f"layer {name!r} is of a class of its own ({str(registered or module)[:120]}), which only its code can run",
            hint=f"{alternative(str(data.get('class_name')))}, or export the policy from the process that has the code",
        )


def _layer(entry: Mapping[str, Any], names: set[str], store: str, *, depth: int) -> LayerConfig:
    name, given = str(_entry_name(entry)), str(entry["class_name"])
    class_name = ALIASES.get(given, given)
    if class_name in ("Lambda", "__lambda__") or _holds_lambda(entry.get("config")):
        raise UnsafeSource(
            f"layer {name!r} is a Lambda: its code would have to be run to know what it does",
            hint=alternative("Lambda"),
        )
    calls = tuple(read_calls(entry.get("inbound_nodes") or [], names))
    if class_name in MODELS:
        model = _model(entry, depth=depth + 1)
        first = _first_call(entry, model)
        return LayerConfig(
            name=name, class_name=class_name, config={}, calls=calls, model=model, store=store, first_call=first
        )
    operation = _operation(name, class_name, entry)
    if operation:
        kept = {key: plain(value) for key, value in entry["config"].items() if key in ("axis", "keepdims", "newshape")}
        return LayerConfig(name=name, class_name=OPERATION + operation, config=kept, calls=calls, store=store)
    if class_name not in LAYERS:
        if class_name not in _known_refusals(entry):
            _check_origin(name, entry)
        raise UnsupportedModel(f"layer {name!r} ({given}) is not read", hint=alternative(given))
    _check_origin(name, entry)
    # The first layer of a Sequential may say the input's shape itself.
    wanted = (*LAYERS[class_name], "batch_input_shape")
    config = {key: plain(entry["config"][key]) for key in wanted if key in entry["config"]}
    if "activation" in config:
        config["activation"] = _function(name, config["activation"])
    return LayerConfig(name=name, class_name=class_name, config=config, calls=calls, store=store)


def _first_call(entry: Mapping[str, Any], model: ModelConfig) -> int:
    """Return the number of a nested model's first call: where building it counts as a call, 1."""
    if not model.sequential:
        return 1
    version_3 = any(isinstance(node, Mapping) for node in entry.get("inbound_nodes") or [])
    return 0 if version_3 or not next(iter(model.layers.values())).is_input else 1


def _known_refusals(entry: Mapping[str, Any]) -> tuple[str, ...]:
    # A class of tfmot or of Keras itself is better named than called somebody's own.
    name = str(entry["class_name"])
    return (name,) if not alternative(name).startswith("build the policy of") else ()


def _holds_lambda(value: Any, depth: int = 0) -> bool:
    if depth > 64:
        raise ValueError("nested more than 64 deep")
    if isinstance(value, Mapping):
        if value.get("class_name") == "__lambda__":
            return True
        return any(_holds_lambda(part, depth + 1) for key, part in value.items() if key != "layers")
    return isinstance(value, list) and any(_holds_lambda(part, depth + 1) for part in value)


def _operation(name: str, class_name: str, entry: Mapping[str, Any]) -> str:
    """Return what a layer that Keras made of an operation on tensors does, "" for a layer proper."""
    module = str(entry.get("module") or "")
    if class_name == "TFOpLambda":
        function = str(entry["config"]["function"])
        table, called = KERAS2_OPERATIONS, f"tf.{function}"
    elif (
        module.startswith("keras.src.ops")
        or class_name in ("SlicingOpLambda", "TensorFlowOpLayer")
        or _is_legacy_operation(class_name, entry)
    ):
        function = class_name
        table, called = KERAS3_OPERATIONS, f"the operation {class_name}"
    else:
        return ""
    if function not in table:
        raise UnsupportedModel(f"layer {name!r} calls {called[:120]}, which is not read", hint=alternative(class_name))
    return table[function]


def _is_legacy_operation(class_name: str, entry: Mapping[str, Any]) -> bool:
    """Return whether a layer in an `.h5` of Keras 3, which names no modules, is an operation and not a layer.

    Some have the name of a layer; that one takes its tensors as a list, the operation one by one.
    """
    calls = [node for node in entry.get("inbound_nodes") or [] if isinstance(node, Mapping)]
    if "module" in entry or not calls or class_name not in KERAS3_OPERATIONS:
        return False
    return class_name not in LAYERS or len(calls[0]["args"]) > 1 or "newshape" in entry["config"]


def _function(layer: str, value: Any) -> str:
    """Return the name of an activation function, however the file spells it."""
    if value is None:
        return "linear"
    if isinstance(value, Mapping):
        inner = value.get("config")
        name = inner if isinstance(inner, str) else (inner or {}).get("name") or value.get("class_name")
        registered = value.get("registered_name")
        if value.get("class_name") == "function" and registered and ">" in str(registered):
            raise UnsafeSource(f"layer {layer!r} has an activation of its own ({str(registered)[:80]})")
        return str(name).lower()[:80]
    return str(value).lower()[:80]


def _shape(value: Any) -> tuple[int | None, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(None if size is None else int(size) for size in value)


def _store_names(classes: list[str]) -> list[str]:
    """Return the group of each layer in a Keras 3 weights file: its class in snake case, numbered from the second."""
    used: dict[str, int] = {}
    stores = []
    for class_name in classes:
        name = _snake(class_name)
        stores.append(f"{name}_{used[name]}" if name in used else name)
        used[name] = used.get(name, 0) + 1
    return stores


def _snake(name: str) -> str:
    """Return a class's name in snake case, as Keras does it (`keras.src.utils.naming.to_snake_case`)."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
