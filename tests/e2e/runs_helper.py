"""Starting commands as a user does, and reading what they said."""

import json
import os
import signal
import subprocess
import sys
import time

EDGE = [sys.executable, "-m", "quarl_edge"]
DEVICE = [sys.executable, "-m", "quarl_device.cli"]


def edge(*words, cwd, timeout=200, env=None):
    """Run `quarl-edge WORDS` to its end."""
    return subprocess.run(
        [*EDGE, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, **(env or {})},
    )  # fmt: skip


def last_json(done):
    """Return the object on the last line of stdout."""
    return json.loads(done.stdout.splitlines()[-1])


class Started:
    """A command in the background, with its stderr in a file."""

    def __init__(self, words, *, cwd, log, env=None):
        self.log = log
        self._file = log.open("wb")
        self.process = subprocess.Popen(
            [str(word) for word in words], cwd=cwd, stdout=subprocess.PIPE, stderr=self._file,
            env={**os.environ, **(env or {})}, start_new_session=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            # The whole session: a learner that is killed must not leave actors behind in a failed test.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        self.process.stdout.close()
        self._file.close()

    def said(self):
        return self.log.read_text(errors="replace")

    def wait_for(self, condition, *, seconds, what):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}: {self.said()}"
            assert time.monotonic() < deadline, f"{seconds} s passed before {what}: {self.said()}"
            time.sleep(0.05)

    def end(self, number=signal.SIGTERM, *, seconds=30):
        """Send a signal and return (exit code, stdout)."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, out.decode()
