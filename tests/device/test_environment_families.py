"""Environments that come with an extra, made and stepped for real: `make environments` installs them."""

import importlib.util

import numpy as np
import pytest

from quarl_device.environments import EnvSpec, make_single, make_vector, show_action, spaces_to_specs
from quarl_device.errors import EnvironmentMisbehaved, UnknownEnvironment

CONTROL, PONG = "dm_control/cartpole-balance-v0", "ALE/Pong-v5"
VECTORS = [
    ("Box2D", "LunarLander-v3", 8, "float32", "4 actions from 0"),
    ("Box2D", "BipedalWalker-v3", 24, "float32", "box[4] in"),
    ("mujoco", "HalfCheetah-v5", 17, "float64", "box[6] in"),
    ("mujoco", "Hopper-v5", 11, "float64", "box[3] in"),
    ("dm_control", CONTROL, 5, "float64", "box[1] in"),
]


def needs(module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: make environments")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes a MUJOCO_LOG.TXT where it runs."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("module", "env_id", "size", "dtype", "action"), VECTORS, ids=[case[1] for case in VECTORS])
def test_spaces_are_taken_and_steps_are_alike_alone_and_in_a_batch(module, env_id, size, dtype, action):
    needs(module)
    spec = EnvSpec(env_id=env_id, flat=True)
    env = make_single(spec)
    [observation], found = spaces_to_specs(env.observation_space, env.action_space)
    assert (observation.key, observation.shape, observation.dtype) == ("observation", (size,), dtype)
    assert show_action(found).startswith(action)
    batch = make_vector(spec, 2)
    assert (batch.observations, batch.action) == ((observation,), found)
    np.testing.assert_array_equal(batch.reset(seed=5)[0], env.reset(seed=5)[0])
    env.action_space.seed(0)
    for _ in range(5):
        move = env.action_space.sample()
        alone, together = env.step(move), batch.step(np.stack([move, move]))
        np.testing.assert_array_equal(together.observation[0], alone[0])
        assert together.reward[0] == np.float32(alone[1])
    env.close()
    batch.close()


def test_the_time_limit_of_the_control_suite_truncates():
    needs("dm_control")
    env = make_single(EnvSpec(env_id=CONTROL, flat=True), seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(1000)]
    assert ends == [(False, False)] * 999 + [(False, True)]
    env.close()


def test_a_game_is_84_grey_pixels_alone_and_in_a_batch():
    needs("ale_py")
    env = make_single(EnvSpec(env_id=PONG))
    [observation], action = spaces_to_specs(env.observation_space, env.action_space)
    assert (observation.shape, observation.dtype, action.n) == ((84, 84, 1), "uint8", 6)
    # The ALE's own vector implementation stacks frames and skips by rules of its own: another environment.
    batch = make_vector(EnvSpec(env_id=PONG), 2)
    assert batch.mode == "same_step"
    assert batch.observations == (observation,)
    np.testing.assert_array_equal(batch.reset(seed=3)[0], env.reset(seed=3)[0])
    began = env.unwrapped.ale.getEpisodeFrameNumber()
    env.step(0)
    assert env.unwrapped.ale.getEpisodeFrameNumber() - began == 4
    env.close()
    batch.close()


def test_an_argument_that_the_preprocessing_cannot_go_with_is_one_clear_error():
    needs("ale_py")
    with pytest.raises(EnvironmentMisbehaved, match=r"cannot be made with \{'frameskip': 4\}"):
        make_single(EnvSpec(env_id=PONG, kwargs={"frameskip": 4}))


def test_a_misspelt_id_of_a_family_finds_its_neighbours():
    needs("dm_control")
    with pytest.raises(UnknownEnvironment) as caught:
        make_single(EnvSpec(env_id="dm_control/cartpole-balanc-v0"))
    assert CONTROL in caught.value.hint
