"""The two hot loops with a stochastic policy: what is drawn, what is recorded beside the step, and rounds."""

import dataclasses
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.draws import StreamDraws, fractions, normals
from quarl_device.actor.single import SingleLoop
from quarl_device.actor.stepping import LoopConfig
from quarl_device.actor.vector import VectorLoop
from quarl_device.contract import Head
from quarl_device.environments import EnvSpec, VectorAdapter, make_single
from quarl_device.errors import ModelFileError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.block_spec import extras_for
from quarl_device.wire.exploration import Exploration

DATA = Path(__file__).parent.parent / "data"
BOOT = "0123456789abcdef"
ROWS = 32


def headed(name, role, **head):
    file = read_policy_path(DATA / f"{name}.tflite")
    [(_, tensor)] = file.contract.head.outputs.items()
    contract = dataclasses.replace(file.contract, head=Head(outputs={role: tensor}, **head))
    return dataclasses.replace(file, contract=contract)


FILES = {
    "CartPole-v1": headed("cartpole", "logits", kind="logits"),
    "Pendulum-v1": headed("pendulum", "mean", kind="gaussian", log_std=(-0.7,)),
}
POLICIES = {(env, n): Policy.load(f, batch_size=n, self_test=False) for env, f in FILES.items() for n in (1, 3)}
SAMPLE = Exploration(kind="sample", values=())


def acting(env_id, envs, exploration=SAMPLE, *, version=1, epoch=1, **kwargs):
    policy = POLICIES[env_id, envs]
    return ActingPolicy(policy=policy, epoch=epoch, version=version, exploration=exploration, **kwargs)


def make(env_id, envs, exploration=SAMPLE, *, extras=None, rows=ROWS, **kwargs):
    contract = FILES[env_id].contract
    if extras is None:
        extras = ("log_prob", "sample") if contract.action.kind == "box" else ("log_prob",)
    spec = BlockSpec(
        observations=contract.observations, action=contract.action, extras=extras_for(extras, contract.action)
    )
    config = LoopConfig(env_id=env_id, spec=spec, num_envs=envs, max_rows=rows, seed=1, **kwargs)
    if envs == 1:
        loop = SingleLoop(make_single(EnvSpec(env_id=env_id)), config, Mailbox())
    else:
        joined = gymnasium.vector.SyncVectorEnv(
            [lambda: make_single(EnvSpec(env_id=env_id))] * envs,
            autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        )
        loop = VectorLoop(VectorAdapter(joined, mode="same_step"), config, Mailbox())
    loop.mailbox.post_policy(acting(env_id, envs, exploration))
    return loop


def block_of(loop, rows=ROWS):
    loop.run_block(rows)
    codec = BlockCodec(loop.config.spec)
    return codec.decode(codec.encode(loop.recorder.block(boot_id=BOOT, sequence=0, base=0)))


def noise(env_id, envs):
    draws = StreamDraws(seed=1, actor_index=0, num_envs=envs, max_rows=ROWS)
    draws.begin_block(ROWS)
    return fractions(draws.raw[:, :, 0]) if env_id == "CartPole-v1" else normals(draws.raw)


BOTH = pytest.mark.parametrize("env_id", FILES)
EITHER = pytest.mark.parametrize("envs", [1, 3])


@BOTH
@EITHER
def test_each_row_is_drawn_from_the_int8_policys_outputs_and_says_how_likely_it_was(env_id, envs):
    block, numbers = block_of(make(env_id, envs)), noise(env_id, envs)
    draw = POLICIES[env_id, 1].drawing()
    for env in range(envs):
        for row in range(ROWS):
            action, sample, log_prob = draw(block.observation["observation"][row, env], numbers[row, env])
            np.testing.assert_allclose(block.action[row, env], action, atol=1e-5)
            np.testing.assert_allclose(block.extra["log_prob"][row, env], log_prob, atol=1e-4)
            if "sample" in block.extra:
                np.testing.assert_allclose(block.extra["sample"][row, env], sample[0], atol=1e-5)
    assert block.extra["log_prob"].dtype == np.float32
    # Not all alike, and not what a greedy policy does.
    assert len(np.unique(block.extra["log_prob"])) > ROWS // 2


@EITHER
def test_the_sample_is_what_the_action_was_before_it_was_clipped(envs):
    """The action is sample * scale, and sigma 3 leaves the box of ±2 most of the time."""
    block = block_of(make("Pendulum-v1", envs, Exploration(kind="sample", values=(1.1,))))
    sample = block.extra["sample"]
    [scale] = FILES["Pendulum-v1"].contract.action.scale
    np.testing.assert_allclose(block.action, np.clip(sample * scale, -2, 2), rtol=1e-5, atol=1e-6)
    assert (np.abs(sample * scale) > 2).mean() > 0.3
    assert np.abs(block.action).max() == 2.0


