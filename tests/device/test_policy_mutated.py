"""A policy file with bytes flipped works or is refused: no other exception, no crash, no hang."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data"
COUNT = 400
SLOWEST_S = 1.0
# In a process of its own: an interpreter that meets what the lint let through dies without an exception.
CHILD = """
import collections, json, random, sys, time
import numpy as np
from quarl_device.errors import QuarlError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy

data, words, seed, count = open(sys.argv[1], "rb").read(), sys.argv[2] == "words", int(sys.argv[3]), int(sys.argv[4])
rng, ends, slowest_s = random.Random(seed), collections.Counter(), 0.0
WORDS = (0, 1, 4, 64, 2**31 - 1, 2**31, 2**32 - 1, 0x7F800000, 0x7FC00000)
for number in range(count):
    mutated = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if words:
            at = 4 * rng.randrange(len(data) // 4)
            value = rng.choice((*WORDS, rng.randrange(2**32), rng.randrange(len(data))))
            mutated[at : at + 4] = value.to_bytes(4, "little")
        else:
            mutated[rng.randrange(len(data))] ^= rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))
    print(f"mutation {number}", file=sys.stderr, flush=True)
    began = time.process_time()
    try:
        file = read_policy(bytes(mutated))
        policy = Policy.load(file, batch_size=1 if number % 2 else 4)
        keys = {spec.key: np.zeros(spec.shape, spec.dtype) for spec in file.contract.observations}
        policy.act(keys if len(keys) > 1 else next(iter(keys.values())))
        ends["works"] += 1
    except QuarlError as error:
        ends[type(error).__name__] += 1
    slowest_s = max(slowest_s, time.process_time() - began)
print(json.dumps({"ends": ends, "slowest_s": slowest_s}))
"""


FILES = [("cartpole", 1), ("acrobot", 2), ("pendulum", 3), ("pendulum_gaussian", 4), ("dict_logits", 5), ("frames", 6)]


@pytest.mark.parametrize("kind", ["bits", "words"])
@pytest.mark.parametrize(("name", "seed"), FILES)
def test_a_mutated_policy_works_or_is_refused(name, seed, kind):
    command = [sys.executable, "-c", CHILD, str(DATA / f"{name}.tflite"), kind, str(seed), str(COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert sum(report["ends"].values()) == COUNT
    assert {"ModelFileError", "ContractError", "works"} <= set(report["ends"])
    assert report["slowest_s"] < SLOWEST_S
