"""Flattens a Keras model into single layer calls, in order: nested models opened, layers called twice split.

Only what an output depends on is visited, so critics and unused branches stay behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError, UnsupportedModel
from quarl_export.importers.keras_config import LayerConfig, ModelConfig
from quarl_export.importers.keras_wiring import Call, Ref
from quarl_export.ir.layers import Shape

MAX_NODES = 1000
MAX_CHAIN = 150
"""Longest chain of calls that is followed; longer ones would end in Python's own recursion limit."""

Operand = str | NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a layer sits.

    Attributes:
        path: names of the models it is in, top-level one left out, and its own.
        store: the same in a Keras 3 weights file.
    """

    path: tuple[str, ...]
    store: tuple[str, ...]


WeightReader = Callable[[Place, LayerConfig], Sequence[NDArray[Any]]]


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceNode:
    """One call of one layer.

    Attributes:
        name: unique in the flattened model.
        path: of the layer; the same for every call of one layer.
        class_name: see `LayerConfig`.
        config: see `LayerConfig`.
        operands: names of inputs or earlier nodes, or constants.
        settings: of the call.
        weights: in Keras's order.
    """

    name: str
    path: tuple[str, ...]
    class_name: str
    config: Mapping[str, Any]
    operands: tuple[Operand, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: tuple[NDArray[Any], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class FlatModel:
    """A model as single calls.

    Attributes:
        inputs: name to shape without batch.
        dtypes: name to numpy dtype name.
        nodes: in an order in which each one's operands come before it.
        outputs: name to the node or input that gives it.
    """

    inputs: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    nodes: tuple[SourceNode, ...]
    outputs: Mapping[str, str]


def flatten_model(model: ModelConfig, weights: WeightReader) -> FlatModel:
    """Return `model` as single calls with their weights.

    Raises:
        UnsupportedModel: an input without fixed shape, a layer called in training mode, or a model without end.
        ModelFileError: wiring that does not hold.
    """
    shapes, dtypes = _inputs(model)
    flattening = _Flattening(weights, set(shapes))
    try:
        outputs = flattening.model(model, list(shapes), Place(path=(), store=()))
    except RecursionError as error:  # pragma: no cover - MAX_CHAIN comes first
        raise UnsupportedModel("the model's layers are chained too deeply") from error
    names = list(model.outputs) or [list(model.layers)[-1]]
    return FlatModel(
        inputs=shapes, dtypes=dtypes, nodes=tuple(flattening.nodes), outputs=dict(zip(names, outputs, strict=True))
    )


def _inputs(model: ModelConfig) -> tuple[dict[str, Shape], dict[str, str]]:
    if not model.layers:
        raise UnsupportedModel(f"model {model.name!r} has no layers")
    if model.sequential:
        first = next(iter(model.layers.values()))
        given = _given_shape(first) or model.input_shape
        dtype = _dtype(first) if first.is_input else "float32"
        return {first.name if first.is_input else f"{first.name}_input": _fixed(first.name, given)}, {
            (first.name if first.is_input else f"{first.name}_input"): dtype
        }
    shapes, dtypes = {}, {}
    for name, ref in model.inputs.items():
        layer = _find(model, ref)
        shapes[name], dtypes[name] = _fixed(name, _given_shape(layer)), _dtype(layer)
    return shapes, dtypes


def _given_shape(layer: LayerConfig) -> tuple[int | None, ...] | None:
    shape = layer.config.get("batch_shape") or layer.config.get("batch_input_shape")
    return tuple(shape) if isinstance(shape, list) else None


def _dtype(layer: LayerConfig) -> str:
    dtype = layer.config.get("dtype")
    return dtype if isinstance(dtype, str) else "float32"


def _fixed(name: str, shape: tuple[int | None, ...] | None) -> Shape:
    if shape is None:
        raise UnsupportedModel(
            f"input {name!r} has no shape: the model was never built",
            hint="call the model once, or give it a keras.Input, and save it again",
        )
    sizes = [size for size in shape[1:] if isinstance(size, int) and size > 0]
    if len(sizes) != len(shape) - 1 or not sizes:
        raise UnsupportedModel(
            f"input {name!r} has the shape {shape}; a policy file needs every size but the batch's",
            hint="build the model with a fixed input shape of at least one axis",
        )
    return tuple(sizes)


def _find(model: ModelConfig, ref: Ref) -> LayerConfig:
    if ref.layer not in model.layers:
        raise ModelFileError(f"Keras model does not hold: {model.name!r} wires a layer {ref.layer[:80]!r} it lacks")
    return model.layers[ref.layer]


class _Flattening:
    def __init__(self, weights: WeightReader, names: set[str]) -> None:
        self._weights, self._taken = weights, set(names)
        self.nodes: list[SourceNode] = []
        self._depth = 0

    def model(self, model: ModelConfig, inputs: Sequence[Operand], place: Place) -> list[Any]:
        """Flatten one call of a model and return its outputs' operands, in order."""
        if model.sequential:
            return [self._sequence(model, inputs, place)]
        if len(inputs) != len(model.inputs):
            raise ModelFileError(f"Keras model does not hold: {model.name!r} is called with {len(inputs)} tensors")
        bound = {ref.layer: operand for ref, operand in zip(model.inputs.values(), inputs, strict=True)}
        done: dict[tuple[str, int], list[Operand]] = {}
        return [self._resolve(model, ref, bound, done, place) for ref in model.outputs.values()]

    def _sequence(self, model: ModelConfig, inputs: Sequence[Operand], place: Place) -> Operand:
        if len(inputs) != 1:
            raise ModelFileError(f"Keras model does not hold: {model.name!r} is called with {len(inputs)} tensors")
        operand = inputs[0]
        for layer in model.layers.values():
            if not layer.is_input:
                (operand,) = self._apply(layer, 0, [operand], {}, place)[:1]
        return operand

    def _resolve(
        self,
        model: ModelConfig,
        ref: Ref,
        bound: Mapping[str, Operand],
        done: dict[tuple[str, int], list[Operand]],
        place: Place,
    ) -> Operand:
        layer = _find(model, ref)
        if ref.layer in bound:
            return bound[ref.layer]
        index = ref.node - layer.first_call
        if not 0 <= index < len(layer.calls):
            raise ModelFileError(f"Keras model does not hold: layer {layer.name!r} has no call {ref.node}")
        if (layer.name, index) not in done:
            self._depth += 1
            if self._depth > MAX_CHAIN:
                raise UnsupportedModel(f"more than {MAX_CHAIN} layers are chained, or they form a circle")
            call = layer.calls[index]
            operands = [
                self._resolve(model, item, bound, done, place) if isinstance(item, Ref) else _constant(layer, item)
                for item in _in_order(layer, call)
            ]
            done[layer.name, index] = self._apply(layer, index, operands, call.settings, place)
            self._depth -= 1
        outputs = done[layer.name, index]
        if not 0 <= ref.tensor < len(outputs):
            raise ModelFileError(f"Keras model does not hold: layer {layer.name!r} has no output {ref.tensor}")
        return outputs[ref.tensor]

    def _apply(
        self, layer: LayerConfig, index: int, operands: list[Operand], settings: Mapping[str, Any], place: Place
    ) -> list[Operand]:
        here = Place(path=(*place.path, layer.name), store=(*place.store, layer.store))
        if layer.model is not None:
            return self.model(layer.model, operands, here)
        if settings.get("training"):
            raise UnsupportedModel(
                f"layer {layer.name!r} is called with training=True", hint="a policy acts with what it has learned"
            )
        if len(self.nodes) >= MAX_NODES:
            raise UnsupportedModel(f"the model has more than {MAX_NODES} layers when nested ones are opened")
        name = self._unique("_".join(here.path), index)
        weights = tuple(np.asarray(array) for array in self._weights(here, layer))
        node = SourceNode(
            name=name,
            path=here.path,
            class_name=layer.class_name,
            config=layer.config,
            operands=tuple(operands),
            settings=settings,
            weights=weights,
        )
        self.nodes.append(node)
        return [name]

    def _unique(self, name: str, index: int) -> str:
        """Return a name that is not taken; a layer that is called again gets its number behind it."""
        wanted = f"{name}_{index}" if index else name
        number = index
        while wanted in self._taken:
            number += 1
            wanted = f"{name}_{number}"
        self._taken.add(wanted)
        return wanted


def _in_order(layer: LayerConfig, call: Call) -> tuple[Any, ...]:
    """Return a call's operands in the order in which a nested model names its inputs."""
    if layer.model is None or not call.keys or layer.model.sequential:
        return call.args
    by_key = dict(zip(call.keys, call.args, strict=True))
    return tuple(by_key[key] for key in layer.model.inputs) if set(by_key) == set(layer.model.inputs) else call.args


def _constant(layer: LayerConfig, value: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise UnsupportedModel(f"layer {layer.name!r} is called with {str(value)[:80]!r}, which is not read") from None
