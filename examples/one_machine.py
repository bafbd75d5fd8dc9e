"""Broker, learner and board of an example, as processes of one machine. In a fleet each is a machine of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from quarl_device.testing.mosquitto import Mosquitto

EXAMPLES = Path(__file__).parent
EDGE = [sys.executable, "-m", "quarl_edge"]
DEVICE = [sys.executable, "-m", "quarl_device.cli"]


def learn_together(train: Sequence[str], board: Sequence[str], *, deadline_s: float = 200.0) -> None:
    """Train with one actor, and show both command lines and what they say.

    Args:
        train: `quarl-edge train` without its broker.
        board: `quarl-device run` without its broker; it ends when the learner does.
        deadline_s: both are ended after so many seconds.
    """
    # Modules that lie beside the examples are found, as those that are installed are.
    path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    with Mosquitto() as broker, tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPATH": path, "XDG_STATE_HOME": folder}
        at = ["--broker", broker.url]
        commands = [("learner", [*EDGE, *train, *at]), ("board", [*DEVICE, *board, *at, "--exit-when-gone"])]
        running = []
        try:
            for machine, words in commands:
                print(f"{machine}$", *words[2:], flush=True)
                running.append(subprocess.Popen(words, cwd=folder, env=env))
            for process in running:
                if process.wait(deadline_s):
                    raise SystemExit(f"a command ended with code {process.returncode}")
        finally:
            for process in running:
                process.kill()
                process.wait()
