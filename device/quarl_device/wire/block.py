"""Blocks of experience in the safetensors format, written and read by a small codec of ours.

A payload is `u64-LE header length, JSON header, tensor bytes`. The header lists the tensors of the spec in one fixed
order, 8-byte types first so that every view is aligned, and ends with `__metadata__`, padded with spaces to a multiple
of 8. All of it but the metadata is constant for given (steps, environments, final rows), so encoding is one `join` of a
cached prefix and the arrays' own memory, and decoding compares bytes instead of parsing them: a header that is not
byte for byte the one that `encode` would write is refused. The safetensors library reads these payloads.

`decode` checks, in this order and before anything is allocated: size of the payload, size of the header, steps,
environments and final rows, total size, layout, metadata; then, on read-only views into the payload, the values: bools
are 0 or 1, floats are finite, discrete actions exist, and the final rows are exactly those where an episode ended.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import PayloadRefused, PayloadTooLarge, SpaceMismatch
from quarl_device.wire.block_spec import (
    BLOCK_SCHEMA,
    FLAGS,
    MAX_DROPPED_RANGES,
    MAX_ENVS,
    MAX_STEPS,
    TYPES,
    Block,
    BlockSpec,
    ExtraSpec,
)
from quarl_device.wire.block_stamp import METADATA_BYTES, METADATA_MARK, head_of, read_metadata
from quarl_device.wire.limits import MAX_BLOCK_BYTES, MAX_BLOCK_HEADER_BYTES, check_incoming, check_outgoing

__all__ = [
    "BLOCK_SCHEMA",
    "MAX_DROPPED_RANGES",
    "MAX_STEPS",
    "Block",
    "BlockCodec",
    "BlockSpec",
    "ExtraSpec",
]

_CACHED_LAYOUTS = 512
_REWARD_SHAPE = re.compile(rb'"reward":\{"dtype":"F32","shape":\[([1-9][0-9]{0,5}),([1-9][0-9]{0,5})\]')
_FINALS_SHAPE = re.compile(rb'"final_index":\{"dtype":"I32","shape":\[(0|[1-9][0-9]{0,7}),2\]')

_all = np.logical_and.reduce
_max = np.maximum.reduce
_min = np.minimum.reduce


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of a payload.

    Attributes:
        name: on the wire.
        group: "" for a field of `Block`, else the mapping that it belongs to.
        key: field of `Block`, or key of the mapping.
        dtype: numpy dtype name.
        lead: which of the leading sizes T (steps), S (steps and stack), N (environments), K (final rows) it has.
        tail: shape after them.
    """

    name: str
    group: str
    key: str
    dtype: str
    lead: str
    tail: tuple[int, ...]
    stack: int = 1


def _tensors(spec: BlockSpec) -> tuple[_Tensor, ...]:
    """Return the tensors in payload order: grouped by dtype, widest first, so that values are checked per group."""
    tensors = [
        _Tensor("reward", "", "reward", "float32", "TN", ()),
        _Tensor("final_index", "", "final_index", "int32", "K", (2,)),
        _Tensor("policy_epoch", "", "policy_epoch", "uint32", "T", ()),
        _Tensor("policy_version", "", "policy_version", "uint32", "T", ()),
        _Tensor("action", "", "action", spec.action.dtype, "TN", spec.action.shape),
        *(_Tensor(name, "", name, "bool", "TN", ()) for name in FLAGS),
    ]
    for seen in spec.observations:
        for group, lead in (("observation", "SN"), ("final_observation", "K")):
            tensors.append(_Tensor(f"{group}/{seen.key}", group, seen.key, seen.dtype, lead, seen.shape, seen.stack))
    tensors += [
        _Tensor(f"extra/{extra.name}", "extra", extra.name, extra.dtype, "TN", extra.shape) for extra in spec.extras
    ]
    rank = {name: place for place, name in enumerate(TYPES)}
    return tuple(sorted(tensors, key=lambda tensor: rank[tensor.dtype]))


