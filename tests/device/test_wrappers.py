"""Wrappers by text: put around an environment in order; a text that is none is refused, and nothing of it is run."""

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import MAX_WRAPPERS
from quarl_device.environments import EnvSpec, make_single, make_vector
from quarl_device.environments.wrappers import _ALLOWED, check_wrappers, wrapped
from quarl_device.errors import EnvironmentMisbehaved, UnknownEnvironment


def made(*texts, env_id="Pendulum-v1", **fields):
    return make_single(EnvSpec(env_id=env_id, wrappers=texts, **fields))


def test_the_first_one_is_innermost():
    env = made("RescaleAction(min_action=-0.5, max_action=0.5)", "TimeLimit(max_episode_steps=7)")
    assert isinstance(env, gymnasium.wrappers.TimeLimit)
    assert isinstance(env.env, gymnasium.wrappers.RescaleAction)
    assert env.action_space.high == pytest.approx(0.5)
    env.reset(seed=0)
    ends = [env.step(np.zeros(1, np.float32))[3] for _ in range(7)]
    assert ends == [False] * 6 + [True]


def test_flattening_comes_last():
    env = made("TimeAwareObservation(flatten=False)", flat=True)
    assert env.observation_space.shape == (4,)


def test_lists_texts_and_no_arguments():
    assert made("ClipAction").action_space.high == np.inf
    assert made("ReshapeObservation(shape=(3, 1))").observation_space.shape == (3, 1)
    assert made("  ClipAction( )  ").action_space.high == np.inf


def test_a_batch_is_behind_the_same_wrappers():
    # CartPole has a vector implementation of its own, which would lose them.
    vector = make_vector(EnvSpec(env_id="CartPole-v1", wrappers=("TimeLimit(max_episode_steps=3)",)), 2)
    assert vector.mode == "same_step"
    vector.reset(seed=0)
    steps = [vector.step(np.zeros(2, np.uint8)) for _ in range(3)]
    assert steps[-1].truncated.all()
    vector.close()


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("NormalizeObservation", "is none of ClipAction", "the policy's own normaliser learns it"),
        ("FrameStackObservation(stack_size=4)", "is none of", "--set stack=4"),
        ("TransformAction(func=print)", "is no name with keyword arguments", "RescaleAction("),
        ("os.system(command='true')", "is no name with keyword arguments", ""),
        ("TimeLimit(7)", "is no name with keyword arguments", ""),
        ("TimeLimit(**{'max_episode_steps': 7})", "is no name with keyword arguments", ""),
        ("TimeLimit(max_episode_steps=__import__('os'))", "is no name with keyword arguments", ""),
        ("TimeLimit(steps=7)", "it takes max_episode_steps", ""),
        ("TimeLimit", "missing a required argument: 'max_episode_steps'; it takes max_episode_steps", ""),
        ("TimeLimit(max_episode_steps=7, max_episode_steps=8)", "is no name with keyword arguments", ""),
        ("TimeLimit(env=1, max_episode_steps=7)", "multiple values for argument 'env'", ""),
        ("", "is no name with keyword arguments", ""),
        ("Time\nLimit", "expected a line of at most 256 characters", ""),
        ("(" * 200, "is no name with keyword arguments", ""),
        ("x" * 257, "expected a line of at most 256 characters", ""),
    ],
)
def test_what_is_refused(text, says, hint):
    with pytest.raises(UnknownEnvironment) as refused:
        check_wrappers([text])
    assert says in refused.value.message
    assert hint in refused.value.hint
    assert "\n" not in str(refused.value)


def test_too_many():
    with pytest.raises(UnknownEnvironment, match="17 wrappers: at most 16"):
        check_wrappers(["ClipAction"] * (MAX_WRAPPERS + 1))


def test_one_that_does_not_fit_is_an_error_that_names_it():
    with pytest.raises(EnvironmentMisbehaved, match=r"with TimeLimit\(max_episode_steps=-1\): ValueError"):
        made("TimeLimit(max_episode_steps=-1)")
    with pytest.raises(EnvironmentMisbehaved, match="cannot be made with GrayscaleObservation"):
        made("GrayscaleObservation")


def test_none_of_them_takes_a_function():
    assert not [name for name in _ALLOWED if name.startswith(("Transform", "Record", "Normalize"))]


CALLS = st.sampled_from(sorted(_ALLOWED)).flatmap(lambda name: st.text(max_size=40).map(name.__add__))


@given(st.text(max_size=80) | CALLS)
def test_any_text_is_a_wrapper_or_refused(text):
    try:
        check_wrappers([text])
    except UnknownEnvironment:
        return
    assert text.strip().split("(")[0].strip() in _ALLOWED


def test_none_is_the_environment_itself():
    env = gymnasium.make("CartPole-v1")
    assert wrapped(env, ()) is env
