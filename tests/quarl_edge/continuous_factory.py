"""Small tasks with continuous and stochastic policies for tests of the algorithms."""

import numpy as np
import pytest
import tensorflow as tf

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_edge.configure import make_config
from quarl_edge.replay.rollouts import Rollout
from quarl_edge.replay.transitions import Batch
from quarl_export.networks import NetworkSpec
from quarl_export.qat import QatPolicy

OBSERVATION = ObservationSpec(key="observation", shape=(3,))
BOX = ActionSpec(kind="box", shape=(2,), low=(-2.0, 0.0), high=(2.0, 1.0))
DISCRETE = ActionSpec(kind="discrete", n=3)


def policy(head, *, action=BOX, hidden=(16,), seed=0):
    spec = NetworkSpec(observations=(OBSERVATION,), action=action, hidden=hidden, head=head)
    return QatPolicy(spec, seed=seed, normalize=True)


def replay_config(algorithm, **changes):
    small = {
        "hidden": (16,), "critic_hidden": (16,), "batch_size": 16, "updates_per_call": 4, "samples_per_insert": 64.0,
    }  # fmt: skip
    return make_config("Pendulum-v1", algorithm=algorithm, asked={**small, **changes})


def round_config(algorithm, **changes):
    small = {"hidden": (16,), "value_hidden": (16,), "round_steps": 8, "actors": 1, "envs_per_actor": 4}
    return make_config("CartPole-v1", algorithm=algorithm, asked={**small, **changes})


def box_batch(steps=4, size=16, seed=0, reward=None, discount=0.0):
    rng = np.random.default_rng(seed)
    observation = rng.uniform(-1, 1, (steps, size, 3)).astype(np.float32)
    action = rng.uniform(BOX.low, BOX.high, (steps, size, 2)).astype(np.float32)
    given = np.zeros((steps, size), np.float32) if reward is None else reward(observation, action).astype(np.float32)
    return Batch(
        observation=observation,
        action=action,
        reward=given,
        discount=np.full((steps, size), discount, np.float32),
        next_observation=observation,
        place=np.zeros((steps, size), np.int64),
        weight=np.ones((steps, size), np.float32),
    )


def rollout(act, reward, *, steps=8, envs=4, seed=0, **extra):
    """Make a round of one-step episodes: `act(observation, rng)` gives action and extras."""
    rng = np.random.default_rng(seed)
    observation = rng.uniform(-1, 1, (steps, envs, 3)).astype(np.float32)
    action, extras = act(observation, rng)
    always = np.ones((steps, envs), np.bool_)
    return Rollout(
        observation=observation,
        action=action,
        reward=reward(observation, action).astype(np.float32),
        next_observation=observation,
        terminated=always,
        ended=always,
        valid=always,
        extra={**extras, **extra},
    )


@pytest.fixture
def without_xla(monkeypatch):
    """Trace updates as plain graphs: the same arithmetic, without seconds of compilation for each network."""
    function = tf.function

    def plain(*arguments, jit_compile=False, **named):
        assert jit_compile in (False, True)
        return function(*arguments, **named)

    monkeypatch.setattr(tf, "function", plain)
