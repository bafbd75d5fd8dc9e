"""A push: one signed message that carries a policy file and all that changed with it.

It is an `envelope` that starts with `QPOL` and whose body is the policy file. A file that does not fit travels in
chunks, see `manifest`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import PayloadRefused
from quarl_device.wire.envelope import seal, sealed_bytes, unseal
from quarl_device.wire.exploration import Exploration, exploration_from_json
from quarl_device.wire.limits import MAX_INLINE_PUSH_BYTES
from quarl_device.wire.messages import MAX_EPOCH
from quarl_device.wire.strict_json import SCHEMA, Reader, dumps, loads

MAGIC = b"QPOL"
_WHAT = "push"

__all__ = ["Exploration", "PushHeader", "decode_push", "encode_push", "fits_inline", "newer"]


def newer(found: tuple[int, int], than: tuple[int, int]) -> bool:
    """Say whether a push replaces another: only a later epoch, or a later version of the same epoch, does (W3).

    Args:
        found: (epoch, version) of the push that came.
        than: (epoch, version) of the push in use.
    """
    return found > than


@dataclass(frozen=True, eq=False, kw_only=True)
class PushHeader:
    """What a push says about its policy file.

    Attributes:
        epoch: learner epoch.
        version: counts the pushes of the epoch, from 1.
        env_steps: environment steps in the learner's replay when its variables were read.
        sha256: of the policy file, 64 hex digits.
        exploration: see `Exploration`.
        normalizer_version: counts changes of the normaliser.
        golden_outputs: role to float32[G, ...]: outputs of these very bytes for the file's golden observations.
        lsb: role to output units per LSB.
        tolerance_lsb: allowed difference on a device.
        variables_read_unix_ns: when the learner read its variables.
        reset: reset every environment before acting with it (lockstep).
        edge_tpu: the policy file is compiled for the Edge TPU, and `golden_outputs` are those of the file that it was
            compiled from, since a learner has no such device. In the JSON where it is true alone.
    """

    epoch: int
    version: int
    env_steps: int
    sha256: str
    exploration: Exploration
    normalizer_version: int = 0
    golden_outputs: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    lsb: Mapping[str, float] = field(default_factory=dict)
    tolerance_lsb: int = 2
    variables_read_unix_ns: int = 0
    reset: bool = False
    edge_tpu: bool = False

    def encode(self) -> bytes:
        """Return the JSON header; PayloadRefused where a number is not finite, PayloadTooLarge over 64 KiB."""
        fields = {
            "schema": SCHEMA,
            "epoch": self.epoch,
            "version": self.version,
            "env_steps": self.env_steps,
            "sha256": self.sha256,
            "exploration": self.exploration.to_json(),
            "normalizer_version": self.normalizer_version,
            "golden_outputs": {role: _array_to_json(array) for role, array in self.golden_outputs.items()},
            "lsb": dict(self.lsb),
            "tolerance_lsb": self.tolerance_lsb,
            # A string: nanoseconds since 1970 are over 2^53, which not every JSON reader keeps exact.
            "variables_read_unix_ns": str(self.variables_read_unix_ns),
            "reset": self.reset,
            **({"edge_tpu": True} if self.edge_tpu else {}),
        }
        return dumps(fields, what="push header")

    @classmethod
    def decode(cls, payload: bytes) -> PushHeader:
        """Read a header; PayloadRefused if it does not hold."""
        data = loads(payload, what="push header")
        data.schema()
        sha256 = data.text("sha256", max_length=64)
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise PayloadRefused("push header: 'sha256' is not 64 hex digits")
        read_at = data.text("variables_read_unix_ns", max_length=20)
        if not (read_at.isascii() and read_at.isdigit()):
            raise PayloadRefused("push header: 'variables_read_unix_ns' is not a number")
        golden = data.object("golden_outputs")
        return cls(
            epoch=data.integer("epoch", high=MAX_EPOCH),
            version=data.integer("version", high=MAX_EPOCH),
            env_steps=data.integer("env_steps"),
            sha256=sha256,
            exploration=exploration_from_json(data.object("exploration")),
            normalizer_version=data.integer("normalizer_version"),
            golden_outputs={role: _array_from_json(value) for role, value in golden.items()},
            lsb=_lsb(data),
            tolerance_lsb=data.integer("tolerance_lsb", high=255),
            variables_read_unix_ns=int(read_at),
            reset=data.boolean("reset"),
            edge_tpu="edge_tpu" in data.fields and data.boolean("edge_tpu"),
        )


def encode_push(
    header: PushHeader, policy: bytes, sign: Callable[[bytes], bytes], *, cap_bytes: int = MAX_INLINE_PUSH_BYTES
) -> bytes:
    """Return a signed push.

    Args:
        header: its `sha256` must be that of `policy`; the receiver checks.
        policy: a policy file.
        sign: returns the 64-byte signature over its argument, `LearnerKey.sign`.
        cap_bytes: of the whole; by default that of a message.

    Raises:
        PayloadTooLarge: over the cap.
        PayloadRefused: a number in the header is not finite.
    """
    return seal(MAGIC, header.encode(), policy, sign, what=_WHAT, cap_bytes=cap_bytes)


def fits_inline(header: PushHeader, policy_bytes: int) -> bool:
    """Say whether one message carries such a policy file."""
    return sealed_bytes(len(header.encode()), policy_bytes) <= MAX_INLINE_PUSH_BYTES


def decode_push(
    payload: bytes, verify: Callable[[bytes, bytes], None], *, cap_bytes: int = MAX_INLINE_PUSH_BYTES
) -> tuple[PushHeader, bytes]:
    """Check an untrusted push and return its header and policy file.

    Args:
        payload: as it came.
        verify: called with (signature, signed bytes), `PublicKey.verify`.
        cap_bytes: of the whole; by default that of a message.

    Raises:
        BadSignature: `verify` refused.
        PayloadRefused: over the cap, truncated, of another format version, a header that does not hold, or a policy
            file of another sha256.
    """
    head, policy = unseal(payload, MAGIC, verify, what=_WHAT, cap_bytes=cap_bytes)
    header = PushHeader.decode(head)
    digest = hashlib.sha256(policy).hexdigest()
    if digest != header.sha256:
        raise PayloadRefused(
            f"push: the policy file's sha256 is {digest[:16]}..., the header says {header.sha256[:16]}..."
        )
    return header, policy


def _lsb(data: Reader) -> dict[str, float]:
    inner = Reader(data.object("lsb"), what="push header: lsb")
    result = {role: inner.number(role) for role in inner.fields}
    if any(value <= 0 for value in result.values()):
        raise PayloadRefused("push header: an LSB is not positive")
    return result


def _array_to_json(array: NDArray[np.float32]) -> dict[str, Any]:
    plain = np.ascontiguousarray(array, dtype="<f4")
    return {"shape": list(array.shape), "data": base64.b64encode(plain.tobytes()).decode()}


def _array_from_json(value: Any) -> NDArray[np.float32]:
    """Read float32 values; the header's own cap bounds what this allocates."""
    inner = Reader(value if isinstance(value, dict) else {}, what="push header: golden output")
    shape = inner.array("shape", max_length=5)
    if any(type(size) is not int or not 0 <= size <= 65_535 for size in shape):
        raise PayloadRefused("push header: a golden output's shape does not hold")
    try:
        raw = base64.b64decode(inner.text("data", max_length=MAX_INLINE_PUSH_BYTES), validate=True)
    except (binascii.Error, ValueError):
        raise PayloadRefused("push header: a golden output is not base64") from None
    if len(raw) != 4 * math.prod(shape):
        raise PayloadRefused(f"push header: {len(raw)} bytes for a golden output of shape {shape}")
    array = np.frombuffer(raw, dtype="<f4").reshape(shape)
    if not np.isfinite(array).all():
        raise PayloadRefused("push header: NaN or Inf in a golden output")
    return cast("NDArray[np.float32]", array)
