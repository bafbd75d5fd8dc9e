"""Policies over the inline cap through real brokers: one fan-out for all; cuts, restarts and hostile chunks."""

import contextlib
import dataclasses
import hashlib
import threading
import time

import numpy as np
import pytest
from runs_helper import edge, last_json

from quarl_device.actor.fetcher import Fetcher
from quarl_device.actor.inbox import Inbox
from quarl_device.link import Backoff, BrokerURL, PahoLink
from quarl_device.policy_file import read_policy
from quarl_device.runtime import find_runtime
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.testing.tcp_proxy import TcpProxy
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.manifest import encode_manifest, make_manifest
from quarl_device.wire.messages import Need
from quarl_device.wire.push import Exploration, PushHeader
from quarl_device.wire.topics import Topics
from quarl_edge.broker import EmbeddedBroker
from quarl_edge.learner.blobs import BlobServer
from quarl_export.bench import dense_policy
from quarl_export.golden import run_goldens
from quarl_export.template import Template

TOPICS = Topics("big")
KEY = LearnerKey(bytes(range(32)))
QUICK = Backoff(base_s=0.02, cap_s=0.05)
USERS = dict.fromkeys(("learner", *(f"actor-{index}" for index in range(8))), "secret")


@dataclasses.dataclass(frozen=True)
class Version:
    policy: bytes
    payload: bytes
    manifest: object


