"""Every decoder of untrusted payloads and topics, for hypothesis (`tests/device/test_wire_fuzz.py`) and atheris.

`make fuzz` runs the latter. A decoder holds if whatever it is given comes back as a value or as a `QuarlError`: any
other exception would be a bug that a stranger can trigger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import PayloadRefused
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.block_stamp import read_stamp, restamped
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.learner_telemetry import LearnerTelemetry
from quarl_device.wire.limits import MAX_BLOCK_BYTES, MAX_INLINE_PUSH_BYTES, MAX_JSON_BYTES
from quarl_device.wire.loss import read_loss
from quarl_device.wire.manifest import decode_header, decode_manifest
from quarl_device.wire.messages import Ack, DeviceState, LearnerBirth, Need, Telemetry
from quarl_device.wire.push import decode_push
from quarl_device.wire.topics import Topics

GOLDEN = Path(__file__).parents[1] / "golden"
KEY = LearnerKey(bytes(range(32)))  # for tests only, as in golden/make_golden.py
CARTPOLE = ObservationSpec(
    key="observation",
    shape=(4,),
    low=(-4.8, -3.4e38, -0.419, -3.4e38),
    high=(4.8, 3.4e38, 0.419, 3.4e38),
)
BLOCK_SPEC = BlockSpec(observations=(CARTPOLE,), action=ActionSpec(kind="discrete", n=2))


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """One way in.

    Attributes:
        name: of what it decodes.
        decode: bytes to a value.
        seeds: payloads that hold.
        cap_bytes: what is larger is refused whatever it is; None where only a bounded beginning is looked at.
    """

    name: str
    decode: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    cap_bytes: int | None


def golden(*names: str) -> tuple[bytes, ...]:
    """Return golden payloads."""
    return tuple((GOLDEN / name).read_bytes() for name in names)


def sign_blindly(_signature: bytes, _signed: bytes) -> None:
    """Take any signature, so that what lies behind the check is reached too."""


def verify(signature: bytes, signed: bytes) -> None:
    """Take the golden key's signatures alone."""
    KEY.public.verify(signature, signed)


def blocks() -> tuple[bytes, ...]:
    """Return golden blocks of `BLOCK_SPEC`."""
    codec, held = BlockCodec(BLOCK_SPEC), []
    for path in sorted(GOLDEN.glob("block_*.safetensors")):
        try:
            codec.decode(path.read_bytes())
        except PayloadRefused:
            continue
        held.append(path.read_bytes())
    return tuple(held)


def decoders() -> list[Decoder]:
    """Return all of them; each call makes new ones."""
    push = golden(*sorted(path.name for path in GOLDEN.glob("push*.bin")))
    manifest, topics = golden("manifest.bin"), Topics("lab")
    codec = BlockCodec(BLOCK_SPEC)
    any_blocks = golden(*sorted(path.name for path in GOLDEN.glob("block_*")))
    json_messages = [
        (
            "learner birth",
            LearnerBirth.decode,
            golden(
                "learner_online.json",
                "learner_lockstep.json",
                "learner_rounds.json",
                "learner_wrapped.json",
                "learner_gone.json",
                "learner_left.json",
            ),
        ),
        (
            "device state",
            DeviceState.decode,
            golden("state_online.json", "state_deploy.json", "state_gone.json", "state_edge_tpu.json"),
        ),
        ("ack", Ack.decode, golden("ack.json", "ack_first.json")),
        ("telemetry", Telemetry.decode, golden("telemetry.json")),
        ("learner telemetry", LearnerTelemetry.decode, golden("learner_telemetry.json")),
        ("need", Need.decode, golden("need.json")),
    ]
    return [
        Decoder(name="block", decode=BlockCodec(BLOCK_SPEC).decode, seeds=blocks(), cap_bytes=MAX_BLOCK_BYTES),
        Decoder(
            name="push", decode=lambda data: decode_push(data, verify), seeds=push, cap_bytes=MAX_INLINE_PUSH_BYTES
        ),
        Decoder(
            name="push behind its signature",
            decode=lambda data: decode_push(data, sign_blindly),
            seeds=push,
            cap_bytes=MAX_INLINE_PUSH_BYTES,
        ),
        Decoder(
            name="push header",
            decode=lambda data: decode_header(data, sign_blindly),
            seeds=push,
            cap_bytes=MAX_INLINE_PUSH_BYTES,
        ),
        Decoder(
            name="manifest",
            decode=lambda data: decode_manifest(data, verify),
            seeds=manifest,
            cap_bytes=MAX_INLINE_PUSH_BYTES,
        ),
        Decoder(
            name="manifest behind its signature",
            decode=lambda data: decode_manifest(data, sign_blindly),
            seeds=manifest,
            cap_bytes=MAX_INLINE_PUSH_BYTES,
        ),
        Decoder(
            name="loss, or else a block",
            decode=lambda data: read_loss(data) or codec.decode(data),
            seeds=golden("lost.safetensors"),
            cap_bytes=MAX_BLOCK_BYTES,
        ),
        Decoder(name="block stamp", decode=read_stamp, seeds=any_blocks, cap_bytes=None),
        Decoder(
            name="block stamped anew",
            decode=lambda data: restamped(data, base=read_stamp(data).sequence),
            seeds=any_blocks,
            cap_bytes=None,
        ),
        Decoder(
            name="chunk topic",
            decode=lambda data: topics.chunk_of(data.decode(errors="replace")),
            seeds=(topics.blob("0" * 64, 65_536).encode(),),
            cap_bytes=None,
        ),
        *(
            Decoder(name=name, decode=decode, seeds=seeds, cap_bytes=MAX_JSON_BYTES)
            for name, decode, seeds in json_messages
        ),
    ]
