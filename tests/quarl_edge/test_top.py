"""`quarl-edge top` on a real broker: once, as JSON, and until Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from quarl_device.link import BrokerURL, PahoLink
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.wire.learner_telemetry import LearnerTelemetry
from quarl_device.wire.messages import DeviceState, Telemetry
from quarl_device.wire.topics import Topics
from quarl_edge.cli import main

TOPICS = Topics("lab")
BOOT = "0123456789abcdef"


@pytest.fixture(scope="module")
def broker():
    with Mosquitto() as started:
        yield started.url


@pytest.fixture
def company(broker):
    """A link on which learner and device of fleet "lab" speak."""
    link = PahoLink(BrokerURL.parse(broker), client_id="company")
    link.connect(timeout_s=10)
    link.publish(TOPICS.state("pi"), DeviceState(status="online", device="pi", boot_id=BOOT).encode(), retain=True)
    link.flush(timeout_s=5)
    yield link
    link.publish(TOPICS.state("pi"), b"", retain=True)
    link.flush(timeout_s=5)
    link.close()


def test_once_as_json_says_what_was_heard(broker, company, capsys):
    assert main(["top", "--broker", broker, "--fleet", "lab", "--once", "--wait", "1", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["fleet"], said["learner"]) == ("lab", None)
    assert [(row["device"], row["status"]) for row in said["actors"]] == [("pi", "online")]


def test_another_fleet_is_not_shown(broker, company, capsys):
    assert main(["top", "--broker", broker, "--fleet", "other", "--once", "--wait", "1"]) == 0
    assert "fleet other: no learner" in capsys.readouterr().out


def test_without_a_broker_it_says_so(capsys):
    assert main(["top", "--once"]) == 2
    assert "which broker?" in capsys.readouterr().err


def test_where_no_broker_answers_it_ends(capsys, monkeypatch):
    monkeypatch.setattr("quarl_edge.cli.top._CONNECT_TIMEOUT_S", 0.2)
    assert main(["top", "--broker", "mqtt://127.0.0.1:1", "--once"]) == 30


def test_it_goes_on_until_ctrl_c_and_ends_well(broker, company, tmp_path):
    words = [sys.executable, "-m", "quarl_edge", "top", "--broker", broker, "--fleet", "lab"]
    with (tmp_path / "err").open("wb") as errors:
        process = subprocess.Popen(
            [*words, "--every", "0.2", "--format", "json"], stdout=subprocess.PIPE, stderr=errors, env={**os.environ}
        )
        try:
            first = json.loads(process.stdout.readline())
            assert [row["device"] for row in first["actors"]] == ["pi"]
            deadline_s = time.monotonic() + 20
            while True:
                company.publish(TOPICS.learner_telemetry, LearnerTelemetry(epoch=1, env_steps=5).encode(), qos=0)
                company.publish(TOPICS.telemetry("pi"), Telemetry(boot_id=BOOT, steps=9).encode(), qos=0)
                said = json.loads(process.stdout.readline())
                if said["learner"] and said["actors"][0].get("steps") == 9:
                    break
                assert time.monotonic() < deadline_s
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()
    assert (tmp_path / "err").read_text() == ""
