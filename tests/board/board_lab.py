"""What an emulated board talks to: a broker with certificates, a learner, and a person at a command line."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from board_network import HOST

PORT = 8883
_COMMAND_S = 420


class Lab:
    """The host's side of the cable.

    Args:
        machine: the board.

    Attributes:
        folder: of broker and runs.
    """

    def __init__(self, machine):
        self.machine = machine
        # Not pytest's own folder: the broker's user must be able to come this far.
        self._folder = tempfile.TemporaryDirectory(prefix="quarl-lab-")
        self.folder = Path(self._folder.name)
        self.folder.chmod(0o755)
        self._running = []
        self.edge("broker", "init", "broker", "--host", HOST)
        self.broker = self.start("broker", "up", "broker", "--listen", f"{HOST}:{PORT}", "--format", "json")
        assert json.loads(self.broker.stdout.readline())["ready"], self.said()

    def edge(self, *words, code=0, within_s=_COMMAND_S):
        """Run a command of quarl-edge beside the board and return its last line, read, or its text."""
        done = subprocess.run(
            self._words(words), cwd=self.folder, capture_output=True, text=True, timeout=within_s, check=False,
            stdin=subprocess.DEVNULL, env=self._environment(),
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.said()}"
        return json.loads(done.stdout.splitlines()[-1]) if "json" in words else done.stdout

    def start(self, *words):
        """Start a command of quarl-edge that goes on."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._words(words), cwd=self.folder, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
                env=self._environment(),
            )  # fmt: skip
        self._running.append(process)
        return process

    def deploy(self, *words, code=0):
        """Run `quarl-edge deploy` as the person who owns the board would."""
        board = f"{self.machine.user}@{self.machine.address}"
        keys = ["--identity", self.machine.key, "--known-hosts", self.machine.known_hosts]
        return self.edge("deploy", board, *keys, *words, "--format", "json", code=code)

    def device(self, name="pi-1"):
        """Return what the fleet's view says of a device, or None."""
        words = ["top", "--credentials", "broker/clients/me", "--fleet", "default", "--once", "--format", "json"]
        rows = {row["device"]: row for row in self.edge(*words)["actors"]}
        return rows.get(name)

    def said(self):
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def close(self):
        for process in reversed(self._running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
            process.stdout.close()
        self._folder.cleanup()

    @property
    def _log(self):
        return self.folder / "lab.log"

    def _words(self, words):
        return self.machine.cable.beside([sys.executable, "-m", "quarl_edge", *words])

    def _environment(self):
        return {**os.environ, "PYTHONUNBUFFERED": "1"}


def until(condition, *, within_s, what, every_s=1.0):
    """Wait for something that nothing tells of."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{within_s} s passed before {what}"
        time.sleep(every_s)
    return value
