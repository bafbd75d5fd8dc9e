"""Fields of a configuration: their ranges and choices, said where they are declared and checked everywhere."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from quarl_device.errors import UsageError
from quarl_edge import typed_fields
from quarl_edge.typed_fields import bounded as spec

__all__ = ["check", "choice", "from_toml", "hints", "known", "nearest", "parse", "spec"]


def choice(default: str, *allowed: str) -> Any:
    """A text field that is one of `allowed`."""
    return field(default=default, metadata={"allowed": allowed})


def hints(cls: type) -> dict[str, Any]:
    """Return the type of every field of `cls`, a dataclass."""
    found = typing.get_type_hints(cls)
    return {each.name: found[each.name] for each in dataclasses.fields(cls)}


def known(cls: type, name: str) -> str:
    """Return `name` if it is a field of `cls`.

    Raises:
        UsageError: it is none; names the nearest, or all.
    """
    if name not in hints(cls):
        settings = sorted(set(hints(cls)) - {"env_id"})
        hint = nearest(name, settings) or f"there are {', '.join(settings)}"
        raise UsageError(f"unknown setting {name[:80]!r}", hint=hint)
    return name


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a hint that names the one of `names` that is most like `name`, "" where none is like it."""
    lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name[:80].lower(), lower, n=1, cutoff=0.4)
    return f"did you mean {lower[close[0]]!r}?" if close else ""


def check(config: Any) -> None:
    """Refuse a value of the wrong type, out of its range, or that is no choice.

    Raises:
        UsageError: naming the field.
    """
    types = hints(type(config))
    for found in dataclasses.fields(config):
        value = getattr(config, found.name)
        typed_fields.check_type(found.name, types[found.name], value)
        typed_fields.check_range(found.name, value, found.metadata)
        _check_choice(found.name, value, found.metadata)


def parse(cls: type, name: str, value: str) -> Any:
    """Read the text of a field by its type; raises UsageError."""
    return typed_fields.parse_value(name, hints(cls)[name], value)


def from_toml(cls: type, name: str, value: Any) -> Any:
    """Return a value of a TOML file as the field `name` holds it."""
    return typed_fields.from_toml(hints(cls)[name], value)


def _check_choice(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    allowed = metadata.get("allowed")
    if allowed and value not in allowed:
        raise UsageError(f"{name} = {value[:80]!r}: expected one of {', '.join(allowed)}", hint=nearest(value, allowed))
