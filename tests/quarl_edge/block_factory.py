"""Blocks of made-up environments for the tests of replay and ingest: every number says where it came from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.wire.block import Block, BlockCodec, BlockSpec

OBSERVATION = ObservationSpec(key="observation", shape=(2,))
ACTION = ActionSpec(kind="discrete", n=3)
SPEC = BlockSpec(observations=(OBSERVATION,), action=ACTION)
BOOT = "0123456789abcdef"


def boot_id(number: int) -> str:
    return f"{number:016x}"


@dataclass(eq=False)
class Row:
    """One step of one environment, as it truly happened."""

    obs: float
    action: int
    reward: float
    terminated: bool
    truncated: bool
    start: bool
    valid: bool
    after: float | None = None


@dataclass
class World:
    """N environments whose observations are [environment, running number]; steps them and packs blocks.

    `rows[env]` is what happened, for a reference; a cut there is None.
    """

    num_envs: int
    next_step: bool = False
    end_chance: float = 0.2
    seed: int = 0
    rng: np.random.Generator = field(init=False)
    number: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.current = [0.0] * self.num_envs
        self.fresh = [False] * self.num_envs
        self.dummy_due = [False] * self.num_envs
        self.rows: list[list[Row | None]] = [[] for _ in range(self.num_envs)]
        self.reset()

    def new_observation(self) -> float:
        self.number += 1
        return float(self.number)

    def reset(self) -> None:
        for env in range(self.num_envs):
            self.current[env] = self.new_observation()
            self.fresh[env] = True
            self.dummy_due[env] = False

    def cut(self) -> None:
        """Whatever comes next does not continue what came before."""
        for rows in self.rows:
            rows.append(None)

    def block(
        self, steps: int, sequence: int = 0, *, boot: str = BOOT, resets: tuple[int, ...] = (), **fields
    ) -> Block:
        shape = (steps, self.num_envs)
        observation = np.zeros((steps + 1, self.num_envs, 2), np.float32)
        observation[:, :, 0] = np.arange(self.num_envs)
        flags = {name: np.zeros(shape, np.bool_) for name in ("terminated", "truncated", "start", "valid")}
        action, reward = np.zeros(shape, np.uint8), np.zeros(shape, np.float32)
        finals: list[tuple[int, int, float]] = []
        for t in range(steps):
            if t in resets:
                self.reset()
                for rows in self.rows:
                    # The block shows the reset observation where the next one of the row before would be.
                    if t and rows[-1] is not None and not (rows[-1].terminated or rows[-1].truncated):
                        rows[-1].after = None
            for env in range(self.num_envs):
                observation[t, env, 1] = self.current[env]
                row, final = self.step(env)
                self.rows[env].append(row)
                action[t, env], reward[t, env] = row.action, row.reward
                for name, array in flags.items():
                    array[t, env] = getattr(row, name)
                if final is not None:
                    finals.append((t, env, final))
        observation[steps, :, 1] = self.current
        return Block(
            boot_id=boot,
            sequence=sequence,
            base=fields.pop("base", 0),
            first_step=fields.pop("first_step", 0),
            dropped=fields.pop("dropped", ()),
            observation={"observation": observation},
            action=action,
            reward=reward,
            policy_epoch=np.ones(steps, np.uint32),
            policy_version=np.ones(steps, np.uint32),
            final_index=np.array([f[:2] for f in finals], np.int32).reshape(-1, 2),
            final_observation={
                "observation": np.array([(env, final) for _, env, final in finals], np.float32).reshape(-1, 2)
            },
            **flags,
        )

    def step(self, env: int) -> tuple[Row, float | None]:
        obs = self.current[env]
        start, self.fresh[env] = self.fresh[env], False
        if self.dummy_due[env]:
            self.dummy_due[env], self.fresh[env] = False, True
            self.current[env] = self.new_observation()
            return Row(obs, 0, 0.0, False, False, False, False), None
        kind = int(self.rng.integers(3)) if self.rng.random() < self.end_chance else -1
        row = Row(
            obs,
            action=int(self.rng.integers(3)),
            reward=float(np.float32(self.rng.normal())),
            terminated=kind in (0, 2),
            truncated=kind in (1, 2),
            start=start,
            valid=True,
            after=self.new_observation(),
        )
        self.current[env] = row.after
        if kind < 0:
            return row, None
        if self.next_step:
            self.dummy_due[env] = True
            return row, None
        self.current[env], self.fresh[env] = self.new_observation(), True
        return row, row.after


def payload(block: Block) -> bytes:
    return BlockCodec(SPEC).encode(block)
