"""`quarl-edge deploy` as a person types it: over SSH to a board on the loopback, with a real broker."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from deploy_world import AFTER, BEFORE, WHEEL, make_wheel, state
from ssh_board import SshBoard

from quarl_device.deploy.signed import sign_policy
from quarl_device.link import BrokerURL, PahoLink
from quarl_device.policy_file import read_policy_path
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.topics import Topics
from quarl_edge.broker.directory import BrokerDirectory
from quarl_edge.cli import main

MODEL = Path(__file__).parent.parent / "data" / "cartpole.tflite"
TOPICS = Topics("lab")


@pytest.fixture(autouse=True)
def _own_places(monkeypatch, tmp_path):
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("QUARL_MQTT_PASSWORD", "QUARL_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    wheel = make_wheel(tmp_path / "wheel")
    monkeypatch.setattr("quarl_edge.deploy.preparing.device_wheel", lambda note: wheel)


@pytest.fixture
def board(tmp_path):
    with SshBoard(tmp_path / "board") as started:
        yield started


@pytest.fixture(scope="module")
def broker():
    with Mosquitto() as started:
        yield started.url


def words(board, *more):
    places = ["--identity", str(board.identity), "--known-hosts", str(board.known_hosts), "--port", str(board.port)]
    return ["deploy", "tester@127.0.0.1", *places, "--wheelhouse", "never", *more]


class Agent:
    """Speaks as the board's agent would: its birth, when the installer has been there."""

    def __init__(self, broker, home, birth):
        self._link = PahoLink(BrokerURL.parse(broker), client_id="agent")
        self._link.connect(timeout_s=10)
        self._home, self._birth, self._end = home, birth, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._link.publish(TOPICS.state("pi-1"), state(BEFORE), retain=True)
        self._link.flush(timeout_s=5)
        self._thread.start()
        return self

    def _run(self):
        while not self._end.wait(0.05):
            if (self._home / "installed" / "bundle.json").exists():
                self._link.publish(TOPICS.state("pi-1"), self._birth, retain=True)
                return

    def __exit__(self, *_):
        self._end.set()
        self._thread.join(10)
        self._link.publish(TOPICS.state("pi-1"), b"", retain=True)
        self._link.flush(timeout_s=5)
        self._link.close()


def test_mode_train_until_it_waits_for_a_learner(board, broker, capsys):
    with Agent(broker, board.home, state(AFTER, blocked="no learner")):
        code = main(words(board, "--broker", broker, "--fleet", "lab", "--id", "pi-1"))
    told = capsys.readouterr()
    assert code == 0, told.err
    assert "waits for a learner" in told.out
    assert "quarl-edge top --broker" in told.out
    assert "board: venv is there" in told.err
    assert "journalctl -u quarl-device" in told.out
    settings = (board.home / "installed" / "device.toml").read_text()
    assert 'fleet = "lab"' in settings
    assert sorted(path.name for path in (board.home / ".cache" / "quarl-edge").iterdir()) == ["kept"]


def test_mode_deploy_signs_by_itself_and_waits_for_that_policy(board, broker, capsys, tmp_path):
    digest = read_policy_path(MODEL).sha256
    asked = ["--broker", broker, "--fleet", "lab", "--id", "pi-1", "--mode", "deploy", "--policy", str(MODEL)]
    with Agent(broker, board.home, state(AFTER, mode="deploy", digest=digest, policy_version=5)):
        code = main(words(board, *asked, "--hz", "50", "--safe-action", "0", "--safe-action", "1", "--format", "json"))
    told = capsys.readouterr()
    assert code == 0, told.err
    lines = [json.loads(line) for line in told.out.splitlines()]
    assert (lines[-1]["result"], lines[-1]["digest"], lines[-1]["boot_id"]) == ("installed", digest, AFTER)
    assert {"step": "venv", "state": "done", "said": "venv is there", "on_board": True} in lines
    installed = board.home / "installed"
    assert "safe_action = [0.0, 1.0]" in (installed / "device.toml").read_text()
    key = LearnerKey.load_or_create(tmp_path / "xdg_config_home" / "quarl-edge" / "learner.key")
    assert (installed / "learner.pub").read_text().strip() == key.public.hex
    first = (installed / "policy.qpol").read_bytes()
    assert main(words(board, *asked, "--no-wait")) == 0
    assert (installed / "policy.qpol").read_bytes() == first


