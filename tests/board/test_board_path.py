"""The whole path of a board, against an emulated one: deployed, trained on, killed, rebooted, given a policy, removed.

One story, since each part begins where the one before it ended. Times are those of an emulator.
"""

import json
import time
from pathlib import Path

import pytest
from board_lab import Lab, until
from board_memory import MemoryLimit
from board_rootfs import say

from quarl_device.paths import cache_dir
from quarl_device.policy_file import read_policy_path
from quarl_edge.deploy.device_wheel import device_wheel
from quarl_edge.deploy.requirements import BoardPython, requirements_of
from quarl_edge.deploy.wheelhouse import wheelhouse

pytestmark = [pytest.mark.board, pytest.mark.e2e, pytest.mark.timeout(1800)]

CARTPOLE = Path(__file__).parent.parent / "data" / "cartpole.tflite"
AGENT = "/opt/quarl-edge/current/bin/quarl-device"
CONFIG = "/etc/quarl-edge/device.toml"
UNIT = "quarl-device.service"
STEPS = 6000


@pytest.fixture
def lab(machine, recipe):
    if recipe.processor != "aarch64":
        pytest.skip("numpy has no wheel for armv7l outside of Raspberry Pi's own index: docs/guides/emulated-board.md")
    # Beside the board there is no way out: what `deploy` would fetch is fetched before.
    board = BoardPython(machine=recipe.processor, glibc=(2, 36), python=(3, 11, 2))
    wheelhouse(requirements_of(device_wheel(say), board, ()), board, cache=cache_dir() / "wheelhouses", note=say)
    lab = Lab(machine)
    yield lab
    lab.close()


@pytest.fixture
def told():
    """Say how long each part took."""
    began = [time.monotonic()]

    def tell(what):
        now = time.monotonic()
        say(f"{what}: {now - began[0]:.0f} s")
        began[0] = now

    return tell


def asked(machine, *words):
    """Run a command of the agent's program as its own user, and return what it says."""
    done = machine.run("runuser", "-u", "quarl-edge", "--", AGENT, *words, "--config", CONFIG, "--format", "json")
    return json.loads(done.stdout.splitlines()[-1])


def main_pid(machine):
    return int(machine.run("systemctl", "show", UNIT, "--property=MainPID", "--value").stdout)


def kill(machine):
    """Kill the agent as no program can refuse, and return its number."""
    pid = main_pid(machine)
    machine.run("kill", "-KILL", pid)
    return pid


def runs_again(machine, before):
    until(lambda: main_pid(machine) not in (0, before), within_s=90, what="the agent was started again")


def test_from_nothing_to_a_fleet_and_back(machine, lab, told):
    lab.edge("enroll", "pi-1", "--broker-dir", "broker", "--learner-key", "broker/clients/learner/learner.pub")
    lab.edge("enroll", "me", "--broker-dir", "broker", "--role", "viewer")
    told("broker and credentials")
    who = ["--credentials", "broker/clients/pi-1", "--operator", "broker/clients/me", "--wheelhouse", "always"]

    # An agent that waits for its learner, from wheels alone; the same again changes nothing.
    first = lab.deploy(*who)
    assert (first["result"], first["supervised_by"]) == ("installed", "systemd")
    assert "waits for a learner" in first["said"]
    told("deployed")
    pid = main_pid(machine)
    again = lab.deploy(*who)
    assert (again["result"], again["release"], main_pid(machine)) == ("unchanged", first["release"], pid)
    told("deployed again")
    assert machine.run("stat", "-c", "%a %U", "/etc/quarl-edge/credentials/client.key").stdout.split() == [
        "600", "quarl-edge",
    ]  # fmt: skip
    assert machine.run("ps", "-o", "user:20=", "-p", pid).stdout.strip() == "quarl-edge"

    # Live policies there, its experience here; killed and rebooted in between, and nothing is lost or doubled.
    learner = lab.start(
        "train", "CartPole-v1", "--credentials", "broker/clients/learner", "--actors", "0", "--steps", STEPS, "--run",
        "run", "--set", "goal_return=none", "--format", "json",
    )  # fmt: skip
    until(lambda: (lab.device() or {}).get("policy_version", 0) > 1, within_s=180, what="a pushed policy acted there")
    told("a live policy acts")
    runs_again(machine, kill(machine))
    until(lambda: (lab.device() or {}).get("steps", 0) > 0, within_s=180, what="it streamed again after kill -9")
    told("back after kill -9")
    machine.reboot()
    until(lambda: machine.run("systemctl", "is-active", UNIT, check=False).stdout.strip() == "active",
          within_s=120, what="the agent ran after the reboot")  # fmt: skip
    told("back after a reboot")
    out, _ = learner.communicate(timeout=600)
    assert learner.returncode in (0, 75), (learner.returncode, out[-2000:], lab.said())
    result = json.loads(out.splitlines()[-1])
    assert result["env_steps"] >= STEPS
    assert result["refused"] == {}
    told(f"trained: {result['env_steps']} steps, {result['pushes']} pushes")

    # A policy of its own: signed here, on probation there, and a newer one by the board's own command.
    key = ["--learner-key", "broker/clients/learner/signing.key"]
    sha256 = read_policy_path(CARTPOLE).sha256
    released = lab.deploy(*who, *key, "--mode", "deploy", "--policy", CARTPOLE, "--safe-action", "0", "--hz", "50")
    assert (released["result"], released["digest"]) == ("installed", sha256)
    told("deploys a policy")
    status = asked(machine, "status")
    version = status["trial"]["version"] if status["trial"] else status["current"]["version"]
    lab.edge("sign", CARTPOLE, *key, "--version", version + 1, "--out", "newer.qpol")
    machine.put(lab.folder / "newer.qpol", "/srv/newer.qpol")
    machine.run("chmod", "644", "/srv/newer.qpol")
    asked(machine, "activate", "/srv/newer.qpol")

    def acting():
        said = asked(machine, "status")
        return next((said[slot]["version"] for slot in ("trial", "current") if (said[slot] or {}).get("acting")), 0)

    until(lambda: acting() == version + 1, within_s=300, what="the newer policy acted")
    told("a newer policy acts")
    runs_again(machine, kill(machine))
    until(lambda: acting() in (version, version + 1), within_s=120, what="a policy acted after kill -9")
    told("acts after kill -9")

    under_half_a_gibibyte(machine)
    told("acts under 512 MiB")

    gone = lab.deploy("--remove", "--purge")
    assert gone["result"] == "removed"
    for path in ("/opt/quarl-edge", "/etc/quarl-edge", "/var/lib/quarl-edge", f"/etc/systemd/system/{UNIT}"):
        assert machine.run("test", "-e", path, check=False).returncode == 1, path
    assert machine.run("systemctl", "is-active", UNIT, check=False).stdout.strip() == "inactive"
    told("removed")


def under_half_a_gibibyte(machine):
    """Deploy mode with all that it imports, from its start to the end of some episodes."""
    limit = MemoryLimit("quarl-board-agent", mib=512)
    try:
        machine.run("cp", "/etc/quarl-edge/learner.pub", "/srv/learner.pub")
        words = ["run", "--mode", "deploy", "--policy", "/srv/newer.qpol", "--learner-key", "/srv/learner.pub"]
        done = machine.run(
            AGENT, *words, "--state-dir", "/srv/state", "--episodes", 2, "--format", "json", memory=limit, within_s=300
        )
        assert json.loads(done.stdout.splitlines()[-1])["episodes"] == 2
        say(f"most memory, the emulator's too: {limit.peak_bytes() >> 20} MiB of 512")
    finally:
        limit.close()
