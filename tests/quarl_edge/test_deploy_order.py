"""A deployment from the first look to the birth, on a fake board with a real installer's protocol."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from deploy_world import AFTER, BEFORE, make_environment, make_wheel, make_wish, state
from local_host import LocalHost

from quarl_device.errors import BoardRefused, BoardUnfit, BoardUnreachable, BrokerUnreachable, DeployError, NotBorn
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.topics import Topics
from quarl_edge.deploy.deploying import deploy
from quarl_edge.deploy.installer import Order
from quarl_edge.deploy.settings import DeviceSettings

TOPICS = Topics("lab")


@pytest.fixture
def host(tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path / "wheel")
    monkeypatch.setattr("quarl_edge.deploy.preparing.device_wheel", lambda note: wheel)
    monkeypatch.setattr("quarl_edge.deploy.birth._SETTLE_S", 0.0)
    return LocalHost(make_environment(tmp_path / "board"))


@pytest.fixture
def home(host, tmp_path):
    return tmp_path / "board" / "home"


class Told(list):
    """Hears events; at the end of a step something may happen."""

    def __init__(self, step="", then=lambda: None):
        super().__init__()
        self._step, self._then = step, then

    def __call__(self, event):
        self.append(event)
        if (event.step, event.state) == (self._step, "done"):
            self._then()

    def said(self, step, state):
        return [event.said for event in self if (event.step, event.state) == (step, state)]


def carry_out(wish, told=None):
    return asyncio.run(deploy(wish, told if told is not None else Told()))


def with_broker(wish, broker):
    return replace(wish, link=lambda: broker.link("me"))


def test_everything_is_sent_and_the_birth_is_heard(host, home, tmp_path):
    broker = FakeBroker()
    broker.publish(TOPICS.state("pi-1"), state(BEFORE, digest="f" * 64), retain=True)
    told = Told("start", lambda: broker.publish(TOPICS.state("pi-1"), state(blocked="no learner"), retain=True))
    wish = with_broker(make_wish(host, tmp_path, password="hidden", learner_key=b"key\n"), broker)
    done = carry_out(wish, told)
    assert (done.result, done.release, done.said, done.boot_id) == (
        "installed",
        "abcdef012345",
        "waits for a learner",
        AFTER,
    )
    installed = home / "installed"
    assert (installed / "password").read_text() == "hidden\n"
    assert (installed / "learner.pub").read_text() == "key\n"
    assert 'id = "pi-1"' in (installed / "device.toml").read_text()
    assert set(json.loads((home / "modes.json").read_text()).values()) <= {"0o600", "0o644"}
    assert json.loads((home / "modes.json").read_text())["password"] == "0o600"
    assert [event.said for event in told if event.on_board] == [
        "user is there",
        "venv is there",
        "files is there",
        "start is there",
    ]
    assert host.closed


def test_no_secret_is_told_or_on_a_command_line(host, tmp_path):
    told = Told()
    carry_out(make_wish(host, tmp_path, password="hidden", wait=False), told)
    assert not any("hidden" in event.said for event in told)
    assert not any("hidden" in command for command in host.commands)
    assert "hidden" not in repr(make_wish(host, tmp_path, password="hidden"))


@pytest.mark.parametrize("script", ["", "raise SystemExit(1)", "import time; time.sleep(60)"])
def test_the_private_directory_is_removed_whatever_happens(host, home, tmp_path, script, monkeypatch):
    monkeypatch.setattr("quarl_edge.deploy.installer.INSTALL_TIMEOUT_S", 2.0)
    if script:
        (home / "script").write_text(script)
        with pytest.raises((DeployError, BoardUnreachable)):
            carry_out(make_wish(host, tmp_path, wait=False))
    else:
        carry_out(make_wish(host, tmp_path, wait=False))
    assert sorted(path.name for path in (home / ".cache" / "quarl-edge").iterdir()) == ["kept"]


def test_a_cancelled_deployment_removes_it_too(host, home, tmp_path):
    (home / "script").write_text(
        "import time\ntry:\n    say(step='venv', state='begins', said='x')\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    (home / 'put-back').write_text(str(place.is_dir()))"
    )

    async def cancelled():
        begun = asyncio.Event()
        task = asyncio.create_task(
            deploy(make_wish(host, tmp_path, wait=False), lambda event: begun.set() if event.step == "venv" else None)
        )
        async with asyncio.timeout(20):
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert (home / "put-back").read_text() == "True"  # interrupted first, while its files were still there
    assert sorted(path.name for path in (home / ".cache" / "quarl-edge").iterdir()) == ["kept"]
    assert host.closed


def test_what_the_board_has_kept_is_not_sent_again(host, tmp_path):
    wish = make_wish(host, tmp_path, password="hidden", wait=False)
    carry_out(wish)
    first = [Path(path).name for path in host.written]
    host.written.clear()
    carry_out(wish)
    again = [Path(path).name for path in host.written]
    assert set(first) - set(again) == {"quarl_edge_device-0.1.0-py3-none-any.whl"}
    assert "password" in again  # a secret is never kept


def test_what_was_damaged_meanwhile_is_sent_again(host, home, tmp_path):
    wish = make_wish(host, tmp_path, wait=False)
    carry_out(wish)
    (kept,) = (home / ".cache" / "quarl-edge" / "kept").iterdir()
    kept.write_bytes(b"torn")
    carry_out(wish)


def test_a_dry_run_has_the_installer_plan_and_waits_for_nothing(host, home, tmp_path):
    told = Told()
    done = carry_out(with_broker(make_wish(host, tmp_path, order=Order(dry_run=True)), FakeBroker()), told)
    assert done.result == "planned"
    assert told.said("venv", "planned") == ["venv is there"]
    assert "--dry-run" in json.loads((home / "words.json").read_text())


def test_removing_sends_the_wheel_alone(host, home, tmp_path):
    done = carry_out(make_wish(host, tmp_path, settings=None, order=Order(remove=True, purge=True)))
    assert done.result == "removed"
    assert json.loads((home / "words.json").read_text()) == ["--format", "json", "--remove", "--purge"]
    assert [Path(path).name for path in host.written] == ["quarl_edge_device-0.1.0-py3-none-any.whl", "bundle.json"]


def test_a_step_that_fails_says_which_and_that_the_agent_before_goes_on(host, home, tmp_path):
    (home / "script").write_text(
        "say(step='venv', state='failed', said='no room')\n"
        "say(result='failed', release=None, previous='0123456789ab', step='venv', code=85, error='no room left')\n"
        "sys.exit(85)"
    )
    with pytest.raises(DeployError) as caught:
        carry_out(make_wish(host, tmp_path))
    assert caught.value.code == 85
    assert "'venv': no room left; release 0123456789ab is in place as before" in caught.value.message


@pytest.mark.parametrize(
    "script",
    [
        "sys.stdout.write('x' * 3_000_000)",
        "sys.stdout.buffer.write(bytes(range(256)) * 1000)",
        "sys.stdout.write('[]\\n' * 20_000)",
        'sys.stdout.write(\'{"result": "installed", "release": {}}\\n\')',
        'sys.stdout.write(\'{"result": "anything"}\\n\')',
        "sys.stdout.write('[' * 100_000)",
        'sys.stdout.write(\'{"step": "a\\\\u001b[31m", "state": "done", "said": "\\\\u001b]0;x\\\\u0007"}\\n\')',
    ],
)
def test_a_hostile_installer_is_an_error_and_nothing_of_it_reaches_a_terminal(host, home, tmp_path, script):
    (home / "script").write_text(script)
    told = Told()
    with pytest.raises(DeployError, match=r"no result|ended with status"):
        carry_out(make_wish(host, tmp_path), told)
    assert all(event.said.isprintable() and event.step.isprintable() and len(event.said) <= 500 for event in told)
    assert len(told) < 6_000


@pytest.mark.parametrize(
    ("python", "kind", "said"),
    [
        ("#!/bin/sh\nexit 127\n", BoardUnfit, "has no python3"),
        ("#!/bin/sh\necho 'Segmentation fault' >&2; exit 139\n", BoardUnfit, "Segmentation fault"),
    ],
)
def test_a_board_without_a_python_that_works(host, tmp_path, python, kind, said):
    program = tmp_path / "board" / "bin" / "python3"
    program.unlink()
    program.write_text(python)
    program.chmod(0o755)
    with pytest.raises(kind) as caught:
        carry_out(make_wish(host, tmp_path))
    assert said in caught.value.message
    assert host.closed


def test_a_board_that_cannot_take_it_is_told_before_anything_is_sent(host, tmp_path, monkeypatch):
    monkeypatch.setattr("quarl_edge.deploy.verdicts._MIN_PYTHON", (4, 0))
    told = Told()
    with pytest.raises(BoardUnfit) as caught:
        carry_out(make_wish(host, tmp_path), told)
    assert caught.value.code == 86
    assert "python" in caught.value.message
    assert caught.value.hint
    assert told.said("python", "failed")
    assert not host.written


def test_sudo_that_wants_a_password(host, tmp_path, monkeypatch):
    sudo = tmp_path / "board" / "bin" / "sudo"
    sudo.write_text("#!/bin/sh\necho 'sudo: a password is required' >&2; exit 1\n")
    # The tests may run as root, whom no board asks.
    monkeypatch.setattr("quarl_edge.deploy.preparing.ask_board", _as_user)
    with pytest.raises(BoardRefused) as caught:
        carry_out(make_wish(host, tmp_path))
    assert "a password is required" in caught.value.message
    assert "sudoers.d" in caught.value.hint
    assert not host.written


async def _as_user(host):
    from quarl_edge.deploy.facts import ask_board

    return replace(await ask_board(host), uid=1000, sudo=True)


def test_a_broker_that_is_not_there_is_told_before_anything_is_sent(host, tmp_path):
    broker = FakeBroker()
    broker.down()
    with pytest.raises(BrokerUnreachable):
        carry_out(with_broker(make_wish(host, tmp_path), broker))
    assert not host.written


def test_a_birth_that_does_not_come_says_what_is_known_and_where_to_look(host, tmp_path):
    broker = FakeBroker()
    broker.publish(TOPICS.state("pi-1"), state(BEFORE), retain=True)
    with pytest.raises(NotBorn) as caught:
        carry_out(with_broker(make_wish(host, tmp_path, timeout_s=0.2), broker))
    assert caught.value.code == 89
    assert "still in the life before" in caught.value.message
    assert "ssh tester@board sudo journalctl -u quarl-device -n 50" in caught.value.hint


@pytest.mark.parametrize(
    "payload", [b"", b"\0" * 100, b"{}", b"[" * 60_000, state(AFTER)[:-1], state(AFTER, device="x")]
)
def test_a_birth_that_does_not_hold_is_none_and_the_next_one_counts(host, tmp_path, payload):
    broker = FakeBroker()

    def births():
        broker.publish(TOPICS.learner, payload, retain=True)
        broker.publish(TOPICS.state("pi-1"), payload, retain=True)
        broker.publish(TOPICS.state("pi-1"), state(AFTER, blocked="no learner"), retain=True)

    done = carry_out(with_broker(make_wish(host, tmp_path), broker), Told("start", births))
    assert done.said == "waits for a learner"


def test_where_a_learner_is_a_policy_is_waited_for(host, tmp_path, learner_birth):
    broker = FakeBroker()
    broker.publish(TOPICS.learner, learner_birth, retain=True)
    said = []

    class Then(Told):
        def __call__(self, event):
            super().__call__(event)
            if (event.step, event.state) == ("birth", "begins"):
                broker.publish(TOPICS.state("pi-1"), state(AFTER, blocked="no policy"), retain=True)
                said.append(event.said)
                asyncio.get_running_loop().call_later(
                    0.1, lambda: broker.publish(TOPICS.state("pi-1"), state(AFTER, digest="a" * 64, policy_version=3))
                )

    done = carry_out(with_broker(make_wish(host, tmp_path), broker), Then())
    assert done.said.startswith("trains, acts with policy version 3")
    assert said


@pytest.fixture
def learner_birth():
    return (Path(__file__).parent.parent / "golden" / "learner_online.json").read_bytes()


def test_a_wait_says_every_few_seconds_what_is_known(host, tmp_path, monkeypatch):
    monkeypatch.setattr("quarl_edge.deploy.ticking.PERIOD_S", 0.05)
    told = Told()
    with pytest.raises(NotBorn):
        carry_out(with_broker(make_wish(host, tmp_path, timeout_s=0.5), FakeBroker()), told)
    assert told.said("birth", "goes on")[0] == "0 s: no birth was heard"


def test_an_agent_that_was_unchanged_is_not_waited_for(host, home, tmp_path):
    (home / "script").write_text("say(result='unchanged', release='abcdef012345', supervised_by='systemd')")
    broker = FakeBroker()
    broker.publish(TOPICS.state("pi-1"), state(BEFORE, digest="f" * 64), retain=True)
    done = carry_out(with_broker(make_wish(host, tmp_path, timeout_s=2.0), broker))
    assert (done.result, done.boot_id) == ("unchanged", BEFORE)


def test_without_systemd_it_runs_in_the_foreground_until_it_ends(host, home, tmp_path):
    (home / "script").write_text(
        "say(result='installed', release='abcdef012345', supervised_by='none', command='echo \\'it\\' acts')"
    )
    told = Told()
    carry_out(make_wish(host, tmp_path), told)
    assert told.said("run", "goes on") == ["it acts"]


def test_an_agent_in_the_foreground_that_fails_gives_its_code(host, home, tmp_path):
    (home / "agent").write_text("exit 23")
    (home / "script").write_text("say(result='installed', supervised_by='none', command='sh agent')")
    with pytest.raises(DeployError) as caught:
        carry_out(make_wish(host, tmp_path))
    assert caught.value.code == 23


def test_without_a_broker_the_boards_own_state_is_read(host, tmp_path, monkeypatch):
    agent = tmp_path / "agent"
    said = {"running": True, "state": "settled", "acting": "current", "current": {"digest": "a" * 64, "name": "7"}}
    agent.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    agent.chmod(0o755)
    monkeypatch.setattr("quarl_edge.deploy.starting._AGENT", str(agent))
    done = carry_out(make_wish(host, tmp_path, settings=DeviceSettings(mode="deploy", fleet="lab", name="pi-1")))
    assert done.said == f"acts with policy version 7, sha256 {'a' * 16} (settled)"
    agent.write_text("#!/bin/sh\nhead -c 1000 /dev/urandom\n")
    with pytest.raises(NotBorn, match="cannot be read"):
        carry_out(make_wish(host, tmp_path, timeout_s=0.5))
