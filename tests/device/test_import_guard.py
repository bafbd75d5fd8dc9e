"""A board has little memory and a slow CPU: what quarl_device imports stays small, and is never TensorFlow."""

import json
import subprocess
import sys

import pytest

FORBIDDEN = [
    "tensorflow",
    "tf_keras",
    "keras",
    "pandas",
    "typer",
    "rich",
    "amqtt",
    "quarl_export",
    "quarl_edge",
    "torch",
]

EVERYTHING = """
import json, pkgutil, sys
import quarl_device
names = [m.name for m in pkgutil.walk_packages(quarl_device.__path__, "quarl_device.")]
for name in names:
    if not name.endswith("__main__"):
        __import__(name)
print(json.dumps({"names": names, "loaded": sorted({m.split(".")[0] for m in sys.modules})}))
"""

ACTOR = """
import json, sys, time
start = time.process_time()
import quarl_device.policy, quarl_device.environments, quarl_device.evaluate
from quarl_device.policy_file import read_policy_path
from quarl_device.policy import Policy
from quarl_device.runtime import find_runtime
find_runtime()
cpu_s = time.process_time() - start
quarl_device.policy.Policy.load(read_policy_path(sys.argv[1]), batch_size=64)
# Not getrusage: its maximum is inherited from the process that started this one.
status = open("/proc/self/status").read()
rss_mb = int(status.split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps({"cpu_s": cpu_s, "rss_mb": rss_mb}))
"""


def child(code, *arguments):
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


def test_no_module_imports_what_a_board_lacks():
    found = child(EVERYTHING)
    assert "quarl_device.policy" in found["names"]
    assert [name for name in FORBIDDEN if name in found["loaded"]] == []


@pytest.fixture(scope="module")
def policy(request):
    return str(request.config.rootpath / "tests" / "data" / "cartpole.tflite")


def test_an_actor_is_small_and_starts_fast(policy):
    runs = [child(ACTOR, policy) for _ in range(3)]
    assert min(run["rss_mb"] for run in runs) < 100
    # The least of three, since a busy machine only ever adds.
    assert min(run["cpu_s"] for run in runs) < 0.5
