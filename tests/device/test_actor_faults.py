"""The agent against faults: lost and doubled messages, cut links, new learners, environments that misbehave."""

import logging
import time

import gymnasium
import numpy as np
import pytest
from actor_scene import DEADLINE_S, NAME, TOPICS, Learner, Running, sequences, wait_for

from quarl_device.errors import (
    EnvironmentMisbehaved,
    SpaceMismatch,
    UnknownEnvironment,
)
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.messages import DeviceState, Telemetry
from quarl_edge.ingest.sessions import Verdict


@pytest.fixture
def broker():
    return FakeBroker()


def test_blocks_of_the_newest_policy_reach_the_learner_once_each_in_order(broker):
    learner = Learner(broker)
    learner.push()
    with Running(broker, max_steps=400) as actor:
        summary = actor.join()
    assert actor.error is None
    assert sequences(learner) == list(range(25))
    assert set(learner.verdicts) == {Verdict.ACCEPT}
    assert (summary.steps, summary.blocks, summary.policies, summary.reason) == (400, 25, 1, "all steps made")
    block = learner.stored[0]
    assert (block.num_steps, block.num_envs) == (16, 1)
    assert block.start[0, 0]
    assert set(block.policy_epoch) == {100}
    assert set(block.policy_version) == {1}
    # The end of one block is the beginning of the next.
    for earlier, later in zip(learner.stored, learner.stored[1:], strict=False):
        assert np.array_equal(earlier.observation["observation"][-1], later.observation["observation"][0])


def test_it_says_why_it_stands_still_in_the_order_of_what_is_missing(broker, caplog):
    with caplog.at_level(logging.INFO, "quarl_device"), Running(broker) as actor:
        wait_for(lambda: actor.agent._shared.standstill.reason == "no learner")
        learner = Learner(broker, ahead=0)
        wait_for(lambda: actor.agent._shared.standstill.reason == "no policy")
        learner.push()
        wait_for(lambda: actor.agent._shared.standstill.reason == "no credit")
        # What it says of itself follows within seconds, for whoever wonders why nothing comes.
        wait_for(lambda: learner.states[-1].blocked == "no credit")
        assert abs(learner.states[-1].blocked_since_unix_s - time.time()) < DEADLINE_S
        learner.ahead = 3
        learner.ack()
        wait_for(lambda: len(learner.stored) > 5)
    assert set(actor.summary.blocked_s) >= {"no learner", "no policy", "no credit"}
    assert "standing still: no learner" in caplog.text


def test_lost_and_doubled_messages_are_made_good(broker):
    learner = Learner(broker)
    learner.push()
    with Running(broker, max_steps=64_000) as actor:
        wait_for(lambda: len(learner.stored) > 10)
        broker.drop(TOPICS.any_xp, 2)
        broker.duplicate(TOPICS.any_xp, 3)
        broker.drop(TOPICS.ack(NAME), 2)
        wait_for(lambda: Verdict.GAP in learner.verdicts and Verdict.DUPLICATE in learner.verdicts)
        summary = actor.join()
    assert sequences(learner) == list(range(4000))
    assert summary.blocks_pending == 0


def test_a_cut_link_comes_back_and_nothing_is_lost(broker):
    learner = Learner(broker)
    learner.push()
    with Running(broker) as actor:
        for _ in range(4):
            count = len(learner.stored)
            wait_for(lambda count=count: len(learner.stored) > count + 10)
            broker.cut(NAME)
        broker.cut(NAME, reconnect=False)
        wait_for(lambda: actor.agent._shared.standstill.reason == "link down")
        actor.link.reconnect()
        count = len(learner.stored)
        wait_for(lambda: len(learner.stored) > count + 10)
    stored = sequences(learner)
    assert stored == list(range(len(stored)))


def test_a_learner_that_resumes_gets_every_block_once(broker):
    first = Learner(broker)
    first.push()
    with Running(broker) as actor:
        wait_for(lambda: len(first.stored) > 10)
        first.leave()
        wait_for(lambda: actor.agent._shared.standstill.reason == "learner lost")
        count = len(first.stored)
        second = Learner(broker, epoch=101, key=first.key, sessions=first.sessions)
        second.push()
        wait_for(lambda: second.stored and second.stored[-1].policy_epoch[-1] == 101)
    assert sequences(first)[:count] + sequences(second) == list(range(count + len(second.stored)))