class _Layout:
    """Everything that is constant for given steps, environments and final rows."""

    __slots__ = ("body_bytes", "entries", "finals", "prefix", "record", "rows", "steps", "wanted")

    def __init__(self, tensors: tuple[_Tensor, ...], steps: int, envs: int, finals: int) -> None:
        self.steps, self.finals, self.rows = steps, finals, steps * envs
        self.entries: list[bytes] = []
        self.wanted: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
        fields: dict[str, tuple[Any, int]] = {}
        spans: dict[str, tuple[int, int]] = {}
        offset = 0
        for tensor in tensors:
            sizes = {"T": steps, "S": steps + tensor.stack, "N": envs, "K": finals}
            shape = (*(sizes[letter] for letter in tensor.lead), *tensor.tail)
            wire_type, numpy_type = TYPES[tensor.dtype]
            dtype = np.dtype(numpy_type)
            end = offset + math.prod(shape) * dtype.itemsize
            entry = json.dumps(
                {"dtype": wire_type, "shape": shape, "data_offsets": [offset, end]}, separators=(",", ":")
            )
            self.entries.append(f"{json.dumps(tensor.name)}:{entry}".encode())
            self.wanted.append((shape, dtype))
            fields[tensor.name] = ((dtype, shape), offset)
            spans[tensor.dtype] = (spans.get(tensor.dtype, (offset, 0))[0], end)
            offset = end
        # Before the record is made: numpy cannot describe what is over 2 GiB.
        check_outgoing(offset, MAX_BLOCK_BYTES, what=f"block of {steps} steps of {envs} environments")
        self.body_bytes = offset
        self.prefix = b"{" + b",".join(self.entries) + b","
        check_outgoing(len(self.prefix) + METADATA_BYTES, MAX_BLOCK_HEADER_BYTES, what="block header")
        self.record = self._record(fields, spans)

    def _record(self, fields: dict[str, tuple[Any, int]], spans: dict[str, tuple[int, int]]) -> np.dtype[Any]:
        """Return a structured dtype of the whole body: one view of it gives every array for the price of a look-up.

        Beside the tensors it has overlapping fields for the checks: "*f4", "*f8" (all floats of a width), "*flags" (all
        bools as bytes) and "*ends" (terminated and truncated as bytes).
        """
        for name, dtype, source in (("*f4", "<f4", "float32"), ("*f8", "<f8", "float64"), ("*flags", "|u1", "bool")):
            start, end = spans.get(source, (0, 0))
            fields[name] = ((np.dtype(dtype), ((end - start) // np.dtype(dtype).itemsize,)), start)
        fields["*ends"] = ((np.dtype("|u1"), (2 * self.rows,)), spans["bool"][0])
        return np.dtype(
            {
                "names": list(fields),
                "formats": [form for form, _ in fields.values()],
                "offsets": [offset for _, offset in fields.values()],
                "itemsize": self.body_bytes,
            }
        )


class BlockCodec:
    """Encodes and decodes the blocks of one spec. Not thread-safe: each thread makes its own.

    Args:
        spec: what the blocks must carry.
        max_magnitude: largest absolute float that `decode` takes; never NaN or Inf.
    """

    def __init__(self, spec: BlockSpec, *, max_magnitude: float = math.inf) -> None:
        self.spec = spec
        self._highest_f4 = np.float32(min(max_magnitude, float(np.finfo(np.float32).max)))
        self._highest_f8 = np.float64(min(max_magnitude, float(np.finfo(np.float64).max)))
        self._tensors = _tensors(spec)
        self._by_size: dict[tuple[int, int, int], _Layout] = {}
        self._by_prefix: dict[bytes, _Layout] = {}
        self._observation = [(s.key, f"observation/{s.key}") for s in spec.observations]
        self._final_observation = [(s.key, f"final_observation/{s.key}") for s in spec.observations]
        self._extra = [(s.name, f"extra/{s.name}") for s in spec.extras]
        self._has_f8 = any(tensor.dtype == "float64" for tensor in self._tensors)
        highest = {"uint8": 255, "int32": 2**31 - 1}.get(spec.action.dtype, 0)
        self._action_count = spec.action.n if spec.action.kind == "discrete" and spec.action.n <= highest else 0
        self._action_signed = spec.action.dtype == "int32"

    # -- encoding ------------------------------------------------------------------------------------------------

    def encode(self, block: Block) -> bytes:
        """Return the payload of a block.

        Values are not checked here; the receiver does. Arrays that are not C-contiguous are copied first.

        Raises:
            SpaceMismatch: an array is missing or has another shape or dtype than the spec says, or the metadata do
                not hold.
            PayloadTooLarge: over 1 MiB; see `BlockSpec.max_steps`.
        """
        try:
            steps, envs = block.reward.shape
            layout = self._layout(steps, envs, len(block.final_index))
            arrays = [
                getattr(block, tensor.key) if not tensor.group else getattr(block, tensor.group)[tensor.key]
                for tensor in self._tensors
            ]
            for place, (shape, dtype) in enumerate(layout.wanted):
                array = arrays[place]
                if array.shape != shape or array.dtype != dtype:
                    raise self._misfit(layout, arrays, place)
                if not array.flags.c_contiguous:
                    arrays[place] = np.ascontiguousarray(array)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise SpaceMismatch(f"a block does not fit its spec: {error!r}") from error
        payload = b"".join((*head_of(layout.prefix, block), *arrays))
        check_outgoing(len(payload), MAX_BLOCK_BYTES, what="block")
        return payload

    def _misfit(self, layout: _Layout, arrays: list[NDArray[Any]], place: int) -> SpaceMismatch:
        array, (shape, dtype) = arrays[place], layout.wanted[place]
        return SpaceMismatch(
            f"block array {self._tensors[place].name!r} is {array.dtype}{list(array.shape)},"
            f" expected {dtype}{list(shape)}"
        )

    def _layout(self, steps: int, envs: int, finals: int) -> _Layout:
        size = (steps, envs, finals)
        layout = self._by_size.get(size)
        if layout is None:
            if not (1 <= steps <= MAX_STEPS and 1 <= envs <= MAX_ENVS and finals <= steps * envs):
                raise SpaceMismatch(f"{steps} steps, {envs} environments and {finals} final rows are not allowed")
            layout = _Layout(self._tensors, steps, envs, finals)
            if len(self._by_size) >= _CACHED_LAYOUTS:
                # Hostile or odd sizes only: a rebuild costs some 50 µs, so that forgetting everything is good enough.
                self._by_size.clear()
                self._by_prefix.clear()
            self._by_size[size] = self._by_prefix[layout.prefix] = layout
        return layout

    # -- decoding ------------------------------------------------------------------------------------------------

    def decode(self, payload: bytes) -> Block:
        """Return the block in an untrusted payload; its arrays are read-only views that keep the payload alive.

        Raises:
            PayloadRefused: the payload does not hold; the message says why.
        """
        check_incoming(len(payload), MAX_BLOCK_BYTES, what="block")
        body_start = 8 + int.from_bytes(payload[:8], "little")
        if not 8 < body_start <= min(len(payload), 8 + MAX_BLOCK_HEADER_BYTES):
            raise PayloadRefused(f"block: header of {body_start - 8} bytes in a payload of {len(payload)}")
        mark = payload.find(METADATA_MARK, 8, body_start)
        prefix = payload[8:mark] if mark > 0 else b""
        layout = self._by_prefix.get(prefix) or self._match(prefix)
        if len(payload) != body_start + layout.body_bytes:
            raise PayloadRefused(
                f"block: {len(payload)} bytes, expected {body_start + layout.body_bytes} for its sizes"
            )
        stamp = read_metadata(payload[mark:body_start])
        if stamp.lost_steps is not None:
            raise PayloadRefused("block: it has rows, and says that they are lost")
        record = np.ndarray((), layout.record, payload, body_start)
        self._check_values(record)
        self._check_ends(record, layout)
        return Block(
            boot_id=stamp.boot_id,
            sequence=stamp.sequence,
            base=stamp.base,
            first_step=stamp.first_step,
            dropped=stamp.dropped,
            observation={key: record[name] for key, name in self._observation},
            action=record["action"],
            reward=record["reward"],
            terminated=record["terminated"],
            truncated=record["truncated"],
            start=record["start"],
            valid=record["valid"],
            policy_epoch=record["policy_epoch"],
            policy_version=record["policy_version"],
            final_index=record["final_index"],
            final_observation={key: record[name] for key, name in self._final_observation},
            extra={key: record[name] for key, name in self._extra},
        )

    def _match(self, prefix: bytes) -> _Layout:
        """Return the layout of a header not seen before, if it is exactly what `encode` would write."""
        reward = _REWARD_SHAPE.search(prefix)
        finals = _FINALS_SHAPE.search(prefix)
        if not reward or not finals:
            raise PayloadRefused("block: the header names no sound reward, final_index and metadata")
        steps, envs, final_rows = int(reward[1]), int(reward[2]), int(finals[1])
        try:
            layout = self._layout(steps, envs, final_rows)
        except (PayloadTooLarge, SpaceMismatch) as error:
            raise PayloadRefused(f"block: {error}") from None
        if layout.prefix != prefix:
            self._by_size.pop((steps, envs, final_rows), None)
            self._by_prefix.pop(layout.prefix, None)
            wrong = [entry.decode() for entry in layout.entries if entry not in prefix]
            detail = f"it lacks {wrong[0]}" if wrong else "there is more in it, or the order differs"
            raise PayloadRefused(f"block: the header does not fit the spec: {detail[:300]}")
        return layout

    def _check_values(self, record: NDArray[Any]) -> None:
        if _max(record["*flags"]) > 1:
            raise PayloadRefused("block: a bool is neither 0 nor 1")
        holds = _within(record["*f4"], self._highest_f4)
        if not holds or (self._has_f8 and not _within(record["*f8"], self._highest_f8)):
            raise PayloadRefused(f"block: {self._unsound(record)}")
        if self._action_count:
            action = record["action"]
            if action.max() >= self._action_count or (self._action_signed and action.min() < 0):
                raise PayloadRefused(f"block: an action is not in 0..{self._action_count - 1}")

    def _unsound(self, record: NDArray[Any]) -> str:
        arrays = {t.name: record[t.name] for t in self._tensors if t.dtype in ("float32", "float64")}
        names = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if names:
            return f"NaN or Inf in {', '.join(names)}"
        highest = {name: np.abs(array).max(initial=0) for name, array in arrays.items()}
        name = max(highest, key=lambda name: highest[name])
        return f"{name} holds {highest[name]:.3g}, over {self._highest_f8:g}"

    def _check_ends(self, record: NDArray[Any], layout: _Layout) -> None:
        """Check that each ended row has its final observation, or is followed by a dummy row (NEXT_STEP)."""
        if not layout.finals and not _max(record["*ends"]):
            return
        valid = record["valid"]
        ended = (record["terminated"] | record["truncated"]) & valid
        if not layout.finals:
            if (ended[:-1] & valid[1:]).any():
                raise PayloadRefused("block: an episode ended, with neither a final observation nor a dummy row after")
            return
        steps, envs = ended.shape
        place, env = record["final_index"].astype(np.int64).T
        rows = ended.reshape(-1).nonzero()[0]
        # An environment out of range could stand for one of another step.
        if len(rows) != layout.finals or not _all((place * envs + env == rows) & (env >= 0) & (env < envs)):
            raise PayloadRefused("block: final_index does not list exactly the rows where an episode ended")
        inner = rows[place < steps - 1] + envs
        if not _all(record["start"].reshape(-1)[inner]):
            raise PayloadRefused("block: the row after an end does not start an episode")


def _within(floats: NDArray[Any], highest: np.floating[Any]) -> bool:
    # NaN goes through both reductions and fails both comparisons; Inf is over any bound.
    return bool(_max(floats) <= highest and _min(floats) >= -highest)
