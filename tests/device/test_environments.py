"""Environments: found, made bare, described, and stepped alike whichever way they reset."""

import time
import warnings
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import (
    EnvSpec,
    VectorAdapter,
    check_matches,
    check_registered,
    make_single,
    make_vector,
    spaces_to_specs,
)
from quarl_device.errors import (
    EnvironmentMisbehaved,
    MissingExtra,
    SpaceMismatch,
    UnknownEnvironment,
    UnsupportedSpace,
)

CARTPOLE = EnvSpec(env_id="CartPole-v1")


class Counter(gymnasium.Env):
    """Ends after `length` steps; the observation counts them. Actions start at 5."""

    observation_space = Box(0, 100, (1,), np.float32)
    action_space = Discrete(3, start=5)

    def __init__(self, length=3, fault=""):
        self.length, self.fault, self.count, self.actions = length, fault, 0, []
        if fault == "init":
            raise RuntimeError("no display\nsecond line")
        if fault == "dependency":
            raise gymnasium.error.DependencyNotInstalled("pip install swimmer")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        if self.fault == "reset":
            raise RuntimeError("stuck")
        return np.array([0], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(int(action))
        if self.fault == "step":
            raise ZeroDivisionError("division by zero")
        self.count += 1
        return np.array([self.count], np.float32), 1.0, self.count == self.length, False, {}


@pytest.fixture(autouse=True)
def registered():
    names = ["QuarlCounter-v0", "QuarlCounter-v1"]
    for name in names:
        gymnasium.register(name, entry_point=Counter, max_episode_steps=10)
    yield
    for name in names:
        del gymnasium.registry[name]


# Finding


@pytest.mark.parametrize("env_id", ["CartPole-v1", "CartPole-v0", "Acrobot-v1", "QuarlCounter-v0"])
def test_registered(env_id):
    check_registered(env_id)


@pytest.mark.parametrize(
    ("env_id", "suggestion"),
    [
        ("CartPole", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("CartPol-v1", "CartPole-v1"),
        ("MountainCr-v0", "MountainCar-v0"),
    ],
)
def test_the_nearest_id_is_suggested(env_id, suggestion):
    with pytest.raises(UnknownEnvironment, match="is registered") as caught:
        check_registered(env_id)
    assert suggestion in caught.value.hint


@pytest.mark.parametrize("env_id", ["", "zzzzzzzz", "x" * 100_000, "\0", "../CartPole-v1"])
def test_nothing_near(env_id):
    start = time.monotonic()
    with pytest.raises(UnknownEnvironment) as caught:
        check_registered(env_id)
    assert len(str(caught.value)) < 600
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("env_id", ["os:CartPole-v1", "antigravity:X-v0", ":CartPole-v1", "a:b:c"])
def test_a_module_prefix_is_refused_without_importing(env_id, monkeypatch):
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"imported {name}"))
    for use in (
        check_registered,
        lambda name: make_single(EnvSpec(env_id=name)),
        lambda name: make_vector(EnvSpec(env_id=name), 2),
    ):
        with pytest.raises(UnknownEnvironment, match="names a module to import"):
            use(env_id)


