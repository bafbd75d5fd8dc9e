"""What policy files answer in the runtime of the machine that this runs on. Run on the board, and here to compare.

    python board_answers.py FILE.json        {"file": {"policy": base64 of a .tflite, "golden": golden vectors}, ...}

prints, for each file, how far its answers are from the golden vectors in it and from those that are given, in steps.
"""

import base64
import dataclasses
import json
import platform
import sys
from pathlib import Path

from quarl_device.heads import bind_outputs
from quarl_device.policy import run_self_test
from quarl_device.policy_file import MAX_TOLERANCE_LSB, GoldenVectors, PolicyFile, read_policy
from quarl_device.runtime import find_runtime


def loaded(file: PolicyFile):
    """Return the file as the runtime of this machine has it."""
    return find_runtime().load(
        file.data,
        inputs=[spec.tensor for spec in file.contract.observations],
        outputs=[binding.tensor for binding in bind_outputs(file.contract, file.graph)],
    )


def furthest(data: bytes, golden: GoldenVectors | None = None) -> float:
    """Return the largest difference to golden vectors, in steps of the output; more than they allow is an error."""
    file = read_policy(data)
    return run_self_test(file.contract, golden or file.golden, loaded(file), file.graph)


def main(path: str) -> None:
    asked = json.loads(Path(path).read_text())
    said = {}
    for name, one in asked.items():
        data, golden = base64.b64decode(one["policy"]), GoldenVectors.from_json(one["golden"])
        # How far these are is for the caller to judge; those of the file pass its own tolerance, or are an error.
        given = dataclasses.replace(golden, tolerance_lsb=MAX_TOLERANCE_LSB)
        said[name] = {"own": furthest(data), "given": furthest(data, given)}
    runtime = find_runtime()
    answer = {"machine": platform.machine(), "runtime": f"{runtime.name} {runtime.version}", "files": said}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
