"""A fleet as one that only listens sees it, and as `quarl-edge top` shows it."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.learner_telemetry import Lag, LearnerTelemetry
from quarl_device.wire.messages import DeviceState, LearnerBirth, Telemetry
from quarl_device.wire.topics import Topics
from quarl_edge.flow import fleet_view as module
from quarl_edge.flow.fleet_view import FleetView
from quarl_edge.flow.table import learner_lines, render

TOPICS = Topics("f")
BOOT, OTHER = "0123456789abcdef", "fedcba9876543210"
BIRTH = LearnerBirth(
    status="online", epoch=9, env_id="CartPole-v1", algorithm="dqn",
    observations=(ObservationSpec(key="observation", shape=(4,)),), action=ActionSpec(kind="discrete", n=2),
    public_key="0" * 64, mode="async", seed=0, block_steps=256, version="1.2",
)  # fmt: skip


class Clock:
    now_s = 1_000.0

    def __call__(self):
        return self.now_s


class Scene:
    """A broker, a view that listens, and everybody else."""

    def __init__(self):
        self.broker, self.clock = FakeBroker(), Clock()
        self.view = FleetView(TOPICS, clock=self.clock, unix_clock=self.clock)

    def listen(self):
        link = self.broker.link("viewer")
        self.view.listen(link)
        link.connect(timeout_s=1)

    def learner(self, **changes):
        payload = LearnerTelemetry(**{"epoch": 9, "env_steps": 1_000, "policy_version": 7, **changes}).encode()
        self.broker.publish(TOPICS.learner_telemetry, payload)

    def state(self, device="pi", **changes):
        fields = {"status": "online", "device": device, "boot_id": BOOT, "policy_version": 6, **changes}
        self.broker.publish(TOPICS.state(device), DeviceState(**fields).encode(), retain=True)

    def telemetry(self, device="pi", boot_id=BOOT, **changes):
        self.broker.publish(TOPICS.telemetry(device), Telemetry(boot_id=boot_id, **changes).encode())

    @property
    def actors(self):
        return {row["device"]: row for row in self.view.snapshot()["actors"]}

    def text(self, width=160):
        console = Console(width=width, file=io.StringIO())
        console.print(render(self.view.snapshot()))
        return console.file.getvalue()


@pytest.fixture
def scene():
    return Scene()


def test_what_is_retained_is_there_at_once_but_was_not_heard(scene):
    scene.broker.publish(TOPICS.learner, BIRTH.encode(), retain=True)
    scene.state(blocked="no learner", blocked_since_unix_s=990.0)
    scene.listen()
    snapshot = scene.view.snapshot()
    assert snapshot["learner"]["env"] == "CartPole-v1"
    assert snapshot["learner"]["heard_s"] is None
    assert (scene.actors["pi"]["heard_s"], scene.actors["pi"]["blocked_s"]) == (None, 10.0)
    assert not scene.view.complete


def test_rates_lag_and_blocks_are_shown_with_their_age(scene):
    scene.listen()
    scene.state()
    scene.telemetry(steps=50, steps_per_s=12.5, blocks_pending=3, blocks_resent=1, blocks_dropped=2)
    scene.learner(lags={"pi": Lag(versions=1, steps=64, age_s=0.5)}, blocked="no actors", blocked_since_unix_s=995.0)
    scene.clock.now_s += 4
    row = scene.actors["pi"]
    assert (row["heard_s"], row["steps_per_s"], row["blocks_pending"]) == (4.0, 12.5, 3)
    assert row["lag"] == {"versions": 1, "steps": 64, "seconds": 0.5}
    assert scene.view.snapshot()["learner"]["blocked_s"] == 9.0
    json.dumps(scene.view.snapshot(), allow_nan=False)
    assert scene.view.complete


def test_a_backlog_is_shown_with_its_rate_and_its_end(scene):
    scene.listen()
    scene.state(blocked="catching up", blocked_since_unix_s=990.0)
    scene.telemetry(blocks_pending=900, spool_bytes=90 * 1024)
    assert (scene.actors["pi"]["delivered_bytes_per_s"], scene.actors["pi"]["delivered_in_s"]) == (None, None)
    assert "no end" not in scene.text(), "one look says nothing of it"
    scene.clock.now_s += 10
    scene.telemetry(blocks_pending=900, spool_bytes=90 * 1024)
    assert (scene.actors["pi"]["delivered_bytes_per_s"], scene.actors["pi"]["delivered_in_s"]) == (0.0, None)
    assert "no end" in scene.text()
    scene.clock.now_s += 5
    scene.telemetry(blocks_pending=400, spool_bytes=40 * 1024)
    assert (scene.actors["pi"]["delivered_bytes_per_s"], scene.actors["pi"]["delivered_in_s"]) == (3_413.3, 12.0)
    assert "12 s (3 KiB/s)" in scene.text()
    scene.telemetry(blocks_pending=3, spool_bytes=300)
    assert (scene.actors["pi"]["delivered_bytes_per_s"], scene.actors["pi"]["delivered_in_s"]) == (None, None)
    json.dumps(scene.view.snapshot(), allow_nan=False)


def test_numbers_of_an_earlier_life_are_not_shown(scene):
    scene.listen()
    scene.state()
    scene.telemetry(steps=50)
    scene.state(boot_id=OTHER)
    assert "steps" not in scene.actors["pi"]
    scene.telemetry(boot_id=BOOT, steps=51)
    assert "steps" not in scene.actors["pi"]
    scene.telemetry(boot_id=OTHER, steps=1)
    assert scene.actors["pi"]["steps"] == 1


def test_a_device_whose_birth_is_cleared_is_gone(scene):
    scene.listen()
    scene.state()
    scene.broker.publish(TOPICS.state("pi"), b"", retain=True)
    assert scene.actors == {}


def test_a_learner_that_leaves_takes_its_numbers_with_it(scene):
    scene.listen()
    scene.broker.publish(TOPICS.learner, BIRTH.encode(), retain=True)
    scene.learner()
    scene.broker.publish(TOPICS.learner, b"", retain=True)
    assert scene.view.snapshot()["learner"] is None


def test_w4_what_does_not_hold_is_counted_and_hurts_nothing(scene):
    scene.listen()
    scene.state()
    for topic in (TOPICS.learner, TOPICS.learner_telemetry, TOPICS.state("pi"), TOPICS.telemetry("pi")):
        for payload in (b"\x00", b"{}", b"[" * 9_000):
            scene.broker.publish(topic, payload)
    scene.broker.publish(f"{TOPICS.root}/d/Not-A-Name/up/state", b"{}")
    scene.telemetry(steps=5)
    assert scene.actors["pi"]["steps"] == 5
    assert scene.view.refused == 13


def test_it_remembers_a_bounded_number_of_devices(scene, monkeypatch):
    monkeypatch.setattr(module, "MAX_DEVICES", 2)
    scene.listen()
    for device in ("a", "b", "c"):
        scene.state(device)
    assert set(scene.actors) == {"a", "b"}


def test_a_telemetry_without_a_birth_is_no_device(scene):
    scene.listen()
    scene.telemetry()
    assert scene.actors == {}
    assert scene.view.empty


def test_the_table_says_who_stands_still_and_since_when(scene):
    scene.listen()
    scene.broker.publish(TOPICS.learner, BIRTH.encode(), retain=True)
    scene.learner(lags={"pi": Lag(versions=2, steps=64, age_s=0.5)}, int8_return=12.0, duplicates=3)
    scene.state(blocked="no credit", blocked_since_unix_s=997.0)
    scene.telemetry(steps=1_234, steps_per_s=99.6, blocks_pending=4)
    scene.state("old", status="gone")
    scene.state("new")
    text = scene.text()
    for shown in (
        "CartPole-v1",
        "int8 return 12.0",
        "duplicates 3",
        "no credit (3 s)",
        "1,234",
        "100",
        "2 / 64 / 0.5 s",
    ):
        assert shown in text
    assert "gone" in text
    scene.clock.now_s += 60
    assert "60 s ago (silent)" in scene.text()


def test_a_device_in_deploy_mode_is_shown_as_one(scene):
    scene.broker.publish(TOPICS.learner, BIRTH.encode(), retain=True)
    scene.listen()
    scene.learner()
    scene.state("robot", mode="deploy", digest="a" * 64, policy_version=7)
    assert scene.view.complete  # it sends no telemetry
    scene.clock.now_s += 15.0
    text = scene.text(width=220)
    assert "deploys version 7" in text
    assert "15 s ago " in text
    assert "silent" not in next(line for line in text.splitlines() if "robot" in line)
    scene.state("robot", mode="deploy", policy_version=0, blocked="no policy", fault="12: golden vectors")
    assert "no policy (0 s); fault 12: golden vectors" in scene.text(width=220)
    assert scene.actors["robot"]["fault"] == "12: golden vectors"
    scene.state("robot", mode="deploy", status="gone")
    assert "gone" in scene.text(width=220)


@pytest.mark.parametrize(("left", "standing"), [(True, "left"), (False, "lost")])
def test_a_learner_that_is_gone_is_shown_as_left_or_lost(scene, left, standing):
    scene.listen()
    scene.broker.publish(TOPICS.learner, BIRTH.encode(), retain=True)
    assert scene.view.snapshot()["learner"]["status"] == "online"
    gone = dataclasses.replace(BIRTH, status="gone", left=left)
    scene.broker.publish(TOPICS.learner, gone.encode(), retain=True)
    assert scene.view.snapshot()["learner"]["status"] == standing
    assert f"fleet f: learner {standing}, CartPole-v1" in scene.text()


def test_an_empty_fleet_is_told(scene):
    scene.listen()
    assert learner_lines(scene.view.snapshot()) == ["fleet f: no learner"]
    assert "no actors" in scene.text()


@pytest.mark.parametrize("width", [20, 80])
def test_narrow_terminals_are_no_error(scene, width):
    scene.listen()
    scene.learner()
    scene.state()
    scene.telemetry()
    assert scene.text(width)


HOSTILE = ("[/]", "[red]no credit[/red]", "\x1b]0;owned\x1b\\", "a\nfake row", "\u202eevil", "x" * 256)


def test_which_policy_acts_and_where(scene):
    scene.listen()
    scene.state("coral", edge_tpu=True, runtime="ai-edge-litert 2.3.0 with edgetpu:usb")
    scene.state("new", policy_version=0)
    scene.state("pi")
    assert (scene.actors["coral"]["edge_tpu"], scene.actors["pi"]["edge_tpu"]) == (True, False)
    assert scene.actors["coral"]["runtime"].endswith("edgetpu:usb")
    shown = {line.split()[0]: line for line in scene.text().splitlines() if line.strip()}
    assert " 6 tpu " in shown["coral"]
    assert " 6 " in shown["pi"]
    assert "tpu" not in shown["pi"]
    assert "none" in shown["new"]


@pytest.mark.parametrize("said", HOSTILE)
def test_what_a_device_says_is_shown_as_text_and_reaches_no_terminal(scene, said):
    """Also past the wire's own checks: `render` trusts nobody."""
    scene.listen()
    scene.state()
    snapshot = scene.view.snapshot()
    snapshot["actors"][0].update(blocked=said, steps_per_s=1e300)
    console = Console(width=400, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(render(snapshot))
    shown = console.file.getvalue()
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert ("[/]" in shown) == (said == "[/]") or "[/red]" in shown
    assert max(map(len, shown.splitlines())) < 200


@pytest.mark.parametrize("said", [text for text in HOSTILE if not text.isprintable()])
def test_w4_a_reason_that_no_terminal_shows_is_refused(scene, said):
    scene.listen()
    scene.state(device="good", blocked="no credit")
    fields = json.loads(DeviceState(status="online", device="pi", boot_id=BOOT).encode())
    scene.broker.publish(TOPICS.state("pi"), json.dumps({**fields, "blocked": said}).encode(), retain=True)
    for unix_s in (-1.0, 1e300):
        payload = json.dumps({**fields, "blocked": "x", "blocked_since_unix_s": unix_s}).encode()
        scene.broker.publish(TOPICS.state("pi"), payload, retain=True)
    assert (set(scene.actors), scene.view.refused) == ({"good"}, 3)


def test_a_reason_of_several_lines_is_made_one_by_its_sender():
    sent = DeviceState(status="gone", device="pi", boot_id=BOOT, blocked="failed: a\n\tb" + "x" * 300).encode()
    assert DeviceState.decode(sent).blocked.startswith("failed: a  bx")
    told = LearnerTelemetry(epoch=1, blocked="disk\x1b[2J").encode()
    assert LearnerTelemetry.decode(told).blocked == "disk [2J"


def test_a_stop_of_unknown_beginning_has_no_length(scene):
    scene.listen()
    scene.state(blocked="failed: out of memory", status="gone")
    assert scene.actors["pi"]["blocked_s"] == 0.0