def eventually(condition, what, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def make_versions(hidden, count):
    """Return that many versions of one network, and the spaces that they were made for."""
    policy = dense_policy(hidden)
    template = Template.from_model(policy, verify=False).with_contract(policy, policy.golden_observations)
    versions = []
    for number in range(1, count + 1):
        weights = {name: array * np.float32(1 + number / 10) for name, array in policy.weights.items()}
        data = template.patch(weights, policy.ranges)
        file = read_policy(data)
        golden = run_goldens(data, file.contract, policy.golden_observations)
        header = PushHeader(
            epoch=1, version=number, env_steps=0, sha256=file.sha256, exploration=Exploration(),
            golden_outputs=golden.outputs, lsb=golden.lsb, tolerance_lsb=golden.tolerance_lsb,
        )  # fmt: skip
        manifest = make_manifest(header, data)
        versions.append(Version(policy=data, payload=encode_manifest(manifest, KEY.sign), manifest=manifest))
    return versions, file.contract


@pytest.fixture(scope="module")
def large():
    return make_versions((2048, 2048, 2048), 2)


@pytest.fixture(scope="module")
def medium():
    return make_versions((640, 640), 3)


class Learner:
    """The learner's side without its training."""

    def __init__(self, link, *, audience=1):
        self.link = link
        self.blobs = BlobServer(link, TOPICS, audience=lambda: audience)
        self.blobs.start()
        link.connect(timeout_s=10.0)

    def push(self, version):
        self.blobs.put(version.manifest, version.policy)
        eventually(lambda: self.link.publish(TOPICS.policy, version.payload, retain=True), "published")

    def close(self):
        self.blobs.close()
        self.link.close()


class Actor:
    """An inbox and its fetcher, and the policies that became ready."""

    def __init__(self, link, contract, name):
        self.link, self.ready, self.times = link, [], []
        self.fetcher = Fetcher(link, topics=TOPICS, device=name)
        self.inbox = Inbox(
            runtime=find_runtime(), batch_size=1, actor_index=0, on_ready=self._on_ready, fetcher=self.fetcher
        )
        self.inbox.trust(KEY.public, contract.observations, contract.action, epoch=1)
        link.subscribe(TOPICS.policy, lambda message: self.inbox.offer(message.payload))
        link.connect(timeout_s=10.0)

    def _on_ready(self, acting):
        acting.policy.act(np.zeros(8, np.float32))
        self.ready.append((acting.version, acting.policy.sha256))

    def close(self):
        self.inbox.close()
        self.link.close()


def paho(url, name, password=None):
    return PahoLink(BrokerURL.parse(url), client_id=name, password=password, backoff=QUICK)


def test_8_megabytes_reach_eight_actors_with_one_fan_out(large):
    (first, second), contract = large
    assert first.manifest.size_bytes > 8_400_000
    with Mosquitto() as broker, contextlib.ExitStack() as stack:
        learner = Learner(paho(broker.url, "learner"), audience=8)
        stack.callback(learner.close)
        actors = [Actor(paho(broker.url, f"actor-{index}"), contract, f"actor-{index}") for index in range(8)]
        for actor in actors:
            stack.callback(actor.close)
        for number, version in enumerate((first, second), start=1):
            learner.push(version)
            eventually(lambda number=number: all(len(actor.ready) == number for actor in actors), "all act")
        expected = [(1, hashlib.sha256(first.policy).hexdigest()), (2, hashlib.sha256(second.policy).hexdigest())]
        assert all(actor.ready == expected for actor in actors)
        count = first.manifest.count
        assert learner.blobs.counters.fanned_out == 2 * count
        # An actor whose subscription came later than the first chunks asks for these; never for a second copy of all.
        assert learner.blobs.counters.repaired < count
        assert all(actor.inbox.refused == 0 for actor in actors)


@pytest.mark.parametrize("lockstep", [[], ["--lockstep"]], ids=["async", "lockstep"])
def test_training_pushes_a_policy_that_no_message_carries(tmp_path, lockstep):
    tiny = ["hidden=640,640", "batch_size=8", "learning_starts=32", "samples_per_insert=8", "updates_per_call=8"]
    words = [word for setting in tiny for word in ("--set", setting)]
    done = edge(
        "train", "CartPole-v1", "--steps", 192, "--actors", 1, "--run", tmp_path / "run", "--format", "json",
        *words, *lockstep, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = last_json(done)
    assert said["env_steps"] >= 192
    assert said["pushes"] >= 2
    assert said["refused"] == {}


@contextlib.contextmanager
def broker_of(kind):
    """Give a function from a client's name to its link, and one that cuts a client off."""
    if kind == "fake":
        broker = FakeBroker()
        yield broker.link, broker.cut
        return
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(Mosquitto(USERS) if kind == "mosquitto" else EmbeddedBroker(USERS))
        proxies = {}

        def link(name):
            proxies[name] = stack.enter_context(TcpProxy(running.port))
            return paho(f"mqtt://{name}@127.0.0.1:{proxies[name].port}", name, USERS[name])

        yield link, lambda name: proxies[name].cut()


@pytest.mark.parametrize("kind", ["fake", "embedded", "mosquitto"])
def test_on_every_broker_early_late_cut_off_and_restarted_actors_end_with_the_newest(kind, medium):
    versions, contract = medium
    with broker_of(kind) as (link, cut), contextlib.ExitStack() as stack:
        learner = Learner(link("learner"), audience=1)
        stack.callback(learner.close)
        early = Actor(link("actor-0"), contract, "actor-0")
        stack.callback(early.close)
        learner.push(versions[0])
        eventually(lambda: early.ready, "the early one acts")
        late = Actor(link("actor-1"), contract, "actor-1")
        stack.callback(late.close)
        eventually(lambda: late.ready, "the late one asked for everything")
        assert learner.blobs.counters.repaired >= versions[0].manifest.count
        learner.push(versions[1])
        cut("actor-0")
        eventually(lambda: early.ready[-1][0] == 2 and late.ready[-1][0] == 2, "both act, the cut one too")
        late.close()
        again = Actor(link("actor-1"), contract, "actor-1")
        stack.callback(again.close)
        cut("learner")
        eventually(lambda: again.ready and again.ready[-1][0] == 2, "the restarted one acts")
        eventually(lambda: learner.link.connected, "the learner is back")
        learner.push(versions[2])
        eventually(lambda: early.ready[-1][0] == again.ready[-1][0] == 3, "both act on the newest")
        assert early.ready[-1][1] == hashlib.sha256(versions[2].policy).hexdigest()


def test_f7_hostile_chunks_are_refused_one_by_one_and_the_policy_arrives(medium, caplog):
    (version, _, _), contract = medium
    broker = FakeBroker()
    actor = Actor(broker.link("actor-0"), contract, "actor-0")
    header, chunks = version.manifest.header, version.manifest.count
    broker.publish(TOPICS.policy, version.payload, retain=True)
    eventually(lambda: broker.log and any("/need" in message.topic for message in broker.log), "it listens")
    for payload in (b"", b"x", bytes(65_536), version.policy[:65_536] + b"x", version.policy[65_536:131_072]):
        broker.publish(TOPICS.blob(header.sha256, 0), payload)
    for offset in (1, 65_535, chunks * 65_536, 99_999_999):
        broker.publish(TOPICS.blob(header.sha256, offset), version.policy[:65_536])
    for topic in (TOPICS.blob(header.sha256, 0) + "x", TOPICS.blob("ab" * 32, 0), TOPICS.blob(header.sha256, 0)[:-1]):
        broker.publish(topic, version.policy[:65_536])
    assert actor.fetcher.counters.kept == 0
    assert actor.fetcher.counters.refused == 9
    for index in reversed(range(chunks)):
        for _ in range(2):
            broker.publish(TOPICS.blob(header.sha256, index * 65_536), version.policy[index * 65_536 :][:65_536])
    eventually(lambda: actor.ready, "it acts")
    assert actor.ready == [(1, header.sha256)]
    assert actor.inbox.refused == 0
    # Nobody listens any more: what comes now reaches no handler.
    foreign = actor.fetcher.counters.foreign
    broker.publish(TOPICS.blob(header.sha256, 0), version.policy[:65_536])
    assert actor.fetcher.counters.foreign == foreign
    actor.close()
    assert any("refused" in record.message for record in caplog.records)


def test_a_manifest_of_another_key_or_an_older_version_starts_no_fetch(medium):
    (first, second, _), contract = medium
    broker = FakeBroker()
    learner = Learner(broker.link("learner"))
    actor = Actor(broker.link("actor-0"), contract, "actor-0")
    broker.publish(TOPICS.policy, encode_manifest(first.manifest, LearnerKey.generate().sign))
    eventually(lambda: actor.inbox.refused == 1, "refused")
    assert not any("/need" in message.topic for message in broker.log)
    learner.push(second)
    eventually(lambda: actor.ready, "it acts")
    asks = actor.fetcher.counters.asks
    broker.publish(TOPICS.policy, first.payload)
    eventually(lambda: actor.inbox.ignored == 1, "ignored (W3)")
    assert (actor.fetcher.counters.asks, len(actor.ready)) == (asks, 1)
    actor.close()
    learner.close()


def test_serving_chunks_never_blocks_who_publishes(medium):
    """The learner's own threads only put a policy on the shelf, even when no chunk can leave."""
    (version, _, _), _ = medium
    broker = FakeBroker()
    link = broker.link("learner")
    held = threading.Event()
    link.drain = lambda **_: held.wait(0.2)
    learner = Learner(link)
    began = time.monotonic()
    learner.push(version)
    device = broker.link("d")
    device.connect(timeout_s=1)
    device.publish(TOPICS.need("d"), Need(sha256=version.manifest.header.sha256, offsets=(0,)).encode())
    assert time.monotonic() - began < 0.15
    assert learner.blobs.busy
    held.set()
    eventually(lambda: not learner.blobs.busy, "out")
    learner.close()
