"""A whole agent in continuous spaces, with stochastic policies, and in rounds, around a broker in memory."""

import dataclasses
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from actor_scene import CARTPOLE, Learner, Running, wait_for
from ai_edge_litert import schema_py_generated as schema

from quarl_device.actor.task import same_task, task_name
from quarl_device.contract import Head
from quarl_device.errors import SpaceMismatch, UnsupportedSpace
from quarl_device.policy_file import METADATA_NAME, GoldenVectors, encode_metadata, read_policy
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.exploration import Exploration
from quarl_device.wire.messages import LearnerBirth

DATA = Path(__file__).parent.parent / "data"
PENDULUM = (DATA / "pendulum.tflite").read_bytes()
PENDULUM_FILE = read_policy(PENDULUM)
SAMPLE = Exploration(kind="sample", values=())
ACROBOT = read_policy((DATA / "acrobot.tflite").read_bytes())


def headed(data, role, **head):
    """The bytes of a policy file with another head on its only output."""
    file = read_policy(data)
    [(before, tensor)] = file.contract.head.outputs.items()
    contract = dataclasses.replace(file.contract, head=Head(outputs={role: tensor}, **head))
    golden = GoldenVectors(
        observations=file.golden.observations,
        outputs={role: file.golden.outputs[before]},
        lsb={role: file.golden.lsb[before]},
        tolerance_lsb=file.golden.tolerance_lsb,
    )
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    [entry] = [entry for entry in model.metadata if entry.name == METADATA_NAME.encode()]
    model.buffers[entry.buffer].data = np.frombuffer(encode_metadata(contract, golden, {}), np.uint8)
    builder = flatbuffers.Builder(8192)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


LOGITS = headed(CARTPOLE, "logits", kind="logits")
GAUSSIAN = headed(PENDULUM, "mean", kind="gaussian", log_std=(-0.7,))


def box_learner(broker, **birth):
    contract = PENDULUM_FILE.contract
    spaces = {"env_id": "Pendulum-v1", "observations": contract.observations, "action": contract.action}
    return Learner(broker, **{"algorithm": "ddpg", **spaces, **birth})


@pytest.fixture
def broker():
    return FakeBroker()


@pytest.mark.parametrize("envs", [1, 4])
@pytest.mark.parametrize("kind", ["gaussian", "ornstein_uhlenbeck"])
def test_box_actions_with_noise_reach_the_learner(broker, kind, envs):
    learner = box_learner(broker)
    learner.push(data=PENDULUM, exploration=Exploration(kind=kind, values=(0.0, 0.3)))
    with Running(broker, max_steps=16 * 4 * envs, num_envs=envs, actor_index=1) as actor:
        actor.join()
    assert actor.error is None
    actions = np.concatenate([block.action for block in learner.stored])
    assert actions.shape == (64, envs, 1)
    assert actions.dtype == np.float32
    assert (np.abs(actions) <= 2).all()
    assert len(np.unique(actions)) > 40 * envs


@pytest.mark.parametrize("envs", [1, 4])
def test_a_gaussian_policy_is_sampled_and_says_how_likely_it_was(broker, envs):
    learner = box_learner(broker, algorithm="ppo", mode="rounds", round_steps=40, extras=("log_prob", "sample"))
    learner.push(data=GAUSSIAN, exploration=Exploration(kind="sample", values=(-0.2,)))
    with Running(broker, num_envs=envs) as actor:
        wait_for(lambda: actor.agent._shared.standstill.reason == "waiting for the next policy")
        wait_for(lambda: sum(block.num_steps for block in learner.stored) == 40)
    assert actor.error is None
    sample = np.concatenate([block.extra["sample"] for block in learner.stored])
    log_prob = np.concatenate([block.extra["log_prob"] for block in learner.stored])
    assert sample.shape == (40, envs, 1)
    # No density of a gaussian is above that of its mean.
    assert (log_prob <= 0.2 - 0.5 * np.log(2 * np.pi) + 1e-5).all()
    assert len(np.unique(sample)) > 30 * envs


