"""A small task for tests of the learner's parts."""

import numpy as np

from quarl_device.contract import ActionSpec, Head, ObservationSpec, PolicyContract
from quarl_edge.configure import make_config
from quarl_edge.replay.transitions import Batch
from quarl_export.networks import NetworkSpec, QuantizationSpec
from quarl_export.qat import QatPolicy

OBSERVATION = ObservationSpec(key="observation", shape=(3,))
ACTION = ActionSpec(kind="discrete", n=2)
CONTRACT = PolicyContract(
    env_id="CartPole-v1", algorithm="dqn", scheme="int8", observations=(OBSERVATION,),
    head=Head(kind="q_values", outputs={"q_values": ""}), action=ACTION,
)  # fmt: skip


def config(**changes):
    small = {"hidden": (8,), "batch_size": 5, "updates_per_call": 4, "samples_per_insert": 20.0}
    return make_config("CartPole-v1", asked={**small, **changes})


def policy(seed=0, hidden=(8,), **quantization):
    spec = NetworkSpec(
        observations=(OBSERVATION,), action=ACTION, hidden=hidden, quantization=QuantizationSpec(**quantization)
    )
    return QatPolicy(spec, seed=seed, normalize=True)


def batch(steps=4, size=5, seed=0):
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(steps, size, 3)).astype(np.float32)
    return Batch(
        observation=observation,
        action=rng.integers(0, 2, (steps, size)).astype(np.uint8),
        reward=rng.normal(size=(steps, size)).astype(np.float32),
        discount=np.full((steps, size), 0.9, np.float32),
        next_observation=observation + np.float32(0.1),
        place=np.zeros((steps, size), np.int64),
        weight=np.ones((steps, size), np.float32),
    )
