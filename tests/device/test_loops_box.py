"""The two hot loops in continuous spaces: noise, clipping, what is recorded, and what is refused."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.draws import LockstepDraws, StreamDraws, normals
from quarl_device.actor.exploration import OU_THETA
from quarl_device.actor.single import SingleLoop
from quarl_device.actor.stepping import LoopConfig
from quarl_device.actor.vector import VectorLoop
from quarl_device.environments import EnvSpec, VectorAdapter, make_single, make_vector, spaces_to_specs
from quarl_device.errors import EnvironmentMisbehaved, MissingExtra, ModelFileError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.exploration import Exploration

PENDULUM = read_policy_path(Path(__file__).parent.parent / "data" / "pendulum.tflite")
POLICIES = {n: Policy.load(PENDULUM, batch_size=n) for n in (1, 3)}
BOOT = "0123456789abcdef"
NONE = Exploration(kind="none", values=())


def gaussian(sigma):
    return Exploration(kind="gaussian", values=(sigma,))


def drifting(sigma):
    return Exploration(kind="ornstein_uhlenbeck", values=(sigma,))


class Arm(gymnasium.Env):
    """Observes [step, last action, 0]; keeps every action it was given, and spoils it afterwards."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def __init__(self, length=5, *, spoil=None, action_space=None):
        self.length, self.spoil, self.count, self.total, self.given = length, spoil or {}, 0, 0, []
        self.action_space = action_space or type(self).action_space

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        assert np.shape(action) == self.action_space.shape
        self.given.append(np.array(action))
        if np.isnan(action).any():
            raise ValueError("the arm cannot move there")
        if isinstance(action, np.ndarray):
            action *= 0
        self.count, self.total = self.count + 1, self.total + 1
        spoilt = self.spoil.get(self.total, {})
        observation = spoilt.get("observation", np.array([self.count, self.given[-1].sum(), 0], np.float32))
        return observation, spoilt.get("reward", 1.0), self.count == self.length, False, {}


def config(env, *, envs=1, rows=8, **kwargs):
    observations, action = spaces_to_specs(env.observation_space, env.action_space)
    spec = BlockSpec(observations=observations, action=action)
    return LoopConfig(env_id="Arm-v0", spec=spec, num_envs=envs, max_rows=rows, seed=1, **kwargs)


def acting(exploration=NONE, *, envs=1, version=1, policy=None, **kwargs):
    policy = policy or POLICIES[envs]
    return ActingPolicy(policy=policy, epoch=1, version=version, exploration=exploration, **kwargs)


def single(env, exploration=NONE, *, policy=None, **kwargs):
    loop = SingleLoop(env, config(env, **kwargs), Mailbox())
    loop.mailbox.post_policy(acting(exploration, policy=policy))
    return loop