def test_a_signed_policy_goes_as_it_is(board, tmp_path, capsys):
    key = LearnerKey.generate()
    key.public.save(tmp_path / "learner.pub")
    signed = tmp_path / "model.qpol"
    signed.write_bytes(sign_policy(read_policy_path(MODEL), key, version=7))
    more = ["--id", "pi-1", "--mode", "deploy", "--policy", str(signed), "--learner-key", str(tmp_path / "learner.pub")]
    assert main(words(board, *more, "--no-wait")) == 0, capsys.readouterr().err
    assert (board.home / "installed" / "policy.qpol").read_bytes() == signed.read_bytes()


def test_a_password_goes_to_the_board_and_nowhere_else(board, monkeypatch, capsys):
    monkeypatch.setenv("QUARL_MQTT_PASSWORD", "hunter2hunter2")
    assert main(words(board, "--broker", "mqtt://127.0.0.1", "--id", "pi-1", "--no-wait", "--format", "json")) == 0
    told = capsys.readouterr()
    assert "hunter2" not in told.out + told.err
    assert not any("hunter2" in command for command in board.commands)
    installed = board.home / "installed"
    assert (installed / "password").read_text() == "hunter2hunter2\n"
    assert 'broker = "mqtt://pi-1@127.0.0.1:1883"' in (installed / "device.toml").read_text()


def test_no_birth_in_time_has_a_code_of_its_own(board, broker, capsys):
    code = main(
        words(board, "--broker", broker, "--fleet", "lab", "--id", "pi-1", "--timeout", "1", "--format", "json")
    )
    told = capsys.readouterr()
    assert code == 89
    error = json.loads(told.out.splitlines()[-1])["error"]
    assert "no birth was heard" in error["message"]
    assert "journalctl" in error["hint"]


def test_a_dry_run_plans(board, capsys):
    assert main(words(board, "--broker", "mqtt://127.0.0.1", "--id", "pi-1", "--dry-run", "--coral")) == 0
    told = capsys.readouterr()
    assert "plan venv" in told.err
    assert "the same command without --dry-run" in told.out
    assert {"--dry-run", "--coral"} <= set(json.loads((board.home / "words.json").read_text()))


def test_what_the_board_says_is_no_markup(board, capsys):
    (board.home / "script").write_text("say(result='installed', release='[/b][red]x', supervised_by='systemd')")
    assert main(words(board, "--broker", "mqtt://127.0.0.1", "--id", "pi-1", "--no-wait")) == 0
    assert "[/b][red]x" in capsys.readouterr().out


def test_remove(board, capsys):
    assert main(words(board, "--remove")) == 0
    assert "removed" in capsys.readouterr().out


@pytest.mark.parametrize("reached", [True, False])
def test_wheels_are_sent_where_the_boards_pip_reaches_no_index(board, capsys, monkeypatch, tmp_path, reached):
    board.without("python3")
    failing = "exit 0" if reached else "echo 'no network' >&2; exit 1"
    board.tool("python3", f'#!/bin/sh\ncase "$*" in *pip*download*) {failing};; esac\nexec {sys.executable} "$@"\n')
    asked = []

    def download(requirements, python, folder):
        asked.append(requirements)
        for name in ("pip", "numpy", "paho_mqtt", "ai_edge_litert"):
            make_wheel(
                folder, f"{name}-9.0-py3-none-any.whl", f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n", {}
            )

    monkeypatch.setattr("quarl_edge.deploy.wheelhouse.pip_download", download)
    more = ["--broker", "mqtt://127.0.0.1", "--id", "pi-1", "--no-wait", "--wheelhouse", "auto"]
    assert main(words(board, *more)) == 0, capsys.readouterr().err
    wheels = board.home / "installed" / "wheels"
    assert wheels.exists() != reached
    assert bool(asked) != reached


