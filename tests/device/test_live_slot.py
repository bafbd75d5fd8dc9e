"""The newest live policy on the disk: written seldom, whole, only when newer, and taken by `activate` as it is."""

import json
import os
import re
import shlex

import pytest
from actor_scene import FILE, Learner, Running, wait_for

from quarl_device import cli
from quarl_device.actor.live_slot import LiveSlot, list_live, live_slot_path
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.exploration import Exploration
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.push import PushHeader, encode_push

KEY = LearnerKey(bytes(range(32)))


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def pushed(version, epoch=100):
    header = PushHeader(
        epoch=epoch, version=version, env_steps=7 * version, sha256=FILE.sha256, exploration=Exploration(values=(0.1,)),
        golden_outputs=FILE.golden.outputs, lsb=FILE.golden.lsb,
    )  # fmt: skip
    return header, encode_push(header, FILE.data, KEY.sign), KEY.public


@pytest.fixture
def slot(tmp_path):
    path = live_slot_path(tmp_path, fleet="lab", device="pi-1")
    clock = Clock()
    return LiveSlot(path, clock=clock), path, clock


def test_it_is_written_every_ten_minutes_at_most(slot):
    live, path, clock = slot
    writes = set()
    for half_seconds in range(1, 3700):
        live.note(*pushed(half_seconds))
        clock.now_s += 0.5
        live.upkeep(clock.now_s)
        assert path.exists() == (half_seconds >= 1200)
        if path.exists():
            writes.add(path.read_bytes())
    assert writes == {pushed(1200)[1], pushed(2400)[1], pushed(3600)[1]}


def test_only_what_is_newer_is_written(slot):
    live, path, clock = slot
    live.note(*pushed(1))
    live.flush()
    before = path.stat().st_ino
    clock.now_s += 700
    live.upkeep(clock.now_s)
    live.flush()
    assert path.stat().st_ino == before
    live.note(*pushed(2))
    live.flush()
    assert path.stat().st_ino != before
    assert path.read_bytes() == pushed(2)[1]


def test_what_an_earlier_life_has_left_is_not_written_again(slot):
    live, path, clock = slot
    live.note(*pushed(2))
    live.flush()
    before = path.stat().st_ino
    later = LiveSlot(path, clock=clock)
    later.note(*pushed(2))
    later.flush()
    assert path.stat().st_ino == before
    later.note(*pushed(3))
    later.flush()
    assert path.read_bytes() == pushed(3)[1]
    path.write_bytes(b"torn")
    last = LiveSlot(path, clock=clock)
    last.note(*pushed(3))
    last.flush()
    assert path.read_bytes() == pushed(3)[1]


def test_nothing_is_written_where_nothing_came(slot):
    live, path, clock = slot
    clock.now_s += 700
    live.upkeep(clock.now_s)
    live.flush()
    assert not path.parent.exists()


def test_a_disk_that_refuses_is_told_and_tried_again(slot, caplog):
    live, path, _ = slot
    path.parent.parent.joinpath("live").write_text("in the way")
    live.note(*pushed(1))
    live.flush()
    assert "cannot be written" in caplog.text
    path.parent.unlink()
    live.flush()
    assert path.exists()


def test_an_actor_leaves_its_newest_policy_when_it_ends(slot):
    live, path, _ = slot
    broker = FakeBroker()
    learner = Learner(broker)
    with Running(broker, live=live) as running:
        learner.push()
        learner.push()
        wait_for(lambda: running.agent._listener.inbox.latest == (100, 2), "the second policy")
        running.agent.stop("enough")
        running.join()
    assert [(row["device"], row["epoch"], row["version"]) for row in list_live(path.parents[1])] == [
        ("lab.pi-1", 100, 2)
    ]


def test_a_push_that_does_not_hold_is_not_kept(slot):
    live, path, _ = slot
    broker = FakeBroker()
    learner = Learner(broker)
    with Running(broker, live=live) as running:
        learner.push()
        wait_for(lambda: running.agent._listener.inbox.latest == (100, 1), "the policy")
        learner.push(sign=LearnerKey.generate().sign)
        wait_for(lambda: running.agent._listener.inbox.refused == 1, "the refusal")
        running.agent.stop("enough")
        running.join()
    assert list_live(path.parents[1])[0]["version"] == 1


def test_a_push_that_came_before_its_learner_is_kept_too(slot):
    live, path, _ = slot
    broker = FakeBroker()
    early = Learner(broker, epoch=100)
    with Running(broker, live=live) as running:
        early.push()
        wait_for(lambda: running.agent._listener.inbox.latest == (100, 1), "the policy")
        early.push(epoch=200, version=5)
        wait_for(lambda: running.agent._listener.inbox._early is not None, "that it waits")
        early.announce(epoch=200)
        wait_for(lambda: running.agent._listener.inbox.latest == (200, 5), "the later one")
        running.agent.stop("enough")
        running.join()
    assert list_live(path.parents[1])[0]["epoch"] == 200


def test_status_shows_it_and_activate_takes_it(slot, tmp_path, capsys):
    live, _, _ = slot
    live.note(*pushed(3))
    live.flush()
    state = ["--state-dir", str(tmp_path)]
    assert cli.main(["status", *state]) == 0
    text = capsys.readouterr().out
    assert "lab.pi-1: version 100.3" in text
    # As it is printed, on a board that has nothing else of its learner.
    command = re.search(r"in deploy mode: quarl-device (activate .*)", text)[1]
    assert cli.main([*shlex.split(command), *state]) == 0
    capsys.readouterr()
    words = ["run", "--mode", "deploy", "--episodes", "2", "--probation-episodes", "1", "--format", "json", *state]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "100.3"


@pytest.mark.parametrize("damage", [lambda data: data[:-70], lambda _: b"", lambda _: b"\0" * 5000, lambda _: None])
def test_what_is_damaged_is_told_and_ends_nothing(slot, tmp_path, damage, capsys):
    live, path, _ = slot
    live.note(*pushed(3))
    live.flush()
    damaged = damage(path.read_bytes())
    if damaged is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(damaged)
    assert cli.main(["status", "--state-dir", str(tmp_path), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["live"]
    assert row["code"] in (10, 34)
    assert cli.main(["status", "--state-dir", str(tmp_path)]) == 0
    assert "live      lab.pi-1: " in capsys.readouterr().out


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("quarl_device.files._PIPE_TIMEOUT_S", 0.05)
    (tmp_path / "live").mkdir()
    os.mkfifo(tmp_path / "live/lab.pi.qpol")
    assert "code" in list_live(tmp_path)[0]
