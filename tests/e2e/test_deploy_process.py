"""`quarl-device run --mode deploy` as a process of its own: killed, refused, hung, and always acting well again."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quarl_device.deploy.signed import sign_policy
from quarl_device.deploy.slots import Slot, Slots
from quarl_device.policy_file import read_policy_path
from quarl_device.wire.keys import LearnerKey

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(280)]

CARTPOLE = read_policy_path(Path(__file__).parent.parent / "data" / "cartpole.tflite")
KEY = LearnerKey(bytes(range(32)))
DEVICE = [sys.executable, "-m", "quarl_device.cli"]
# A policy that computes for ever once it is version 2: what a native call that hangs looks like from outside.
HANGS = """
import sys, time
from quarl_device.deploy import acting, agent, config
real = acting.load_signed
def load(signed, runtime):
    policy = real(signed, runtime)
    if signed.name == "2":
        policy.act = lambda _: time.sleep(60)
    return policy
acting.load_signed = load
config.DeployConfig.__init__.__kwdefaults__["hang_s"] = 1.0
from quarl_device.cli import main
sys.exit(main())
"""


class Device:
    def __init__(self, folder):
        self.folder, self.state = folder, folder / "state"
        self.slots = Slots(self.state)
        KEY.public.save(folder / "learner.pub")
        self.process = None

    def file(self, version):
        path = self.folder / f"{version}.qpol"
        path.write_bytes(sign_policy(CARTPOLE, KEY, version=version))
        return path

    def command(self, *words):
        done = subprocess.run(
            [*DEVICE, *map(str, words), "--state-dir", self.state, "--format", "json"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    def start(self, *words, program=DEVICE):
        command = [*program, "run", "--mode", "deploy", "--learner-key", self.folder / "learner.pub", "--hz", "200",
                   "--state-dir", self.state, "--safe-action", "0", "--die-with-parent", *words]  # fmt: skip
        self.process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.PIPE)

    def kill(self):
        self.process.kill()
        self.process.communicate(timeout=30)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out.decode(), err.decode()

    def until(self, condition, what, timeout_s=40.0):
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.command("status")[1]
            if condition(status):
                return status
            if self.process is not None and self.process.poll() not in (None, 55):
                pytest.fail(f"ended while waiting for {what}: {self.process.stderr.read().decode()}")
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}; {status}"


@pytest.fixture
def device(tmp_path):
    made = Device(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def settled(version):
    return lambda status: (status["state"], (status["current"] or {}).get("version")) == ("settled", version)


def test_a_device_through_its_life(device):
    one, two = device.file(1), device.file(2)
    device.start("--policy", one, "--env", "CartPole-v1", "--probation-steps", "30")
    status = device.until(settled(1), "the first policy")
    assert status["running"]
    assert status["current"]["digest"] == CARTPOLE.sha256
    # What a person sees who hands over the wrong thing.
    torn = device.folder / "torn.qpol"
    torn.write_bytes(one.read_bytes()[:-1])
    assert device.command("activate", torn)[0] == 40
    code, handed = device.command("activate", two)
    assert (code, handed["running"], handed["already"]) == (0, True, False)
    status = device.until(settled(2), "the second policy")
    assert status["previous"]["version"] == 1
    assert device.command("activate", one)[0] == 45
    code, out, _ = device.end()
    assert code == 0
    assert "version 2 acted" in out
    status = device.command("status")[1]
    assert (status["running"], status["state"], status["ended_cleanly"]) == (False, "stopped", True)
    assert status["counters"]["steps"] > 60


def test_kill_9_on_probation_settled_and_twice_in_a_row(device):
    device.start("--policy", device.file(1), "--probation-steps", "30")
    device.until(settled(1), "the first policy")
    device.kill()
    # Settled: the same policy acts again.
    device.start("--probation-steps", "1000000", "--probation-episodes", "1000000")
    device.until(settled(1), "the first policy, after a kill")
    assert device.command("activate", device.file(2))[0] == 0
    device.until(lambda status: status["state"] == "probation" or status["trial"] is not None, "probation")
    device.kill()
    assert device.slots.there(Slot.TRIAL)
    # On probation, and again at once: back to the one before.
    device.start()
    time.sleep(0.3)
    device.kill()
    device.start()
    status = device.until(lambda status: status["state"] == "settled" and not status["trial"], "the one before")
    assert status["current"]["version"] == 1
    assert status["last_fault"]["code"] == 55
    assert device.end()[0] == 0


def test_a_policy_that_hangs_ends_its_process_and_not_the_board(device):
    hanging = [sys.executable, "-c", HANGS]
    device.start("--policy", device.file(1), "--probation-steps", "30", program=hanging)
    device.until(settled(1), "the first policy")
    assert device.command("activate", device.file(2))[0] == 0
    assert device.process.wait(timeout=60) == 55
    status = device.command("status")[1]
    assert "has not ended" in status["last_fault"]["message"]
    device.process.communicate(timeout=10)
    device.start(program=hanging)
    status = device.until(settled(1), "the first policy again")
    assert status["trial"] is None
    assert device.end()[0] == 0
    assert device.slots.there(Slot.REFUSED)
