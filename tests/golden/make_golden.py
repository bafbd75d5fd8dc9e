"""Make the golden payloads of wire version 1 beside this file: python tests/golden/make_golden.py.

They say what version 1 *is*: a change that makes `tests/device/test_wire_golden.py` fail breaks every device in the
field, and needs another wire version, not another run of this script. A new kind of payload adds a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.wire.block import Block, BlockCodec, BlockSpec, ExtraSpec
from quarl_device.wire.block_spec import extras_for
from quarl_device.wire.block_stamp import Stamp
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.learner_telemetry import Lag, LearnerTelemetry
from quarl_device.wire.loss import encode_loss, read_loss
from quarl_device.wire.manifest import decode_manifest, encode_manifest, make_manifest
from quarl_device.wire.messages import Ack, DeviceState, LearnerBirth, Need, Telemetry
from quarl_device.wire.push import Exploration, PushHeader, decode_push, encode_push

HERE = Path(__file__).parent
KEY = LearnerKey(bytes(range(32)))  # for tests only
BOOT_ID = "0123456789abcdef"
POLICY = bytes(4) + b"TFL3" + bytes(range(256))
CARTPOLE = ObservationSpec(
    key="observation",
    shape=(4,),
    low=(-4.8, -3.4e38, -0.419, -3.4e38),
    high=(4.8, 3.4e38, 0.419, 3.4e38),
)
DISCRETE = ActionSpec(kind="discrete", n=2)
EXTRAS = ("log_prob", "sample")
BOX = ActionSpec(kind="box", shape=(2,), low=(-1.0, -2.0), high=(1.0, 2.0), scale=(1.0, 2.0), offset=(0.0, 0.0))


@dataclass(frozen=True, eq=False)
class Golden:
    """One golden file.

    Attributes:
        name: of the file.
        value: what it holds.
        encode: value to bytes.
        decode: bytes to a value.
    """

    name: str
    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return values that differ, are exact in every dtype, and fit the smallest."""
    count = int(np.prod(shape))
    if dtype == "bool":
        return (np.arange(count) % 3 == 0).reshape(shape)
    values = np.arange(count) % 100
    if np.dtype(dtype).kind == "f":
        return (values * 0.25 - 3).astype(dtype).reshape(shape)
    return values.astype(dtype).reshape(shape)


def make_block(spec: BlockSpec, steps: int, envs: int, ends: dict[str, list[tuple[int, int]]], **other: Any) -> Block:
    """Return a block in which episodes end at `ends["terminated"]` and `ends["truncated"]`, SAME_STEP by default.

    With `next_step=True` there are no final rows; the row after an end is a dummy.
    """
    next_step = other.pop("next_step", False)
    flags = {name: np.zeros((steps, envs), bool) for name in ("terminated", "truncated", "start")}
    valid = np.ones((steps, envs), bool)
    for name, places in ends.items():
        for place in places:
            flags[name][place] = True
    flags["start"][0] = True
    gap = 2 if next_step else 1
    for t, n in np.argwhere(flags["terminated"] | flags["truncated"]):
        if t + gap < steps:
            flags["start"][t + gap, n] = True
        if next_step and t + 1 < steps:
            valid[t + 1, n] = False
    index = np.argwhere(flags["terminated"] | flags["truncated"]).astype(np.int32)
    if next_step:
        index = index[:0]
    final_rows = len(index)
    action = numbers((steps, envs, *spec.action.shape), spec.action.dtype)
    return Block(
        boot_id=BOOT_ID,
        observation={s.key: numbers((steps + s.stack, envs, *s.shape), s.dtype) for s in spec.observations},
        action=action % spec.action.n if spec.action.kind == "discrete" else action,
        reward=numbers((steps, envs), "float32"),
        **flags,
        valid=valid,
        policy_epoch=np.full(steps, 1_700_000_000, np.uint32),
        policy_version=np.arange(7, 7 + steps, dtype=np.uint32),
        final_index=index,
        final_observation={s.key: numbers((final_rows, *s.shape), s.dtype) for s in spec.observations},
        extra={e.name: numbers((steps, envs, *e.shape), e.dtype) for e in spec.extras},
        **other,
    )


def _block(name: str, spec: BlockSpec, block: Block) -> Golden:
    codec = BlockCodec(spec)
    return Golden(f"block_{name}.safetensors", block, codec.encode, codec.decode)


