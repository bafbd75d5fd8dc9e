"""The embedded broker: its own process, loopback only, gone when its starter is gone."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from quarl_device.errors import BrokerRefused, BrokerStartFailed, LinkLost, UsageError
from quarl_device.link import BrokerURL, PahoLink
from quarl_device.testing.link_conformance import Heard, until
from quarl_edge.broker import EmbeddedBroker

USERS = {"learner": "hunter2-hunter2", "actor-0": "pässwörd"}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_it_comes_up_and_stops(tmp_path):
    broker = EmbeddedBroker(USERS, log_dir=tmp_path)
    with broker:
        pid = broker.pid
        assert broker.running
        socket.create_connection(("127.0.0.1", broker.port), timeout=2).close()
    assert not alive(pid)
    broker.stop()


def test_it_is_up_within_two_seconds():
    took = []
    # It takes 0.2 s alone on a machine; the best of three, since tests may share theirs.
    while len(took) < 3 and min(took, default=9) >= 2:
        began = time.monotonic()
        with EmbeddedBroker(USERS):
            took.append(time.monotonic() - began)
    assert min(took) < 2


def test_it_listens_on_the_loopback_alone():
    with EmbeddedBroker(USERS) as broker:
        table = Path("/proc/net/tcp").read_text().splitlines()[1:]
        listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
        mine = [address for address in listening if address.endswith(f":{broker.port:04X}")]
        assert mine == [f"0100007F:{broker.port:04X}"]


def test_passwords_show_neither_in_its_arguments_nor_in_its_log_nor_in_its_repr(tmp_path):
    with EmbeddedBroker(USERS, log_dir=tmp_path) as broker:
        command = Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{broker.pid}/environ").read_bytes()
        assert b"hunter2" not in command + environment
        assert "hunter2" not in repr(broker)
    assert "hunter2" not in (tmp_path / "broker.log").read_text()


def test_a_busy_port_is_one_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(BrokerStartFailed) as caught:
        EmbeddedBroker(USERS, port=server.getsockname()[1]).start()
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("users", [{}, {"a": ""}, {"": "x"}, {"a": "x\n"}, {"a\0": "x"}])
def test_nobody_is_let_in_without_a_password(users):
    with pytest.raises(UsageError):
        EmbeddedBroker(users)


def test_it_dies_with_a_parent_that_is_killed():
    program = textwrap.dedent("""
        import sys, time
        from quarl_edge.broker import EmbeddedBroker
        broker = EmbeddedBroker({"a": "b"}); broker.start()
        print(broker.pid, flush=True); time.sleep(60)
    """)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        pid = int(parent.stdout.readline())
        assert alive(pid)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
        parent.stdout.close()
    assert until(lambda: not alive(pid), timeout_s=5)


def link(broker, name, password, **options):
    return PahoLink(BrokerURL.parse(broker.url), client_id=name, password=password, **options)


def test_it_lets_in_exactly_its_users_and_knows_no_anonymous_ones():
    with EmbeddedBroker(USERS) as broker:
        for name, password in USERS.items():
            good = link(broker, name, password)
            good.connect(timeout_s=10)
            assert good.connected
            good.close()
        wrong = [
            ("learner", None),
            ("learner", ""),
            ("learner", "hunter2"),
            ("learner", "hunter2-hunter2 "),
            ("learner", USERS["actor-0"]),
            ("nobody", "hunter2-hunter2"),
            # The stand-in that is compared for unknown users is no password of theirs.
            ("nobody", "\0"),
        ]
        for name, password in wrong:
            stranger = link(broker, name, password)
            with pytest.raises(BrokerRefused):
                stranger.connect(timeout_s=10)
            stranger.close()


def test_messages_pass_and_garbage_hurts_nobody():
    with EmbeddedBroker(USERS) as broker:
        heard = Heard()
        good = link(broker, "learner", USERS["learner"])
        good.subscribe("t/#", heard)
        good.connect(timeout_s=10)
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 200, b"\x10\xff\xff\xff\x7f", bytes(1000)):
            with socket.create_connection(("127.0.0.1", broker.port), timeout=2) as sock:
                sock.sendall(junk)
        assert good.publish("t/1", bytes(1024 * 1024))
        assert len(heard.wait(1)[0].payload) == 1024 * 1024
        assert good.connected
        assert good.counters.connections == 1
        good.close()


def test_another_broker_lives_on_when_one_is_stopped():
    with EmbeddedBroker(USERS) as one, EmbeddedBroker(USERS) as two:
        assert one.port != two.port
        assert one.pid != two.pid
        one.stop()
        assert one.pid == 0
        assert not one.running
        assert two.running
        socket.create_connection(("127.0.0.1", two.port), timeout=2).close()


def test_starting_twice_is_one_process_and_it_may_start_again_after_a_stop():
    broker = EmbeddedBroker(USERS)
    try:
        broker.start()
        pid, port = broker.pid, broker.port
        broker.start()
        assert broker.pid == pid
        broker.stop()
        broker.start()
        assert broker.pid != pid
        # Whoever knows its address finds it there again.
        assert broker.port == port
    finally:
        broker.stop()


def test_a_killed_broker_is_noticed_and_stopping_it_is_no_error():
    broker = EmbeddedBroker(USERS)
    with broker:
        os.kill(broker.pid, signal.SIGKILL)
        assert until(lambda: not broker.running, timeout_s=5)
    assert broker.pid == 0


def test_a_broker_that_hangs_is_stopped_by_force():
    broker = EmbeddedBroker(USERS)
    broker.start()
    pid = broker.pid
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    broker.stop(timeout_s=0.3)
    assert time.monotonic() - began < 3
    assert not alive(pid)


def test_ctrl_c_is_for_its_starter_alone():
    with EmbeddedBroker(USERS) as broker:
        assert os.getpgid(broker.pid) != os.getpgid(0)
        os.kill(broker.pid, signal.SIGINT)
        socket.create_connection(("127.0.0.1", broker.port), timeout=2).close()
        assert broker.running
        os.kill(broker.pid, signal.SIGTERM)
        assert until(lambda: not broker.running, timeout_s=5)


def test_a_process_that_never_gets_ready_is_one_clear_error_and_leaves_nothing(tmp_path, monkeypatch):
    children = set(Path("/proc/self/task").glob("*/children"))
    before = {child for path in children for child in path.read_text().split()}
    began = time.monotonic()
    with pytest.raises(BrokerStartFailed, match="within 0 s"):
        EmbeddedBroker(USERS, start_timeout_s=0.01).start()
    assert time.monotonic() - began < 5
    assert {child for path in children for child in path.read_text().split()} <= before
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(BrokerStartFailed, match="cannot be started"):
        EmbeddedBroker(USERS).start()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BrokerStartFailed, match="ended by itself"):
        EmbeddedBroker(USERS).start()


def test_a_log_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerStartFailed, match="log cannot be written"):
        EmbeddedBroker(USERS, log_dir=tmp_path / "file" / "deep").start()


def test_one_that_ended_by_itself_is_said_with_its_status():
    with EmbeddedBroker(USERS) as broker:
        broker.check()
        os.kill(broker.pid, signal.SIGKILL)
        broker._process.wait(5)
        with pytest.raises(LinkLost, match="ended with status -9") as caught:
            broker.check()
        assert "--resume" in caught.value.hint