def vector(envs, exploration=NONE, *, policy=None, **kwargs):
    joined = gymnasium.vector.SyncVectorEnv(
        [lambda env=env: env for env in envs], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    loop = VectorLoop(VectorAdapter(joined, mode="same_step"), config(envs[0], envs=len(envs), **kwargs), Mailbox())
    loop.mailbox.post_policy(acting(exploration, envs=len(envs), policy=policy))
    return loop


def block_of(loop, rows=8):
    """Run one block, over the wire and back."""
    loop.run_block(rows)
    codec = BlockCodec(loop.config.spec)
    return codec.decode(codec.encode(loop.recorder.block(boot_id=BOOT, sequence=0, base=0)))


def seen(block, env=0):
    return block.observation["observation"][:-1, env]


def greedy(block, env=0):
    return np.array([POLICIES[1].act(observation) for observation in seen(block, env)])


def loop_of(envs, exploration, **kwargs):
    arms = [Arm(5), Arm(3), Arm(50)][:envs]
    return arms, single(arms[0], exploration, **kwargs) if envs == 1 else vector(arms, exploration, **kwargs)


def numbers(*, envs=1, rows=8, width=1):
    """The standard normal numbers of the first block of these tests' loops."""
    draws = StreamDraws(seed=1, actor_index=0, num_envs=envs, max_rows=rows, width=width)
    draws.begin_block(rows)
    return normals(draws.raw)


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("exploration", [NONE, gaussian(0.0), gaussian(0.3), gaussian(50.0), drifting(0.3)])
def test_what_is_recorded_is_what_the_environment_got(envs, exploration):
    arms, loop = loop_of(envs, exploration)
    block = block_of(loop)
    assert block.action.dtype == np.float32
    assert (np.abs(block.action) <= 2).all()
    for env, arm in enumerate(arms):
        assert np.array_equal(block.action[:, env], np.array(arm.given))


@pytest.mark.parametrize("envs", [1, 3])
def test_without_noise_the_policy_acts(envs):
    for exploration in (NONE, gaussian(0.0), drifting(0.0)):
        block = block_of(loop_of(envs, exploration)[1])
        for env in range(envs):
            np.testing.assert_allclose(block.action[:, env], greedy(block, env), rtol=0, atol=1e-6)


@pytest.mark.parametrize("envs", [1, 3])
def test_gaussian_noise_is_added_in_half_ranges_and_clipped(envs):
    block = block_of(loop_of(envs, gaussian(0.4))[1])
    noise = numbers(envs=envs)
    for env in range(envs):
        wanted = np.clip(greedy(block, env) + 0.4 * 2.0 * noise[:, env], -2, 2)
        np.testing.assert_allclose(block.action[:, env], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("envs", [1, 3])
def test_ornstein_uhlenbeck_noise_drifts_and_begins_anew_with_each_episode(envs):
    block = block_of(loop_of(envs, drifting(0.1))[1])
    noise = numbers(envs=envs)
    for env in range(envs):
        x, wanted = np.zeros(1), []
        for row, action in enumerate(greedy(block, env)):
            x = (np.zeros(1) if block.start[row, env] else (1 - OU_THETA) * x) + 0.1 * 2.0 * noise[row, env]
            wanted.append(np.clip(action + x, -2, 2))
        np.testing.assert_allclose(block.action[:, env], wanted, rtol=0, atol=1e-5)


def test_drift_goes_on_over_the_seam_of_two_blocks_and_a_swap():
    def run(*cuts):
        loop = single(Arm(100), lockstep=True)
        for version, rows in enumerate(cuts, 1):
            loop.mailbox.post_policy(acting(drifting(0.1), version=version, reset=version == 1))
            yield block_of(loop, rows).action

    assert np.array_equal(np.concatenate(list(run(5, 3))), next(run(8)))


@pytest.mark.parametrize("envs", [1, 3])
def test_another_exploration_inside_a_block_holds_from_the_next_row_on(envs):
    class Swaps(Arm):
        def step(self, action):
            if self.total == 2:
                loop.mailbox.post_policy(acting(gaussian(0.4), version=2, envs=envs))
            return super().step(action)

    arms = [Swaps(50), Arm(50), Arm(50)][:envs]
    loop = single(arms[0]) if envs == 1 else vector(arms)
    block = block_of(loop)
    assert block.policy_version.tolist() == [1, 1, 1, 2, 2, 2, 2, 2]
    np.testing.assert_allclose(block.action[:3, 0], greedy(block)[:3], atol=1e-6)
    wanted = np.clip(greedy(block)[3:] + 0.8 * numbers(envs=envs)[3:, 0], -2, 2)
    np.testing.assert_allclose(block.action[3:, 0], wanted, atol=1e-5)


SPACES = [
    gymnasium.spaces.Box(-1, 1, (2, 3), np.float32),
    gymnasium.spaces.Box(-1, 1, (9,), np.float32),
    gymnasium.spaces.Box(np.float32([0, -5]), np.float32([1, 20]), dtype=np.float32),
    gymnasium.spaces.Box(-3, 3, (), np.float32),
    gymnasium.spaces.Box(-1, 1, (1,), np.float64),
]


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("exploration", [gaussian(0.5), drifting(0.5)])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_boxes_of_every_shape_and_bounds(space, exploration, envs):
    middle = ((space.low + space.high) / 2).astype(np.float32)
    policy = SimpleNamespace(
        act_index=lambda _: middle.copy(), act_batch=lambda _: np.broadcast_to(middle, (envs, *space.shape)).copy()
    )
    arms = [Arm(5, action_space=space) for _ in range(envs)]
    loop = single(arms[0], exploration, policy=policy) if envs == 1 else vector(arms, exploration, policy=policy)
    block = block_of(loop)
    assert block.action.shape == (8, envs, *space.shape)
    assert ((block.action >= space.low) & (block.action <= space.high)).all()
    half = (space.high - space.low) / 2
    noise = numbers(envs=envs, width=int(np.prod(space.shape)))[0].reshape(envs, *space.shape)
    np.testing.assert_allclose(
        block.action[0], np.clip(middle + 0.5 * half * noise, space.low, space.high), rtol=1e-5, atol=1e-6
    )


class Broken:
    """A policy whose action at one call is NaN, or that raises."""

    def __init__(self, at, *, envs=1, error=None):
        self.at, self.calls, self.envs, self.error = at, -1, envs, error

    def act_index(self, _):
        return self.act_batch(None)[0]

    def act_batch(self, _):
        self.calls += 1
        if self.calls == self.at and self.error:
            raise self.error
        actions = np.zeros((self.envs, 1), np.float32)
        actions[-1] = np.nan if self.calls == self.at else 0.0
        return actions


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("exploration", [NONE, gaussian(0.1), drifting(0.1)])
def test_a_nan_action_is_the_policys_fault_and_told_with_the_step(envs, exploration):
    """Whether the environment takes it or raises at it."""
    for patient in (False, True):
        arms = [Arm(50) for _ in range(envs)]
        if patient:
            for arm in arms:
                arm.step = lambda _: (np.zeros(3, np.float32), 0.0, False, False, {})
        policy = Broken(3, envs=envs)
        loop = single(arms[0], exploration, policy=policy) if envs == 1 else vector(arms, exploration, policy=policy)
        # Call 0 is the one that is timed.
        with pytest.raises(ModelFileError, match=rf"the policy's action .*nan.* at step {3 * envs}\b"):
            loop.run_block(8)


@pytest.mark.parametrize("envs", [1, 3])
def test_a_policy_that_fails_is_told_with_the_step(envs):
    arms = [Arm(50) for _ in range(envs)]
    policy = Broken(3, envs=envs, error=RuntimeError("invoke failed"))
    loop = single(arms[0], policy=policy) if envs == 1 else vector(arms, policy=policy)
    with pytest.raises(ModelFileError, match=r"the policy failed at step .*: invoke failed"):
        loop.run_block(8)


NAN = np.array([0, np.nan, 0], np.float32)


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize(("at_4", "says"), [({"reward": np.nan}, "reward nan"), ({"observation": NAN}, "observation")])
def test_what_an_environment_must_not_give_is_told_with_the_step(envs, at_4, says):
    arms = [Arm(50, spoil={4: at_4}), Arm(50), Arm(50)][:envs]
    loop = single(arms[0], gaussian(0.1)) if envs == 1 else vector(arms, gaussian(0.1))
    with pytest.raises(EnvironmentMisbehaved, match=rf"{says}.* at step {4 * envs}\b"):
        loop.run_block(8)


@pytest.mark.parametrize("envs", [1, 3])
def test_a_nan_in_the_last_observation_of_an_episode_is_found(envs):
    arms = [Arm(50), Arm(50), Arm(4, spoil={4: {"observation": NAN}})][-envs:]
    loop = single(arms[0], gaussian(0.1)) if envs == 1 else vector(arms, gaussian(0.1))
    with pytest.raises(EnvironmentMisbehaved, match=rf"observation .*nan.* at step {4 * envs}\b"):
        loop.run_block(8)


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("space", ["observation_space", "action_space"])
def test_spaces_that_change_with_a_reset_are_refused(envs, space):
    arms = [Arm(50) for _ in range(envs)]
    reset, wider = arms[-1].reset, gymnasium.spaces.Box(-3, 3, (3,), np.float32)
    if space == "observation_space":
        wider = gymnasium.spaces.Box(-3, 3, (4,), np.float32)

    def changing(**named):
        setattr(arms[-1], space, wider)
        return reset(**named)

    arms[-1].reset = changing
    loop = single(arms[0], gaussian(0.1)) if envs == 1 else vector(arms, gaussian(0.1))
    with pytest.raises(EnvironmentMisbehaved, match=r"has changed its spaces with reset\(\): .*expected") as error:
        loop.run_block(8)
    assert "policy or learner" not in str(error.value)


@pytest.mark.parametrize("envs", [1, 3])
def test_a_later_reset_to_another_shape_is_told_with_the_step(envs):
    arms = [Arm(4) for _ in range(envs)]
    resets = iter([np.zeros(3, np.float32), np.zeros(1, np.float32)])
    arms[-1].reset = lambda **_: (next(resets), {})
    loop = single(arms[0], gaussian(0.1)) if envs == 1 else vector(arms, gaussian(0.1))
    with pytest.raises(EnvironmentMisbehaved, match=r"shape"):
        loop.run_block(8)


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (gymnasium.error.DependencyNotInstalled("pygame is not installed, run `pip install x`"), "run `pip install x`"),
        (ModuleNotFoundError("No module named 'cv2'", name="cv2"), "needs the Python module 'cv2'"),
    ],
)
def test_a_package_that_is_missed_as_late_as_in_a_step_is_missing_all_the_same(envs, raised, said):
    arms = [Arm(50) for _ in range(envs)]

    def draw(_):
        raise raised

    arms[-1].step = draw
    loop = single(arms[0], gaussian(0.1)) if envs == 1 else vector(arms, gaussian(0.1))
    with pytest.raises(MissingExtra, match=said) as error:
        loop.run_block(8)
    assert error.value.code == 80


