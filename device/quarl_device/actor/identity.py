"""What a device says of itself: its configuration, the name of this life, and its last will."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from quarl_device import __version__
from quarl_device.delegate_spec import COMPILED_LAG_S
from quarl_device.link import Will
from quarl_device.wire.messages import DeviceMode, DeviceState
from quarl_device.wire.topics import Topics


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """What a device says of itself.

    Attributes:
        fleet: name of the fleet.
        name: of the device.
        env: the device's own choice of environment, which may import a module; `None` takes the learner's.
        num_envs: environments stepped as one batch.
        actor_index: picks this actor's exploration value.
        seed: of everything random; `None` takes the learner's.
        block_steps: rows per block; `None` takes the learner's.
        max_steps: stop after so many environment steps; 0 for no limit.
        learner_key: the only key to trust; `None` pins the first that is met.
        exit_when_gone: end when the learner says goodbye.
        connect_timeout_s: for the first connection.
        max_offline_s: how long it goes on where link or learner are lost, as far as its outbox takes what it makes.
        max_offline_blocks: most blocks that wait while it goes on so; `None` for no bound.
        max_upload_bytes_per_s: of experience; 0 for no bound.
        edge_tpu_max_lag_s: with an Edge TPU: how long a policy that was replaced may act while a compiled one is
            awaited.
    """

    fleet: str
    name: str
    env: str | None = None
    num_envs: int = 1
    actor_index: int = 0
    seed: int | None = None
    block_steps: int | None = None
    max_steps: int = 0
    learner_key: Path | None = None
    exit_when_gone: bool = False
    connect_timeout_s: float = 10.0
    max_offline_s: float = 0.0
    max_offline_blocks: int | None = None
    max_upload_bytes_per_s: float = 0.0
    edge_tpu_max_lag_s: float = COMPILED_LAG_S


def gone_state(name: str, boot_id: str, *, why: str = "", mode: DeviceMode = "train") -> bytes:
    """Return the payload that says that this device is gone; also its MQTT will."""
    state = DeviceState(status="gone", device=name, boot_id=boot_id, mode=mode, package=__version__, blocked=why[:256])
    return state.encode()


def new_boot_id() -> str:
    """Return 16 random hex digits."""
    return secrets.token_hex(8)


def will_of(config: AgentConfig, boot_id: str) -> Will:
    """Return the will that the agent's link must carry."""
    return Will(topic=Topics(config.fleet).state(config.name), payload=gone_state(config.name, boot_id))
