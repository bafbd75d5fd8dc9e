"""Sign a policy, act with it in deploy mode, hand over a newer one, and look at what the device says. No broker.

python examples/deployed_policy.py model.tflite
"""

import subprocess
import sys
import tempfile
from pathlib import Path

SIGN = [sys.executable, "-m", "quarl_edge", "sign"]
DEVICE = [sys.executable, "-m", "quarl_device.cli"]


def main(model: Path) -> None:
    """Deploy `model` twice, as version 1 and 2, on a device whose state is in a temporary directory."""
    with tempfile.TemporaryDirectory() as folder:
        place, state = Path(folder), ["--state-dir", f"{folder}/state"]
        key = ["--learner-key", f"{folder}/learner.key"]
        for version in (1, 2):
            show(*SIGN, str(model), *key, "--version", str(version), "--out", f"{folder}/{version}.qpol")
        # The public half of the key lies beside the signed file; the device keeps it.
        trust = ["--learner-key", str(place / "learner.pub")]
        act = ["run", "--mode", "deploy", "--episodes", "4", "--safe-action", "0"]
        show(*DEVICE, *act, "--policy", f"{folder}/1.qpol", *trust, *state)
        show(*DEVICE, "activate", f"{folder}/2.qpol", *state)
        show(*DEVICE, *act, *state)
        show(*DEVICE, "status", *state)


def show(*command: str) -> None:
    """Run a command that must succeed."""
    print("$", *command[1:], flush=True)
    subprocess.run(command, check=True)  # what it says goes to the same place


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "model.tflite"))
