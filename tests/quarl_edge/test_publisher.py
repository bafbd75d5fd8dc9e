"""A push: patched, answered, signed, retained, and sent again after a reconnection; a big one in chunks."""

import dataclasses
import hashlib
import time

import numpy as np
import pytest
from learner_factory import CONTRACT, batch, policy

from quarl_device.errors import BadSignature, NonFiniteError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.manifest import decode_manifest
from quarl_device.wire.messages import Need
from quarl_device.wire.push import Exploration, decode_push
from quarl_device.wire.topics import Topics
from quarl_edge.learner.blobs import BlobServer
from quarl_edge.learner.publisher import RENEW_S, PolicyPublisher
from quarl_export.qat_template import QatTemplate

TOPICS = Topics("f")


@pytest.fixture(scope="module")
def made():
    network = policy()
    observations = batch().observation[0]
    network.calibrate(observations)
    return network, QatTemplate.from_model(network, CONTRACT, observations)


@pytest.fixture
def setting(made):
    network, template = made
    broker = FakeBroker()
    link = broker.link("learner")
    link.connect(timeout_s=1)
    key = LearnerKey.generate()
    blobs = BlobServer(link, TOPICS)
    blobs.start()
    yield broker, link, key, network, PolicyPublisher(template, link=link, topics=TOPICS, key=key, epoch=7, blobs=blobs)
    blobs.close()


@pytest.fixture
def small_cap(monkeypatch):
    """Make one message carry so little that the test's small policy is a big one."""
    for module in ("quarl_device.wire.push", "quarl_edge.learner.publisher"):
        monkeypatch.setattr(f"{module}.MAX_INLINE_PUSH_BYTES", 3_000)
    for module in ("publisher", "sealing"):
        monkeypatch.setattr(f"quarl_edge.learner.{module}.MAX_CHUNK_BYTES", 500)


def eventually(condition, what):
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def prepared(publisher, network, **changes):
    fields = {"version": 3, "env_steps": 99, "exploration": Exploration(values=(0.5,))}
    return publisher.prepare(network.snapshot, **{**fields, **changes})


def test_a_push_carries_what_the_file_answers_and_only_the_key_opens_it(setting):
    broker, _, key, network, publisher = setting
    pushed = prepared(publisher, network)
    assert TOPICS.policy not in broker.retained
    assert publisher.publish(pushed)
    header, data = decode_push(broker.retained[TOPICS.policy], key.public.verify)
    assert (header.epoch, header.version, header.env_steps) == (7, 3, 99)
    assert data == pushed.policy
    file = read_policy(data)
    golden = file.golden.with_outputs(header.golden_outputs, lsb=header.lsb, tolerance_lsb=header.tolerance_lsb)
    Policy.load(file, golden=golden)
    with pytest.raises(BadSignature):
        decode_push(broker.retained[TOPICS.policy], LearnerKey.generate().public.verify)


def test_the_latest_push_comes_again_after_a_reconnection(setting):
    broker, link, _, network, publisher = setting
    publisher.publish(prepared(publisher, network, version=1))
    publisher.publish(prepared(publisher, network, version=2))
    broker.retained.clear()
    broker.cut("learner")
    link.reconnect()
    header, _ = decode_push(broker.retained[TOPICS.policy], lambda *_: None)
    assert header.version == 2


def test_nan_weights_are_refused_before_anything_is_published(setting):
    broker, _, _, network, publisher = setting
    kept = network.snapshot()
    kernel = network.trainable_variables[0]
    kernel.assign(np.full(kernel.shape, np.nan, np.float32))
    try:
        with pytest.raises(NonFiniteError):
            prepared(publisher, network)
    finally:
        network.restore(kept)
    assert TOPICS.policy not in broker.retained