def _blocks() -> list[Golden]:
    vector = BlockSpec(observations=(CARTPOLE,), action=DISCRETE)
    frames = BlockSpec(
        observations=(ObservationSpec(key="pixels", shape=(3, 2), dtype="uint8", stack=2),),
        action=ActionSpec(kind="discrete", n=300),
    )
    wide = BlockSpec(
        observations=tuple(
            ObservationSpec(key=f"{dtype}_key", shape=(2,), dtype=dtype)
            for dtype in ("float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")
        ),
        action=BOX,
        extras=(ExtraSpec(name="log_prob"), ExtraSpec(name="tag", shape=(2,), dtype="uint32")),
    )
    sampled = BlockSpec(observations=(CARTPOLE,), action=BOX, extras=extras_for(EXTRAS, BOX))
    ends = {"terminated": [(1, 0)], "truncated": [(2, 1), (3, 0)]}
    same = make_block(vector, 4, 2, ends, sequence=5, base=3, first_step=37, dropped=((4, 4),))
    next_step = make_block(
        vector, 4, 2, {"terminated": [(1, 0)], "truncated": [(3, 1)]}, sequence=0, base=0, next_step=True
    )
    plain = make_block(vector, 1, 1, {}, sequence=2**53 - 1, base=0, first_step=2**53 - 1)
    stacked = make_block(frames, 3, 1, {"terminated": [(1, 0)]}, sequence=1, base=1)
    return [
        _block("same_step", vector, same),
        _block("next_step", vector, next_step),
        _block("one_step", vector, plain),
        _block("stack_2", frames, stacked),
        _block("sampled", sampled, make_block(sampled, 3, 2, {"terminated": [(1, 1)]}, sequence=2, base=2)),
        _block("all_dtypes", wide, make_block(wide, 2, 3, {"truncated": [(0, 2)]}, sequence=9, base=0)),
    ]


def _header() -> PushHeader:
    return PushHeader(
        epoch=1_700_000_000,
        version=12,
        env_steps=34_567,
        sha256=hashlib.sha256(POLICY).hexdigest(),
        exploration=Exploration(values=(0.05, 0.1, 1.0)),
        normalizer_version=3,
        golden_outputs={"q_values": np.array([[0.5, -1.25], [3.0, 0.0]], np.float32)},
        lsb={"q_values": 0.0625},
        tolerance_lsb=2,
        variables_read_unix_ns=1_700_000_000_123_456_789,
        reset=True,
    )


def _pushes() -> list[Golden]:
    variants: dict[str, dict[str, Any]] = {
        "push": {},
        "push_gaussian": {"exploration": Exploration(kind="gaussian", values=(0.1, 0.2))},
        "push_ornstein_uhlenbeck": {"exploration": Exploration(kind="ornstein_uhlenbeck", values=(0.15,))},
        "push_sample": {"exploration": Exploration(kind="sample", values=(-0.5, 0.25))},
        "push_none": {"exploration": Exploration(kind="none", values=())},
        "push_edge_tpu": {"edge_tpu": True, "tolerance_lsb": 4},
    }
    return [
        Golden(
            f"{name}.bin",
            (replace(_header(), **changes), POLICY),
            lambda value: encode_push(*value, KEY.sign),
            lambda payload: decode_push(payload, KEY.public.verify),
        )
        for name, changes in variants.items()
    ]


def _chunked() -> list[Golden]:
    """Return a manifest and the last of the three chunks that it describes, which is the shortest."""
    manifest = make_manifest(_header(), POLICY, chunk_bytes=100)

    def checked(chunk: bytes) -> bytes:
        manifest.check(manifest.index_of(200), chunk)
        return chunk

    return [
        Golden(
            "manifest.bin",
            manifest,
            lambda value: encode_manifest(value, KEY.sign),
            lambda payload: decode_manifest(payload, KEY.public.verify),
        ),
        Golden("chunk_200.bin", POLICY[200:], lambda value: value, checked),
    ]


def _loss() -> Golden:
    lost = {"boot_id": BOOT_ID, "first": 4, "last": 9, "first_step": 1_024, "end_step": 2_560}
    value = Stamp(boot_id=BOOT_ID, sequence=9, base=4, first_step=1_024, dropped=((4, 8),), lost_steps=1_536)
    return Golden("lost.safetensors", value, lambda _: encode_loss(**lost), read_loss)


