"""Fields of a configuration: their types and ranges, said once and checked everywhere; text into values."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from quarl_device.errors import UsageError

_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def spec(default: Any, low: float, high: float, *, above: bool = False) -> Any:
    """A numeric field in low..high; with `above` the lower bound itself is not allowed."""
    return field(default=default, metadata={"low": low, "high": high, "above": above})


def choice(default: str, *allowed: str) -> Any:
    """A text field that is one of `allowed`."""
    return field(default=default, metadata={"allowed": allowed})


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """Return the type of every field of `cls`."""
    found = typing.get_type_hints(cls)
    return {each.name: found[each.name] for each in dataclasses.fields(cls)}


def known(cls: type, name: str) -> str:
    """Return `name` if it is a field of `cls`.

    Raises:
        UsageError: it is none; names the nearest.
    """
    names = hints(cls)
    if name not in names:
        raise UsageError(f"unknown setting {name[:80]!r}", hint=nearest(name, sorted(names)))
    return name


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a hint that names the one of `names` that is most like `name`, "" where none is like it."""
    lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name[:80].lower(), lower, n=1, cutoff=0.4)
    return f"did you mean {lower[close[0]]!r}?" if close else ""


def check(config: Any) -> None:
    """Refuse a value of the wrong type or out of its range.

    Raises:
        UsageError: naming the field.
    """
    types_of = hints(type(config))
    for found in dataclasses.fields(config):
        value = getattr(config, found.name)
        _check_type(found.name, types_of[found.name], value)
        _check_range(found.name, value, found.metadata)
        _check_choice(found.name, value, found.metadata)


def parse(cls: type, name: str, value: str) -> Any:
    """Read the text of a field by its type.

    Raises:
        UsageError: a value of another type.
    """
    hint = hints(cls)[name]
    if type(None) in typing.get_args(hint) and value.lower() in ("none", "null", ""):
        return None
    kind = _kind(hint)
    try:
        if typing.get_origin(kind) is tuple:
            item = typing.get_args(kind)[0]
            return tuple(_number(item, part) for part in value.strip("()[] ").split(",") if part.strip())
        return value if kind is str else _number(kind, value)
    except ValueError:
        raise UsageError(f"--set {name}={value[:80]}: expected {_describe(hint)}") from None


def _number(kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in _BOOLS:
            raise ValueError(text)
        return _BOOLS[text.lower()]
    if kind is float:
        return float(text)
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if number.is_integer():
            return int(number)
        raise


def _check_type(name: str, hint: Any, value: Any) -> None:
    if value is None and type(None) in typing.get_args(hint):
        return
    kind = _kind(hint)
    if typing.get_origin(kind) is tuple:
        holds = isinstance(value, tuple) and all(_is(typing.get_args(kind)[0], item) for item in value)
    else:
        holds = _is(kind, value)
    if not holds:
        raise UsageError(f"{name} = {value!r}: expected {_describe(hint)}")


def _is(kind: Any, value: Any) -> bool:
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind


def _check_range(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    if value is None or "low" not in metadata:
        return
    low, high, above = metadata["low"], metadata["high"], metadata["above"]
    for item in value if isinstance(value, tuple) else (value,):
        if not low <= item <= high or (above and item == low):
            start = f"above {low:,}" if above else f"at least {low:,}"
            end = "" if high == math.inf else f" and at most {high:,}"
            raise UsageError(f"{name} = {value}: expected {start}{end}")


def _check_choice(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    allowed = metadata.get("allowed")
    if allowed and value not in allowed:
        raise UsageError(
            f"{name} = {value[:80]!r}: expected one of {', '.join(allowed)}", hint=nearest(value, allowed)
        )


def from_toml(cls: type, name: str, value: Any) -> Any:
    """Return a value of a TOML file as the field `name` holds it."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if _kind(hints(cls)[name]) is float and type(value) is int else value


def _kind(hint: Any) -> Any:
    """Return the type of a field, `| None` taken off."""
    if isinstance(hint, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return hint


def _describe(hint: Any) -> str:
    kind = _kind(hint)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    text = "numbers with commas between, such as 128,128" if typing.get_origin(kind) is tuple else names[kind]
    return f"{text}, or none" if hint is not kind else text