@pytest.mark.parametrize("width", [1e-2, 1e-3, 1e-5])
def test_a_head_whose_actions_hardly_differ_yet_can_be_played(made, width):
    """Early in training a centred head's output scale is far below its input's; their quotient alone means nothing."""
    network, template = made
    kept = network.snapshot()
    silent = dataclasses.replace(
        kept,
        kernels=(*kept.kernels[:-1], kept.kernels[-1] * np.float32(width)),
        biases=(*kept.biases[:-1], kept.biases[-1] * np.float32(width)),
        head_range=np.array([-width, width], np.float32),
    )
    assert Policy.load(read_policy(template.patch(silent)), self_test=False).contract.env_id == "CartPole-v1"


def test_a_push_that_the_link_did_not_take_is_sent_later_and_only_once(setting):
    broker, link, _, network, publisher = setting
    broker.down()
    assert not publisher.publish(prepared(publisher, network, version=5))
    assert not publisher.retry()
    broker.up()
    link.reconnect()
    assert decode_push(broker.retained[TOPICS.policy], lambda *_: None)[0].version == 5
    # It is counted once.
    assert publisher.retry() == 1
    assert publisher.retry() == 0


def test_a_retired_publisher_leaves_what_was_cleared_cleared(setting):
    broker, link, _, network, publisher = setting
    publisher.publish(prepared(publisher, network))
    publisher.retire()
    broker.retained.clear()
    broker.cut("learner")
    link.reconnect()
    assert TOPICS.policy not in broker.retained
    assert not publisher.retry()


class Device:
    """Takes manifests, and keeps the chunks that it is sent."""

    def __init__(self, broker, name="a"):
        self.manifests, self.chunks, self.name = [], {}, name
        self.link = broker.link(name)
        self.link.subscribe(TOPICS.policy, lambda m: self.manifests.append(decode_manifest(m.payload, lambda *_: None)))
        self.link.subscribe(TOPICS.any_blob, self._on_chunk)
        self.link.connect(timeout_s=1)

    def _on_chunk(self, message):
        self.chunks.setdefault(message.topic.split("/")[-2], []).append(message.payload)

    def ask(self, manifest, *offsets):
        need = Need(sha256=manifest.header.sha256, offsets=offsets)
        self.link.publish(TOPICS.need(self.name), need.encode())


@pytest.mark.usefixtures("small_cap")
def test_a_big_policy_goes_out_as_a_manifest_and_its_chunks_once(setting):
    broker, _, key, network, publisher = setting
    pushed = prepared(publisher, network)
    devices = [Device(broker, name) for name in ("a", "b")]
    assert publisher.publish(pushed)
    manifest = decode_manifest(broker.retained[TOPICS.policy], key.public.verify)
    assert (manifest.header.version, manifest.header.sha256) == (3, hashlib.sha256(pushed.policy).hexdigest())
    assert devices[0].chunks == {}
    for device in devices:
        device.ask(manifest, 0)
    for device in devices:
        eventually(lambda device=device: sum(map(len, device.chunks.values())) == manifest.count, "every chunk")
        assert b"".join(device.chunks[manifest.header.sha256]) == pushed.policy
    assert not any(topic.startswith(TOPICS.blob("", 0)[:-2]) for topic in broker.retained)


@pytest.mark.usefixtures("small_cap")
def test_a_big_policy_waits_while_another_is_fanned_out_and_only_the_newest_does(setting, monkeypatch):
    broker, _, _, network, publisher = setting
    device = Device(broker)
    # However slow this machine is, devices have the time to say that they listen.
    monkeypatch.setattr("quarl_edge.learner.shelf._ANSWER_S", 600.0)
    assert publisher.publish(prepared(publisher, network, version=1))
    network.trainable_variables[0].assign_add(np.full(network.trainable_variables[0].shape, 0.01, np.float32))
    assert not publisher.publish(prepared(publisher, network, version=2))
    network.trainable_variables[0].assign_add(np.full(network.trainable_variables[0].shape, 0.01, np.float32))
    assert not publisher.publish(prepared(publisher, network, version=3))
    assert [manifest.header.version for manifest in device.manifests] == [1]
    device.ask(device.manifests[0], 0)
    eventually(lambda: len(device.manifests) == 2, "the newest, by itself")
    assert device.manifests[1].header.version == 3
    assert sum(map(len, device.chunks.values())) == device.manifests[0].count
    # One of the two pushes that had to wait went out.
    assert publisher.retry() == 1
    assert publisher.retry() == 0


