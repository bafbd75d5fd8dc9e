"""`broker init | up | ls`, `enroll` and `revoke` as commands: what they say, in text and JSON, and their exit codes."""

import json
import os
import re
import shutil
import signal

import pytest

from quarl_device.wire.keys import LearnerKey, PublicKey
from quarl_edge.broker.address import Address
from quarl_edge.broker.directory import BrokerDirectory
from quarl_edge.broker.running import Running, declared
from quarl_edge.cli.app import run

BASE = ("broker", "ls", "--format", "json")


def said(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def home(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUARL_CREDENTIALS", raising=False)
    assert run(["broker", "init", "--host", "hub.local"]) == 0
    capsys.readouterr()
    return tmp_path


def secret_lines(folder):
    lines = {line for path in folder.rglob("*.key") for line in path.read_text().splitlines()}
    return {line for line in lines if not line.startswith("-----")}


def test_init_says_what_to_do_next_and_shows_no_secret(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["broker", "init"]) == 0
    text = capsys.readouterr().out
    for line in ("quarl-edge broker up broker", "quarl-edge enroll pi-1", "train CartPole-v1 --credentials broker/"):
        assert line in text
    assert "--host NAME-OR-ADDRESS" in text
    assert not [line for line in secret_lines(tmp_path) if line in text]


def test_init_as_json(home, capsys):
    assert run(["broker", "init", "--format", "json"]) == 0
    told = said(capsys)
    assert told["hosts"][0] == "hub.local"
    assert re.fullmatch(r"[0-9a-f]{64}", told["ca_sha256"])
    assert told["learner_credentials"].endswith("broker/clients/learner")


def test_a_viewer_is_told_the_command_that_follows(home, capsys):
    assert run(["enroll", "lab", "--role", "viewer"]) == 0
    assert "quarl-edge top --credentials" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_life_of_a_device(home, capsys, output):
    assert run(["enroll", "pi-1", "--days", "9", "--format", output]) == 0
    text = capsys.readouterr()
    assert not [line for line in secret_lines(home) if line in text.out + text.err]
    if output == "json":
        told = json.loads(text.out)
        assert (told["name"], told["role"], told["fleet"]) == ("pi-1", "device", "default")
        assert told["broker"] == "mqtts://hub.local:8883"
        assert told["pins_learner_key"]
    else:
        assert "scp -rp" in text.out
        assert "quarl-device run --credentials pi-1" in text.out
    assert run(["enroll", "pi-1", "--format", output]) == 2
    assert "--renew" in capsys.readouterr().err
    assert run(["enroll", "pi-1", "--renew"]) == 0
    capsys.readouterr()
    assert run(["revoke", "pi-1", "--format", output]) == 0
    text = capsys.readouterr().out
    told = json.loads(text) if output == "json" else text
    assert told == {"name": "pi-1", "revoked": True, "broker_running": False} or "reload a broker" in text
    assert run(list(BASE)) == 0
    states = [(client["name"], client["state"]) for client in said(capsys)["clients"]]
    assert states == [
        ("learner", "enrolled"), ("controller", "enrolled"), ("pi-1", "revoked"), ("pi-1", "revoked"),
    ]  # fmt: skip
    assert run(["broker", "ls"]) == 0
    assert "revoked" in capsys.readouterr().out


def test_renewing_keeps_role_and_fleet(home, capsys):
    assert run(["enroll", "lab-2", "--role", "learner", "--fleet", "lab"]) == 0
    assert run(["enroll", "lab-2", "--renew", "--format", "json"]) == 0
    told = said(capsys)
    assert (told["role"], told["fleet"]) == ("learner", "lab")


def test_a_renewal_refuses_another_role_and_says_where_a_fleet_changes(home, capsys):
    assert run(["enroll", "pi-1"]) == 0
    assert run(["enroll", "pi-1", "--renew", "--role", "controller"]) == 2
    assert "enrolled as a device" in capsys.readouterr().err
    assert run(["enroll", "pi-1", "--renew", "--fleet", "arms"]) == 0
    assert "moved from default to arms" in capsys.readouterr().out
    assert run(["enroll", "pi-1", "--renew", "--fleet", "lab", "--format", "json"]) == 0
    told = said(capsys)
    assert (told["fleet_before"], told["fleet"]) == ("arms", "lab")


def test_init_says_who_is_revoked_or_has_been_moved(home, capsys):
    assert run(["revoke", "learner"]) == 0
    shutil.move(home / "broker/clients/controller", home / "elsewhere")
    capsys.readouterr()
    assert run(["broker", "init"]) == 0
    text = capsys.readouterr().out
    assert "quarl-edge enroll learner --role learner" in text
    assert "quarl-edge enroll controller --renew" in text
    assert run(["broker", "init", "--format", "json"]) == 0
    assert set(said(capsys)["missing"]) == {"learner", "controller"}


def test_a_learners_key_given_by_hand(home, capsys):
    LearnerKey.generate().public.save(home / "learner.pub")
    assert run(["enroll", "pi-1", "--learner-key", "learner.pub", "--format", "json"]) == 0
    assert said(capsys)["pins_learner_key"]
    assert (home / "broker/clients/pi-1/learner.pub").read_text() == (home / "learner.pub").read_text()
    assert run(["enroll", "pi-2", "--learner-key", "none.pub"]) == 42


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["enroll", "Pi 1"], 2, "bad device name"),
        (["enroll", "pi-1", "--fleet", "a/b"], 2, "bad fleet name"),
        (["enroll", "pi-1", "--role", "king"], 2, "--role 'king'"),
        (["enroll", "pi-1", "--days", "0"], 2, "days"),
        (["enroll", "pi-1", "--broker", "mqtt://h"], 2, "need TLS"),
        (["enroll", "pi-1", "--broker", "mqtts://u:hunter2@h"], 2, "holds a password"),
        (["enroll", "pi-1", "--broker-dir", "none"], 44, "no broker's directory"),
        (["revoke", "pi-9"], 2, "no client 'pi-9'"),
        (["revoke", "../x"], 2, "no client"),
        (["broker", "ls", "none"], 44, "quarl-edge broker init none"),
        (["broker", "up", "none"], 44, "quarl-edge broker init none"),
        (["broker", "up", "--engine", "hivemq"], 2, "mosquitto, amqtt"),
        (["broker", "up", "--listen", "nowhere"], 36, "cannot listen at"),
        (["broker", "up", "--listen", "a:b:c"], 2, "HOST:PORT"),
        (["broker", "init", "--host", "a b"], 2, "bad host"),
        (["train", "CartPole-v1", "--credentials", "none"], 43, "no such directory"),
        (["train", "CartPole-v1", "--credentials", "broker/clients/controller"], 2, "enrolled as a controller"),
        (["train", "CartPole-v1", "--credentials", "broker/clients/learner"], 2, "local actors need credentials"),
        (["train", "CartPole-v1", "--credentials", "broker/clients/learner", "--broker", "mqtt://h"], 2, "need TLS"),
        (
            ["train", "CartPole-v1", "--credentials", "broker/clients/learner", "--actors", "1", "--actor-credentials",
             "broker/clients"], 2, "credentials of 0 devices of fleet 'default', not 1",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_code(home, capsys, words, code, part):
    assert run([*words, "--format", "json"]) == code
    told = capsys.readouterr()
    error = json.loads(told.out.splitlines()[-1])["error"]
    assert error["code"] == code
    assert part in told.err
    assert "hunter2" not in told.out + told.err


def test_a_certificate_that_has_expired_stops_the_start(home, capsys, monkeypatch):
    from datetime import timedelta

    from quarl_edge.broker import foreground

    later = foreground.utc_now() + timedelta(days=900)
    monkeypatch.setattr(foreground, "utc_now", lambda: later)
    assert run(["broker", "up", "--format", "json"]) == 36
    error = said(capsys)["error"]
    assert "expired on" in error["message"]
    assert "broker init" in error["hint"]


def test_a_missing_mosquitto_is_code_82(home, capsys, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert run(["broker", "up", "--listen", "127.0.0.1:18999", "--format", "json"]) == 82
    assert said(capsys)["error"]["hint"] == "sudo apt-get install -y mosquitto"


@pytest.mark.parametrize(
    "words", [["broker"], ["broker", "init"], ["broker", "up"], ["broker", "ls"], ["enroll"], ["revoke"]]
)
def test_help_shows_examples(capsys, words):
    assert run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert "quarl-edge" in text or "Usage" in text
    if words != ["broker"]:
        assert "Examples:" in text


def test_local_actors_take_the_devices_of_their_fleet(home):
    from pathlib import Path

    from quarl_edge.local.access import local_credentials

    for name, fleet in (("a", "lab"), ("b", "yard"), ("c", "lab"), ("d", "lab")):
        assert run(["enroll", name, "--fleet", fleet]) == 0
    found = local_credentials(Path("broker/clients"), 2, fleet="lab")
    assert found == {"a": Path("broker/clients/a"), "c": Path("broker/clients/c")}
    assert local_credentials(None, 0, fleet="lab") == {}


def enrolled(capsys, *words):
    """Return what an enrolment says to a person."""
    assert run(["enroll", *words]) == 0
    return capsys.readouterr().out


def test_a_client_that_is_enrolled_again_is_to_be_started_again(home, capsys):
    assert "started again" not in enrolled(capsys, "pi-1")
    assert "started again" in enrolled(capsys, "pi-1", "--renew")
    assert run(["revoke", "pi-1"]) == 0
    assert "quarl-edge enroll pi-1. Its client needs those new credentials and a restart" in capsys.readouterr().out
    assert "started again" in enrolled(capsys, "pi-1")
    assert run(["enroll", "pi-1", "--renew", "--format", "json"]) == 0
    assert said(capsys)["restart_client"] is True
    assert run(["enroll", "pi-2", "--format", "json"]) == 0
    assert said(capsys)["restart_client"] is False


def test_a_learner_that_comes_later_is_told_who_does_not_trust_it(home, capsys):
    for name, fleet in (("arm-1", "arms"), ("arm-2", "arms"), ("leg-1", "legs")):
        enrolled(capsys, name, "--fleet", fleet)
    enrolled(capsys, "arm-2", "--fleet", "arms", "--renew")
    assert run(["enroll", "lab-2", "--role", "learner", "--fleet", "arms", "--format", "json"]) == 0
    told = said(capsys)
    assert told["devices_without_its_key"] == ["arm-1", "arm-2"]
    assert told["pins_learner_key"] is False
    shown = enrolled(capsys, "lab-3", "--role", "learner")
    assert "trust another learner's key and will refuse this one: arm-1, arm-2, leg-1" in shown
    key = home / "broker/clients/lab-3/learner.pub"
    assert f"scp {key} BOARD:arm-1/" in shown
    assert PublicKey.from_file(key) == LearnerKey.load_or_create(home / "broker/clients/lab-3/signing.key").public
    assert "trust another" not in enrolled(capsys, "learner", "--renew")
    assert "trust another" not in enrolled(capsys, "viewer-1", "--role", "viewer")


def test_the_port_is_that_of_the_broker_that_runs(home, capsys):
    """A client with the usual port in its credentials would not find a broker elsewhere."""
    assert "Port 8883 is assumed" in enrolled(capsys, "pi-1")
    assert "assumed" not in enrolled(capsys, "pi-2", "--broker", "mqtts://hub.local:9000")
    opened = BrokerDirectory(home / "broker")
    running = Running(pid=os.getpid(), listen=Address(host="127.0.0.1", port=9883), engine="amqtt")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with declared(opened, running):
            shown = enrolled(capsys, "pi-3")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "mqtts://hub.local:9883" in shown
    assert "assumed" not in shown
    assert 'broker = "mqtts://hub.local:9883"' in (home / "broker/clients/pi-3/credentials.toml").read_text()


@pytest.mark.parametrize(("port", "warned"), [(8883, False), (9883, True)])
def test_another_port_than_the_usual_one_is_said_to_be_missing_in_credentials(home, capsys, monkeypatch, port, warned):
    def start(_directory, address, *, engine, ready):
        ready(Running(pid=1, listen=address, engine=engine))

    monkeypatch.setattr("quarl_edge.cli.broker.run_broker", start)
    assert run(["broker", "up", "--listen", f"127.0.0.1:{port}"]) == 0
    assert ("--broker mqtts://HOST:9883" in capsys.readouterr().out) is warned
