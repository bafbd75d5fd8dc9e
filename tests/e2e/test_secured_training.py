"""Training over TLS with access rules on, two learners at one broker, and where secrets must never be seen."""

import contextlib
import dataclasses
import json
import threading
import time
from pathlib import Path

import pytest
from runs_helper import DEVICE, EDGE, Started
from secured_broker import SecuredBroker

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import LearnerAlive
from quarl_device.testing.link_conformance import until
from quarl_device.wire.messages import LearnerBirth
from quarl_device.wire.topics import Topics
from quarl_edge.learner import presence as presence_module
from quarl_edge.learner.claim import claim_fleet
from quarl_edge.learner.presence import Presence, will_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
ACTORS = ("actor-0",)


@pytest.fixture(scope="module")
def broker():
    with SecuredBroker(
        {"lab-2": ("learner", ""), **dict.fromkeys((*ACTORS, "pi-1"), ("device", "default"))}
    ) as running:
        yield running


def key_material(broker):
    """Every secret there is, by the lines of its file."""
    found = {}
    for path in (*broker.path.rglob("*.key"), broker.path / "server.pem"):
        for line in path.read_text().partition("-----BEGIN CERTIFICATE-----")[0].splitlines():
            if not line.startswith("-----"):
                found[line] = path.name
    return found


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def test_w9_a_run_with_local_actors_and_a_device_trains_over_tls_and_shows_no_secret(broker, tmp_path):
    clients = broker.path / "clients"
    words = [*EDGE, "train", "CartPole-v1", "--run", "run", "--steps", 2000, "--format", "json"]
    words += ["--broker", broker.url, "--actors", 1]
    words += ["--credentials", clients / "learner", "--actor-credentials", clients]
    device = [*DEVICE, "run", "--format", "json", "--credentials", clients / "pi-1", "--index", 1]
    secrets, seen = key_material(broker), set()
    assert set(secrets.values()) >= {"ca.key", "client.key", "server.pem"}
    with (
        Started(words, cwd=tmp_path, log=tmp_path / "learner.log") as learner,
        Started(device, cwd=tmp_path, log=tmp_path / "device.log", env={"QUARL_CREDENTIALS": "/nowhere"}) as pi,
    ):
        deadline = time.monotonic() + 180
        while learner.process.poll() is None:
            assert time.monotonic() < deadline, learner.said()
            seen |= set(command_lines())
            time.sleep(0.2)
        learned = learner.process.stdout.read().decode()
        assert learner.process.returncode == 0, learner.said()
        code, acted = pi.end()
        assert code == 0, pi.said()
    result, summary = json.loads(learned.splitlines()[-1]), json.loads(acted.splitlines()[-1])
    assert result["env_steps"] > 500
    assert not result["refused"]
    assert summary["policies"] >= 1, pi.said()
    assert "pinning" not in pi.said()
    assert any("--credentials" in line for line in seen), "the actors were looked at"
    logs = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.suffix in (".log", ".json")]
    told = "\n".join([learned, acted, broker.said(), json.dumps(broker.ready), *seen, *logs])
    assert [name for piece, name in secrets.items() if piece in told] == []


# Later than that of any run in this module, whose goodbye stays retained: an older learner would follow it and end.
BIRTH = LearnerBirth(
    status="online", epoch=int(time.time()) + 86_400, beat=1, env_id="CartPole-v1", algorithm="dqn",
    observations=(ObservationSpec(key="observation", shape=(4,)),), action=ActionSpec(kind="discrete", n=2),
    public_key="ab" * 32, mode="async", seed=0, block_steps=16, version="0",
)  # fmt: skip


@pytest.fixture
def serving(broker, monkeypatch):
    """A learner that serves the default fleet."""
    monkeypatch.setattr(presence_module, "RENEW_PERIOD_S", 0.3)
    topics = Topics("default")
    link = broker.link("learner", will=will_of(topics, BIRTH))
    presence = Presence(link, topics, BIRTH)
    link.connect(timeout_s=10.0)
    presence.announce()
    done = threading.Event()

    def renew():
        with contextlib.suppress(LearnerAlive):
            while not done.wait(0.1):
                presence.tick()

    thread = threading.Thread(target=renew)
    thread.start()
    yield link, presence
    done.set()
    thread.join(5.0)
    presence.leave(clear=True)
    link.close()


