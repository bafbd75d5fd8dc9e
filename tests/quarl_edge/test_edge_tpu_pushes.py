"""Pushes compiled for the Edge TPU: the newest wins, nobody waits, and whatever the compiler does training goes on."""

import functools
import logging
import threading
import time
from types import SimpleNamespace

import pytest
from stub_delegate import DATA, compiled, install_compiler, stub_library

from quarl_device.delegate_spec import DelegateSpec
from quarl_device.errors import ConversionError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy
from quarl_device.runtime.delegated import DelegatedRuntime
from quarl_device.runtime.litert import LiteRTRuntime
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.manifest import decode_manifest
from quarl_device.wire.messages import Need
from quarl_device.wire.push import Exploration, PushHeader, decode_push
from quarl_device.wire.topics import Topics
from quarl_edge.learner.blobs import BlobServer
from quarl_edge.learner.edge_tpu import EdgeTpuPushes
from quarl_export.edgetpu_push import compile_policy, tpu_tolerance

TOPICS = Topics("f")
FILE = read_policy((DATA / "cartpole.tflite").read_bytes())
COMPILED = compiled(FILE.data)


def pushed(version):
    golden = FILE.golden
    header = PushHeader(
        epoch=7, version=version, env_steps=10 * version, sha256=FILE.sha256, golden_outputs=dict(golden.outputs),
        exploration=Exploration(values=(0.1,)), lsb=dict(golden.lsb), tolerance_lsb=2, normalizer_version=4,
    )  # fmt: skip
    return SimpleNamespace(version=version, policy=FILE.data, header=header)


def eventually(condition, what="the condition", within_s=20.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


class Compiler:
    """Compiles when it is let; `fault` is raised instead."""

    def __init__(self, *, open_gate=True):
        self.gate, self.began = threading.Event(), threading.Semaphore(0)
        self.calls, self.fault, self.made = 0, None, COMPILED
        if open_gate:
            self.gate.set()

    def __call__(self, policy, *, cancelled):
        assert policy == FILE.data
        self.calls += 1
        self.began.release()
        while not self.gate.wait(0.005):
            if cancelled():
                raise ConversionError("given up")
        if self.fault is not None:
            raise self.fault
        return self.made


class Scene:
    def __init__(self):
        self.broker, self.key = FakeBroker(), LearnerKey.generate()
        self.link = self.broker.link("learner")
        self.link.connect(timeout_s=1)
        self.blobs = [BlobServer(self.link, TOPICS), BlobServer(self.link, TOPICS)]
        self.blobs[0].start()
        self.blobs[1].start(beside=self.blobs[0])
        self.made = []

    def pushes(self, compiler, *, period=5):
        one = EdgeTpuPushes(compiler, link=self.link, topics=TOPICS, key=self.key, blobs=self.blobs[1], period=period)
        self.made.append(one)
        return one

    def retained(self):
        payload = self.broker.retained.get(TOPICS.edgetpu)
        return None if payload is None else decode_push(payload, self.key.public.verify)

    def close(self):
        for each in (*self.made, *self.blobs):
            each.close()
        assert not any(one._worker.is_alive() for one in self.made)


@pytest.fixture
def scene():
    one = Scene()
    yield one
    one.close()


def sent(scene, pushes, count):
    def due():
        pushes.publish()
        return pushes.counters.published == count

    eventually(due, f"{count} published")
    return scene.retained()


def test_the_first_and_every_nth_version_goes_out_compiled_signed_and_retained(scene):
    compiler = Compiler()
    pushes = scene.pushes(compiler)
    for version in (3, 4):
        pushes.consider(pushed(version))
    header, data = sent(scene, pushes, 1)
    source = pushed(3).header
    assert (header.epoch, header.version, header.env_steps, header.normalizer_version) == (7, 3, 30, 4)
    assert data == COMPILED
    assert header.edge_tpu
    assert header.tolerance_lsb == tpu_tolerance(source.tolerance_lsb) == 4
    assert {role: v.tolist() for role, v in header.golden_outputs.items()} == {
        role: v.tolist() for role, v in source.golden_outputs.items()
    }
    for version in range(5, 10):
        pushes.consider(pushed(version))
    assert sent(scene, pushes, 2)[0].version == 5
    assert compiler.calls == 2
    assert TOPICS.policy not in scene.broker.retained


def test_an_edge_tpu_acts_with_what_came_of_it(scene):
    pushes = scene.pushes(Compiler())
    pushes.consider(pushed(1))
    header, data = sent(scene, pushes, 1)
    golden = FILE.golden.with_outputs(header.golden_outputs, lsb=header.lsb, tolerance_lsb=header.tolerance_lsb)
    runtime = DelegatedRuntime(LiteRTRuntime(), DelegateSpec(library=stub_library()))
    policy = Policy.load(read_policy(data, sha256=header.sha256), runtime=runtime, golden=golden)
    assert policy.act(FILE.golden.observations["observation"][0]) in (0, 1)


def test_nobody_waits_and_the_newest_wins(scene):
    compiler = Compiler(open_gate=False)
    pushes = scene.pushes(compiler, period=1)
    pushes.consider(pushed(1))
    assert compiler.began.acquire(timeout=10)
    began_s = time.monotonic()
    for version in range(2, 50):
        pushes.consider(pushed(version))
        assert not pushes.is_ready
        pushes.publish()
    assert time.monotonic() - began_s < 5.0
    compiler.gate.set()
    eventually(lambda: pushes.counters.compiled == 2)
    assert sent(scene, pushes, 1)[0].version == 49
    assert (pushes.counters.overtaken, compiler.calls) == (47, 2)
    assert not pushes.is_ready


@pytest.mark.parametrize("fault", [ConversionError("no room on the chip"), RuntimeError("a bug"), MemoryError()])
def test_failures_are_said_once_and_counted_and_the_next_one_is_compiled(scene, caplog, fault):
    compiler = Compiler()
    compiler.fault = fault
    pushes = scene.pushes(compiler, period=1)
    for version in (1, 2, 3):
        pushes.consider(pushed(version))
        eventually(lambda version=version: pushes.counters.failures == version)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "policy 1 is not compiled for the Edge TPU" in caplog.text
    assert str(fault) in pushes.counters.last_failure
    assert scene.retained() is None
    compiler.fault = None
    pushes.consider(pushed(4))
    assert sent(scene, pushes, 1)[0].version == 4
    compiler.fault = fault
    pushes.consider(pushed(5))
    eventually(lambda: pushes.counters.failures == 4)
    assert len(caplog.records) == 2, "after a success it is news again"


def test_what_the_link_does_not_take_goes_out_later(scene):
    pushes = scene.pushes(Compiler())
    pushes.consider(pushed(1))
    eventually(lambda: pushes.is_ready)
    scene.broker.cut("learner", reconnect=False)
    pushes.publish()
    assert pushes.is_ready
    assert scene.retained() is None
    scene.link.reconnect()
    assert sent(scene, pushes, 1)[0].version == 1


def test_it_comes_again_after_a_reconnection_but_not_once_closed(scene):
    pushes = scene.pushes(Compiler())
    pushes.consider(pushed(1))
    sent(scene, pushes, 1)
    for closed in (False, True):
        if closed:
            pushes.close()
        scene.broker.retained.clear()
        scene.broker.cut("learner")
        scene.link.reconnect()
        assert (scene.retained() is None) == closed


def test_the_end_waits_for_no_compiler(scene, caplog):
    compiler = Compiler(open_gate=False)
    pushes = scene.pushes(compiler)
    pushes.consider(pushed(1))
    assert compiler.began.acquire(timeout=10)
    pushes.close()
    assert not pushes._worker.is_alive()
    assert not caplog.records
    assert pushes.counters.failures == 0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("os.kill(os.getpid(), 9)", "died of signal 9"),
        ("time.sleep(60)", "gave no result in 1 s"),
        ("open(where, 'wb').write(b'x' * 1000)", ""),
    ],
    ids=["crash", "hang", "nonsense"],
)
def test_a_real_child_that_fails_hurts_nothing(scene, tmp_path, monkeypatch, body, why):
    install_compiler(tmp_path, body)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    pushes = scene.pushes(functools.partial(compile_policy, deadline_s=1.0))
    pushes.consider(pushed(1))
    eventually(lambda: pushes.counters.failures == 1)
    assert why in pushes.counters.last_failure
    install_compiler(tmp_path)
    pushes._compile = functools.partial(compile_policy, deadline_s=60.0)
    pushes.consider(pushed(5))
    assert sent(scene, pushes, 1)[0].version == 5


