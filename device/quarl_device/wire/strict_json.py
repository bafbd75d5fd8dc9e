"""Strict JSON for untrusted payloads: capped, no NaN, no duplicate keys, checked field by field.

`loads` turns every way in which JSON can fail into `PayloadRefused`; `Reader` does the same for its fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from quarl_device.errors import PayloadRefused
from quarl_device.wire.limits import MAX_JSON_BYTES, check_incoming, check_outgoing

SCHEMA = 1
MAX_INT = 2**53 - 1
"""Largest integer that every JSON reader keeps exact."""
MAX_REASON = 256
"""Characters of a reason to stand still."""
MAX_UNIX_S = 2.0**40
"""Latest time that is taken for one, in seconds since 1970."""


def dumps(fields: Mapping[str, Any], *, what: str, cap_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Return compact UTF-8 JSON.

    Raises:
        PayloadRefused: a value is NaN, Inf or not JSON.
        PayloadTooLarge: over the cap.
    """
    try:
        data = json.dumps(fields, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise PayloadRefused(f"{what} cannot be written as JSON: {error}") from error
    check_outgoing(len(data), cap_bytes, what=what)
    return data


def loads(payload: bytes, *, what: str, cap_bytes: int = MAX_JSON_BYTES) -> Reader:
    """Read one JSON object.

    Raises:
        PayloadRefused: over the cap, not UTF-8, not JSON, nested too deep, NaN/Inf, a duplicate key, or not an object.
    """
    check_incoming(len(payload), cap_bytes, what=what)
    try:
        data = json.loads(
            str(payload, "utf-8"),
            object_pairs_hook=_unique,
            parse_float=_finite,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise PayloadRefused(f"{what} is not valid JSON: {_short(error)}") from None
    if not isinstance(data, dict):
        raise PayloadRefused(f"{what}: expected a JSON object, found {type(data).__name__}")
    return Reader(data, what=what)


class Reader:
    """Typed access to the fields of a decoded object; every miss is a `PayloadRefused` that names the field."""

    __slots__ = ("fields", "what")

    def __init__(self, fields: dict[str, Any], *, what: str) -> None:
        self.fields = fields
        self.what = what

    def raw(self, name: str) -> Any:
        """Return the field as JSON gave it."""
        try:
            return self.fields[name]
        except KeyError:
            raise PayloadRefused(f"{self.what}: {name!r} is missing") from None

    def schema(self) -> None:
        """Refuse any schema but ours."""
        found = self.raw("schema")
        if found != SCHEMA or isinstance(found, bool):
            raise PayloadRefused(f"{self.what}: schema {_short(found)} is not {SCHEMA}")

    def integer(self, name: str, *, low: int = 0, high: int = MAX_INT) -> int:
        """Return an integer in low..high."""
        value = self.raw(name)
        if type(value) is not int or not low <= value <= high:
            raise self._mistyped(name, f"an integer in {low}..{high}", value)
        return value

    def number(self, name: str, *, low: float = -1e300, high: float = 1e300) -> float:
        """Return a finite number in low..high as float."""
        value = self.raw(name)
        if type(value) not in (int, float) or not low <= value <= high:
            raise self._mistyped(name, f"a finite number in {low:g}..{high:g}", value)
        return float(value)

    def boolean(self, name: str) -> bool:
        """Return true or false."""
        value = self.raw(name)
        if type(value) is not bool:
            raise self._mistyped(name, "true or false", value)
        return value

    def text(self, name: str, *, max_length: int = 1024) -> str:
        """Return a string of at most `max_length` characters."""
        value = self.raw(name)
        if type(value) is not str or len(value) > max_length:
            raise self._mistyped(name, f"a string of at most {max_length} characters", value)
        return value

    def unix_s(self, name: str) -> float:
        """Return a time in seconds since 1970."""
        return self.number(name, low=0.0, high=MAX_UNIX_S)

    def line(self, name: str, *, max_length: int) -> str:
        """Return a string that a terminal or a log shows as it is: printable, on one line."""
        value = self.text(name, max_length=max_length)
        if not value.isprintable():
            raise self._mistyped(name, "printable characters on one line", value)
        return value

    def choice(self, name: str, choices: Iterable[str]) -> str:
        """Return one of `choices`."""
        value = self.raw(name)
        allowed = tuple(choices)
        if type(value) is not str or value not in allowed:
            raise self._mistyped(name, " or ".join(map(repr, allowed)), value)
        return value

    def object(self, name: str) -> dict[str, Any]:
        """Return a JSON object."""
        value = self.raw(name)
        if type(value) is not dict:
            raise self._mistyped(name, "an object", value)
        return value

    def array(self, name: str, *, max_length: int) -> list[Any]:
        """Return a JSON array of at most `max_length` items."""
        value = self.raw(name)
        if type(value) is not list or len(value) > max_length:
            raise self._mistyped(name, f"an array of at most {max_length}", value)
        return value

    def _mistyped(self, name: str, expected: str, value: Any) -> PayloadRefused:
        return PayloadRefused(f"{self.what}: {name!r} is {_short(value)}, expected {expected}")


def one_line(text: str, *, max_length: int) -> str:
    """Return text as `Reader.line` takes it: what is not printable becomes a space, what is too long is cut."""
    return "".join(char if char.isprintable() else " " for char in text[:max_length])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is not finite")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def _short(value: object) -> str:
    """Return at most 80 characters of an untrusted value, on one line."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (dict, list)):
        return f"{type(value).__name__} of {len(value)}"
    return (str(value) if isinstance(value, Exception) else repr(value))[:80]
