"""The agent against a broker in memory and a learner that follows a script."""

import dataclasses
import hashlib
import logging
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from quarl_device.actor.agent import Agent, AgentConfig, will_of
from quarl_device.contract import ObservationSpec
from quarl_device.environments import spaces_to_specs
from quarl_device.errors import (
    BrokerUnreachable,
    EnvironmentMisbehaved,
    IdInUse,
    KeyFileError,
    SpaceMismatch,
    UnknownEnvironment,
    UnsupportedSpace,
    WireVersionMismatch,
)
from quarl_device.policy_file import read_policy_path
from quarl_device.runtime import find_runtime
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.messages import Ack, DeviceState, LearnerBirth, Telemetry
from quarl_device.wire.push import Exploration, PushHeader, encode_push
from quarl_device.wire.topics import Topics

DATA = Path(__file__).parent.parent / "data"
CARTPOLE, ACROBOT = (read_policy_path(DATA / f"{name}.tflite") for name in ("cartpole", "acrobot"))
RUNTIME = find_runtime()
TOPICS = Topics("default")
KEY = LearnerKey(bytes(range(32)))
BOOT = "00000000000000aa"
ENV = gymnasium.make("CartPole-v1")
OBSERVATIONS, ACTION = spaces_to_specs(ENV.observation_space, ENV.action_space)


def eventually(condition, what, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.005)


class Learner:
    """What a learner says and hears, one thing at a time; acks each block in turn unless told otherwise."""

    def __init__(self, broker, *, name="learner", key=KEY, epoch=100, mode="async", ahead=3, **birth):
        self.broker, self.key, self.epoch, self.ahead = broker, key, epoch, ahead
        self.fields = {
            "env_id": "CartPole-v1", "algorithm": "dqn", "observations": OBSERVATIONS, "action": ACTION,
            "public_key": key.public.hex, "mode": mode, "seed": 3, "block_steps": 16, "version": "1", **birth,
        }  # fmt: skip
        self.codec = BlockCodec(BlockSpec(observations=self.fields["observations"], action=self.fields["action"]))
        self.blocks, self.states, self.telemetry, self.payloads = [], [], [], []
        self.duplicates = self.beat = self.stored = 0
        self.acking = True
        self.lock = threading.RLock()
        self.link = broker.link(name)
        self.link.subscribe(TOPICS.any_xp, self._on_xp)
        self.link.subscribe(TOPICS.any_state, lambda m: self.states.append(DeviceState.decode(m.payload)))
        self.link.subscribe(TOPICS.any_telemetry, lambda m: self.telemetry.append(Telemetry.decode(m.payload)))
        self.link.connect(timeout_s=1.0)

    def birth(self, status="online", **changes):
        self.beat += 1
        fields = {**self.fields, "status": status, "epoch": self.epoch, "beat": self.beat, **changes}
        self.link.publish(TOPICS.learner, LearnerBirth(**fields).encode(), retain=True)

    def ack(self, credit=None, **changes):
        credit = self.stored + self.ahead if credit is None else credit
        stored = self.stored - 1
        fields = {"boot_id": BOOT, "epoch": self.epoch, "inserted": stored, "durable": stored, "credit": credit}
        self.link.publish(TOPICS.ack("a"), Ack(**{**fields, **changes}).encode())

    def push(self, version=1, *, key=None, policy=CARTPOLE, epoch=None, spoil=lambda p: p, **changes):
        golden = {"golden_outputs": dict(policy.golden.outputs), "lsb": dict(policy.golden.lsb)}
        fields = {"sha256": policy.sha256, "env_steps": 0, "exploration": Exploration(values=(0.5,)), **golden}
        header = PushHeader(epoch=self.epoch if epoch is None else epoch, version=version, **{**fields, **changes})
        payload = encode_push(header, policy.data, (key or self.key).sign)
        self.link.publish(TOPICS.policy, spoil(payload), retain=True)

    def _on_xp(self, message):
        block = self.codec.decode(message.payload)
        with self.lock:
            if block.sequence == self.stored:
                self.stored += 1
                self.blocks.append(block)
                self.payloads.append(message.payload)
            else:
                self.duplicates += 1
        if self.acking:
            self.ack()

    def versions(self):
        return [int(block.policy_version[-1]) for block in self.blocks]


