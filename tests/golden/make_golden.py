"""Write the golden files of wire version 1, one per payload kind.

Run it only for a new kind or a new wire version: a golden file that changes is a peer that no longer understands.

    python tests/golden/make_golden.py
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.wire.block import Block, BlockCodec, BlockSpec, ExtraSpec
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.messages import Ack, DeviceState, LearnerBirth, Telemetry
from quarl_device.wire.push import Exploration, PushHeader, encode_push

HERE = Path(__file__).parent
BOOT = "0123456789abcdef"
KEY = LearnerKey(bytes(range(32)))
POLICY = b"    TFL3 stands for a policy file"
OBSERVATION = ObservationSpec(key="observation", shape=(2,), low=(-1.0,), high=(1.0,))
ACTION = ActionSpec(kind="discrete", n=3)
VECTOR = BlockSpec(observations=(OBSERVATION,), action=ACTION)
STACKED = BlockSpec(
    observations=(ObservationSpec(key="frame", shape=(2, 2), dtype="uint8", stack=2), OBSERVATION),
    action=ActionSpec(kind="box", shape=(1,), low=(-1.0,), high=(1.0,)),
    extras=(ExtraSpec(name="log_prob"),),
)

BIRTH = LearnerBirth(
    status="online", epoch=1_700_000_000, beat=3, env_id="CartPole-v1", env_kwargs={"sutton_barto_reward": True},
    algorithm="dqn", observations=(OBSERVATION,), action=ACTION, public_key=KEY.public.hex, mode="async", seed=7,
    block_steps=64, version="0.1.0",
)  # fmt: skip
STATE = DeviceState(
    status="online", device="pi-1", boot_id=BOOT, beat=9, epoch=1_700_000_000, policy_version=12, digest="ab" * 32,
    num_envs=4, actor_index=1, runtime="ai-edge-litert 2.3.0", package="0.1.0", blocked="no credit",
    blocked_since_unix_s=1_700_000_100.5,
)  # fmt: skip
ACK = Ack(boot_id=BOOT, epoch=1_700_000_000, inserted=41, durable=40, refused={7: 34}, credit=44)
TELEMETRY = Telemetry(
    boot_id=BOOT, steps=123_456, episodes=789, steps_per_s=1_234.5, act_us_p50=2.5, act_us_p99=9.75, push_ms_p50=4.25,
    pushes=12, pushes_refused=1, blocks_pending=3, blocks_resent=2, blocks_dropped=0, return_mean=195.5,
    handler_errors=0,
)  # fmt: skip
HEADER = PushHeader(
    epoch=1_700_000_000, version=12, env_steps=4_096, sha256=hashlib.sha256(POLICY).hexdigest(),
    exploration=Exploration(values=(0.25, 0.5)), normalizer_version=1,
    golden_outputs={"q_values": np.array([[0.5, -1.25, 2.0]], np.float32)}, lsb={"q_values": 0.25}, tolerance_lsb=3,
    variables_read_unix_ns=1_700_000_000_123_456_789, reset=True,
)  # fmt: skip


def same_step_block() -> Block:
    """Three steps of two environments, one ended within: its true last observation travels beside."""
    flags = {name: np.zeros((3, 2), np.bool_) for name in ("terminated", "truncated", "start")}
    flags["terminated"][1, 0] = flags["start"][2, 0] = flags["start"][0, 1] = True
    return Block(
        boot_id=BOOT, sequence=41, base=38, dropped=((3, 5), (9, 9)),
        observation={"observation": np.arange(16, dtype=np.float32).reshape(4, 2, 2)},
        action=np.array([[0, 1], [2, 0], [1, 2]], np.uint8),
        reward=np.array([[1, 0.5], [-1, 0], [2, 3]], np.float32),
        valid=np.ones((3, 2), np.bool_),
        policy_epoch=np.full(3, 1_700_000_000, np.uint32), policy_version=np.array([11, 11, 12], np.uint32),
        final_index=np.array([[1, 0]], np.int32),
        final_observation={"observation": np.array([[9, 9.5]], np.float32)}, **flags,
    )  # fmt: skip


def next_step_block() -> Block:
    """The row after an end is a dummy; nothing travels beside."""
    flags = {name: np.zeros((3, 1), np.bool_) for name in ("terminated", "truncated", "start")}
    flags["truncated"][0, 0] = flags["start"][2, 0] = True
    return Block(
        boot_id=BOOT, sequence=0, base=0,
        observation={"observation": np.arange(8, dtype=np.float32).reshape(4, 1, 2)},
        action=np.array([[0], [0], [1]], np.uint8), reward=np.array([[1], [0], [1]], np.float32),
        valid=np.array([[True], [False], [True]]),
        policy_epoch=np.full(3, 5, np.uint32), policy_version=np.full(3, 6, np.uint32),
        final_index=np.zeros((0, 2), np.int32),
        final_observation={"observation": np.zeros((0, 2), np.float32)}, **flags,
    )  # fmt: skip


def stacked_block() -> Block:
    """Two keys, one stacked: each frame travels once, one earlier frame first."""
    flags = {name: np.zeros((2, 1), np.bool_) for name in ("terminated", "truncated", "start")}
    return Block(
        boot_id=BOOT, sequence=2, base=1,
        observation={
            "frame": np.arange(16, dtype=np.uint8).reshape(4, 1, 2, 2),
            "observation": np.arange(6, dtype=np.float32).reshape(3, 1, 2),
        },
        action=np.array([[[0.5]], [[-0.5]]], np.float32), reward=np.array([[1], [2]], np.float32),
        valid=np.ones((2, 1), np.bool_),
        policy_epoch=np.full(2, 5, np.uint32), policy_version=np.full(2, 6, np.uint32),
        final_index=np.zeros((0, 2), np.int32),
        final_observation={"frame": np.zeros((0, 2, 2), np.uint8), "observation": np.zeros((0, 2), np.float32)},
        extra={"log_prob": np.array([[-0.5], [-1.5]], np.float32)}, **flags,
    )  # fmt: skip


def payloads() -> dict[str, bytes]:
    """Return every golden payload by file name, as today's encoders write it."""
    return {
        "v1-learner.json": BIRTH.encode(),
        "v1-state.json": STATE.encode(),
        "v1-ack.json": ACK.encode(),
        "v1-telemetry.json": TELEMETRY.encode(),
        "v1-push.bin": encode_push(HEADER, POLICY, KEY.sign),
        "v1-block-same-step.safetensors": BlockCodec(VECTOR).encode(same_step_block()),
        "v1-block-next-step.safetensors": BlockCodec(VECTOR).encode(next_step_block()),
        "v1-block-stacked.safetensors": BlockCodec(STACKED).encode(stacked_block()),
    }


if __name__ == "__main__":
    for name, data in payloads().items():
        (HERE / name).write_bytes(data)