def test_a_module_prefix_of_the_devices_own_user(tmp_path, monkeypatch):
    (tmp_path / "quarl_test_world.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('QuarlWorld-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        spec = EnvSpec(env_id="quarl_test_world:QuarlWorld-v0")
        check_registered(spec.env_id, allow_module=True)
        assert make_single(spec, allow_module=True).observation_space.shape == (4,)
        assert make_vector(spec, 2, allow_module=True).num_envs == 2
        with pytest.raises(UnknownEnvironment, match="cannot be imported: ModuleNotFoundError"):
            check_registered("quarl_no_such_module:X-v0", allow_module=True)
        with pytest.raises(UnknownEnvironment, match="is registered"):
            check_registered("quarl_test_world:Missing-v0", allow_module=True)
    finally:
        gymnasium.registry.pop("QuarlWorld-v0", None)


# Making


def layers(env):
    found = [type(env)]
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        found.append(type(env))
    return found


def test_only_the_time_limit_stays():
    kinds = layers(make_single(CARTPOLE))
    assert TimeLimit in kinds
    assert not {OrderEnforcing, PassiveEnvChecker} & set(kinds)


def test_the_registration_is_left_as_it_was():
    make_single(CARTPOLE)
    assert gymnasium.registry["CartPole-v1"].order_enforce is True
    assert PassiveEnvChecker in layers(gymnasium.make("CartPole-v1"))


def test_bare_and_wrapped_give_the_same_episode():
    bare, wrapped = make_single(CARTPOLE), gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(0)
    for seed in range(5):
        first, second = bare.reset(seed=seed)[0], wrapped.reset(seed=seed)[0]
        np.testing.assert_array_equal(first, second)
        for _ in range(600):
            action = int(rng.integers(2))
            one, two = bare.step(action), wrapped.step(action)
            np.testing.assert_array_equal(one[0], two[0])
            assert one[1:4] == two[1:4]
            if one[2] or one[3]:
                break


def test_the_time_limit_truncates():
    env = make_single(EnvSpec(env_id="QuarlCounter-v0", kwargs={"length": 50}))
    env.reset()
    steps = [env.step(5) for _ in range(10)]
    assert [step[3] for step in steps] == [False] * 9 + [True]


def test_a_seed_decides_later_resets_and_sampled_actions():
    one, two, other = (make_single(CARTPOLE, seed=seed) for seed in (3, 3, 4))
    first = one.reset()[0]
    np.testing.assert_array_equal(first, two.reset()[0])
    assert not np.array_equal(first, other.reset()[0])
    assert [one.action_space.sample() for _ in range(20)] == [two.action_space.sample() for _ in range(20)]


def test_keyword_arguments_arrive():
    assert make_single(EnvSpec(env_id="QuarlCounter-v0", kwargs={"length": 7})).unwrapped.length == 7


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"nonsense": 1}, EnvironmentMisbehaved, "cannot be made with {'nonsense': 1}: TypeError"),
        ({"fault": "init"}, EnvironmentMisbehaved, "RuntimeError: no display"),
        ({"fault": "dependency"}, MissingExtra, "pip install swimmer"),
        ({"id": "Acrobot-v1"}, EnvironmentMisbehaved, "TypeError"),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [make_single, lambda spec: make_vector(spec, 2)], ids=["single", "vector"])
def test_constructors_that_fail(kwargs, error, message, make):
    with pytest.raises(error, match=message) as caught:
        make(EnvSpec(env_id="QuarlCounter-v0", kwargs=kwargs))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "error", "command"),
    [
        (
            "gymnasium.envs.box2d:LunarLander",
            gymnasium.error.DependencyNotInstalled("Box2D is not installed, you can install it"),
            "pip install swig && pip install 'gymnasium[box2d]'",
        ),
        (
            "gymnasium.envs.mujoco.ant_v5:AntEnv",
            gymnasium.error.DependencyNotInstalled("MuJoCo is not installed, run pip"),
            "pip install 'gymnasium[mujoco]'",
        ),
        (
            "gymnasium.envs.phys2d.cartpole:CartPoleJaxEnv",
            ModuleNotFoundError("No module named 'jax'", name="jax"),
            "pip install 'gymnasium[jax]'",
        ),
    ],
)
@pytest.mark.parametrize("make", [make_single, lambda spec: make_vector(spec, 2)], ids=["single", "vector"])
def test_a_missing_extra_is_named_with_the_command_that_adds_it(entry, error, command, make, monkeypatch):
    def fail(*_, **__):
        raise error

    spec = gymnasium.envs.registration.EnvSpec("QuarlBox-v0", entry_point=entry)
    monkeypatch.setitem(gymnasium.registry, "QuarlBox-v0", spec)
    monkeypatch.setattr(gymnasium, "make", fail)
    with pytest.raises(MissingExtra) as caught:
        make(EnvSpec(env_id="QuarlBox-v0"))
    assert caught.value.hint == command
    assert caught.value.message.endswith("not installed")


def test_a_first_reset_that_fails():
    with pytest.raises(EnvironmentMisbehaved, match="RuntimeError: stuck"):
        make_single(EnvSpec(env_id="QuarlCounter-v0", kwargs={"fault": "reset"}), seed=1)


@pytest.mark.parametrize("env_id", ["CartPole-v0", "QuarlCounter-v0"])
def test_old_versions_are_made_without_comment(env_id, capsys):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        make_single(EnvSpec(env_id=env_id))
        make_vector(EnvSpec(env_id=env_id), 2)
    assert [str(w.message) for w in seen] == []
    assert capsys.readouterr() == ("", "")


def test_a_version_that_gymnasium_gave_up_is_one_clear_error():
    with pytest.raises((MissingExtra, EnvironmentMisbehaved, UnknownEnvironment), match="HalfCheetah-v2"):
        make_single(EnvSpec(env_id="HalfCheetah-v2"))


# Spaces


def test_cartpole_specs():
    env = make_single(CARTPOLE)
    [observation], action = spaces_to_specs(env.observation_space, env.action_space)
    assert observation == ObservationSpec(key="observation", shape=(4,), dtype="float32")  # partly unbounded
    assert action == ActionSpec(kind="discrete", n=2)