@pytest.mark.usefixtures("small_cap")
def test_a_big_policy_comes_again_after_a_reconnection(setting):
    broker, link, _, network, publisher = setting
    device = Device(broker)
    publisher.publish(prepared(publisher, network))
    broker.retained.clear()
    broker.cut("learner")
    link.reconnect()
    eventually(lambda: TOPICS.policy in broker.retained, "published again")
    device.ask(device.manifests[-1], 0)
    eventually(lambda: sum(map(len, device.chunks.values())) == device.manifests[-1].count, "served")


@pytest.mark.usefixtures("small_cap")
def test_w4_needs_that_do_not_hold_are_refused_and_the_rest_is_served(setting, caplog):
    broker, _, _, network, publisher = setting
    device = Device(broker)
    publisher.publish(prepared(publisher, network))
    for payload in (b"", b"{}", b"[" * 70_000, Need(sha256="ab" * 32, offsets=(0,)).encode()):
        broker.publish(TOPICS.need("a"), payload)
    broker.publish(TOPICS.need("a").replace("/a/", "/UPPER/"), b"x")
    device.ask(device.manifests[0], 1)
    assert device.chunks == {}
    device.ask(device.manifests[0], 0)
    eventually(lambda: sum(map(len, device.chunks.values())) == device.manifests[0].count, "served")
    assert sum("refused" in record.message for record in caplog.records) == 5


def policies_sent(broker):
    sent = []
    ear = broker.link("ear")
    ear.subscribe(TOPICS.policy, lambda message: sent.append(message.payload))
    ear.connect(timeout_s=1)
    return sent


def test_a_policy_that_a_device_has_not_got_for_long_is_sent_again_ever_seldomer(setting):
    """A broker may lose what it has acknowledged, and a learner that waits for experience pushes nothing new."""
    broker, _, _, network, publisher = setting
    sent = policies_sent(broker)
    publisher.renew([(0, 0)], 1e9)
    assert not sent, "there is none yet"
    pushed = prepared(publisher, network)
    publisher.publish(pushed)
    out_s = time.monotonic()
    publisher.renew([(7, 2)], out_s + RENEW_S / 2)
    assert len(sent) == 1, "it may not have said yet what it acts with"
    for at_s, count in ((20, 2), (40, 2), (51, 3), (100, 3), (112, 4)):
        publisher.renew([(7, 3), (7, 2)], out_s + at_s)
        assert len(sent) == count, at_s
    assert set(sent) == {pushed.payload}
    publisher.publish(prepared(publisher, network, version=4))
    publisher.renew([(0, 0)], time.monotonic() + RENEW_S + 1)
    assert len(sent) == 6, "of another policy the waiting begins anew"


@pytest.mark.parametrize("in_use", [[], [(7, 3)], [(8, 1), (7, 3), (7, 4)]], ids=["nobody", "all", "later ones"])
def test_where_nobody_lacks_it_nothing_is_sent_again(setting, in_use):
    broker, _, _, network, publisher = setting
    publisher.publish(prepared(publisher, network))
    sent = policies_sent(broker)
    before = len(sent)  # what is retained
    publisher.renew(in_use, time.monotonic() + 1e6)
    assert len(sent) == before


def test_a_learner_that_has_left_renews_nothing(setting):
    broker, _, _, network, publisher = setting
    publisher.publish(prepared(publisher, network))
    sent = policies_sent(broker)
    before = len(sent)
    publisher.retire()
    publisher.renew([(0, 0)], time.monotonic() + 1e6)
    assert len(sent) == before
