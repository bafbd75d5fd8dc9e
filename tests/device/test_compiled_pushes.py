"""Compiled pushes on a device: an actor with the stub of an Edge TPU acts with them, one without is undisturbed."""

import dataclasses
import json
import threading
import time

import pytest
from actor_scene import CARTPOLE, DEADLINE_S, NAME, TOPICS, Learner, wait_for
from stub_delegate import compiled, stub_library

from quarl_device.actor.agent import Agent, AgentConfig, new_boot_id, will_of
from quarl_device.actor.inbox import Inbox
from quarl_device.delegate_spec import DelegateSpec
from quarl_device.errors import PayloadRefused
from quarl_device.policy_file import read_policy
from quarl_device.runtime import find_runtime
from quarl_device.runtime.delegated import DelegatedRuntime
from quarl_device.runtime.litert import LiteRTRuntime
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.manifest import Manifest, chunk_digests, encode_manifest
from quarl_device.wire.messages import DeviceState
from quarl_device.wire.push import Exploration, PushHeader, encode_push

KEY = LearnerKey(bytes(range(32)))
FILE = read_policy(CARTPOLE)
COMPILED = read_policy(compiled(CARTPOLE))


@pytest.fixture(scope="module")
def tpu():
    """One for all tests: the first compiled file is tried in a child process."""
    return DelegatedRuntime(LiteRTRuntime(), DelegateSpec(library=stub_library()))


@pytest.fixture
def make(tpu):
    made = []

    def build(runtime=tpu, *, epoch=1, **options):
        ready = []
        inbox = Inbox(runtime=runtime, batch_size=2, actor_index=0, on_ready=ready.append, **options)
        made.append(inbox)
        inbox.trust(KEY.public, FILE.contract.observations, FILE.contract.action, epoch=epoch)
        return inbox, ready

    yield build
    for inbox in made:
        inbox.close()


def header(version, *, is_compiled=False, file=None, **changes):
    file = file or (COMPILED if is_compiled else FILE)
    golden = FILE.golden
    return PushHeader(
        **{
            "epoch": 1, "version": version, "env_steps": 0, "sha256": file.sha256,
            "exploration": Exploration(values=(0.1,)), "golden_outputs": dict(golden.outputs),
            "lsb": dict(golden.lsb), "edge_tpu": is_compiled, **changes,
        }
    )  # fmt: skip


def push(version, *, is_compiled=False, file=None, **changes):
    file = file or (COMPILED if is_compiled else FILE)
    return encode_push(header(version, is_compiled=is_compiled, file=file, **changes), file.data, KEY.sign)


def shown(ready):
    return [(acting.version, acting.edge_tpu) for acting in ready]


def test_the_header_says_it_and_one_that_does_not_is_what_it_always_was():
    plain, marked = header(1), header(1, is_compiled=True)
    assert b"edge_tpu" not in plain.encode()
    assert not PushHeader.decode(plain.encode()).edge_tpu
    assert PushHeader.decode(marked.encode()).edge_tpu
    fields = json.loads(marked.encode())
    for wrong in (1, "true", None):
        with pytest.raises(PayloadRefused, match="edge_tpu"):
            PushHeader.decode(json.dumps({**fields, "edge_tpu": wrong}).encode())


def test_a_birth_says_where_the_policy_runs():
    state = DeviceState(status="online", device="pi", boot_id="0" * 16)
    assert b"edge_tpu" not in state.encode()
    on_tpu = dataclasses.replace(state, edge_tpu=True)
    assert DeviceState.decode(on_tpu.encode()) == on_tpu
    assert DeviceState.decode(state.encode()) == state
    fields = json.loads(on_tpu.encode())
    with pytest.raises(PayloadRefused, match="edge_tpu"):
        DeviceState.decode(json.dumps({**fields, "edge_tpu": 1}).encode())


def test_both_streams_and_the_compiled_one_first(make):
    inbox, ready = make()
    inbox.offer(push(1))
    wait_for(lambda: ready)
    inbox.offer(push(2, is_compiled=True), compiled=True)
    wait_for(lambda: len(ready) == 2)
    for version in (3, 4):
        inbox.offer(push(version))
    wait_for(lambda: inbox._later == ((1, 4), push(4)) and not inbox._payloads, "the newest waits")
    inbox.offer(push(3, is_compiled=True), compiled=True)
    wait_for(lambda: len(ready) == 3)
    assert shown(ready) == [(1, False), (2, True), (3, True)]
    assert "edgetpu" in ready[1].policy.runtime_name
    assert ready[1].policy.sha256 == COMPILED.sha256
    assert inbox._later is not None
    inbox.offer(push(4, is_compiled=True), compiled=True)
    wait_for(lambda: len(ready) == 4)
    assert inbox._later is None, "overtaken"
    assert (inbox.refused, inbox.ignored) == (0, 0)


def test_what_waits_acts_when_the_compiled_one_is_too_old(make):
    inbox, ready = make(max_lag_s=0.5)
    inbox.offer(push(1, is_compiled=True), compiled=True)
    wait_for(lambda: ready)
    heard_s = time.monotonic()
    inbox.offer(push(2))
    wait_for(lambda: len(ready) == 2)
    assert shown(ready) == [(1, True), (2, False)]
    assert time.monotonic() - heard_s < 10.0


