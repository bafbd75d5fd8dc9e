"""The two hot loops: what they record, what they swap, and what they make of an environment that misbehaves."""

import dataclasses
import itertools
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.single import SingleLoop
from quarl_device.actor.stepping import LoopConfig
from quarl_device.actor.vector import VectorLoop
from quarl_device.environments import EnvSpec, VectorAdapter, make_single, make_vector, spaces_to_specs
from quarl_device.errors import EnvironmentMisbehaved, ModelFileError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.exploration import Exploration

CARTPOLE = read_policy_path(Path(__file__).parent.parent / "data" / "cartpole.tflite")
POLICIES = {n: Policy.load(CARTPOLE, batch_size=n) for n in (1, 3)}
BOOT = "0123456789abcdef"


class Counter(gymnasium.Env):
    """Observes [episode, step, last action, 0]; rewards the step; ends after `length` steps."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=5, *, truncates=False, spoil=None):
        self.length, self.truncates, self.spoil = length, truncates, spoil or {}
        self.episode, self.count, self.total, self.seeds = -1, 0, 0, []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.episode, self.count = self.episode + 1, 0
        return self._observe(0), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.count += 1
        self.total += 1
        done = self.count == self.length
        spoilt = self.spoil.get(self.total, {})
        if "raises" in spoilt:
            raise spoilt["raises"]
        observation = spoilt.get("observation", self._observe(action))
        reward = spoilt.get("reward", float(self.count))
        return observation, reward, done and not self.truncates, done and self.truncates, {}

    def _observe(self, action):
        return np.array([self.episode, self.count, action, 0], np.float32)


def config(env=None, *, envs=1, rows=8, **kwargs):
    observations, action = spaces_to_specs((env or Counter).observation_space, (env or Counter).action_space)
    spec = BlockSpec(observations=observations, action=action)
    return LoopConfig(env_id="Test-v0", spec=spec, num_envs=envs, max_rows=rows, seed=1, **kwargs)


def acting(version=1, *, epsilon=0.0, envs=1, **kwargs):
    exploration = Exploration(kind="epsilon", values=(epsilon,))
    return ActingPolicy(policy=POLICIES[envs], epoch=1, version=version, exploration=exploration, **kwargs)


def single(env, *, policy=None, **kwargs):
    loop = SingleLoop(env, config(env, **kwargs), Mailbox())
    loop.mailbox.post_policy(policy or acting())
    return loop


def same_step(envs, *, policy=None, **kwargs):
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda env=env: env for env in envs], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    loop = VectorLoop(VectorAdapter(vector, mode="same_step"), config(envs[0], envs=len(envs), **kwargs), Mailbox())
    loop.mailbox.post_policy(policy or acting(envs=len(envs)))
    return loop


def cartpoles(**kwargs):
    env = make_vector(EnvSpec(env_id="CartPole-v1"), 3)
    assert env.mode == "next_step"
    spec = BlockSpec(observations=env.observations, action=env.action)
    loop = VectorLoop(env, LoopConfig(env_id="CartPole-v1", spec=spec, num_envs=3, **kwargs), Mailbox())
    loop.mailbox.post_policy(acting(envs=3, epsilon=1.0, reset=True))
    return loop


def block_of(loop, rows=8, sequence=0):
    """Run one block, over the wire and back: the codec checks that the rows hold."""
    made = loop.run_block(rows)
    codec = BlockCodec(loop.config.spec)
    block = codec.decode(codec.encode(loop.recorder.block(boot_id=BOOT, sequence=sequence, base=0)))
    assert block.num_steps == made
    return block


def seen(block, env=0):
    return block.observation["observation"][:, env]


def test_one_environment_row_by_row():
    loop = single(Counter(5))
    block = block_of(loop)
    assert seen(block)[:, :2].tolist() == [[0, n] for n in range(5)] + [[1, n] for n in range(4)]
    assert block.reward[:, 0].tolist() == [1, 2, 3, 4, 5, 1, 2, 3]
    assert block.terminated[:, 0].tolist() == [False] * 4 + [True] + [False] * 3
    assert not block.truncated.any()
    assert block.start[:, 0].tolist() == [True] + [False] * 4 + [True] + [False] * 2
    assert block.final_index.tolist() == [[4, 0]]
    assert block.final_observation["observation"][0, :2].tolist() == [0, 5]
    following = block_of(loop, sequence=1)
    assert seen(following)[0, :2].tolist() == [1, 3]
    assert following.start[:, 0].tolist() == [False, False, True, False, False, False, False, True]
    assert (loop.episodes.episodes, loop.episodes.return_mean, loop.episodes.steps) == (3, 15.0, 16)


def test_an_end_at_the_seam_of_two_blocks():
    loop = single(Counter(4, truncates=True), rows=4)
    block = block_of(loop, 4)
    assert block.truncated[:, 0].tolist() == [False, False, False, True]
    assert block.final_index.tolist() == [[3, 0]]
    assert seen(block)[4, :2].tolist() == [1, 0]
    assert block_of(loop, 4).start[:, 0].tolist() == [True, False, False, False]


def test_only_the_first_reset_is_seeded_and_by_actor():
    seeds = []
    for index in (0, 1, 0):
        env = Counter(3)
        single(env, actor_index=index).run_block(8)
        assert env.seeds[1:] == [None, None]
        seeds.append(env.seeds[0])
    assert seeds[0] == seeds[2] != seeds[1]


def test_greedy_actions_are_the_policys_and_random_ones_are_not():
    greedy = block_of(single(make_single(EnvSpec(env_id="CartPole-v1")), rows=64), 64)
    wanted = [POLICIES[1].act_index(observation) for observation in seen(greedy)[:-1]]
    assert greedy.action[:, 0].tolist() == wanted
    noisy = block_of(single(make_single(EnvSpec(env_id="CartPole-v1")), rows=64, policy=acting(epsilon=0.5)), 64)
    assert noisy.action[:, 0].tolist() != [POLICIES[1].act_index(one) for one in seen(noisy)[:-1]]


def test_a_vector_acts_as_its_policy_says():
    loop = cartpoles(max_rows=20, seed=3)
    loop.mailbox.post_policy(acting(envs=3))
    block = block_of(loop, 20)
    for env in range(3):
        assert block.action[:, env].tolist() == [POLICIES[1].act_index(one) for one in seen(block, env)[:-1]]


def test_same_step_keeps_every_final_observation():
    loop = same_step([Counter(2), Counter(3), Counter(50)])
    block = block_of(loop)
    assert block.final_index.tolist() == [[1, 0], [2, 1], [3, 0], [5, 0], [5, 1], [7, 0]]
    assert block.final_observation["observation"][:, 1].tolist() == [2, 3, 2, 2, 3, 2]
    assert seen(block, 0)[:, 1].tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert block.valid.all()
    assert block.start[:, 0].tolist() == [True, False] * 4
    assert block_of(loop).start[0].tolist() == [True, False, False]
    assert loop.episodes.steps == 48


def test_next_step_rows_after_an_end_are_dummies():
    loop = cartpoles(max_rows=100, seed=3)
    block = block_of(loop, 100)
    ended = block.terminated | block.truncated
    assert ended.any()
    assert not block.final_index.size
    assert (block.valid[1:] == ~ended[:-1]).all()
    assert (block.start[1:] == ~block.valid[:-1]).all()
    assert not (ended & ~block.valid).any()
    assert loop.episodes.steps == block.transitions == int(block.valid.sum())
    assert loop.episodes.episodes == int(ended.sum())


class PostAt(Counter):
    """Does something at a step, as another thread would."""

    def __init__(self, at, do, **kwargs):
        super().__init__(1000, **kwargs)
        self.at, self.do = at, do

    def step(self, action):
        if self.total + 1 == self.at:
            self.do()
        return super().step(action)


@pytest.mark.parametrize("envs", [1, 3])
def test_a_swap_inside_a_block_is_recorded_from_the_next_row_on(envs):
    env = PostAt(3, lambda: loop.mailbox.post_policy(acting(version=9, envs=envs, epsilon=1.0)))
    loop = single(env) if envs == 1 else same_step([env, Counter(50), Counter(50)])
    assert block_of(loop).policy_version.tolist() == [1, 1, 1, 9, 9, 9, 9, 9]
    assert block_of(loop).policy_version.tolist() == [9] * 8
    assert loop.versions_seen == 2


def test_in_lockstep_a_block_belongs_to_one_policy():
    env = PostAt(3, lambda: loop.mailbox.post_policy(acting(version=2)))
    loop = single(env, lockstep=True, policy=acting(reset=True))
    assert block_of(loop).policy_version.tolist() == [1] * 8
    assert block_of(loop).policy_version.tolist() == [2] * 8


def test_lockstep_resets_when_a_push_says_so_and_only_then():
    env = Counter(1000)
    loop = single(env, lockstep=True, policy=acting(reset=True))
    block_of(loop)
    loop.mailbox.post_policy(acting(version=2))
    assert not block_of(loop).start.any()
    loop.mailbox.post_policy(acting(version=3, reset=True))
    assert block_of(loop).start[:, 0].tolist() == [True] + [False] * 7
    # The same policy again resets nothing: `reset` is said once.
    assert not block_of(loop).start.any()
    assert len(env.seeds) == 2
    assert None not in env.seeds


@pytest.mark.parametrize("what", ["ask_stop", "ask_flush"])
@pytest.mark.parametrize("envs", [1, 3])
def test_a_block_ends_early_when_asked(what, envs):
    env = PostAt(
        3,
        lambda: getattr(loop.mailbox, what)(),  # noqa: PLW0108  `loop` comes later
    )
    loop = single(env) if envs == 1 else same_step([env, Counter(50), Counter(50)])
    assert block_of(loop).num_steps == 3
    assert loop.run_block(8) == (0 if what == "ask_stop" else 8)
    assert loop.block_began_s == 0


def test_without_a_policy_nothing_is_stepped():
    env = Counter()
    loop = SingleLoop(env, config(), Mailbox())
    assert loop.run_block(8) == 0
    assert env.seeds == []


def spoilt(envs, **at_7):
    env = Counter(50, spoil={7: at_7})
    return single(env) if envs == 1 else same_step([Counter(50), env, Counter(50)])


NAN_OBSERVATION = np.array([0, 7, np.nan, 0], np.float32)


@pytest.mark.parametrize(
    ("at_7", "says"),
    [
        ({"reward": float("nan")}, "reward nan at step"),
        ({"reward": float("-inf")}, "reward -inf at step"),
        ({"observation": NAN_OBSERVATION}, "observation .*nan.* at step"),
        ({"raises": ValueError("the arm\nis stuck")}, "ValueError: the arm"),
    ],
)
@pytest.mark.parametrize("envs", [1, 3])
def test_what_an_environment_must_not_give_is_told_with_the_step(at_7, says, envs):
    loop = spoilt(envs, **at_7)
    with pytest.raises(EnvironmentMisbehaved, match=says) as error:
        loop.run_block(8)
    assert error.value.code == 23
    assert f"at step {7 * envs}" in error.value.message
    assert "Test-v0" in error.value.message
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("envs", [1, 3])
def test_a_nan_in_a_final_observation_is_found(envs):
    env = Counter(7, spoil={7: {"observation": NAN_OBSERVATION}})
    loop = single(env) if envs == 1 else same_step([Counter(50), env, Counter(50)])
    with pytest.raises(EnvironmentMisbehaved, match=f"observation .*nan.* at step {7 * envs}"):
        loop.run_block(8)


def test_an_observation_that_numpy_would_stretch_is_refused():
    env = Counter(50, spoil={n: {"observation": np.float32([n])} for n in range(1, 60)})
    with pytest.raises(EnvironmentMisbehaved, match=r"shape \(1,\), its space says \(4,\)"):
        single(env).run_block(8)


def test_an_observation_that_does_not_fit_is_refused():
    env = Counter(50, spoil={3: {"observation": np.zeros(5, np.float32)}})
    with pytest.raises(EnvironmentMisbehaved, match="at step 3"):
        single(env).run_block(8)


@pytest.mark.parametrize("first", [np.zeros(5), np.zeros((2, 2)), 0.0])
def test_a_reset_to_another_shape_is_refused(first):
    env = Counter()
    env._observe = lambda _: first
    with pytest.raises(EnvironmentMisbehaved, match=r"reset gave .* its space says \(4,\)"):
        single(env).run_block(8)


def test_a_reset_that_raises_is_the_environments_fault():
    env = Counter()
    env.reset = lambda **_: 1 / 0
    with pytest.raises(EnvironmentMisbehaved, match="ZeroDivisionError"):
        single(env).run_block(8)


def test_a_policy_that_fails_is_not_the_environments_fault():
    def fail(_):
        raise RuntimeError("invoke failed")

    broken = acting()
    policy = POLICIES[1]
    fields = {**policy.__dict__, "act_index": fail}
    stand_in = Policy.__new__(Policy)
    stand_in.__dict__.update(fields)
    loop = single(Counter(), policy=dataclasses.replace(broken, policy=stand_in))
    loop._time_act = lambda *_: None
    with pytest.raises(ModelFileError, match="the policy failed at step 1: invoke failed"):
        loop.run_block(8)


def test_actions_count_from_the_spaces_start():
    class Shifted(Counter):
        action_space = gymnasium.spaces.Discrete(2, start=5)

    loop = single(Shifted(50), policy=acting(epsilon=1.0))
    block = block_of(loop)
    assert set(block.action.ravel().tolist()) == {0, 1}
    assert set(seen(block)[1:, 2].tolist()) == {5, 6}


def stream(make, cuts, *, versions=None):
    """Run blocks of the given rows; returns them encoded with a fixed boot id."""
    loop, out = make(), []
    codec = BlockCodec(loop.config.spec)
    for sequence, (rows, push) in enumerate(zip(cuts, versions or itertools.repeat(None), strict=False)):
        if push is not None:
            loop.mailbox.post_policy(push)
        loop.run_block(rows)
        out.append(codec.encode(loop.recorder.block(boot_id=BOOT, sequence=sequence, base=0)))
    return out


def lockstep_cartpole():
    return single(make_single(EnvSpec(env_id="CartPole-v1")), rows=32, lockstep=True)


def lockstep_cartpoles():
    return cartpoles(max_rows=32, seed=5, lockstep=True)


@pytest.mark.parametrize(("make", "envs"), [(lockstep_cartpole, 1), (lockstep_cartpoles, 3)])
def test_lockstep_repeats_bit_by_bit_and_resumes_where_it_was(make, envs):
    pushes = [acting(version=v, epsilon=0.3, envs=envs, reset=v in (1, 4)) for v in range(1, 7)]
    whole = stream(make, [32] * 6, versions=pushes)
    assert stream(make, [32] * 6, versions=pushes) == whole
    assert len(set(whole)) == 6
    resumed = stream(make, [32] * 3, versions=pushes[3:])
    for sequence, payload in enumerate(resumed):
        assert (
            payload.replace(b'"sequence":"%d"' % sequence, b'"sequence":"%d"' % (sequence + 3)) == whole[3 + sequence]
        )


def test_async_streams_repeat_by_seed_and_differ_by_actor():
    def make(index=0):
        return single(
            make_single(EnvSpec(env_id="CartPole-v1")), rows=32, policy=acting(epsilon=0.5), actor_index=index
        )

    assert stream(make, [32] * 3) == stream(make, [32] * 3)
    assert stream(make, [32] * 3) != stream(lambda: make(1), [32] * 3)


def test_latencies_are_noted_once_per_block():
    loop = single(Counter())
    for _ in range(3):
        loop.run_block(8)
    assert len(loop.act_us) == 3
    assert all(value > 0 for value in loop.act_us)
    loop.close()