def test_a_new_learner_that_knows_nothing_of_this_life_takes_over(broker):
    """Blocks made before it carry an old base; unless they are stamped again, it waits for freed ones for ever."""
    first = Learner(broker, ahead=6)
    first.push()
    with Running(broker) as actor:
        wait_for(lambda: len(first.stored) > 10)
        # Blocks go out while none comes in: they wait, each with the base of its time.
        broker.drop(TOPICS.any_xp, 1)
        wait_for(lambda: actor.agent._shared.standstill.reason == "no credit")
        first.leave()
        wait_for(lambda: actor.agent._shared.standstill.reason == "learner lost")
        with actor.agent._shared.changed:
            pending = actor.agent._shared.session.pending
            # One of them became durable by an ack that came late.
            actor.agent._shared.session.ack(
                boot_id=actor.agent._shared.session.delivering,
                epoch=100,
                inserted=actor.agent._shared.session.base,
                durable=actor.agent._shared.session.base,
                credit=0,
                now_s=time.monotonic(),
            )
            actor.agent._shared.session.learner_gone(epoch=100, left=False)
            base = actor.agent._shared.session.base
        assert pending > 2
        second = Learner(broker, epoch=101, key=first.key)
        second.push()
        wait_for(lambda: len(second.stored) > 10)
    assert sequences(second) == list(range(base, base + len(second.stored)))
    assert Verdict.GAP not in second.verdicts


def test_a_learner_with_another_environment_is_followed(broker):
    first = Learner(broker)
    first.push()
    with Running(broker) as actor:
        wait_for(lambda: len(first.stored) > 3)
        first.leave()
        # The same spaces under another name: the policy still fits, the environment is made anew.
        second = Learner(broker, epoch=101, key=first.key, env_id="CartPole-v0")
        time.sleep(0.3)
        assert not second.stored, "it acted with a policy that was meant for another task"
        second.push()
        wait_for(lambda: len(second.stored) > 3)
    assert second.stored[0].start[0, 0]
    assert actor.error is None


def test_an_old_farewell_does_not_end_an_actor_that_waits_for_a_learner(broker):
    earlier = Learner(broker)
    earlier.leave()
    with Running(broker, exit_when_gone=True) as actor:
        time.sleep(0.3)
        assert actor.thread.is_alive()
        learner = Learner(broker, epoch=200)
        learner.push()
        wait_for(lambda: learner.stored)


def test_a_dead_actor_leaves_its_will(broker):
    learner = Learner(broker)
    learner.push()
    with Running(broker):
        wait_for(lambda: learner.stored)
        broker.cut(NAME, reconnect=False)
        assert DeviceState.decode(broker.retained[TOPICS.state(NAME)]).status == "gone"


def test_telemetry_is_told_every_second(broker, monkeypatch):
    monkeypatch.setattr("quarl_device.actor.ticker._TELEMETRY_PERIOD_S", 0.05)
    told = []
    learner = Learner(broker)
    learner.link.subscribe(TOPICS.any_telemetry, lambda message: told.append(Telemetry.decode(message.payload)))
    learner.push()
    with Running(broker) as actor:
        wait_for(lambda: len(told) > 5 and told[-1].episodes)
    last = told[-1]
    assert last.boot_id == actor.boot_id
    assert last.pushes == 1
    assert max(telemetry.steps_per_s for telemetry in told) > 0
    assert last.act_us_p50 > 0
    assert 0 < last.push_ms_p50 < 1000 * DEADLINE_S
    assert 8 <= last.return_mean <= 500