def test_w3_a_compiled_one_that_is_late_is_ignored(make):
    inbox, ready = make()
    inbox.offer(push(5))
    wait_for(lambda: ready)
    inbox.offer(push(4, is_compiled=True), compiled=True)
    wait_for(lambda: inbox.ignored == 1)
    inbox.offer(push(6, is_compiled=True, epoch=0), compiled=True)
    wait_for(lambda: inbox.ignored == 2)
    assert shown(ready) == [(5, False)]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (push(2, is_compiled=True, golden_outputs={r: v + 9 for r, v in FILE.golden.outputs.items()}), "self-test"),
        (push(2, is_compiled=True, file=FILE), "no edgetpu-custom-op"),
        (push(2, is_compiled=True)[:-1] + b"\0", "signature"),
    ],
    ids=["other answers", "not compiled", "signature"],
)
def test_one_that_does_not_hold_is_refused_and_the_cpu_goes_on(make, caplog, payload, why):
    inbox, ready = make()
    inbox.offer(push(1))
    wait_for(lambda: ready)
    inbox.offer(payload, compiled=True)
    wait_for(lambda: inbox.refused == 1)
    assert why in caplog.text
    inbox.offer(push(3))
    wait_for(lambda: len(ready) == 2)
    assert shown(ready) == [(1, False), (3, False)]


def test_without_a_tpu_a_compiled_one_is_refused_whatever_topic_it_came_by(make, caplog):
    inbox, ready = make(find_runtime())
    for is_topic in (False, True):
        inbox.offer(push(1, is_compiled=True), compiled=is_topic)
    wait_for(lambda: inbox.refused == 2)
    assert "no delegate is in use here" in caplog.text
    inbox.offer(push(1))
    wait_for(lambda: ready)


class Hands:
    """A fetcher that is handed what it wants by the test."""

    def __init__(self):
        self.wanted, self.deliver = [], None

    def deliver_to(self, take):
        self.deliver = take

    def want(self, manifest):
        self.wanted.append(manifest)

    def outdated(self, version):
        pass

    def wait_s(self):
        return 0.05

    def tick(self):
        pass

    def close(self):
        pass


def manifest(version, *, is_compiled=False):
    file = COMPILED if is_compiled else FILE
    digests = chunk_digests(file.data, chunk_bytes=1024)
    said = Manifest(
        header=header(version, is_compiled=is_compiled), size_bytes=len(file.data), chunk_bytes=1024, digests=digests
    )
    return encode_manifest(said, KEY.sign)


def test_of_big_ones_that_wait_nothing_is_fetched(make):
    hands = Hands()
    inbox, ready = make(fetcher=hands)
    inbox.offer(manifest(1, is_compiled=True), compiled=True)
    wait_for(lambda: hands.wanted)
    hands.deliver(hands.wanted[0].header, COMPILED.data)
    wait_for(lambda: ready)
    inbox.offer(manifest(2))
    wait_for(lambda: inbox._later is not None, "it waits")
    inbox.offer(manifest(3, is_compiled=True), compiled=True)
    wait_for(lambda: len(hands.wanted) == 2)
    assert [one.header.version for one in hands.wanted] == [1, 3]


class Running:
    """An agent with the given runtime on a thread of its own."""

    def __init__(self, broker, runtime, **config):
        config = AgentConfig(**{"fleet": "lab", "name": NAME, **config})
        boot_id = new_boot_id()
        link = broker.link(NAME, will=will_of(config, boot_id))
        self.agent = Agent(config, link=link, runtime=runtime, boot_id=boot_id)
        self.thread = threading.Thread(target=self.agent.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.agent.stop()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


def send_compiled(learner, version):
    said = header(version, is_compiled=True, epoch=learner.birth.epoch)
    payload = encode_push(said, COMPILED.data, learner.key.sign)
    learner.link.publish(TOPICS.edgetpu, payload, retain=True)


def versions(learner):
    return {int(version) for block in learner.stored for version in block.policy_version}


def test_an_agent_acts_with_both_and_its_steps_say_which(tpu):
    broker = FakeBroker()
    learner = Learner(broker)
    learner.push()
    with Running(broker, tpu):
        wait_for(lambda: 1 in versions(learner), "steps on the CPU")
        send_compiled(learner, 2)
        wait_for(lambda: 2 in versions(learner), "steps on the TPU")
        learner.push(version=3)
        send_compiled(learner, 4)
        wait_for(lambda: 4 in versions(learner), "newer steps on the TPU")
        wait_for(lambda: learner.states[-1].edge_tpu, "its birth")
        assert 3 not in versions(learner), "it waited for the compiled one"
    state = next(state for state in reversed(learner.states) if state.status == "online")
    assert state.digest == COMPILED.sha256
    assert not learner.states[0].edge_tpu
    order = [int(version) for block in learner.stored for version in block.policy_version]
    assert order == sorted(order)


def test_an_agent_without_a_tpu_does_not_listen_to_compiled_ones():
    broker = FakeBroker()
    learner = Learner(broker)
    learner.push()
    with Running(broker, find_runtime()) as one:
        wait_for(lambda: 1 in versions(learner), "steps")
        send_compiled(learner, 9)
        learner.push(version=2)
        wait_for(lambda: 2 in versions(learner), "the next")
        assert one.agent._listener.inbox.refused == 0
        assert versions(learner) == {1, 2}