class Actor:
    """An agent on its own thread."""

    def __init__(self, broker, *, boot_id=BOOT, **config):
        self.config = AgentConfig(fleet="default", name="a", connect_timeout_s=1.0, **config)
        self.link = broker.link("a", will=will_of(self.config, boot_id))
        self.agent = Agent(self.config, link=self.link, runtime=RUNTIME, boot_id=boot_id)
        self.summary = self.error = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            self.summary = self.agent.run()
        except Exception as error:
            self.error = error

    def join(self, timeout_s=5.0):
        self.thread.join(timeout_s)
        assert not self.thread.is_alive(), "the agent does not end"
        return self.summary

    def stop(self):
        self.agent.stop()
        return self.join()

    def fails(self, kind):
        self.join()
        assert isinstance(self.error, kind), self.error
        return self.error

    @property
    def blocked(self):
        return self.agent._shared.session.blocked() if self.agent._shared.birth else "no learner"


def working_threads():
    """Return the threads of agents that run in this process, also those of other tests that are about to end."""
    return {thread for thread in threading.enumerate() if thread.name in ("ticker", "inbox")}


@pytest.fixture
def broker():
    return FakeBroker()


@pytest.fixture
def actor(broker):
    """Start actors; what still runs at the end is stopped."""
    started, before = [], working_threads()

    def start(**config):
        started.append(Actor(broker, **config))
        return started[-1]

    yield start
    for one in started:
        one.agent.stop()
        one.join()
    assert not working_threads() - before


@pytest.fixture
def running(broker, actor):
    """A learner and an actor that exchange blocks."""
    learner = Learner(broker)
    one = actor()
    learner.birth()
    learner.push()
    learner.ack()
    eventually(lambda: len(learner.blocks) > 3, "blocks")
    return learner, one


def test_birth_push_blocks_acks_more_blocks(running):
    learner, one = running
    assert learner.states[0].status == "online"
    assert learner.states[0].boot_id == BOOT
    assert all(block.boot_id == BOOT for block in learner.blocks)
    assert {block.num_steps for block in learner.blocks} == {16}
    assert set(learner.versions()) == {1}
    learner.push(2)
    eventually(lambda: 2 in learner.versions(), "the second policy acts")
    summary = one.stop()
    assert summary.reason == "stopped"
    assert summary.blocks == len(learner.blocks)
    assert summary.policies == 2
    assert summary.steps == sum(block.transitions for block in learner.blocks)
    assert not learner.duplicates


def test_the_retained_birth_and_push_are_enough_in_any_order(broker, actor):
    learner = Learner(broker)
    learner.push()
    learner.birth()
    for topics in (list(broker.retained), list(broker.retained)[::-1]):
        broker.retained = {topic: broker.retained[topic] for topic in topics}
        one = actor()
        eventually(lambda one=one: one.blocked == "no credit", "ready")
        one.stop()


def test_no_credit_stops_it_and_it_says_so(running):
    learner, one = running
    learner.acking = False
    eventually(lambda: one.blocked == "no credit", "no credit")
    made = len(learner.blocks)
    eventually(lambda: learner.states[-1].blocked == "no credit", "it says so")
    assert len(learner.blocks) == made
    since = learner.states[-1].blocked_since_unix_s
    assert 0.9 < time.time() - since < 5
    learner.acking = True
    learner.ack()
    eventually(lambda: len(learner.blocks) > made + 3, "it goes on")
    eventually(lambda: learner.states[-1].blocked == "", "it says so too")
    assert one.stop().blocked_s["no credit"] > 0.9


