"""numpy arrays, dtypes and scalars as pickles hold them, rebuilt from their bytes by functions of ours.

numpy 1 and 2 name the same reconstructors in different modules; both are known. Object arrays are refused: they hold
pickles of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError
from quarl_export.importers.sb3.unpickle import shown

MAX_ARRAY_ELEMENTS = 16_777_216
_CODE = re.compile(r"[fiu][1248]|b1")


class PickledDtype:
    """A dtype: made from its code, then told its byte order.

    Attributes:
        dtype: plain numbers only.
    """

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            raise ModelFileError(f"a pickled array has dtype {shown(code)}; only plain numbers are read")
        self.dtype: np.dtype[Any] = np.dtype(code)

    def build(self, state: Any) -> None:
        """Take (version, byte order, ...)."""
        order = state[1]
        if order not in ("<", ">", "|", "="):
            raise ValueError(f"byte order {shown(order)}")
        self.dtype = self.dtype.newbyteorder("<" if order == "=" else order)


class PickledArray:
    """An array: made empty and then given its bytes, or made from them."""

    def __init__(self, *_: Any) -> None:
        self._array: NDArray[Any] | None = None

    @classmethod
    def from_buffer(cls, data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> PickledArray:
        """Stand for numpy's `_frombuffer`; `axes` say how a transposed array lies (numpy 2.3 and later)."""
        made = cls()
        made.build((1, shape, dtype, order == "F", data))
        if order == "K" and axes is not None and made._array is not None:
            if not _is_permutation(axes, made._array.ndim):
                raise ValueError("an array's order of axes")
            made._array = made._array.transpose(axes)
        return made

    def build(self, state: Any) -> None:
        """Take (version, shape, dtype, is Fortran, bytes)."""
        _, shape, dtype, fortran, data = state
        shape = (shape,) if isinstance(shape, int) else shape
        if not isinstance(dtype, PickledDtype) or not isinstance(data, (bytes, bytearray)):
            raise ValueError("an array without a plain dtype and bytes")
        if len(shape) > 8 or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ValueError("an array's shape")
        count = math.prod(shape)
        if count > MAX_ARRAY_ELEMENTS or count * dtype.dtype.itemsize != len(data):
            raise ValueError(f"an array of shape {tuple(shape)[:8]} in {len(data)} bytes")
        flat = np.frombuffer(data, dtype.dtype)
        self._array = flat.reshape(shape, order="F" if fortran else "C")

    @property
    def array(self) -> NDArray[Any]:
        """The array, in native byte order."""
        if self._array is None:
            raise ModelFileError("a pickled array has no content")
        return self._array.astype(self._array.dtype.newbyteorder("="))


def _is_permutation(axes: Any, count: int) -> bool:
    if not isinstance(axes, (tuple, list)) or len(axes) != count or not all(isinstance(axis, int) for axis in axes):
        return False
    return sorted(axes) == list(range(count))


def _scalar(dtype: Any, data: Any) -> int | float | bool:
    if not isinstance(dtype, PickledDtype) or len(data) != dtype.dtype.itemsize:
        raise ValueError("a scalar without a plain dtype")
    value: int | float | bool = np.frombuffer(bytes(data), dtype.dtype)[0].item()
    return value


ARRAY_CALLS: Mapping[str, Callable[..., Any]] = {
    "numpy.dtype": PickledDtype,
    **{f"numpy.{core}.multiarray._reconstruct": PickledArray for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": PickledArray.from_buffer for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
}
ARRAY_NAMES = ("numpy.ndarray",)


def as_array(value: Any, *, what: str) -> NDArray[Any]:
    """Return a pickled array.

    Raises:
        ModelFileError: it is none.
    """
    if not isinstance(value, PickledArray):
        raise ModelFileError(f"{what}: expected an array, found {type(value).__name__}")
    return value.array


def as_floats(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return `array` as float64; a NaN of any kind stays a NaN, without a warning."""
    with np.errstate(invalid="ignore"):
        return array.astype(np.float64)
