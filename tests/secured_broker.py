"""A broker as `quarl-edge broker up` runs it, with TLS and access rules, and clients that are enrolled there."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from quarl_device.link import Backoff, BrokerURL, LinkLimits, PahoLink
from quarl_device.link.credentials import Credentials
from quarl_edge.broker.directory import BrokerDirectory

_START_S = 120.0  # imports, on a busy machine
QUICK = Backoff(base_s=0.05, cap_s=0.2)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class SecuredBroker:
    """Args: engine; clients: name to (role, fleet)."""

    def __init__(self, clients=None, *, engine="mosquitto"):
        # Not pytest's own folder: where the tests run as root, the broker's user must be able to come this far.
        self._folder = tempfile.TemporaryDirectory(prefix="quarl-secured-")
        Path(self._folder.name).chmod(0o755)
        self.path = Path(self._folder.name) / "broker"
        self.engine, self.port = engine, free_port()
        self.url = BrokerURL(host="localhost", port=self.port, tls=True)
        self.directory = BrokerDirectory.init(self.path)
        for name, (role, fleet) in (clients or {}).items():
            self.enroll(name, role=role, fleet=fleet)
        self.process = None
        self.start()

    def enroll(self, name, *, role="device", fleet="default", **options):
        return self.directory.enroll(name, role=role, fleet=fleet, broker=self.url, **options)

    def start(self):
        words = ["broker", "up", str(self.path), "--engine", self.engine, "--format", "json"]
        self.log = Path(self._folder.name) / "broker.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "quarl_edge", *words, "--listen", f"127.0.0.1:{self.port}"],
                stdout=subprocess.PIPE, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if selector.select(_START_S) else b""
        assert line, self.said()
        self.ready = json.loads(line)
        assert self.ready.get("ready"), (line, self.said())

    def said(self):
        return self.log.read_text(errors="replace")

    def end(self, number=signal.SIGTERM):
        """Send a signal; returns the exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(20)
        finally:
            self.process.stdout.close()

    def credentials(self, name):
        return Credentials.load(self.directory.credentials_of(name))

    def link(self, name, *, port=None, will=None, tls=None, **limits):
        return PahoLink(
            BrokerURL(host="127.0.0.1", port=port or self.port, tls=True), client_id=name, will=will, backoff=QUICK,
            tls=tls or self.credentials(name).tls(), limits=LinkLimits(**limits),
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.end()
        self._folder.cleanup()
