"""Environments: found, made bare, described, and stepped alike whichever way they reset."""

import time
import warnings

import gymnasium
import numpy as np
import pytest
from counter_environment import registered_counters
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import (
    EnvSpec,
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


@pytest.fixture(autouse=True)
def registered():
    with registered_counters():
        yield


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
        with pytest.raises(UnknownEnvironment, match="registers no environment"):
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
            "pip install swig && pip install 'quarl-edge-device[box2d]'",
        ),
        (
            "gymnasium.envs.mujoco.ant_v5:AntEnv",
            gymnasium.error.DependencyNotInstalled("MuJoCo is not installed, run pip"),
            "pip install 'quarl-edge-device[mujoco]'",
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
