"""Blocks of numbered frames, made by the actor's own loops: the stacks that policies saw are known by their frames."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.single import SingleLoop
from quarl_device.actor.stepping import LoopConfig
from quarl_device.actor.vector import VectorLoop
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import VectorAdapter
from quarl_device.testing.numbered_frames import NumberedFrames, number_of
from quarl_device.wire.block import Block, BlockSpec
from quarl_device.wire.exploration import Exploration

ACTION = ActionSpec(kind="discrete", n=3)
FRAMES = [("uint8", (1, 3)), ("uint8", (2, 2, 3)), ("uint8", (3, 1)), ("float32", (4,))]
MODES = ["single", "same_step", "next_step"]


class Fleet:
    """Devices of one learner, in whose environments no two frames are equal.

    `stacks` has by the number of its newest frame what each stack must be.
    """

    def __init__(self, depth, *, shape=(1, 3), dtype="uint8", end_chance=0.2, seed=0):
        self.seen = ObservationSpec(key="observation", shape=shape, dtype=dtype, stack=depth)
        self.spec = BlockSpec(observations=(self.seen,), action=ACTION)
        self.stacks: dict[int, tuple[int, ...]] = {}
        self._numbers = itertools.count(1)
        self._seeds = itertools.count(1000 * seed)
        self._end_chance = end_chance

    def device(self, name, *, envs=1, mode="single", rows=8):
        """Return a function that makes the next block of a new device."""
        depth, shape, dtype = self.seen.stack, self.seen.shape, self.seen.dtype
        envs = 1 if mode == "single" else envs
        worlds = [
            NumberedFrames(
                depth=depth, shape=shape, dtype=dtype, numbers=self._numbers, stacks=self.stacks,
                end_chance=self._end_chance, seed=next(self._seeds),
            )
            for _ in range(envs)
        ]  # fmt: skip
        config = LoopConfig(env_id="Frames-v0", spec=self.spec, num_envs=envs, max_rows=rows, seed=next(self._seeds))
        if mode == "single":
            loop = SingleLoop(worlds[0], config, Mailbox())
        else:
            autoreset = AutoresetMode.SAME_STEP if mode == "same_step" else AutoresetMode.NEXT_STEP
            vector = SyncVectorEnv([lambda world=world: world for world in worlds], autoreset_mode=autoreset)
            loop = VectorLoop(VectorAdapter(vector, mode=mode), config, Mailbox())
        policy = SimpleNamespace(act_index=lambda _: 0, act_batch=lambda _: np.zeros(envs, np.uint8))
        exploration = Exploration(kind="epsilon", values=(1.0,))
        loop.mailbox.post_policy(ActingPolicy(policy=policy, epoch=1, version=1, exploration=exploration))
        sequence = itertools.count()

        def make(count=rows) -> Block:
            loop.run_block(count)
            return copied(loop.recorder.block(boot_id=f"{name:016x}", sequence=next(sequence), base=0))

        return make

    def numbers(self, stacks):
        """Return the frames of stacks as a network sees them, one tuple of numbers each, checked against the truth."""
        found = [tuple(number_of(frame) for frame in frames) for frames in split(stacks, self.seen)]
        for numbers in found:
            assert numbers == self.stacks[numbers[-1]]
        return found


def split(stacks, seen):
    """Take stacks [count, *as a network sees them] apart, [count, stack, *shape]: the joining rule, said otherwise."""
    if len(seen.shape) == 2:
        return np.moveaxis(stacks, -1, 1)
    width = seen.shape[-1]
    return np.stack([stacks[..., n * width : (n + 1) * width] for n in range(seen.stack)], 1)


def copied(block):
    """Return a block that later rows cannot change."""
    arrays = {
        name: {key: part.copy() for key, part in value.items()} if isinstance(value, dict) else value.copy()
        for name, value in vars(block).items()
        if isinstance(value, (dict, np.ndarray))
    }
    kept = {name: value for name, value in vars(block).items() if name in Block.__dataclass_fields__}
    return Block(**{**kept, **arrays})
