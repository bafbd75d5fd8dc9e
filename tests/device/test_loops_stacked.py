"""Frames that are stacked: what the policy sees in both loops, whoever chose the actions, and what travels."""

import itertools
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.single import SingleLoop
from quarl_device.actor.stepping import LoopConfig
from quarl_device.actor.vector import VectorLoop
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import VectorAdapter
from quarl_device.testing.numbered_frames import NumberedFrames, number_of
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.exploration import Exploration

ACTION = ActionSpec(kind="discrete", n=3)


class Watcher:
    """Stands for a policy: keeps the numbers of the stacks that it is shown."""

    def __init__(self, envs):
        self.seen, self.batch_size = [], envs

    def act_index(self, stack):
        self.seen.append(tuple(number_of(frame) for frame in stack))
        return 1

    def act_batch(self, stacks):
        for env in range(self.batch_size):
            self.seen.append(tuple(number_of(frame) for frame in stacks[:, env]))
        return np.ones(self.batch_size, np.uint8)


def acting(watcher, *, epsilon=0.0, version=1, reset=False):
    exploration = Exploration(kind="epsilon", values=(epsilon,))
    return ActingPolicy(policy=watcher, epoch=1, version=version, exploration=exploration, reset=reset)


def make_loop(envs, depth, mode="single", *, rows=7, lockstep=False, shape=(1, 3), dtype="uint8", seed=0, chance=0.2):
    numbers, stacks = itertools.count(1), {}
    worlds = [
        NumberedFrames(
            depth=depth, shape=shape, dtype=dtype, numbers=numbers, stacks=stacks, end_chance=chance, seed=seed + env
        )
        for env in range(envs)
    ]
    seen = ObservationSpec(key="observation", shape=shape, dtype=dtype, stack=depth)
    config = LoopConfig(
        env_id="Frames-v0", spec=BlockSpec(observations=(seen,), action=ACTION), num_envs=envs, max_rows=rows, seed=1,
        lockstep=lockstep,
    )  # fmt: skip
    if mode == "single":
        return SingleLoop(worlds[0], config, Mailbox()), stacks
    autoreset = AutoresetMode.SAME_STEP if mode == "same_step" else AutoresetMode.NEXT_STEP
    vector = SyncVectorEnv([lambda world=world: world for world in worlds], autoreset_mode=autoreset)
    return VectorLoop(VectorAdapter(vector, mode=mode), config, Mailbox()), stacks


def blocks(loop, count, *, rows=7):
    """Yield blocks as they arrive."""
    codec = BlockCodec(loop.config.spec)
    for sequence in range(count):
        loop.run_block(rows)
        block = loop.recorder.block(boot_id="0123456789abcdef", sequence=sequence, base=0)
        yield codec.decode(codec.encode(block))


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(["single", "same_step", "next_step"]),
    envs=st.integers(1, 3),
    depth=st.integers(2, 5),
    rows=st.integers(1, 9),
    shape=st.sampled_from([("uint8", (1, 3)), ("uint8", (2, 2, 3)), ("uint8", (3, 1)), ("float32", (4,))]),
    epsilon=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**16),
)
def test_the_policy_sees_the_episodes_last_frames_whoever_acted_before(mode, envs, depth, rows, shape, epsilon, seed):
    envs = 1 if mode == "single" else envs
    dtype, frame = shape
    loop, stacks = make_loop(envs, depth, mode, rows=rows, shape=frame, dtype=dtype, seed=seed)
    watchers = [Watcher(envs) for _ in range(3)]
    for version, watcher in enumerate(watchers, 1):
        # A newer policy goes on where the one before it stopped, in the middle of episodes.
        loop.mailbox.post_policy(acting(watcher, epsilon=epsilon, version=version))
        for block in blocks(loop, 3, rows=rows):
            frames = block.observation["observation"]
            assert frames.shape == (rows + depth, envs, *frame)
            for env in range(envs):
                shown = tuple(number_of(frames[row, env]) for row in range(depth))
                assert shown == stacks[shown[-1]], "the first stack of a block is in it, whatever came before"
    seen = [stack for watcher in watchers for stack in watcher.seen]
    assert len(seen) >= 9
    assert all(stack == stacks[stack[-1]] for stack in seen)


@pytest.mark.parametrize("mode", ["single", "same_step"])
def test_a_reset_from_outside_begins_a_stack(mode):
    loop, stacks = make_loop(2 if mode == "same_step" else 1, 4, mode, lockstep=True, chance=0.0)
    for version in (1, 2, 3):
        watcher = Watcher(loop.config.num_envs)
        loop.mailbox.post_policy(acting(watcher, version=version, reset=version != 2))
        (block,) = blocks(loop, 1)
        assert block.start[0].all() == (version != 2)
        first = watcher.seen[0]
        assert (len(set(first)) == 1) == (version != 2)
        assert all(stack == stacks[stack[-1]] for stack in watcher.seen)


def test_each_frame_travels_once():
    loop, _ = make_loop(1, 4, rows=32, chance=0.0)
    loop.mailbox.post_policy(acting(Watcher(1)))
    first, second = blocks(loop, 2, rows=32)
    numbers = [[number_of(frame) for frame in block.observation["observation"][:, 0]] for block in (first, second)]
    assert numbers[0][3:] == list(range(1, 34))
    assert numbers[1] == list(range(30, 66))  # three from before, the one acted on first, then one a row


def test_frames_of_one_environment_of_many_are_its_own():
    loop, stacks = make_loop(3, 2, "same_step", chance=0.5)
    loop.mailbox.post_policy(acting(Watcher(3)))
    for block in blocks(loop, 5):
        assert block.final_index.shape[1] == 2
        for (row, env), final in zip(block.final_index, block.final_observation["observation"], strict=True):
            before = number_of(block.observation["observation"][row + 1, env])
            assert stacks[number_of(final)][-2] == before


def test_an_unstacked_loop_keeps_no_frames():
    seen = ObservationSpec(key="observation", shape=(1, 3), dtype="uint8")
    config = LoopConfig(
        env_id="Frames-v0", spec=BlockSpec(observations=(seen,), action=ACTION), num_envs=1, max_rows=4, seed=0
    )
    loop = SingleLoop(NumberedFrames(depth=1), config, Mailbox())
    shown = []
    policy = SimpleNamespace(act_index=lambda frame: shown.append(frame.shape) or 0)
    loop.mailbox.post_policy(acting(policy))
    assert loop.run_block(4) == 4
    assert set(shown) == {(1, 3)}
    assert loop.recorder.before.shape == (0, 1, 1, 3)
    assert isinstance(loop._env, gymnasium.Env)
