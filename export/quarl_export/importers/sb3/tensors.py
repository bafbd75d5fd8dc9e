"""Reads torch's tensor archive (`torch.save` of a state dict) without torch.

The archive is a zip: `<prefix>/data.pkl` says which tensors there are, `<prefix>/data/<n>` hold the bytes of their
storages, `<prefix>/byteorder` their byte order. The pickle may name an ordered dict, torch's tensor maker and its
storage types, and nothing else (torch/serialization.py, torch/_utils.py; format version 3).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError
from quarl_export.importers.sb3.archive import Members
from quarl_export.importers.sb3.unpickle import Global, Vocabulary, empty_dict, read_pickle

MAX_PICKLE_BYTES = 8 << 20
MAX_STORAGE_BYTES = 512 << 20
MAX_TENSORS = 4_096
MAX_ELEMENTS = 128 << 20
"""Of all tensors that are kept, together."""

_FLOATS = {"FloatStorage": "f4", "DoubleStorage": "f8", "HalfStorage": "f2"}
_BRAINS = {"BFloat16Storage": "u2"}
_INTEGERS = {
    "LongStorage": "i8", "IntStorage": "i4", "ShortStorage": "i2",
    "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "b1",
}  # fmt: skip
_STORAGES = {f"torch.{name}": code for name, code in (_FLOATS | _BRAINS | _INTEGERS).items()}


@dataclass(frozen=True, kw_only=True)
class _Storage:
    kind: str
    key: str
    elements: int


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """A window on a storage; all counts in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class TensorArchive:
    """The tensors of a state dict.

    Attributes:
        names: of all of them, in the state dict's order.

    Args:
        data: bytes of a `.pth` file; the caller caps their number.
        what: for messages.

    Raises:
        ModelFileError: no torch archive, an old one, or a damaged one.
        UnsafeSource: its pickle names what is not allowed.
    """

    def __init__(self, data: bytes, *, what: str) -> None:
        if not data.startswith(b"PK"):
            raise ModelFileError(
                f"{what} is not a torch archive of the zip format",
                hint="files from before torch 1.6 must be loaded and saved again with the newest Stable-Baselines3",
            )
        self._what = what
        self._members = Members(io.BytesIO(data), what=what)
        pickles = [name for name in self._members.sizes if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ModelFileError(f"{what}: a torch archive has one data.pkl, found {len(pickles)}")
        self._prefix = pickles[0].removesuffix("data.pkl")
        self._order = _byte_order(self._members, self._prefix, what)
        self._tensors = _state_dict(self._members.read(pickles[0], cap_bytes=MAX_PICKLE_BYTES), what)
        self.names = tuple(self._tensors)

    def read(self, keep: Callable[[str], bool]) -> Mapping[str, NDArray[Any]]:
        """Return the tensors whose name `keep` accepts, floating ones as float32; the others' bytes are not looked at.

        Raises:
            ModelFileError: damaged, or over a cap.
        """
        kept = {name: tensor for name, tensor in self._tensors.items() if keep(name)}
        total = sum(math.prod(tensor.shape) for tensor in kept.values())
        if total > MAX_ELEMENTS:
            raise ModelFileError(f"{self._what}: {total:,} weights are over the cap of {MAX_ELEMENTS:,}")
        if len(kept) > MAX_TENSORS:
            raise ModelFileError(f"{self._what}: {len(kept):,} tensors are over the cap of {MAX_TENSORS:,}")
        by_storage: dict[str, list[str]] = {}
        for name, tensor in kept.items():
            by_storage.setdefault(tensor.storage.key, []).append(name)
        arrays: dict[str, NDArray[Any]] = {}
        for key, names in by_storage.items():
            # Inflated once, however many tensors share it.
            data = self._members.read(f"{self._prefix}data/{key}", cap_bytes=MAX_STORAGE_BYTES)
            arrays.update({name: self._array(kept[name], data, f"{self._what}: {name[:80]}") for name in names})
        return {name: arrays[name] for name in kept}

    def _array(self, tensor: _Tensor, data: bytes, what: str) -> NDArray[Any]:
        storage = tensor.storage
        kind = storage.kind.removeprefix("torch.")
        dtype = np.dtype(self._order + _STORAGES[storage.kind])
        if len(data) != storage.elements * dtype.itemsize:
            raise ModelFileError(
                f"{what}: its storage has {len(data):,} bytes for {storage.elements:,} elements of {kind}"
            )
        flat = np.frombuffer(data, dtype)[tensor.offset :]
        strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
        window = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)
        if kind in _BRAINS:
            # The upper half of a float32.
            return (window.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            # What does not fit float32 becomes Inf, which whoever uses it refuses.
            return window.astype(np.float32 if kind in _FLOATS else np.dtype(_STORAGES[storage.kind]))


def _state_dict(pickled: bytes, what: str) -> dict[str, _Tensor]:
    vocabulary = Vocabulary(
        calls={"collections.OrderedDict": empty_dict, "torch._utils._rebuild_tensor_v2": _tensor},
        names=tuple(_STORAGES),
        persistent=_storage,
    )
    state = read_pickle(pickled, vocabulary, what=what)
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise ModelFileError(f"{what}: expected a dict of tensors, found {type(state).__name__}")
    others = [name for name, value in state.items() if not isinstance(value, _Tensor)]
    if others:
        raise ModelFileError(f"{what}: {others[0][:80]!r} is not a tensor")
    return state


def _byte_order(members: Members, prefix: str, what: str) -> str:
    name = f"{prefix}byteorder"
    order = members.read(name, cap_bytes=16) if name in members.sizes else b"little"
    if order not in (b"little", b"big"):
        raise ModelFileError(f"{what}: byte order {order[:16]!r} is not little or big")
    return "<" if order == b"little" else ">"


def _storage(identity: Any) -> _Storage:
    """Take torch's persistent id: ("storage", type, key, device, number of elements)."""
    tag, kind, key, _, elements = identity
    if tag != "storage" or not isinstance(kind, Global) or kind.name not in _STORAGES:
        raise ValueError("a persistent id that is no storage of torch")
    if not isinstance(key, str) or not key.isalnum() or not _natural(elements):
        raise ValueError("a storage's key or size")
    return _Storage(kind=kind.name, key=key, elements=elements)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    """Stand for `torch._utils._rebuild_tensor_v2`: check that the window lies inside its storage."""
    if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise ValueError("a tensor without a storage or shape")
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or len(shape) > 8 or not all(_natural(number) for number in numbers):
        raise ValueError("a tensor's shape")
    count = math.prod(shape)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if count else 0
    # More elements than there are bytes for would be a bomb made of a stride of 0.
    if count > storage.elements or (count and last >= storage.elements):
        raise ValueError(f"a tensor of shape {shape[:8]} does not lie in its storage of {storage.elements}")
    return _Tensor(storage=storage, offset=offset, shape=shape, strides=strides)


def _natural(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= 1 << 40
