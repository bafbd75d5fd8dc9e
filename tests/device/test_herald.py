"""The herald of deploy mode: what the fleet hears, and that nothing a broker does holds up or ends who acts."""

import threading
import time

import pytest

from quarl_device.actor.identity import gone_state
from quarl_device.deploy.config import Report
from quarl_device.deploy.herald import Herald, Joined, Patience, birth_of
from quarl_device.deploy.machine import Fault, Phase
from quarl_device.errors import CredentialsError
from quarl_device.link import Backoff, Will
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.messages import DeviceState
from quarl_device.wire.topics import Topics

TOPIC = Topics("lab").state("pi")
BOOT, OTHER = "00000000000000aa", "00000000000000bb"
SETTLED = Report(phase=Phase.SETTLED, digest="a" * 64, epoch=0, version=3)
NEXT = Report(phase=Phase.PROBATION, digest="b" * 64, epoch=0, version=4)
NOTHING = Report(phase=Phase.EMPTY, fault=Fault(code=12, message="golden\nvectors", digest=""))
QUICK = Patience(backoff=Backoff(base_s=0.01, cap_s=0.02), silence_s=0.2, rejoin_s=0.1, renew_s=0.05)


def eventually(condition, what, timeout_s=20.0):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.005)


class Scene:
    def __init__(self):
        self.broker, self.links, self.errors, self.heralds = FakeBroker(), [], [], []

    def herald(self, *, join=None, patience=QUICK, boot_id=BOOT):
        def joined():
            will = Will(topic=TOPIC, payload=gone_state("pi", boot_id, mode="deploy"))
            self.links.append(self.broker.link("lab.pi", will=will))
            return Joined(link=self.links[-1], fleet="lab", name="pi")

        made = Herald(join or joined, boot_id=boot_id, runtime="litert 1", patience=patience)
        self.heralds.append(made)
        return made

    @property
    def said(self):
        return [DeviceState.decode(message.payload) for message in self.broker.log if message.topic == TOPIC]

    @property
    def retained(self):
        payload = self.broker.retained.get(TOPIC)
        return None if payload is None else DeviceState.decode(payload)


@pytest.fixture
def scene():
    made = Scene()
    yield made
    for herald in made.heralds:
        herald.close()


def until_told(scene, report, what):
    eventually(lambda: scene.retained is not None and scene.retained.digest == report.digest, what)


def test_a_birth_says_what_acts():
    state = birth_of(SETTLED, device="pi", boot_id=BOOT, beat=2, runtime="litert 1")
    assert (state.mode, state.digest, state.policy_version, state.blocked, state.fault) == (
        "deploy",
        "a" * 64,
        3,
        "",
        "",
    )
    assert DeviceState.decode(state.encode()) == state


def test_a_fault_is_told_on_one_line_and_left_out_where_there_is_none():
    faulty = birth_of(NOTHING, device="pi", boot_id=BOOT, beat=2, runtime="", blocked="no policy")
    assert DeviceState.decode(faulty.encode()).fault == "12: golden vectors"
    assert b"fault" not in birth_of(SETTLED, device="pi", boot_id=BOOT, beat=2, runtime="").encode()


def test_births_follow_what_acts_and_a_goodbye_ends_them(scene):
    herald = scene.herald()
    herald.report(SETTLED)
    herald.start()
    until_told(scene, SETTLED, "the first policy")
    herald.report(NEXT)
    until_told(scene, NEXT, "the second one")
    herald.report(NOTHING)
    eventually(lambda: scene.retained.blocked == "no policy", "that nothing acts")
    assert scene.retained.blocked_since_unix_s > 0
    herald.close(why="failed: x")
    assert (scene.retained.status, scene.retained.mode, scene.retained.blocked) == ("gone", "deploy", "failed: x")
    beats = [state.beat for state in scene.said if state.status == "online"]
    assert beats == sorted(set(beats))


def test_a_birth_is_renewed_while_nothing_changes(scene):
    herald = scene.herald()
    herald.report(SETTLED)
    herald.start()
    eventually(lambda: len(scene.said) > 3, "renewals")
    assert {state.digest for state in scene.said} == {SETTLED.digest}


