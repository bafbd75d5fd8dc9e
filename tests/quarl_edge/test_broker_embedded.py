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

from quarl_device.errors import BrokerStartFailed, UsageError
from quarl_device.testing.link_conformance import until
from quarl_edge.broker import EmbeddedBroker

USERS = {"learner": "hunter2-hunter2"}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_it_comes_up_quickly_and_stops(tmp_path):
    broker = EmbeddedBroker(USERS, log_dir=tmp_path)
    began = time.monotonic()
    with broker:
        assert time.monotonic() - began < 10
        pid = broker.pid
        assert broker.running
        socket.create_connection(("127.0.0.1", broker.port), timeout=2).close()
    assert not alive(pid)
    broker.stop()


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
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(BrokerStartFailed):
        EmbeddedBroker(USERS, port=server.getsockname()[1]).start()


@pytest.mark.parametrize("users", [{}, {"a": ""}, {"": "x"}])
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
