"""How the layers of a Keras model are wired, in the spellings of versions 2 and 3.

Version 2 writes ``[["layer", node, tensor, {kwargs}], ...]``, version 3
``{"args": [{"class_name": "__keras_tensor__", ...}], "kwargs": {...}}``; both become `Call`s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Ref:
    """One tensor: of which layer, which of its calls, which of that call's outputs."""

    layer: str
    node: int
    tensor: int


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a layer.

    Attributes:
        args: tensors and constants (numbers or nested lists of numbers), in order; lists of tensors are flattened.
        keys: where the tensors came as a dict, its keys in the order of `args`.
        settings: keyword arguments that are neither.
    """

    args: tuple[Any, ...]
    keys: tuple[str, ...] = ()
    settings: Mapping[str, Any]


def read_calls(nodes: Any, names: set[str]) -> Iterator[Call]:
    """Yield each call of a layer.

    Args:
        nodes: the layer's `inbound_nodes`.
        names: of all layers of its model, to tell tensors from lists of constants.
    """
    for node in nodes:
        if isinstance(node, Mapping):
            yield _call(list(node.get("args", ())), dict(node.get("kwargs") or {}), names)
        elif node and isinstance(node[0], str):
            yield _call([_entry(node)], _keywords(node), names)
        elif isinstance(node, list) and node:
            yield _call([_entry(item) for item in node], _keywords(node[0]), names)
        else:
            raise ValueError(f"a call without inputs: {str(node)[:80]}")


def _entry(item: Any) -> Any:
    return item[2] if item[0] == "_CONSTANT_VALUE" else list(item[:3])


def _keywords(item: Any) -> dict[str, Any]:
    return dict(item[3] or {}) if len(item) > 3 else {}


def _call(args: list[Any], keywords: dict[str, Any], names: set[str]) -> Call:
    keys = (
        tuple(sorted(args[0])) if len(args) == 1 and isinstance(args[0], dict) and "class_name" not in args[0] else ()
    )
    given = [args[0][key] for key in keys] if keys else args
    operands = [part for value in given for part in _operands(value, names)]
    settings = {}
    for key, value in keywords.items():
        if key in ("y", "x2", "inputs", "values", "xs") or _is_ref(value, names):
            operands.extend(_operands(value, names))
        elif value is not None and key != "name":
            settings[key] = plain(value)
    return Call(args=tuple(operands), keys=keys, settings=settings)


def _is_ref(value: Any, names: set[str]) -> bool:
    if isinstance(value, Mapping):
        return value.get("class_name") == "__keras_tensor__"
    spelled = isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and value[0] in names
    return spelled and all(isinstance(number, int) for number in value[1:])


def _operands(value: Any, names: set[str]) -> list[Any]:
    """Return the tensors and constants in one argument."""
    if _is_ref(value, names):
        layer, node, tensor = value["config"]["keras_history"] if isinstance(value, Mapping) else value
        return [Ref(layer=str(layer), node=int(node), tensor=int(tensor))]
    if isinstance(value, list) and any(_is_ref(part, names) for part in value):
        return [part for item in value for part in _operands(item, names)]
    return [plain(value)]


def read_ends(value: Any) -> list[tuple[str, Ref]]:
    """Return names and tensors of a model's inputs or outputs: one, a list, or a dict of them."""
    value = plain(value)
    if isinstance(value, Mapping):
        return [(str(key), _only(value[key])) for key in sorted(value)]
    if value and isinstance(value[0], str):
        value = [value]
    named: list[tuple[str, Ref]] = []
    for item in value:
        ref = _only(item)
        taken = sum(name == ref.layer or name.startswith(f"{ref.layer}:") for name, _ in named)
        named.append((f"{ref.layer}:{taken}" if taken else ref.layer, ref))
    return named


def _only(item: Any) -> Ref:
    layer, node, tensor = item[:3]
    return Ref(layer=str(layer), node=int(node), tensor=int(tensor))


def plain(value: Any) -> Any:
    """Return a JSON value with Keras's own spellings of tuples and arrays made lists."""
    if isinstance(value, Mapping):
        if value.get("class_name") in ("__tuple__", "TensorShape"):
            return [plain(item) for item in value["items"]]
        if value.get("class_name") == "__numpy__":
            return plain(value["config"]["value"])
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