def test_nothing_is_said_before_there_is_a_report(scene):
    herald = scene.herald()
    herald.start()
    eventually(lambda: scene.links and scene.links[0].connected, "a connection")
    assert scene.retained is None
    herald.report(SETTLED)
    until_told(scene, SETTLED, "the report")


def test_a_broker_that_comes_later_hears_the_latest(scene):
    scene.broker.down()
    herald = scene.herald()
    herald.report(SETTLED)
    herald.start()
    eventually(lambda: len(scene.links) > 2, "three attempts")
    assert "no broker answers" in herald.last_error
    herald.report(NEXT)
    scene.broker.up()
    until_told(scene, NEXT, "the latest")
    assert all(state.digest == NEXT.digest for state in scene.said)


def test_a_connection_that_was_lost_begins_with_a_birth(scene):
    herald = scene.herald()
    herald.report(SETTLED)
    herald.start()
    until_told(scene, SETTLED, "the birth")
    scene.broker.cut("lab.pi")
    eventually(lambda: [state.status for state in scene.said][-2:] == ["gone", "online"], "will and birth")


def test_a_link_that_stays_down_is_given_up_and_made_anew(scene):
    herald = scene.herald()
    herald.report(SETTLED)
    herald.start()
    until_told(scene, SETTLED, "the birth")
    scene.broker.cut("lab.pi", reconnect=False)
    eventually(lambda: len(scene.links) > 1 and scene.retained.status == "online", "another link, and a birth")


@pytest.mark.parametrize("error", [CredentialsError("expired"), OSError("odd"), ValueError("odder")])
def test_what_keeps_it_from_joining_is_tried_again(scene, error):
    attempts = []

    def join():
        attempts.append(1)
        if len(attempts) < 3:
            raise error
        return Joined(link=scene.broker.link("lab.pi"), fleet="lab", name="pi")

    herald = scene.herald(join=join)
    herald.report(SETTLED)
    herald.start()
    until_told(scene, SETTLED, "the birth")
    assert len(attempts) == 3


def test_hostile_states_under_its_name_change_nothing(scene):
    herald = scene.herald()
    herald.report(SETTLED)
    herald.start()
    until_told(scene, SETTLED, "the birth")
    for payload in (b"", b"\xff" * 300, b"{}", b"[" * 60_000):
        scene.broker.publish(TOPIC, payload)
    herald.report(NEXT)
    until_told(scene, NEXT, "the next one")
    assert scene.links[0].counters.handler_errors == 0


def test_a_second_device_of_the_name_makes_it_silent_for_a_while_and_no_more(scene):
    herald = scene.herald()
    herald.report(SETTLED)
    herald.start()
    until_told(scene, SETTLED, "the birth")
    other = DeviceState(status="online", device="pi", boot_id=OTHER).encode()
    for report in (NEXT, SETTLED, NEXT, SETTLED):
        scene.broker.publish(TOPIC, other, retain=True)
        if not scene.links[0].connected:
            break
        herald.report(report)
        eventually(lambda: not scene.links[0].connected or scene.retained.boot_id == BOOT, "its turn")
    eventually(lambda: "another process uses the id" in herald.last_error, "silence")
    assert scene.retained.boot_id == OTHER  # it took nothing back
    eventually(lambda: len(scene.links) > 1 and scene.retained.boot_id == BOOT, "another try")


class Stuck:
    """A link whose broker never answers."""

    connected = False

    def __init__(self):
        self.entered, self.closed = threading.Event(), threading.Event()

    def subscribe(self, *_, **__):
        pass

    def on_connect(self, _):
        pass

    def connect(self, *, timeout_s):
        self.entered.set()
        assert self.closed.wait(60)
        raise CredentialsError("closed meanwhile")

    def close(self, **_):
        self.closed.set()


def test_the_end_waits_for_no_broker_and_a_report_for_nobody(scene):
    stuck = Stuck()
    herald = scene.herald(join=lambda: Joined(link=stuck, fleet="lab", name="pi"))
    herald.start()
    assert stuck.entered.wait(10)
    began_s = time.monotonic()
    for _ in range(10_000):
        herald.report(NEXT)
    herald.close()
    assert time.monotonic() - began_s < 3.0
    assert not herald._thread.is_alive()
