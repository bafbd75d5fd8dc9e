"""`quarl-device doctor` with real credentials at a real broker with TLS and rules."""

import fcntl
import json
import shutil

import pytest
from secured_broker import SecuredBroker

from quarl_device import cli
from quarl_device.deploy.slots import Slots

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def broker():
    with SecuredBroker({"pi-1": ("device", "lab")}) as running:
        yield running


@pytest.fixture
def ask(broker, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("QUARL_CREDENTIALS", raising=False)

    def ask(folder=None):
        folder = folder or broker.directory.credentials_of("pi-1")
        words = ["doctor", "--credentials", str(folder), "--state-dir", str(tmp_path), "--format", "json"]
        code = cli.main(words)
        findings = json.loads(capsys.readouterr().out)["findings"]
        return code, {finding["check"]: finding for finding in findings}

    return ask


def test_an_enrolled_device_is_well(ask):
    code, found = ask()
    assert code == 0, found
    assert {name: found[name]["level"] for name in ("credentials", "certificate", "broker", "access", "packets")} == {
        "credentials": "ok", "certificate": "ok", "broker": "ok", "access": "ok", "packets": "ok",
    }  # fmt: skip
    assert found["learner"]["level"] == "warning"


def test_a_broker_of_another_authority_is_told(ask, broker, tmp_path):
    with SecuredBroker({"pi-1": ("device", "lab")}) as other:
        folder = tmp_path / "mixed"
        shutil.copytree(broker.directory.credentials_of("pi-1"), folder)
        shutil.copy(other.directory.credentials_of("pi-1") / "ca.crt", folder / "ca.crt")
    code, found = ask(folder)
    assert code == 59
    assert "code 38" in found["broker"]["found"]
    assert found["broker"]["mend"]


def test_while_an_agent_runs_its_session_is_left_alone(ask, tmp_path):
    lock = tmp_path / "spool" / "lab.pi-1" / "lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, found = ask()
    assert code == 0
    assert "an agent runs here" in found["broker"]["found"]
    assert "access" not in found


def test_while_a_deploying_agent_holds_its_slots_the_broker_is_not_asked(ask, tmp_path):
    slots = Slots(tmp_path)
    slots.make()
    assert ask()[1]["broker"]["level"] == "ok"
    slots.take()
    try:
        found = ask()[1]["broker"]
    finally:
        slots.release()
    assert found["level"] == "warning"
    assert "an agent runs here as 'pi-1'" in found["found"]
