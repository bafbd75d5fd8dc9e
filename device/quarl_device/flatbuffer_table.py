"""Flatbuffer tables with every offset checked before it is followed: what the C++ verifier does, field by field."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError

MAX_TABLES = 4096
MAX_TEXT_BYTES = 1024
# Offsets may overlap, so a small file can name far more tables and elements than it has bytes.
MAX_ELEMENTS = 1_000_000
MAX_SLOTS = 64

_U16X2, U8, I8 = struct.Struct("<HH"), struct.Struct("<B"), struct.Struct("<b")
U32, I32, _F32, U64 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<f"), struct.Struct("<Q")
T = TypeVar("T")


class Source:
    """The file and how many elements of it may still be read."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data, self.left = data, MAX_ELEMENTS

    def spend(self, count: int) -> None:
        """Count elements before they are read; raises ModelFileError over the budget."""
        self.left -= count
        if self.left < 0:
            raise ModelFileError(f"TFLite file names more than {MAX_ELEMENTS:,} tables, indices and scales")


class Table:
    """A flatbuffer table whose vtable has been checked; each getter checks its field."""

    __slots__ = ("_data", "_fields", "_position", "_size", "_source", "_what")

    def __init__(self, source: Source, position: int, what: str, slots: int) -> None:
        source.spend(1)
        self._source, self._position, self._what = source, position, what
        self._data = data = source.data
        if not 0 < position <= len(data) - 4 or position % 4:
            raise self._bad(f"lies at {position}")
        vtable = position - I32.unpack_from(data, position)[0]
        if not 0 <= vtable <= len(data) - 4 or vtable % 2:
            raise self._bad(f"has a vtable at {vtable}")
        vtable_size, self._size = _U16X2.unpack_from(data, vtable)
        count = (vtable_size - 4) // 2
        if vtable_size % 2 or not 0 <= count <= MAX_SLOTS or vtable + vtable_size > len(data):
            raise self._bad(f"has a vtable of {vtable_size} bytes")
        if self._size < 4 or position + self._size > len(data):
            raise self._bad(f"is {self._size} bytes long")
        self._fields: tuple[int, ...] = struct.unpack_from(f"<{count}H", data, vtable + 4)
        if any(self._fields[slots:]):
            raise ModelFileError(f"TFLite file: {what} uses fields of a newer schema than this version knows")

    def _bad(self, found: str) -> ModelFileError:
        return ModelFileError(f"TFLite file is damaged: {self._what} {found} in a file of {len(self._data)} bytes")

    def _at(self, slot: int, width: int) -> int:
        """Return the absolute position of a field of `width` bytes, 0 if absent."""
        offset = self._fields[slot] if slot < len(self._fields) else 0
        if offset == 0:
            return 0
        position = self._position + offset
        if offset < 4 or offset + width > self._size or position % width:
            raise self._bad(f"has field {slot} at {offset}")
        return position

    def has(self, slot: int) -> bool:
        """Return whether the field is present."""
        return slot < len(self._fields) and self._fields[slot] != 0

    def integer(self, slot: int, layout: struct.Struct, default: int = 0) -> int:
        """Return an integer field."""
        position = self._at(slot, layout.size)
        return int(layout.unpack_from(self._data, position)[0]) if position else default

    def real(self, slot: int) -> float | None:
        """Return a float32 field, `None` if absent."""
        position = self._at(slot, 4)
        return float(_F32.unpack_from(self._data, position)[0]) if position else None

    def _follow(self, slot: int) -> int:
        position = self._at(slot, 4)
        if not position:
            return 0
        target = position + int(U32.unpack_from(self._data, position)[0])
        if target == position or target > len(self._data) - 4 or target % 4:
            raise self._bad(f"has field {slot} leading to {target}")
        return target

    def vector(self, slot: int, width: int, cap: int | None = None) -> tuple[int, int]:
        """Return (start, count) of a vector's elements; (0, 0) if absent."""
        target = self._follow(slot)
        if not target:
            return 0, 0
        count = int(U32.unpack_from(self._data, target)[0])
        start = target + 4
        if start + count * width > len(self._data) or (start % width and count):
            raise self._bad(f"has in field {slot} a vector of {count} elements at {start}")
        if cap is not None and count > cap:
            raise ModelFileError(
                f"TFLite file: {self._what} has {count} elements in field {slot}, expected at most {cap}"
            )
        return start, count

    def integers(self, slot: int, cap: int) -> tuple[int, ...]:
        """Return a vector of int32, empty if absent."""
        start, count = self.vector(slot, 4, cap)
        self._source.spend(count)
        return struct.unpack_from(f"<{count}i", self._data, start)

    def array(self, slot: int, dtype: str) -> NDArray[np.generic]:
        """Return a vector as a read-only view, empty if absent."""
        kind = np.dtype(dtype)
        start, count = self.vector(slot, kind.itemsize)
        self._source.spend(count)
        return np.frombuffer(self._data, dtype=kind, count=count, offset=start)

    def text(self, slot: int) -> str:
        """Return a string, empty if absent; bytes that are not UTF-8 become U+FFFD."""
        start, count = self.vector(slot, 1, MAX_TEXT_BYTES)
        if start and (start + count >= len(self._data) or self._data[start + count] != 0):
            raise self._bad(f"has in field {slot} a string without its end mark")
        return self._data[start : start + count].decode("utf-8", "replace")

    def table(self, slot: int, what: str, slots: int) -> Table | None:
        """Return a table of at most `slots` known fields, `None` if absent."""
        target = self._follow(slot)
        return Table(self._source, target, what, slots) if target else None

    def tables(self, slot: int, what: str, slots: int, build: Callable[[int, Table], T]) -> tuple[T, ...]:
        """Return what `build(number, table)` makes of each table in a vector."""
        start, count = self.vector(slot, 4, MAX_TABLES)
        self._source.spend(count)
        offsets = struct.unpack_from(f"<{count}I", self._data, start)
        places = (start + 4 * n + offset for n, offset in enumerate(offsets))
        return tuple(build(n, Table(self._source, place, f"{what} {n}", slots)) for n, place in enumerate(places))