@pytest.mark.parametrize("name", ["lab-2", "learner"], ids=["another certificate", "the same certificate"])
def test_w8_a_second_learner_is_refused_whichever_certificate_it_has(broker, serving, name):
    link, presence = serving
    second = broker.link(name)
    second.connect(timeout_s=10.0)
    try:
        with pytest.raises(LearnerAlive):
            claim_fleet(second, Topics("default"), takeover=False, cancelled=lambda: False, watch_s=15.0)
    finally:
        second.close()
    assert until(lambda: link.connected)
    presence.check()
    if name == "lab-2":
        assert link.counters.connections == 1, "its own was never thrown off"


def test_w8_a_takeover_with_another_certificate_deposes_the_first_and_nobody_is_thrown_off(broker, serving):
    link, presence = serving
    second, topics = broker.link("lab-2"), Topics("default")
    second.connect(timeout_s=10.0)
    later = claim_fleet(second, topics, takeover=True, cancelled=lambda: False) + 1
    successor = Presence(second, topics, dataclasses.replace(BIRTH, epoch=later), takeover=True)
    successor.announce()

    def deposed():
        try:
            presence.check()
        except LearnerAlive:
            return True
        return False

    assert until(deposed)
    successor.check()
    assert (link.counters.connections, second.counters.connections) == (1, 1)
    successor.leave(clear=True)
    second.close()


def test_w8_two_fleets_with_one_certificate_the_newcomer_leaves_and_the_one_that_served_goes_on(broker, monkeypatch):
    """They do not even hear of each other: all that tells is that the broker ends each connection again and again.

    That takes half an hour, and both have the same patience: here the newcomer has little.
    """
    monkeypatch.setattr(presence_module, "SETTLED_S", 0.0)
    first = Served(broker, "default")
    time.sleep(0.1)
    first.presence.tick()
    newcomer = Served(broker, "other")
    monkeypatch.setattr(newcomer.presence, "_patience", lambda: 6)
    monkeypatch.setattr(presence_module, "SETTLED_S", 30.0)

    def leaves():
        first.presence.tick()
        try:
            newcomer.presence.tick()
        except LearnerAlive as error:
            return "another client has its client id" in error.message
        return False

    assert until(leaves, timeout_s=30.0)
    newcomer.link.close()
    assert until(lambda: first.link.connected, timeout_s=10.0)
    time.sleep(0.5)
    first.presence.tick()
    assert first.link.connected
    first.presence.leave(clear=True)
    first.link.publish(Topics("other").learner, b"", retain=True)
    first.link.flush(timeout_s=5.0)
    first.link.close()


class Served:
    """A fleet with a learner whose certificate is `learner`'s."""

    def __init__(self, broker, fleet):
        topics = Topics(fleet)
        self.link = broker.link("learner", will=will_of(topics, BIRTH))
        self.presence = Presence(self.link, topics, BIRTH, shared_id=True)
        self.link.connect(timeout_s=10.0)
        self.presence.announce()


@pytest.mark.timeout(480)
def test_w8_two_whole_learners_with_one_certificate_exactly_one_goes_on_and_so_do_its_actors(broker, tmp_path):
    """The broker ends the session of the first to let the second in: its will is out before the second can look."""
    clients = broker.path / "clients"
    words = [*EDGE, "train", "CartPole-v1", "--broker", broker.url, "--credentials", clients / "learner"]
    words += ["--actor-credentials", clients, "--set", "goal_return=none", "--format", "json"]
    first_words = [*words, "--run", "first", "--actors", 1]
    with Started(first_words, cwd=tmp_path, log=tmp_path / "first.log") as first:
        first.wait_for(lambda: "int8 return" in first.said(), seconds=300, what="training")
        with Started([*words, "--run", "second", "--actors", 0], cwd=tmp_path, log=tmp_path / "second.log") as second:
            code = second.process.wait(150)
        assert code == 70, second.said()
        assert "serves this fleet and goes on; this one ends" in second.said()
        assert "quarl-edge enroll NAME --role learner" in second.said()
        assert "watching 5 s whether it comes back" in second.said()
        journal = tmp_path / "first" / "journal"
        size = sum(file.stat().st_size for file in journal.iterdir())
        first.wait_for(
            lambda: sum(file.stat().st_size for file in journal.iterdir()) > size + 10_000,
            seconds=60, what="more experience",
        )  # fmt: skip
        code, out = first.end()
    assert code == 0, first.said()
    assert json.loads(out.splitlines()[-1])["reason"] == "interrupted"
    assert "ended with status" not in first.said(), "its actors stayed"