def _birth(**changes: Any) -> LearnerBirth:
    fields: dict[str, Any] = {
        "status": "online",
        "epoch": 1_700_000_000,
        "beat": 4,
        "env_id": "CartPole-v1",
        "env_kwargs": {"sutton_barto_reward": True, "name": "Wägelchen"},
        "algorithm": "dqn",
        "observations": (CARTPOLE,),
        "action": DISCRETE,
        "public_key": KEY.public.hex,
        "mode": "async",
        "seed": 11,
        "block_steps": 256,
        "version": "0.1.0",
    }
    return LearnerBirth(**{**fields, **changes})


def _state(**changes: Any) -> DeviceState:
    fields: dict[str, Any] = {
        "status": "online",
        "device": "pi-3",
        "boot_id": BOOT_ID,
        "delivering": "fedcba9876543210",
        "beat": 17,
        "mode": "train",
        "epoch": 1_700_000_000,
        "policy_version": 12,
        "digest": hashlib.sha256(POLICY).hexdigest(),
        "num_envs": 64,
        "actor_index": 1,
        "runtime": "ai-edge-litert 2.3.0",
        "package": "0.1.0",
        "blocked": "no credit",
        "blocked_since_unix_s": 1_700_000_100.5,
    }
    return DeviceState(**{**fields, **changes})


def _messages() -> list[Golden]:
    box = {"mode": "lockstep", "action": BOX, "observations": (CARTPOLE, ObservationSpec(key="b", shape=(), stack=4))}
    values = {
        "learner_online": _birth(),
        "learner_lockstep": _birth(**box),
        "learner_rounds": _birth(mode="rounds", algorithm="ppo", action=BOX, round_steps=2048, extras=EXTRAS),
        "learner_wrapped": _birth(wrappers=("ClipAction", "TimeLimit(max_episode_steps=200)")),
        "learner_gone": _birth(status="gone"),
        "learner_left": _birth(status="gone", left=True),
        "state_online": _state(),
        "state_edge_tpu": _state(edge_tpu=True, runtime="ai-edge-litert 2.3.0 with edgetpu:usb"),
        "state_deploy": _state(
            mode="deploy",
            delivering="",
            epoch=0,
            num_envs=1,
            actor_index=0,
            blocked="",
            blocked_since_unix_s=0.0,
            fault="40: refused: signature does not hold",
        ),
        "state_gone": DeviceState(status="gone", device="pi-3", boot_id=BOOT_ID),
        "ack": Ack(boot_id=BOOT_ID, epoch=1_700_000_000, inserted=41, durable=39, refused={40: 34}, credit=64),
        "ack_first": Ack(boot_id=BOOT_ID, epoch=1_700_000_000, credit=8),
        "learner_telemetry": LearnerTelemetry(
            epoch=1_700_000_000,
            env_steps=123_456,
            env_steps_per_s=2_500.5,
            updates=7_890,
            updates_per_s=310.25,
            policy_version=61,
            pushes=60,
            pushes_held_back=1,
            samples_per_insert=32.5,
            replay_size=100_000,
            replay_capacity=100_000,
            blocks=482,
            duplicates=2,
            gaps=3,
            lost_steps=256,
            refused=4,
            actors=2,
            int8_return=475.5,
            blocked="samples per insert",
            blocked_since_unix_s=1_700_000_123.5,
            handler_errors=5,
            lags={"pi-1": Lag(versions=1, steps=512, age_s=0.25), "pi-2": Lag()},
        ),
        "need": Need(sha256=hashlib.sha256(POLICY).hexdigest(), offsets=(0, 100, 200)),
        "telemetry": Telemetry(
            boot_id=BOOT_ID,
            steps=123_456,
            episodes=789,
            steps_per_s=81_000.5,
            act_us_p50=2.25,
            act_us_p99=9.5,
            push_ms_p50=1.75,
            pushes=12,
            pushes_refused=1,
            blocks_pending=3,
            blocks_resent=4,
            blocks_dropped=5,
            steps_dropped=320,
            spool_bytes=65_536,
            return_mean=487.25,
            handler_errors=6,
        ),
    }
    return [Golden(f"{name}.json", value, type(value).encode, type(value).decode) for name, value in values.items()]


def golden_files() -> list[Golden]:
    """Return every golden file."""
    return [*_messages(), *_pushes(), *_chunked(), *_blocks(), _loss()]


def main() -> None:
    """Write them all."""
    for golden in golden_files():
        (HERE / golden.name).write_bytes(golden.encode(golden.value))


if __name__ == "__main__":
    main()
