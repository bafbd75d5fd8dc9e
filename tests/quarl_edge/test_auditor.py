"""What a run does with a template that cannot patch, or whose first push is not what a conversion gives."""

import dataclasses
import logging

import pytest
from learner_factory import CONTRACT, batch, policy

from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.push import Exploration, decode_push
from quarl_device.wire.topics import Topics
from quarl_edge.learner.auditor import Auditor
from quarl_edge.learner.blobs import BlobServer
from quarl_edge.learner.publisher import PolicyPublisher
from quarl_export.audit import AuditResult, audit
from quarl_export.compare import difference
from quarl_export.qat_template import QatTemplate


@pytest.fixture(scope="module")
def network():
    network = policy()
    network.calibrate(batch().observation[0])
    return network


@pytest.fixture(scope="module")
def template(network):
    return QatTemplate.from_model(network, CONTRACT, batch().observation[0])


class Crooked:
    """A patcher that writes another policy than it is given."""

    reason, normalized = "", True

    def __init__(self, template, snapshot):
        self.spec = template.spec
        self._template, self._snapshot = template, snapshot
        self.data = template.data

    def patch(self, _):
        return self._template.patch(self._snapshot)


def no_child():
    raise AssertionError("the first comparison needs no child")


def test_a_right_template_is_kept_and_counted(template, network):
    auditor = Auditor(no_child)
    assert auditor.settle(template, network.snapshot()) is template
    assert (auditor.audited, auditor.failures) == (1, 0)


def test_a_template_whose_first_push_differs_converts_from_then_on(template, network, caplog):
    snapshot = network.snapshot()
    other = dataclasses.replace(snapshot, kernels=tuple(kernel * 0.5 for kernel in snapshot.kernels))
    crooked = dataclasses.replace(template, patcher=Crooked(template, other))
    auditor = Auditor(no_child)
    settled = auditor.settle(crooked, snapshot)
    assert settled.reason.startswith("the first push differs from its conversion")
    assert difference(settled.patch(snapshot), template.patch(snapshot)) == ""
    assert (auditor.audited, auditor.failures) == (1, 1)
    assert [r for r in caplog.records if r.levelno == logging.WARNING and "is converted" in r.message]


def test_a_template_that_converts_is_not_compared_with_itself(template, network, caplog):
    converting = template.converting("too odd")
    auditor = Auditor(no_child)
    assert auditor.settle(converting, network.snapshot()) is converting
    assert auditor.audited == 0
    assert "too odd" in caplog.text


def test_converted_pushes_go_out_and_are_audited_as_patched_ones(template, network):
    broker, key = FakeBroker(), LearnerKey.generate()
    link = broker.link("learner")
    link.connect(timeout_s=1)
    converting = template.converting("too odd")
    blobs = BlobServer(link, Topics("f"))
    publisher = PolicyPublisher(converting, link=link, topics=Topics("f"), key=key, epoch=7, blobs=blobs)
    pushed = publisher.prepare(network.snapshot, version=3, env_steps=9, exploration=Exploration(values=(0.5,)))
    assert publisher.publish(pushed)
    header, data = decode_push(broker.retained[Topics("f").policy], key.public.verify)
    file = read_policy(data)
    assert file.contract == template.contract
    golden = file.golden.with_outputs(header.golden_outputs, lsb=header.lsb, tolerance_lsb=header.tolerance_lsb)
    Policy.load(file, golden=golden)
    assert audit(network.spec, pushed.snapshot, pushed.policy).identical
    other = dataclasses.replace(pushed.snapshot, biases=tuple(bias + 1 for bias in pushed.snapshot.biases))
    assert not audit(network.spec, other, pushed.policy).identical


def test_a_comparison_without_a_verdict_changes_nothing(template, network, monkeypatch):
    def failed(*_, **__):
        return AuditResult(version=0, identical=False, seconds=0.0, detail="no memory", failed=True)

    monkeypatch.setattr("quarl_edge.learner.auditor.audit", failed)
    auditor = Auditor(no_child)
    assert auditor.settle(template, network.snapshot()) is template
    assert (auditor.audited, auditor.failures) == (0, 0)
