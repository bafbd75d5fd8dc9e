"""`quarl-device run --config` as systemd starts it: a process that says that it is ready, lives, and ends."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quarl_device.deploy.signed import sign_policy
from quarl_device.policy_file import read_policy_path
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.wire.keys import LearnerKey

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

CARTPOLE = read_policy_path(Path(__file__).parent.parent / "data" / "cartpole.tflite")
KEY = LearnerKey(bytes(range(32)))
# The command, and at its end what a child process of the agent would inherit.
AGENT = """
import os, sys
from quarl_device import commands
from quarl_device.cli import main
commands._CONNECT_TIMEOUT_S = 1.0
code = main()
left = [name for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID") if name in os.environ]
sys.exit(f"left for children: {left}" if left else code)
"""


class Service:
    """A manager's socket, and the process that it supervises."""

    def __init__(self, folder):
        self.folder = folder
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.settimeout(60)
        self.process = None

    def start(self, toml, *words):
        (self.folder / "device.toml").write_text(toml)
        # `exec` keeps the number of the shell that knew its own: WATCHDOG_PID is that of the agent.
        script = 'export WATCHDOG_PID=$$; exec "$@"'
        command = [sys.executable, "-c", AGENT, "run", "--config", str(self.folder / "device.toml"), *words]
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *command],
            env={**os.environ, "NOTIFY_SOCKET": str(self.folder / "notify"), "WATCHDOG_USEC": "600000"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def until(self, line):
        lines = []
        while not any(each.startswith(line) for each in lines):
            lines += self.socket.recv(4096).decode().split("\n")
        return lines

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.communicate(timeout=30)
    made.socket.close()


def test_deploy_mode_under_a_manager(service, tmp_path):
    (tmp_path / "model.qpol").write_bytes(sign_policy(CARTPOLE, KEY, version=7))
    KEY.public.save(tmp_path / "learner.pub")
    service.start(
        'mode = "deploy"\npolicy = "model.qpol"\nlearner_key = "learner.pub"\nstate_dir = "state"\nhz = 100\n'
        "safe_action = [0]\n"
    )
    lines = service.until("READY=1")
    assert "STATUS=empty: the safe action acts" in lines
    service.until("STATUS=probation: version 7 acts")
    for _ in range(3):
        service.until("WATCHDOG=1")
    code, _, errors = service.end()
    assert code == 0, errors
    assert "STATUS=SIGTERM" in service.until("STOPPING=1")


def test_train_mode_under_a_manager_waits_for_its_broker(service, tmp_path):
    broker = Mosquitto()
    port = broker.port
    broker.stop()
    service.start(f'broker = "mqtt://127.0.0.1:{port}"\nid = "pi-1"\nstate_dir = "state"\n')
    assert any("waits for a broker: no broker answers" in line for line in service.until("READY=1"))
    with Mosquitto(port=port):
        service.until("STATUS=no learner")
        for _ in range(3):
            service.until("WATCHDOG=1")
        code, _, errors = service.end()
    assert code == 0, errors
    service.until("STOPPING=1")


def test_train_mode_without_a_broker_ends_at_once_when_it_is_told_to(service):
    service.start('broker = "mqtt://127.0.0.1:9"\nid = "pi-1"\nspool = "memory"\n')
    service.until("READY=1")
    code, out, errors = service.end()
    assert code == 0, errors
    assert "ended: SIGTERM" in out