def test_ctrl_c_ends_the_foreground_agent_too(board, tmp_path):
    """Without systemd the agent runs over the connection; the whole command in a process of its own."""
    (board.home / "agent").write_text("trap 'touch ended; exit 0' INT; echo it acts; while :; do sleep 0.05; done")
    (board.home / "script").write_text(
        "say(result='installed', release='abcdef012345', supervised_by='none', command='sh agent')"
    )
    wheel = str(tmp_path / "wheel" / WHEEL)
    run = (
        "import sys, pathlib, quarl_edge.deploy.preparing as p\n"
        f"p.device_wheel = lambda note: pathlib.Path({wheel!r})\n"
        "from quarl_edge.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", run, *words(board, "--broker", "mqtt://127.0.0.1", "--id", "pi-1", "--no-wait")]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            for line in process.stderr:
                if "it acts" in line:
                    process.send_signal(signal.SIGINT)
                    break
            process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert (board.home / "ended").exists()


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ([], 2, "which broker?"),
        (["--broker", "mqtt://b"], 2, "what is the device called?"),
        (["--broker", "mqtt://b", "--id", "Pi 1"], 2, "bad device name"),
        (["--broker", "mqtt://b", "--id", "a", "--fleet", "#"], 2, "bad fleet name"),
        (["--broker", "http://b", "--id", "a"], 2, "bad broker URL"),
        (["--broker", "mqtt://localhost", "--id", "a"], 2, "would be the board itself"),
        (["--broker", "mqtt://b", "--id", "a", "--hz", "5"], 2, "--mode deploy"),
        (["--broker", "mqtt://b", "--id", "a", "--policy", "m.tflite"], 2, "--mode deploy"),
        (["--broker", "mqtt://b", "--id", "a", "--delegate", "gpu"], 2, "bad delegate"),
        (["--broker", "mqtt://b", "--id", "a", "--purge"], 2, "--remove"),
        (["--broker", "mqtt://b", "--id", "a", "--memory-mib", "10"], 2, "less than 64"),
        (["--broker", "mqtt://b", "--id", "a", "--mode", "both"], 2, "mode"),
        (["--broker", "mqtt://b", "--id", "a", "--learner-key", "/no/such"], 42, "learner key"),
        (["--broker", "mqtt://b", "--id", "a", "--identity", "/no/such"], 2, "no such key file"),
        (["--id", "a", "--mode", "deploy", "--policy", "/no/such.tflite"], 10, "not found"),
        (["--credentials", "/no/such"], 43, "no such directory"),
    ],
)
def test_what_is_wrong_is_told_before_anybody_connects(more, code, said, capsys):
    assert main(["deploy", "pi@no-such-board.invalid", *more]) == code
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("quarl-edge: error: ")
    assert said in error


def test_the_help_has_examples(capsys):
    assert main(["deploy", "--help"]) == 0
    assert "quarl-edge deploy pi@raspberrypi.local --broker" in capsys.readouterr().out


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory):
    """Credentials by name."""
    directory = BrokerDirectory.init(tmp_path_factory.mktemp("enrolled") / "broker", hosts=["127.0.0.1"])
    roles = {"pi-1": "device", "pi-2": "device", "me": "viewer"}
    return {
        name: str(
            directory.enroll(
                name, role=role, fleet="lab" if role == "device" else "", days=2, renew=False, learner_key=None,
                broker=BrokerURL.parse("mqtts://127.0.0.1:1"),
            ).folder
        )
        for name, role in roles.items()
    }  # fmt: skip


def test_credentials_name_everything_by_themselves(board, enrolled, capsys):
    assert main(words(board, "--credentials", enrolled["pi-1"], "--no-wait")) == 0, capsys.readouterr().err
    installed = board.home / "installed"
    settings = (installed / "device.toml").read_text()
    assert 'id = "pi-1"' in settings
    assert 'fleet = "lab"' in settings
    assert 'broker = "mqtts://127.0.0.1:1"' in settings
    assert (installed / "credentials" / "client.key").read_bytes() == Path(enrolled["pi-1"], "client.key").read_bytes()
    assert json.loads((board.home / "modes.json").read_text())["credentials/client.key"] == "0o600"


def test_a_broker_that_the_operator_cannot_reach_leaves_the_board_as_it_was(board, enrolled, capsys):
    code = main(words(board, "--credentials", enrolled["pi-1"], "--operator", enrolled["me"]))
    assert code == 30, capsys.readouterr().err
    assert not (board.home / "installed").exists()


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--credentials", "pi-1"], 2, "--role viewer"),
        (["--credentials", "pi-1", "--operator", "pi-2"], 2, "is a device"),
        (["--credentials", "me"], 2, "not as a device"),
        (["--credentials", "pi-1", "--id", "other", "--no-wait"], 2, "those of 'pi-1'"),
        (["--credentials", "pi-1", "--fleet", "other", "--no-wait"], 2, "enrolled in fleet 'lab'"),
        (["--credentials", "pi-1", "--broker", "mqtt://b", "--no-wait"], 2, "need TLS"),
    ],
)
def test_credentials_that_do_not_fit(enrolled, more, code, said, capsys):
    assert main(["deploy", "pi@no-such-board.invalid", *(enrolled.get(word, word) for word in more)]) == code
    assert said in capsys.readouterr().err
