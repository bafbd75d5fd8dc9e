"""Values of dataclass fields: read from text and TOML by the field's type, and checked by type and range.

A type is `bool`, `int`, `float`, `str`, a `tuple` of one of them, or one of these `| None`.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from quarl_device.errors import UsageError

INF = math.inf
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def bounded(default: Any, low: float, high: float, *, above: bool = False) -> Any:
    """Return a numeric field in low..high; with `above` the lower bound itself is not allowed."""
    return field(default=default, metadata={"low": low, "high": high, "above": above})


def parse_value(name: str, hint: Any, value: str) -> Any:
    """Read the text of `--set name=value`.

    Raises:
        UsageError: it is not of the field's type.
    """
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


def from_toml(hint: Any, value: Any) -> Any:
    """Return a TOML value as a field of this type holds it: tuples for arrays, floats for whole numbers."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if _kind(hint) is float and type(value) is int else value


def check_type(name: str, hint: Any, value: Any) -> None:
    """Refuse a value of another type, and NaN or Inf; raises UsageError."""
    if value is None and type(None) in typing.get_args(hint):
        return
    kind = _kind(hint)
    if typing.get_origin(kind) is tuple:
        holds = isinstance(value, tuple) and all(_is(typing.get_args(kind)[0], item) for item in value)
    else:
        holds = _is(kind, value)
    if not holds:
        raise UsageError(f"{name} = {value!r}: expected {_describe(hint)}")


def check_range(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Refuse a value, or an item of a tuple, out of the range that `bounded` gave the field; raises UsageError."""
    if value is None or "low" not in metadata:
        return
    low, high, above = metadata["low"], metadata["high"], metadata["above"]
    for item in value if isinstance(value, tuple) else (value,):
        if not low <= item <= high or (above and item == low):
            start = f"above {low:,}" if above else f"at least {low:,}"
            end = "" if high == INF else f" and at most {high:,}"
            raise UsageError(f"{name} = {value}: expected {start}{end}")


def _number(kind: Any, text: str) -> Any:
    if kind is str:
        return text.strip()
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


def _is(kind: Any, value: Any) -> bool:
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind


def _kind(hint: Any) -> Any:
    """Return the type of a field, `| None` taken off."""
    if isinstance(hint, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return hint


def _describe(hint: Any) -> str:
    kind = _kind(hint)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    if typing.get_origin(kind) is tuple:
        texts = typing.get_args(kind)[0] is str
        text = "texts with commas between" if texts else "numbers with commas between, such as 128,128"
    else:
        text = names[kind]
    return f"{text}, or none" if hint is not kind else text