class Broken(gymnasium.Env):
    """Goes wrong at its 50th step, in the way it is told."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how="raise"):
        self.how, self.steps = how, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation, reward = np.zeros(4, np.float32), 1.0
        if self.steps == 50:
            if self.how == "raise":
                raise ZeroDivisionError("motor 3 does not answer")
            if self.how == "nan reward":
                reward = float("nan")
            if self.how == "nan observation":
                observation[2] = np.inf
            if self.how == "shape":
                observation = np.zeros(3, np.float32)
        return observation, reward, False, False, {}


@pytest.fixture
def broken_env():
    gymnasium.register("QuarlBroken-v0", entry_point=Broken)
    yield "QuarlBroken-v0"
    del gymnasium.registry["QuarlBroken-v0"]


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("raise", "motor 3 does not answer"),
        ("nan reward", "nan"),
        ("nan observation", "inf"),
        ("shape", "ValueError"),
    ],
)
def test_an_environment_that_misbehaves_ends_the_actor_with_the_step_and_a_farewell(
    broker, broken_env, how, found, envs
):
    learner = Learner(broker, env_id=broken_env, env_kwargs={"how": how})
    learner.push()
    with Running(broker, num_envs=envs) as actor:
        actor.join()
    assert isinstance(actor.error, EnvironmentMisbehaved)
    assert actor.error.code == 23
    assert found in str(actor.error)
    if envs == 1:
        assert "step 50" in str(actor.error)
    last = DeviceState.decode(broker.retained[TOPICS.state(NAME)])
    assert last.status == "gone"
    assert "failed" in last.blocked


def test_the_wire_cannot_name_a_module_to_import(broker):
    Learner(broker, env_id="os:CartPole-v1")
    with Running(broker) as actor:
        actor.join()
    assert isinstance(actor.error, UnknownEnvironment)
    assert "--env" in str(actor.error)


def test_an_environment_of_the_devices_own_must_have_the_learners_spaces(broker):
    learner = Learner(broker)
    learner.push()
    with Running(broker, env="CartPole-v0", max_steps=64) as actor:
        actor.join()
    assert actor.error is None
    with Running(broker, env="Acrobot-v1") as actor:
        actor.join()
    assert isinstance(actor.error, SpaceMismatch)


def lockstep_run(rounds, *, envs=1, until=None):
    """Run a lockstep training with a reset at version 3 and 5; return the payloads without their boot id."""
    broker = FakeBroker()
    learner = Learner(broker, mode="lockstep")

    def next_round():
        if len(learner.stored) < rounds:
            learner.push(epsilon=0.3, reset=learner.version + 1 in (3, 5))

    learner.on_stored = next_round
    learner.push(epsilon=0.3, reset=True)
    with Running(broker, num_envs=envs, block_steps=99, seed=12345) as actor:
        wait_for(lambda: len(learner.stored) == rounds)
        wait_for(lambda: actor.agent._shared.standstill.reason == "waiting for the next policy")
    assert actor.error is None
    boot = actor.boot_id.encode()
    return learner, [payload.replace(boot, b"-") for payload in learner.payloads]


@pytest.mark.parametrize("envs", [1, 4])
def test_lockstep_makes_one_block_per_policy_and_repeats_bit_for_bit(envs):
    learner, once = lockstep_run(6, envs=envs)
    _, again = lockstep_run(6, envs=envs)
    assert once == again
    for version, block in enumerate(learner.stored, start=1):
        assert set(block.policy_version) == {version}
        # The learner's block size and seed count, not the device's.
        assert block.num_steps == 16
    resets = [version for version, block in enumerate(learner.stored, start=1) if block.start[0].all()]
    assert set(resets) >= {1, 3, 5}


def test_a_lockstep_that_is_resumed_makes_the_same_blocks_again():
    _, straight = lockstep_run(6)
    broker = FakeBroker()
    first = Learner(broker, mode="lockstep")
    first.on_stored = lambda: first.push(epsilon=0.3, reset=first.version + 1 in (3, 5))
    first.push(epsilon=0.3, reset=True)
    with Running(broker) as actor:
        # Killed with the block of version 3 in replay; its checkpoint knows 2 versions.
        first.on_stored = lambda: (
            first.push(epsilon=0.3, reset=first.version + 1 in (3, 5)) if len(first.stored) < 4 else first.leave()
        )
        wait_for(lambda: actor.agent._shared.standstill.reason == "learner lost" and len(first.stored) == 4)
        second = Learner(broker, mode="lockstep", epoch=101, key=first.key)
        second.version = 2
        second.on_stored = lambda: (
            second.push(epsilon=0.3, reset=second.version + 1 == 5) if second.version < 6 else None
        )
        second.push(epsilon=0.3, reset=True)
        wait_for(lambda: len(second.stored) == 4)
    codec = first.codec
    for version, block in enumerate(second.stored, start=3):
        wanted = codec.decode(straight[version - 1].replace(b'"boot_id":"-"', b'"boot_id":"0000000000000000"'))
        for name in ("action", "reward", "terminated", "truncated", "start", "policy_version"):
            assert np.array_equal(getattr(block, name), getattr(wanted, name)), (version, name)
        assert np.array_equal(block.observation["observation"], wanted.observation["observation"])