def test_dict_image_and_box_specs():
    space = Dict({"image": Box(0, 255, (8, 8, 3), np.uint8), "speed": Box(-2.0, 2.0, (2,), np.float64)})
    observations, action = spaces_to_specs(space, Box(np.array([-1, 0], np.float32), np.array([1, 4], np.float32)))
    assert [spec.key for spec in observations] == ["image", "speed"]
    assert observations[0] == ObservationSpec(key="image", shape=(8, 8, 3), dtype="uint8", low=(0.0,), high=(255.0,))
    assert observations[1].dtype == "float64"
    assert (action.low, action.high, action.scale, action.offset) == ((-1.0, 0.0), (1.0, 4.0), (1.0, 2.0), (0.0, 2.0))


def test_bounds_that_differ_are_told_one_by_one():
    low, high = np.array([-1, -2], np.float32), np.array([1, 2], np.float32)
    [observation], action = spaces_to_specs(Box(low, high), Discrete(4, start=-1))
    assert (observation.low, observation.high) == ((-1.0, -2.0), (1.0, 2.0))
    assert (action.n, action.start) == (4, -1)


BOX = Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (Discrete(5), Discrete(2), "is a Discrete space"),
        (Dict({"a": Dict({"b": BOX})}), Discrete(2), "is a Dict space"),
        (Dict({"a/b": BOX}), Discrete(2), "bad observation key"),
        (Text(5), Discrete(2), "is a Text space"),
        (Dict({}), MultiDiscrete([2, 2]), "MultiDiscrete"),
        (BOX, MultiBinary(3), "MultiBinary"),
        (BOX, Box(-np.inf, np.inf, (1,)), "unbounded"),
        (BOX, Discrete(100_000), "100000"),
        (Box(0, 1, (2, 2, 2, 2, 2)), Discrete(2), "not allowed"),
        (Box(0, 1, (2,), np.float16), Discrete(2), "float16"),
    ],
    ids=str,
)
def test_spaces_that_are_refused(observation, action, message):
    with pytest.raises(UnsupportedSpace, match=message):
        spaces_to_specs(observation, action)


def test_matching():
    env = make_single(CARTPOLE)
    specs = spaces_to_specs(env.observation_space, env.action_space)
    check_matches(env, *specs)
    check_matches(make_vector(CARTPOLE, 2), *specs)


def test_differences_are_printed():
    env = make_single(CARTPOLE)
    specs = (ObservationSpec(key="image", shape=(8,), dtype="uint8"),)
    with pytest.raises(SpaceMismatch) as caught:
        check_matches(env, specs, ActionSpec(kind="discrete", n=3, start=1))
    for part in (
        "observation 'image': the environment has none, expected uint8[8]",
        "observation 'observation': the environment has float32[4], expected none",
        "action: the environment has 2 actions from 0, expected 3 actions from 1",
    ):
        assert part in str(caught.value)


def test_a_box_for_a_discrete_action_is_printed():
    box = ActionSpec(kind="box", shape=(1,), low=(-2.0,), high=(2.0,))
    with pytest.raises(SpaceMismatch, match=r"expected box\[1\] in \[-2.0\]..\[2.0\]"):
        check_matches(make_single(CARTPOLE), (ObservationSpec(key="observation", shape=(4,)),), box)


# Vectors


def rollout(adapter, steps, actions):
    """Return, per environment, the list of complete episodes as (observations, rewards, ended by)."""
    current = adapter.reset(seed=0)
    episodes = [[] for _ in range(adapter.num_envs)]
    running = [([row.copy()], []) for row in current]
    for t in range(steps):
        step = adapter.step(actions(t))
        finals = dict(
            zip(step.final_rows.tolist(), step.final_observation if len(step.final_rows) else [], strict=True)
        )
        for n in range(adapter.num_envs):
            observations, rewards = running[n]
            done = step.terminated[n] or step.truncated[n]
            if step.valid[n]:
                rewards.append(float(step.reward[n]))
                observations.append(finals[n].copy() if n in finals else step.observation[n].copy())
                if done:
                    episodes[n].append((np.stack(observations), rewards, "T" if step.terminated[n] else "t"))
            if step.start[n]:
                running[n] = ([step.observation[n].copy()], [])
    return episodes


def test_the_mode_follows_the_registration():
    assert make_vector(CARTPOLE, 3).mode == "next_step"
    assert make_vector(EnvSpec(env_id="Acrobot-v1"), 3).mode == "same_step"
    assert make_vector(CARTPOLE, 3).num_envs == 3


@pytest.mark.parametrize("num_envs", [1, 3])
def test_next_step_episodes_are_those_of_single_environments(num_envs):
    adapter = make_vector(CARTPOLE, num_envs)
    rng = np.random.default_rng(1)
    table = rng.integers(0, 2, (300, num_envs)).astype(np.uint8)
    for episodes in rollout(adapter, 300, lambda t: table[t]):
        assert len(episodes) > 3
        for observations, rewards, _ in episodes:
            assert len(observations) == len(rewards) + 1
            assert set(rewards) == {1.0}
            assert np.abs(observations[0]).max() <= 0.05
            assert abs(observations[-1][0]) > 2.4 or abs(observations[-1][2]) > 0.2