def test_a_nan_observation_is_not_blamed_on_the_policy_that_sees_it():
    arm = Arm(50, spoil={4: {"observation": NAN}})
    policy = SimpleNamespace(act_index=lambda seen: np.float32([seen[1]]))
    arm.step, step = lambda action: step(np.nan_to_num(action)), arm.step
    with pytest.raises(EnvironmentMisbehaved, match=r"observation .*nan.* at step 4\b"):
        single(arm, policy=policy).run_block(8)


@pytest.mark.parametrize("envs", [1, 3])
def test_a_reset_to_nan_is_the_environments_fault_though_the_policy_follows(envs):
    arms = [Arm(50) for _ in range(envs)]
    arms[-1].reset = lambda **_: (NAN, {})
    arms[-1].step = lambda _: (np.zeros(3, np.float32), 0.0, False, False, {})
    policy = SimpleNamespace(
        act_index=lambda seen: np.float32([seen[1]]), act_batch=lambda seen: seen[:, 1:2].astype(np.float32)
    )
    loop = single(arms[0], policy=policy) if envs == 1 else vector(arms, policy=policy)
    with pytest.raises(EnvironmentMisbehaved, match=r"observation .*nan.* at step 0\b"):
        loop.run_block(8)


def pendulum(envs, exploration, **kwargs):
    if envs == 1:
        return single(make_single(EnvSpec(env_id="Pendulum-v1")), exploration, rows=32, **kwargs)
    env = make_vector(EnvSpec(env_id="Pendulum-v1"), envs)
    spec = BlockSpec(observations=env.observations, action=env.action)
    loop_config = LoopConfig(env_id="Pendulum-v1", spec=spec, num_envs=envs, max_rows=32, seed=1, **kwargs)
    loop = VectorLoop(env, loop_config, Mailbox())
    loop.mailbox.post_policy(acting(exploration, envs=envs))
    return loop


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("exploration", [gaussian(0.2), drifting(0.2)])
def test_lockstep_in_pendulum_repeats_bit_by_bit_and_resumes_where_it_was(envs, exploration):
    def run(versions):
        loop = pendulum(envs, exploration, lockstep=True)
        for version in versions:
            loop.mailbox.post_policy(acting(exploration, envs=envs, version=version, reset=version in (1, 4)))
            loop.run_block(32)
            yield loop.recorder.action.copy(), loop.recorder.observation.copy()

    whole, again, resumed = list(run(range(1, 7))), list(run(range(1, 7))), list(run(range(4, 7)))
    for one, other in (*zip(whole, again, strict=True), *zip(whole[3:], resumed, strict=True)):
        assert all(np.array_equal(mine, its) for mine, its in zip(one, other, strict=True))


def test_lockstep_noise_is_that_of_its_draws():
    loop = single(Arm(50), gaussian(0.2), lockstep=True)
    loop.mailbox.post_policy(acting(gaussian(0.2), version=7, reset=True))
    block = block_of(loop)
    draws = LockstepDraws(seed=1, num_envs=1, max_rows=8)
    draws.restart(7)
    draws.begin_block(8)
    wanted = np.clip(greedy(block) + 0.4 * normals(draws.raw)[:, 0], -2, 2)
    np.testing.assert_allclose(block.action[:, 0], wanted, atol=1e-5)


def test_async_noise_repeats_by_seed_and_differs_by_actor():
    first, again, other = (block_of(pendulum(1, gaussian(0.2), actor_index=n), 32).action for n in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_policy_without_noise_does_not_mind_what_the_environment_does_to_its_action():
    one = np.ones(1, np.float32)
    kept = dataclasses.replace(acting(), policy=SimpleNamespace(act_index=lambda _: one))
    loop = single(Arm(50))
    loop.mailbox.post_policy(kept)
    assert block_of(loop).action.ravel().tolist() == [1.0] * 8