@pytest.mark.parametrize("envs", [1, 4])
def test_rounds_have_their_rows_of_one_version_each_and_then_wait(broker, envs):
    learner = Learner(broker, mode="rounds", round_steps=40, extras=("log_prob",))
    learner.push(data=LOGITS, exploration=SAMPLE)
    rounds = []
    with Running(broker, num_envs=envs) as actor:
        for version in (1, 2, 3):
            wait_for(lambda: sum(block.num_steps for block in learner.stored) == 40)
            wait_for(lambda: actor.agent._shared.standstill.reason == "waiting for the next policy")
            rounds.append(list(learner.stored))
            learner.stored.clear()
            if version < 3:
                learner.push(data=LOGITS, exploration=SAMPLE)
    assert actor.error is None
    for version, blocks in enumerate(rounds, start=1):
        assert sum(block.num_steps for block in blocks) == 40
        assert max(block.num_steps for block in blocks) <= 16
        assert {number for block in blocks for number in block.policy_version} == {version}
        assert all((block.extra["log_prob"] < 0).all() for block in blocks)
    # An episode goes on from one round into the next.
    assert np.array_equal(rounds[0][-1].observation["observation"][-1], rounds[1][0].observation["observation"][0])
    assert "waiting for the next policy" in actor.summary.blocked_s


def test_of_pushes_that_come_inside_a_round_the_latest_has_the_next(broker):
    learner = Learner(broker, mode="rounds", round_steps=64, ahead=1)

    def push_twice():
        if len(learner.stored) == 1:
            learner.push()
            learner.push()

    learner.on_stored = push_twice
    learner.push()
    with Running(broker):
        wait_for(lambda: sum(block.num_steps for block in learner.stored) == 128)
    versions = np.concatenate([block.policy_version for block in learner.stored])
    assert versions.tolist() == [1] * 64 + [3] * 64


def test_a_learner_that_resumes_inside_a_round_gets_a_whole_round_of_its_own_policy(broker):
    first = Learner(broker, mode="rounds", round_steps=48)
    first.limit = 1
    first.ahead = 1
    first.push()
    with Running(broker) as actor:
        wait_for(lambda: len(first.stored) == 1)
        wait_for(lambda: actor.agent._shared.standstill.reason == "no credit")
        first.leave()
        wait_for(lambda: actor.agent._shared.standstill.reason == "learner lost")
        second = Learner(broker, epoch=101, key=first.key, sessions=first.sessions, mode="rounds", round_steps=48)
        wait_for(lambda: actor.agent._shared.standstill.reason == "waiting for the next policy")
        second.push()
        wait_for(lambda: sum((block.policy_epoch == 101).sum() for block in second.stored) == 48)
        wait_for(lambda: actor.agent._shared.standstill.reason == "waiting for the next policy")
    rows = np.concatenate([block.policy_epoch for block in first.stored + second.stored])
    assert (rows == 101).sum() == 48
    assert set(rows[-48:]) == {101}


def test_an_extra_that_this_device_cannot_make_ends_it_with_a_reason(broker):
    learner = Learner(broker, extras=("log_prob",))
    with pytest.raises(UnsupportedSpace):
        Learner(broker, extras=("value",))
    learner.announce(extras=("value",), epoch=101)
    learner.push()
    with Running(broker) as actor:
        actor.join()
    assert isinstance(actor.error, UnsupportedSpace)
    assert "value" in str(actor.error)


def test_an_environment_with_another_box_is_refused(broker):
    action = dataclasses.replace(PENDULUM_FILE.contract.action, low=(-1.0,), high=(1.0,))
    learner = box_learner(broker, action=action)
    learner.push(data=PENDULUM, exploration=Exploration(kind="none", values=()))
    with Running(broker) as actor:
        actor.join()
    assert isinstance(actor.error, SpaceMismatch)
    assert "-2.0" in str(actor.error)


BIRTH = LearnerBirth(
    status="online", epoch=9, env_id="Pendulum-v1", algorithm="ppo", public_key="ab" * 32, mode="async", seed=0,
    observations=PENDULUM_FILE.contract.observations, action=PENDULUM_FILE.contract.action, block_steps=16,
    version="0.1.0",
)  # fmt: skip


def test_what_makes_another_task():
    rounds = dataclasses.replace(BIRTH, mode="rounds", round_steps=64, extras=("log_prob",))
    assert same_task(rounds, dataclasses.replace(rounds, epoch=10, beat=3))
    for change in ({"extras": ()}, {"round_steps": 65}, {"mode": "async", "round_steps": 0}):
        assert not same_task(rounds, dataclasses.replace(rounds, **change))
    # How long rounds are does not make what was experienced useless; what blocks carry does.
    assert task_name(rounds) == task_name(dataclasses.replace(rounds, round_steps=65, epoch=10))
    assert task_name(rounds) != task_name(dataclasses.replace(rounds, extras=()))


def test_blocks_in_spools_keep_the_name_of_their_task():
    assert task_name(BIRTH).endswith(', "async", 0]')
