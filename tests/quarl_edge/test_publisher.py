"""A push: patched, answered, signed, retained, and sent again after a reconnection."""

import dataclasses

import numpy as np
import pytest
from learner_factory import CONTRACT, batch, policy

from quarl_device.errors import BadSignature, NonFiniteError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.push import Exploration, decode_push
from quarl_device.wire.topics import Topics
from quarl_edge.learner.publisher import PolicyPublisher
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
    return broker, link, key, network, PolicyPublisher(template, link=link, topics=TOPICS, key=key, epoch=7)


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
    assert not publisher.retry()


def test_a_retired_publisher_leaves_what_was_cleared_cleared(setting):
    broker, link, _, network, publisher = setting
    publisher.publish(prepared(publisher, network))
    publisher.retire()
    broker.retained.clear()
    broker.cut("learner")
    link.reconnect()
    assert TOPICS.policy not in broker.retained
    assert not publisher.retry()