def test_w3_an_older_push_is_ignored(running):
    learner, one = running
    learner.push(5)
    eventually(lambda: 5 in learner.versions(), "5")
    inbox = one.agent._listener.inbox
    for changes in ({"version": 4}, {"version": 5}, {"version": 99, "epoch": learner.epoch - 1}):
        before = inbox.ignored
        learner.push(**changes)
        eventually(lambda before=before: inbox.ignored == before + 1, "ignored")
    count = len(learner.blocks)
    eventually(lambda: len(learner.blocks) > count + 3, "blocks")
    assert set(learner.versions()[count:]) == {5}
    assert inbox.refused == 0


BAD = {
    "signed by another": {"key": LearnerKey(bytes(32))},
    "damaged": {"spoil": lambda p: p[:-100] + bytes([p[-100] ^ 1]) + p[-99:]},
    "cut": {"spoil": lambda p: p[: len(p) // 2]},
    "empty header": {"spoil": lambda _: b"QPOL\x01" + bytes(80)},
    "noise": {"spoil": lambda _: b"\x00" * 100},
    "other digest": {"sha256": hashlib.sha256(b"other").hexdigest()},
    "self-test": {"golden_outputs": {"q_values": CARTPOLE.golden.outputs["q_values"] + 1.0}},
    "golden of another shape": {"golden_outputs": {"q_values": np.zeros((1, 7), np.float32)}},
    "other spaces": {
        "policy": ACROBOT, "golden_outputs": dict(ACROBOT.golden.outputs), "lsb": dict(ACROBOT.golden.lsb)
    },
    "not a policy": {
        "policy": dataclasses.replace(CARTPOLE, data=b"x" * 99, sha256=hashlib.sha256(b"x" * 99).hexdigest())
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_push_that_does_not_hold_is_refused_and_counted_and_the_policy_goes_on(running, kind):
    learner, one = running
    learner.push(2, **BAD[kind])
    eventually(lambda: one.agent._listener.inbox.refused == 1, "refused")
    count = len(learner.blocks)
    eventually(lambda: len(learner.blocks) > count + 3, "the current policy goes on")
    assert set(learner.versions()) == {1}
    learner.push(3)
    eventually(lambda: 3 in learner.versions(), "a good push after it")
    eventually(lambda: learner.telemetry and learner.telemetry[-1].pushes_refused == 1, "counted")


@pytest.mark.parametrize("topic", [TOPICS.learner, TOPICS.ack("a"), TOPICS.policy])
@pytest.mark.parametrize("payload", [b"{", b"[]", b"\xff" * 99, b"{}", b"x" * 100_000, b'{"schema":1}'])
def test_w4_and_w5_no_payload_hurts(running, topic, payload):
    learner, one = running
    learner.link.publish(topic, payload)
    count = len(learner.blocks)
    eventually(lambda: len(learner.blocks) > count + 3, "blocks go on")
    assert one.link.counters.handler_errors == 0


def test_a_flood_of_payloads_that_do_not_hold_fills_no_log(running, caplog):
    learner, one = running
    with caplog.at_level(logging.WARNING):
        for sequence in range(99):
            learner.link.publish(TOPICS.learner, b"{")
            learner.link.publish(TOPICS.state("a"), b"{")
            learner.ack(refused={sequence: 34})
        learner.states.clear()
        refused = lambda: [record for record in caplog.records if "refused" in record.getMessage()]  # noqa: E731
        eventually(lambda: len(refused()) == 60, "twenty of each kind are told")
        one.stop()
    said = [record.getMessage() for record in caplog.records]
    assert {"79 more refused births were not shown", "79 more refused own states were not shown"} <= set(said)
    assert "79 more blocks that the learner refused were not shown" in said


def test_an_exception_of_ours_in_a_handler_is_survived(running, monkeypatch, caplog):
    learner, one = running
    monkeypatch.setattr(one.agent._shared.session, "ack", lambda **_: 1 / 0)
    with caplog.at_level(logging.CRITICAL):
        learner.ack()
        eventually(lambda: one.link.counters.handler_errors > 0, "counted")
        monkeypatch.undo()
    learner.ack()
    count = len(learner.blocks)
    eventually(lambda: len(learner.blocks) > count + 3, "blocks go on")


def test_the_ticker_survives_whatever_a_tick_raises(running, monkeypatch, caplog):
    learner, one = running
    failed = threading.Event()

    def fail(_):
        failed.set()
        raise RuntimeError("a bug")

    with caplog.at_level(logging.CRITICAL):
        monkeypatch.setattr(one.agent._shared.standstill, "is_news", fail)
        assert failed.wait(2.0)
        monkeypatch.undo()
    count = len(learner.telemetry)
    eventually(lambda: len(learner.telemetry) > count, "telemetry goes on")


def test_w8_a_new_epoch_is_answered_by_a_birth_and_gets_what_was_not_durable(running):
    learner, one = running
    learner.acking = False
    eventually(lambda: one.blocked == "no credit", "no credit")
    # Inserted, but lost with the old learner: only what it called durable stays.
    learner.ack(durable=learner.stored - 3)
    eventually(lambda: one.agent._shared.session.pending >= 2, "pending")
    base = one.agent._shared.session.base
    births = len(learner.states)
    learner.epoch += 1
    learner.acking = True
    del learner.blocks[base:]
    learner.stored = base
    learner.birth()
    eventually(lambda: len(learner.states) > births, "re-birth")
    learner.ack()
    learner.push(1)
    eventually(lambda: int(learner.blocks[-1].policy_epoch[-1]) == learner.epoch, "the new learner's policy acts")
    assert [block.sequence for block in learner.blocks] == list(range(len(learner.blocks)))
    one.stop()
    assert one.agent._shared.session.resends >= 2


def test_w10_another_wire_version_says_who_must_upgrade(broker, actor):
    learner = Learner(broker)
    one = actor()
    learner.birth("gone", wire=2)
    eventually(lambda: learner.states, "a learner that is gone does not matter")
    learner.birth(wire=2)
    error = one.fails(WireVersionMismatch)
    assert error.code == 35
    assert "upgrade quarl-edge here" in str(error)
    assert learner.states[-1].status == "gone"
    assert "wire version 2" in learner.states[-1].blocked


def test_the_first_key_is_pinned_and_others_are_refused(running, caplog):
    learner, one = running
    other = Learner(learner.broker, name="other", key=LearnerKey(b"x" * 32), epoch=999)
    other.acking = False
    with caplog.at_level(logging.WARNING):
        other.birth()
        eventually(lambda: "pinned is" in caplog.text, "logged")
    other.push(50)
    eventually(lambda: one.agent._listener.inbox.refused == 1, "its push is refused")
    count = len(learner.blocks)
    eventually(lambda: len(learner.blocks) > count + 3, "the pinned learner is served")
    assert one.agent._shared.session.epoch == learner.epoch


def test_of_two_processes_with_one_id_the_older_ends(running, actor):
    _, one = running
    other = actor(boot_id="0" * 16)
    eventually(lambda: other.link.connected, "the newcomer threw the other off")
    for _ in range(5):
        if one.agent._shared.fault is None:
            one.link.reconnect()
            time.sleep(0.05)
            other.link.reconnect()
            time.sleep(0.05)
    error = one.fails(IdInUse)
    assert "boot id 0000000000000000" in str(error)
    other.link.reconnect()
    time.sleep(0.3)
    assert other.thread.is_alive()


@pytest.mark.parametrize("left", ["online", "gone"])
def test_what_an_earlier_life_left_does_not_end_it(broker, actor, left):
    for life in range(9):
        state = DeviceState(status=left, device="a", boot_id=f"{life:016x}").encode()
        broker.publish(TOPICS.state("a"), state, retain=True)
        one = actor()
        eventually(lambda one=one: one.link.connected, "connected")
        # A will that comes late, as when the earlier life lost its power.
        broker.publish(TOPICS.state("a"), state, retain=True)
        broker.cut("a")
        assert one.stop().reason == "stopped"


def test_a_given_key_is_the_only_one(broker, actor, tmp_path, caplog):
    path = tmp_path / "learner.pub"
    KEY.public.save(path)
    impostor = Learner(broker, name="impostor", key=LearnerKey(b"x" * 32), epoch=999)
    impostor.acking = False
    with caplog.at_level(logging.WARNING):
        one = actor(learner_key=path)
        impostor.birth()
        eventually(lambda: "pinned is" in caplog.text, "refused")
    assert one.blocked == "no learner"
    learner = Learner(broker)
    learner.birth()
    learner.push()
    learner.ack()
    eventually(lambda: learner.blocks, "blocks")
    assert "pinning" not in caplog.text


@pytest.mark.parametrize("content", [None, "not a key", "ab" * 31])
def test_a_key_file_that_does_not_hold_is_an_error(broker, tmp_path, content):
    path = tmp_path / "learner.pub"
    if content is not None:
        path.write_text(content)
    config = AgentConfig(fleet="default", name="a", learner_key=path)
    before = working_threads()
    with pytest.raises(KeyFileError, match="learner"):
        Agent(config, link=broker.link("a"), runtime=RUNTIME, boot_id=BOOT)
    assert not working_threads() - before


def test_a_learner_that_is_lost_stops_it_when_credit_ends_and_its_return_starts_it(running, caplog):
    learner, one = running
    learner.acking = False
    learner.birth("gone")
    eventually(lambda: one.blocked == "learner lost", "learner lost")
    eventually(lambda: learner.states[-1].blocked == "learner lost", "it says so")
    assert caplog.text.count("its connection to the broker broke") == 1
    assert one.thread.is_alive()
    learner.acking = True
    learner.birth()
    learner.ack()
    count = len(learner.blocks)
    eventually(lambda: len(learner.blocks) > count + 3, "blocks go on")
    assert caplog.text.count("a learner is there (epoch 100), after") == 1


def test_after_a_goodbye_it_pauses_at_once_and_says_so_and_a_later_epoch_is_followed(broker, actor, caplog):
    learner = Learner(broker, ahead=10_000, block_steps=10_000)
    one = actor(max_offline_s=60.0)
    learner.birth()
    learner.push()
    learner.ack()
    eventually(lambda: learner.blocks, "blocks")
    learner.birth("gone", left=True)
    eventually(lambda: one.agent._shared.standstill.reason == "learner left", "it pauses, with credit left")
    eventually(lambda: learner.states[-1].blocked == "learner left", "it says so")
    made = one.agent._shared.session.next_sequence
    assert caplog.text.count("the learner (epoch 100) said goodbye; standing still until one is back") == 1
    learner.birth("online", epoch=99)
    learner.birth("online", epoch=99)
    assert caplog.text.count("a learner of epoch 99 serves this fleet and is not followed") == 1
    time.sleep(0.3)
    assert one.agent._shared.session.next_sequence == made
    learner.epoch = 101
    learner.birth()
    learner.push()
    learner.ack()
    eventually(lambda: learner.blocks[-1].policy_epoch[-1] == 101, "blocks of the new epoch")
    assert one.stop().blocked_s["learner left"] > 0.2


def test_exit_when_gone(broker, actor):
    learner = Learner(broker)
    learner.birth("gone")  # retained from the last run: not the learner that this actor waits for
    one = actor(exit_when_gone=True)
    eventually(lambda: learner.states, "it waits")
    learner.epoch += 1
    learner.birth()
    learner.push()
    learner.ack()
    eventually(lambda: learner.blocks, "blocks")
    learner.birth("gone", epoch=learner.epoch - 1)
    learner.birth()
    assert one.thread.is_alive()
    learner.birth("gone")
    learner.birth()  # its connection broke for a moment
    time.sleep(0.2)
    assert one.thread.is_alive()
    learner.birth("gone", left=True)
    assert one.join().reason == "the learner is gone"


def test_the_link_goes_and_comes_back(running):
    learner, one = running
    learner.broker.cut("a", reconnect=False)
    eventually(lambda: learner.states[-1].status == "gone", "the will")
    eventually(lambda: one.agent._shared.standstill.reason == "link down", "link down")
    made, births = one.agent._shared.session.next_sequence, len(learner.states)
    one.link.reconnect()
    eventually(lambda: len(learner.states) > births and learner.states[-1].status == "online", "re-birth")
    eventually(lambda: len(learner.blocks) > made + 3, "blocks go on")
    assert [block.sequence for block in learner.blocks] == list(range(len(learner.blocks)))
    assert one.stop().blocked_s["link down"] > 0


def test_the_broker_goes_and_comes_back(running):
    learner, one = running
    learner.broker.down()
    eventually(lambda: one.blocked == "link down", "link down")
    learner.broker.up()
    learner.link.reconnect()
    one.link.reconnect()
    count = one.agent._shared.session.next_sequence
    learner.ack()
    eventually(lambda: len(learner.blocks) > count + 3, "blocks go on")


def test_what_a_broker_loses_is_sent_again(running):
    learner, one = running
    learner.broker.drop(TOPICS.xp("a"), 2)
    learner.broker.duplicate(TOPICS.xp("a"), 3)
    learner.broker.drop(TOPICS.ack("a"), 2)
    count = len(learner.blocks)
    eventually(lambda: len(learner.blocks) > count + 20, "blocks go on")
    assert [block.sequence for block in learner.blocks] == list(range(len(learner.blocks)))
    assert one.stop().blocks_pending <= 3


def test_a_clean_stop_sends_the_partial_block_and_says_goodbye(broker, actor):
    learner = Learner(broker, env_id=SLOW, block_steps=10_000)
    one = actor()
    learner.birth()
    learner.push()
    learner.ack()
    eventually(lambda: one.agent._shared.loop is not None and one.agent._shared.loop.block_began_s > 0, "it steps")
    time.sleep(0.1)
    summary = one.stop()
    assert summary.steps > 0
    assert sum(block.transitions for block in learner.blocks) == summary.steps
    assert learner.states[-1].status == "gone"
    assert learner.states[-1].boot_id == BOOT
    assert not one.link.connected
    assert summary.blocks_pending == 0


def test_a_slow_environment_is_flushed_after_a_second(broker, actor):
    learner = Learner(broker, env_id=SLOW, block_steps=10_000)
    actor()
    learner.birth()
    learner.push()
    learner.ack()
    began = time.monotonic()
    eventually(lambda: len(learner.blocks) == 2, "two blocks", timeout_s=6.0)
    assert 1.8 < time.monotonic() - began < 5.0
    assert all(1 <= block.num_steps < 1000 for block in learner.blocks)
    assert not learner.blocks[1].start[0, 0]


def test_max_steps_ends_it_with_exactly_so_many(broker, actor):
    learner = Learner(broker)
    one = actor(max_steps=50)
    learner.birth()
    learner.push()
    learner.ack()
    summary = one.join()
    assert (summary.steps, summary.reason) == (50, "all steps made")
    assert [block.num_steps for block in learner.blocks] == [16, 16, 16, 2]


def test_many_environments(broker, actor):
    learner = Learner(broker)
    one = actor(num_envs=5, block_steps=7)
    learner.birth()
    learner.push()
    learner.ack()
    eventually(lambda: len(learner.blocks) > 3, "blocks")
    assert learner.blocks[0].reward.shape == (7, 5)
    assert learner.states[-1].num_envs == 5
    assert one.stop().steps == sum(block.transitions for block in learner.blocks)


def test_no_broker_is_code_30(broker, actor):
    broker.down()
    assert actor().fails(BrokerUnreachable).code == 30


@pytest.mark.parametrize(
    ("birth", "error"),
    [
        ({"env_id": "CartPol-v1"}, UnknownEnvironment),
        ({"env_id": "os:CartPole-v1"}, UnknownEnvironment),
        ({"env_id": "MountainCar-v0"}, SpaceMismatch),
        ({"env_id": "Pendulum-v1"}, SpaceMismatch),
        ({"env_kwargs": {"no_such": [1, {"a": None}]}}, EnvironmentMisbehaved),
        ({"env_kwargs": {"vectorization_mode": "async", "num_envs": 10**9}}, EnvironmentMisbehaved),
        ({"action": dataclasses.replace(ACTION, n=3)}, SpaceMismatch),
        ({"action": dataclasses.replace(ACTION, n=65536)}, SpaceMismatch),
        ({"observations": (ObservationSpec(key="observation", shape=(2048, 2048)),)}, UnsupportedSpace),
    ],
)  # fmt: skip
def test_what_can_never_work_here_ends_it_with_a_reason(broker, actor, birth, error):
    learner = Learner(broker)
    one = actor()
    learner.birth(**birth)
    found = one.fails(error)
    assert learner.states[-1].status == "gone"
    assert found.message[:60] in learner.states[-1].blocked


def test_an_environment_that_fails_while_it_steps_ends_it_with_code_23(broker, actor):
    learner = Learner(broker, env_id=FRAGILE)
    one = actor()
    learner.birth()
    learner.push()
    learner.ack()
    error = one.fails(EnvironmentMisbehaved)
    assert error.code == 23
    assert "at step 41" in str(error)
    assert sum(block.transitions for block in learner.blocks) == 32


def test_the_largest_block_size_is_cut_to_the_cap(broker, actor):
    learner = Learner(broker, block_steps=65_535)
    learner.codec = BlockCodec(BlockSpec(observations=OBSERVATIONS, action=ACTION))
    actor(num_envs=64)
    learner.birth()
    learner.push()
    learner.ack()
    eventually(lambda: learner.blocks, "a block")
    assert all(len(payload) <= 2**20 for payload in learner.payloads)


def test_a_new_task_needs_a_new_epoch(running, caplog):
    learner, one = running
    with caplog.at_level(logging.WARNING):
        learner.birth(env_id="MountainCar-v0", block_steps=3)
        eventually(lambda: "changed its task" in caplog.text, "refused")
    count = len(learner.blocks)
    eventually(lambda: len(learner.blocks) > count + 3, "blocks go on")
    assert one.thread.is_alive()


@pytest.mark.parametrize("push_first", [True, False])
def test_a_new_learner_with_another_task_is_followed(running, push_first):
    learner, one = running
    learner.acking = False
    eventually(lambda: one.blocked == "no credit", "no credit")
    env = gymnasium.make("Acrobot-v1")
    observations, action = spaces_to_specs(env.observation_space, env.action_space)
    learner.codec = BlockCodec(BlockSpec(observations=observations, action=action))
    learner.epoch += 1
    learner.stored = one.agent._shared.session.next_sequence
    learner.blocks.clear()
    learner.acking = True
    fields = {"env_id": "Acrobot-v1", "observations": observations, "action": action}
    if push_first:
        learner.push(1, policy=ACROBOT)
        eventually(lambda: one.agent._listener.inbox._early, "it waits for its learner's birth")
    learner.birth(**fields)
    if not push_first:
        learner.ack()
        time.sleep(0.3)
        assert one.blocked == "no policy"
        learner.push(1, policy=ACROBOT)
    learner.ack()
    eventually(lambda: len(learner.blocks) > 3, "blocks of the new task")
    assert learner.blocks[0].observation["observation"].shape[2:] == (6,)
    assert learner.blocks[0].start[0, 0]
    assert not learner.duplicates


@pytest.mark.parametrize(
    "fields", [{"mode": "lockstep"}, {"block_steps": 5}, {"env_kwargs": {"sutton_barto_reward": True}}, {}]
)
def test_a_push_that_overtakes_a_birth_with_the_same_spaces_is_not_lost(running, fields):
    """The learner waits for experience then, and pushes nothing else."""
    learner, one = running
    learner.epoch += 1
    learner.push(1)
    eventually(lambda: one.agent._listener.inbox._early, "it waits for its learner's birth")
    learner.birth(**fields)
    eventually(lambda: one.agent._shared.session._policy == (learner.epoch, 1), "it is acted with")


def test_births_that_flap_end_in_the_last_one(running):
    learner, one = running
    for step in range(30):
        learner.epoch += 1
        learner.birth(block_steps=3 + step % 5)
        learner.push(1)
        learner.ack()
    learner.epoch += 1
    learner.fields["block_steps"] = 4
    learner.stored = 0
    learner.blocks.clear()
    learner.acking = False
    learner.birth()
    learner.push(1)
    learner.stored = one.agent._shared.session.base
    learner.acking = True
    learner.ack()
    eventually(lambda: len(learner.blocks) > 3 and learner.blocks[-1].num_steps == 4, "blocks of the last one")
    assert set(learner.blocks[-1].policy_epoch.tolist()) == {learner.epoch}


def test_an_ack_for_another_life_says_nothing(running):
    learner, one = running
    learner.acking = False
    eventually(lambda: one.blocked == "no credit", "no credit")
    for wrong in ({"boot_id": "f" * 16}, {"epoch": 1}, {"inserted": 2**40, "durable": 2**40}):
        learner.ack(10**6, **wrong)
    time.sleep(0.05)
    assert one.blocked == "no credit"


def lockstep_run(versions, *, first=1, epsilon=0.3, reset=(1, 4)):
    """Run a lockstep learner for some versions; returns the blocks, but for their place in the stream."""
    broker = FakeBroker()
    learner = Learner(broker, mode="lockstep", ahead=1)
    learner.birth()
    one = Actor(broker)
    out = []
    try:
        # An ack that comes before it knows this learner's epoch says nothing to it.
        eventually(lambda: len(learner.states) > 1, "it has met the learner")
        for version in versions:
            learner.push(version, exploration=Exploration(values=(epsilon,)), reset=version in reset)
            learner.ack()
            eventually(lambda: len(learner.blocks) == len(out) + 1, f"the block of {version}")
            block, payload = learner.blocks[-1], learner.payloads[-1]
            assert set(block.policy_version.tolist()) == {version}
            assert block.first_step == 16 * block.sequence
            body = 8 + int.from_bytes(payload[:8], "little")
            out.append(payload[8 : payload.index(b'"__metadata__"')] + payload[body:])
        time.sleep(0.05)
        assert len(learner.blocks) == len(out)
        assert one.blocked == "waiting for the next policy"
    finally:
        one.stop()
    return out


def test_lockstep_repeats_and_resumes_byte_by_byte():
    whole = lockstep_run(range(1, 7))
    assert lockstep_run(range(1, 7)) == whole
    assert lockstep_run(range(4, 7)) == whole[3:]
    assert len(set(whole)) == len(whole)


def test_lockstep_uses_the_learners_seed_and_block_size(broker, actor, caplog):
    learner = Learner(broker, mode="lockstep")
    with caplog.at_level(logging.WARNING):
        one = actor(seed=99, block_steps=3)
        learner.birth()
        learner.push(1, reset=True)
        learner.ack()
        eventually(lambda: learner.blocks, "a block")
    assert learner.blocks[0].num_steps == 16
    assert one.agent._shared.loop.config.seed == 3
    assert "lockstep" in caplog.text


class Slow(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.005)
        return super().step(action)


class Fragile(gymnasium.Wrapper):
    count = 0

    def step(self, action):
        self.count += 1
        if self.count == 41:
            raise OSError("the arm is stuck")
        return super().step(action)


SLOW, FRAGILE = "QuarlTestSlow-v0", "QuarlTestFragile-v0"
gymnasium.register(SLOW, lambda: Slow(gymnasium.make("CartPole-v1")))
gymnasium.register(FRAGILE, lambda: Fragile(gymnasium.make("CartPole-v1")))