@BOTH
@EITHER
def test_nothing_is_kept_that_the_learner_does_not_ask_for(env_id, envs):
    block = block_of(make(env_id, envs, extras=()))
    assert block.extra == {}
    assert np.array_equal(block.action, block_of(make(env_id, envs)).action)


@BOTH
@EITHER
def test_another_log_std_inside_a_block_keeps_the_draws(env_id, envs):
    loop = make(env_id, envs)
    wide = Exploration(kind="sample", values=(0.5,) if env_id == "Pendulum-v1" else ())
    step, seen = loop._env.step, []

    def step_and_post(action):
        seen.append(action)
        if len(seen) == 3:
            loop.mailbox.post_policy(acting(env_id, envs, wide, version=2))
        return step(action)

    loop._env.step = step_and_post
    block, numbers = block_of(loop), noise(env_id, envs)
    assert block.policy_version.tolist() == [1] * 3 + [2] * (ROWS - 3)
    draw = POLICIES[env_id, 1].drawing(log_std=wide.values)
    for row in range(3, ROWS):
        wanted = draw(block.observation["observation"][row, 0], numbers[row, 0])[2]
        np.testing.assert_allclose(block.extra["log_prob"][row, 0], wanted, atol=1e-4)


@BOTH
@EITHER
def test_outputs_that_are_not_finite_are_told_with_the_step(env_id, envs):
    loop = make(env_id, envs)
    policy = loop.mailbox.policy.policy
    draw = policy.drawing(batch=envs > 1)
    calls = []

    def fails_at_third(observation, numbers):
        calls.append(observation)
        if len(calls) == 3:
            raise ModelFileError("its outputs are not finite")
        return draw(observation, numbers)

    broken = Policy.__new__(Policy)
    broken.__dict__.update({**policy.__dict__, "drawing": lambda **_: fails_at_third})
    loop.mailbox.post_policy(dataclasses.replace(loop.mailbox.policy, policy=broken))
    with pytest.raises(ModelFileError, match=rf"the policy failed at step {3 * envs}\b.*: its outputs are not finite"):
        loop.run_block(ROWS)


@BOTH
@EITHER
def test_lockstep_repeats_bit_by_bit_and_resumes_where_it_was(env_id, envs):
    def run(versions):
        loop = make(env_id, envs, lockstep=True)
        for version in versions:
            loop.mailbox.post_policy(acting(env_id, envs, version=version, reset=version in (1, 4)))
            block = block_of(loop)
            yield block.action, block.extra["log_prob"], block.observation["observation"]

    whole, again, resumed = list(run(range(1, 7))), list(run(range(1, 7))), list(run(range(4, 7)))
    for one, other in (*zip(whole, again, strict=True), *zip(whole[3:], resumed, strict=True)):
        assert all(np.array_equal(mine, its) for mine, its in zip(one, other, strict=True))


@BOTH
@EITHER
def test_a_round_has_one_version_whatever_comes_and_goes_on_over_blocks(env_id, envs):
    loop = make(env_id, envs, round_rows=40)
    assert loop.round_left == 0
    assert set(block_of(loop, 32).policy_version) == {1}
    assert loop.round_left == 8
    loop.mailbox.post_policy(acting(env_id, envs, version=2))
    loop.mailbox.post_policy(acting(env_id, envs, version=3))
    assert set(block_of(loop, 8).policy_version) == {1}
    assert loop.round_left == 0
    assert set(block_of(loop, 32).policy_version) == {3}
    assert loop.versions_seen == 2


@EITHER
def test_a_push_inside_a_block_waits_for_the_round_to_end(envs):
    loop = make("Pendulum-v1", envs, round_rows=40)
    step = loop._env.step

    def step_and_post(action):
        loop.mailbox.post_policy(acting("Pendulum-v1", envs, version=2))
        return step(action)

    loop._env.step = step_and_post
    assert [set(block_of(loop, rows).policy_version) for rows in (32, 8, 32)] == [{1}, {1}, {2}]


@EITHER
def test_a_block_that_is_flushed_is_a_part_of_its_round(envs):
    loop = make("Pendulum-v1", envs, round_rows=40)
    step, steps = loop._env.step, []

    def step_and_flush(action):
        steps.append(action)
        if len(steps) == 5:
            loop.mailbox.ask_flush()
        return step(action)

    loop._env.step = step_and_flush
    assert loop.run_block(32) == 5
    assert loop.round_left == 35
    # An episode goes on: nothing is reset between the parts, nor between rounds.
    assert not block_of(loop, 32).start.any()
    assert loop.round_left == 3


@EITHER
def test_a_round_of_a_learner_that_is_no_more_is_left(envs):
    loop = make("Pendulum-v1", envs, round_rows=40)
    block_of(loop, 32)
    loop.mailbox.post_policy(acting("Pendulum-v1", envs, version=1, epoch=2))
    block = block_of(loop, 32)
    assert set(block.policy_epoch) == {2}
    assert loop.round_left == 8
