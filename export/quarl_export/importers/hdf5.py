"""Reads HDF5 files of others: arrays and attributes alone, nothing outside of the file, nothing over a cap."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError, UnsafeSource
from quarl_device.files import read_capped

MAX_FILE_BYTES = 1 << 30
MAX_ATTRIBUTE_BYTES = 1 << 24
_MAX_OBJECTS = 20_000
# What h5py raises on damaged files: a size of 2**64 - 1 overflows, a field that is not there is no attribute.
_DAMAGE = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, AttributeError, MemoryError)
# Of a number once it is read.
_READ_BYTES = 4
SIGNATURE = b"\x89HDF\r\n\x1a\n"


@contextmanager
def open_hdf5(data: bytes, *, what: str) -> Iterator[h5py.File]:
    """Open HDF5 bytes whose every member has been checked.

    Raises:
        ModelFileError: not HDF5, damaged, over a cap, or with an array that is declared and not stored.
        UnsafeSource: a link out of the file, or data that lie outside of it.
    """
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            _check_group(file, what, _Seen())
            yield file
    except _DAMAGE as error:
        raise ModelFileError(f"{what} cannot be read: {str(error)[:200] or type(error).__name__}") from error


def read_hdf5(path: Path, *, what: str) -> bytes:
    """Return the bytes of an HDF5 file of at most `MAX_FILE_BYTES`."""
    return read_capped(path, cap_bytes=MAX_FILE_BYTES, error=ModelFileError, what=what)


@dataclass
class _Seen:
    """What was counted so far.

    Attributes:
        members: of all groups.
        unpacked: bytes that all datasets have in memory, as float32 where their own numbers are smaller; one that has
            two names counts twice.
    """

    members: int = 0
    unpacked: int = 0


def _check_group(group: h5py.Group, what: str, seen: _Seen) -> None:
    for name in group:
        seen.members += 1
        if seen.members > _MAX_OBJECTS:
            raise ModelFileError(f"{what} has more than {_MAX_OBJECTS:,} members")
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise UnsafeSource(f"{what}: {name[:80]!r} is a link, which could lead out of the file")
        item = group[name]
        if isinstance(item, h5py.Group):
            _check_group(item, what, seen)
        elif isinstance(item, h5py.Dataset):
            _check_dataset(item, name, what, seen)


def _check_dataset(dataset: h5py.Dataset, name: str, what: str, seen: _Seen) -> None:
    if dataset.external or dataset.is_virtual:
        raise UnsafeSource(f"{what}: the data of {name[:80]!r} lie in another file")
    size = int(dataset.size or 0)
    # Compressed data may unfold to far more than the file has.
    seen.unpacked += size * max(_READ_BYTES, dataset.dtype.itemsize)
    if seen.unpacked > MAX_FILE_BYTES:
        raise ModelFileError(f"{what}: with {name[:80]!r} of {size:,} elements it is over its cap in memory")
    if size and not dataset.id.get_storage_size():
        raise ModelFileError(f"{what}: {name[:80]!r} declares {size:,} elements and stores none")


def read_array(group: h5py.Group, name: str) -> NDArray[np.float32]:
    """Return a dataset of numbers as float32.

    Raises:
        ModelFileError: missing, or not numbers.
    """
    item = group.get(name)
    if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "fiu":
        raise ModelFileError(f"the weights file has no array of numbers {group.name}/{name}")
    array: NDArray[np.float32] = np.asarray(item[()]).astype(np.float32)
    return array


def count_numbers(file: h5py.File) -> int:
    """Return how many numbers all datasets of a file can hold: as many as are declared, of a stored byte at least."""
    sizes: list[int] = []

    def count(_: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            sizes.append(min(int(item.size or 0), int(item.id.get_storage_size())))

    file.visititems(count)
    return sum(sizes)


def read_json_attribute(file: h5py.File, name: str, *, what: str) -> Any:
    """Return an attribute that holds JSON, `None` if absent.

    Raises:
        ModelFileError: not JSON, or over its cap.
    """
    value = file.attrs.get(name)
    if value is None:
        return None
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return parse_json(text, what=f"{what}: {name}")


def parse_json(text: str | bytes, *, what: str) -> Any:
    """Return decoded JSON.

    Raises:
        ModelFileError: not JSON, nested too deeply, or over its cap.
    """
    if len(text) > MAX_ATTRIBUTE_BYTES:
        raise ModelFileError(f"{what} is over its cap of {MAX_ATTRIBUTE_BYTES:,} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{what} is not JSON: {str(error)[:120]}") from None