def test_next_step_dummy_rows():
    adapter = make_vector(CARTPOLE, 2)
    adapter.reset(seed=0)
    ended = np.zeros(2, bool)
    for _ in range(200):
        step = adapter.step(np.ones(2, np.uint8))
        np.testing.assert_array_equal(step.valid, ~ended)
        np.testing.assert_array_equal(step.start, ended)
        assert step.final_observation is None
        assert step.final_rows.size == 0
        ended = step.terminated | step.truncated
    assert step.reward.dtype == np.float32


def test_a_reset_forgets_dummy_rows():
    adapter = make_vector(CARTPOLE, 2)
    adapter.reset(seed=0)
    while not adapter.step(np.ones(2, np.uint8)).terminated.any():
        pass
    adapter.reset(seed=1)
    assert adapter.step(np.ones(2, np.uint8)).valid.all()


def test_same_step_episodes_and_start_of_actions():
    adapter = make_vector(EnvSpec(env_id="QuarlCounter-v0"), 2)
    for episodes in rollout(adapter, 12, lambda _: np.array([0, 2], np.uint8)):
        assert len(episodes) == 4
        for observations, rewards, end in episodes:
            assert observations.ravel().tolist() == [0, 1, 2, 3]
            assert rewards == [1.0] * 3
            assert end == "T"


def test_same_step_seeds_each_environment():
    adapter = make_vector(EnvSpec(env_id="Acrobot-v1"), 3)
    observations = adapter.reset(seed=10)
    for n in range(3):
        single = make_single(EnvSpec(env_id="Acrobot-v1"))
        np.testing.assert_array_equal(observations[n], single.reset(seed=10 + n)[0])
    assert not np.array_equal(observations[0], observations[1])


def test_same_step_dicts():
    class Pair(Counter):
        observation_space = Dict({"a": Box(0, 9, (1,), np.float32), "b": Box(0, 255, (2,), np.uint8)})

        def reset(self, **options):
            super().reset(**options)
            return {"a": np.zeros(1, np.float32), "b": np.zeros(2, np.uint8)}, {}

        def step(self, action):
            observation, *rest = super().step(action)
            return {"a": observation, "b": np.full(2, self.count, np.uint8)}, *rest

    gymnasium.register("QuarlPair-v0", entry_point=Pair)
    try:
        adapter = make_vector(EnvSpec(env_id="QuarlPair-v0"), 2)
        adapter.reset(seed=0)
        steps = [adapter.step(np.zeros(2, np.uint8)) for _ in range(3)]
    finally:
        del gymnasium.registry["QuarlPair-v0"]
    assert steps[2].final_rows.tolist() == [0, 1]
    assert steps[2].final_observation["a"].tolist() == [[3], [3]]
    assert steps[2].final_observation["b"].tolist() == [[3, 3], [3, 3]]
    assert steps[2].observation["a"].tolist() == [[0], [0]]
    assert steps[1].final_observation is None


def test_observations_are_not_overwritten_later():
    for spec in (CARTPOLE, EnvSpec(env_id="Acrobot-v1")):
        adapter = make_vector(spec, 2)
        first = adapter.reset(seed=0)
        kept = first.copy()
        second = adapter.step(np.zeros(2, np.uint8)).observation
        kept_second = second.copy()
        adapter.step(np.zeros(2, np.uint8))
        np.testing.assert_array_equal(first, kept)
        np.testing.assert_array_equal(second, kept_second)


@pytest.mark.parametrize(("fault", "message"), [("step", "ZeroDivisionError"), ("reset", "stuck")])
def test_a_vector_that_fails(fault, message):
    adapter = make_vector(EnvSpec(env_id="QuarlCounter-v0", kwargs={"fault": fault}), 2)

    def use():
        adapter.reset(seed=0)
        adapter.step(np.zeros(2, np.uint8))

    with pytest.raises(EnvironmentMisbehaved, match=rf"raised in {fault}\(\).*{message}"):
        use()


def test_a_vector_entry_point_with_another_way_to_reset_is_not_used(monkeypatch):
    closed = []

    class Odd:
        metadata: ClassVar = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}

        def close(self):
            closed.append(True)

    monkeypatch.setattr(gymnasium, "make_vec", lambda *_, **__: Odd())
    adapter = make_vector(CARTPOLE, 2)
    assert isinstance(adapter, VectorAdapter)
    assert adapter.mode == "same_step"
    assert closed == [True]
    adapter.close()
