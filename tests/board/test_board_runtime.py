"""Policies on an emulated aarch64: LiteRT from wheels, the same answers as on x86-64, doctor and bench.

Times are those of an emulator. They say nothing about a board and are never quoted as such.
"""

import base64
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from board_answers import furthest, loaded
from board_rootfs import say

from quarl_device.heads import bind_outputs, real_output
from quarl_device.policy_file import read_policy_path
from quarl_device.preprocess import bind_inputs, to_tensor

pytestmark = [pytest.mark.board, pytest.mark.e2e, pytest.mark.timeout(1800)]

DATA = Path(__file__).parent.parent / "data"
# Dense, convolutions, stacked frames, dicts, every head, every scheme that export writes.
FILES = (
    "acrobot", "cartpole", "dict_logits", "frames", "pendulum", "pendulum_gaussian", "ops_dynamic", "ops_float16",
    "ops_float32", "ops_int8", "ops_int16x8",
)  # fmt: skip
ROWS = 32


def drawn(file):
    """Return observations all over their spaces, [ROWS, ...] of each key; those without bounds are normal numbers."""
    rng = np.random.default_rng(11)
    found = {}
    for key, example in file.golden.observations.items():
        spec = next(spec for spec in file.contract.observations if spec.key == key)
        shape = (ROWS, *example.shape[1:])
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), spec.shape) for bound in (spec.low, spec.high))
        bounded = np.isfinite(low) & np.isfinite(high) & (high - low < 1e6)
        inside = rng.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0), shape)
        values = np.where(bounded, inside, rng.normal(0, 1, shape))
        found[key] = (np.rint(values) if spec.dtype.startswith(("int", "uint")) else values).astype(spec.dtype)
    return found


def answered_here(file):
    """Return golden vectors that this machine's runtime gives to observations that are drawn."""
    observations = drawn(file)
    inputs = {
        binding.spec.tensor: to_tensor(binding, observations[binding.spec.key])
        for binding in bind_inputs(file.contract, file.graph)
    }
    model, outputs = loaded(file), {}
    for row in range(ROWS):
        results = model.run({name: array[row : row + 1] for name, array in inputs.items()})
        for binding in bind_outputs(file.contract, file.graph):
            # The runtime's own buffer is written again by its next call.
            outputs.setdefault(binding.role, []).append(np.array(real_output(binding, results[binding.tensor])[0]))
    return dataclasses.replace(
        file.golden, observations=observations, outputs={role: np.stack(rows) for role, rows in outputs.items()}
    )


def test_golden_outputs_of_x86_agree_on_the_board(machine, python, tmp_path):
    """Those in the files within the tolerance that each states; how far drawn observations come apart is said."""
    asked = {}
    for name in FILES:
        file = read_policy_path(DATA / f"{name}.tflite")
        golden = answered_here(file)
        assert furthest(file.data, golden) == 0
        asked[name] = {"policy": base64.b64encode(file.data).decode(), "golden": golden.to_json()}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    machine.put(tmp_path / "asked.json", "/srv/asked.json")
    machine.put(Path(__file__).parent / "board_answers.py", "/srv/board_answers.py")
    said = json.loads(machine.run(python, "/srv/board_answers.py", "/srv/asked.json").stdout.splitlines()[-1])
    assert said["machine"] == "aarch64"
    assert said["runtime"].startswith("ai-edge-litert ")
    assert set(said["files"]) == set(FILES)
    say(f"steps apart from x86-64: {json.dumps(said['files'])}")


def test_doctor_and_bench_name_the_processor(machine, python):
    device = python.replace("/python", "/quarl-device")
    report = json.loads(machine.run(device, "doctor", "--format", "json", "--state-dir", "/srv/state").stdout)
    found = {finding["check"]: finding for finding in report["findings"]}
    assert found["python"]["found"].endswith("on aarch64 (emulated)")
    assert found["runtime"]["level"] == "ok", found["runtime"]
    measured = json.loads(
        machine.run(device, "bench", "--seconds", "1", "--hz", "20", "--format", "json").stdout.splitlines()[-1]
    )
    assert measured["machine"].startswith("aarch64 (emulated)"), measured