def test_a_compiler_that_goes_missing_while_training(scene, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    pushes = scene.pushes(compile_policy)
    pushes.consider(pushed(1))
    eventually(lambda: pushes.counters.failures == 1)
    assert "not on the PATH" in pushes.counters.last_failure


def test_a_big_one_goes_in_chunks_beside_those_of_the_plain_stream(scene, monkeypatch):
    monkeypatch.setattr("quarl_device.wire.push.MAX_INLINE_PUSH_BYTES", 1_000)
    monkeypatch.setattr("quarl_edge.learner.sealing.MAX_CHUNK_BYTES", 1_000)
    chunks = []
    device = scene.broker.link("pi")
    device.subscribe(TOPICS.any_blob, lambda message: chunks.append((message.topic, message.payload)))
    device.connect(timeout_s=1)
    pushes = scene.pushes(Compiler())
    pushes.consider(pushed(1))
    eventually(lambda: pushes.is_ready)
    pushes.publish()
    manifest = decode_manifest(scene.broker.retained[TOPICS.edgetpu], scene.key.public.verify)
    assert manifest.header.edge_tpu
    need = Need(sha256=manifest.header.sha256, offsets=(0,))
    device.publish(TOPICS.need("pi"), need.encode())
    eventually(lambda: len(chunks) == manifest.count)
    got = {TOPICS.chunk_of(topic)[1]: payload for topic, payload in chunks}
    assert b"".join(got[offset] for offset in sorted(got)) == COMPILED
    plain, beside = (server.counters for server in scene.blobs)
    assert (plain.fanned_out, plain.strange, beside.fanned_out, beside.strange) == (0, 0, manifest.count, 0)
    device.publish(TOPICS.need("pi"), Need(sha256="0" * 64, offsets=(0,)).encode())
    eventually(lambda: plain.strange == 1)
    assert beside.strange == 0
