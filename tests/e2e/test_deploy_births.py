"""A deploying device as its fleet sees it, over a real broker: births, a will, a goodbye, and a broker that is away."""

import json
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from secured_broker import SecuredBroker

from quarl_device.deploy.signed import sign_policy
from quarl_device.link import Backoff, BrokerURL, PahoLink
from quarl_device.policy_file import read_policy_path
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.messages import DeviceState
from quarl_device.wire.topics import Topics
from quarl_edge.broker.revocation import revoke_client

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(280)]

DATA = Path(__file__).parent.parent / "data"
CARTPOLE = read_policy_path(DATA / "cartpole.tflite")
KEY = LearnerKey(bytes(range(32)))
DEVICE = [sys.executable, "-m", "quarl_device.cli"]
TOPIC = Topics("lab").state("robot")
DEADLINE_S = 60.0


class Watcher:
    """Hears the births of the device "robot"."""

    def __init__(self, url):
        self.states = queue.Queue()
        quick = Backoff(base_s=0.05, cap_s=0.2)
        self.link = PahoLink(BrokerURL.parse(url), client_id="watcher", backoff=quick)
        self.link.subscribe(TOPIC, lambda message: self.states.put(DeviceState.decode(message.payload)))
        self.link.connect(timeout_s=10)

    def until(self, condition, what):
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                state = self.states.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                pytest.fail(f"not within {DEADLINE_S:.0f} s: {what}")
            if condition(state):
                return state


class Device:
    def __init__(self, folder, url):
        self.folder = folder
        KEY.public.save(folder / "learner.pub")
        (folder / "device.toml").write_text(
            f'mode = "deploy"\nbroker = "{url}"\nfleet = "lab"\nid = "robot"\nstate_dir = "state"\nhz = 200\n'
            'safe_action = [0]\nlearner_key = "learner.pub"\nprobation_steps = 30\n'
        )
        self.process = None

    def file(self, version, policy=CARTPOLE):
        path = self.folder / f"{version}.qpol"
        path.write_bytes(sign_policy(policy, KEY, version=version))
        return path

    def command(self, *words):
        done = subprocess.run(
            [*DEVICE, *map(str, words), "--config", self.folder / "device.toml", "--format", "json"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    def start(self, *words):
        command = [*DEVICE, "run", "--config", self.folder / "device.toml", "--die-with-parent", *words]
        self.process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.PIPE)

    def end(self, number):
        self.process.send_signal(number)
        self.process.communicate(timeout=30)
        return self.process.returncode

    def until_settled(self, version):
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            status = self.command("status")[1]
            if (status["state"], (status["current"] or {}).get("version")) == ("settled", version):
                return
            assert time.monotonic() < deadline_s, status


@pytest.fixture
def scene(tmp_path):
    broker = Mosquitto()
    watcher = Watcher(broker.url)
    device = Device(tmp_path, broker.url)
    brokers = [broker]
    yield device, watcher, brokers
    if device.process is not None and device.process.poll() is None:
        device.end(signal.SIGKILL)
    watcher.link.close()
    for each in brokers:
        each.stop()


def acts_with(version):
    return lambda state: (state.status, state.policy_version) == ("online", version)


def test_a_fleet_sees_what_acts_and_a_broker_that_is_away_changes_nothing(scene):
    device, watcher, brokers = scene
    device.start("--policy", device.file(1))
    born = watcher.until(acts_with(1), "the first birth of a policy")
    assert (born.mode, born.digest, born.epoch, born.blocked) == ("deploy", CARTPOLE.sha256, 0, "")
    first_life = born.boot_id

    assert device.command("activate", device.file(2))[0] == 0
    assert watcher.until(acts_with(2), "the second policy").boot_id == first_life
    device.until_settled(2)

    # Without a broker it goes on, and takes policies.
    port = brokers[0].port
    brokers[0].kill()
    assert device.command("activate", device.file(3))[0] == 0
    device.until_settled(3)
    brokers.append(Mosquitto(port=port))
    state = watcher.until(acts_with(3), "a birth after the broker came back")
    assert state.boot_id == first_life

    device.end(signal.SIGKILL)
    gone = watcher.until(lambda state: state.status == "gone", "the will")
    assert (gone.boot_id, gone.mode) == (first_life, "deploy")

    device.start()
    born = watcher.until(acts_with(3), "the birth of the next life")
    assert born.boot_id != first_life
    assert device.end(signal.SIGTERM) == 0
    gone = watcher.until(lambda state: state.status == "gone", "the goodbye")
    assert gone.boot_id == born.boot_id


def test_a_device_that_starts_without_a_broker_acts_and_is_heard_when_there_is_one(scene):
    device, watcher, brokers = scene
    port = brokers[0].port
    brokers[0].kill()
    device.start("--policy", device.file(1))
    device.until_settled(1)
    brokers.append(Mosquitto(port=port))
    watcher.until(acts_with(1), "the birth")
    assert device.end(signal.SIGTERM) == 0


def test_a_policy_that_is_refused_is_told_with_its_code(scene):
    device, watcher, _ = scene
    device.start("--policy", device.file(2))
    watcher.until(acts_with(2), "the birth")
    device.until_settled(2)
    # As something that gets past `activate` would lie there.
    torn = device.folder / "state/deploy/incoming.qpol"
    torn.with_suffix(".new").write_bytes(device.file(3).read_bytes()[:-1])
    torn.with_suffix(".new").replace(torn)
    state = watcher.until(lambda state: state.fault, "the fault")
    assert state.fault.startswith("40: ")
    assert state.policy_version == 2


def test_an_enrolled_device_is_heard_and_acts_on_when_it_is_revoked(tmp_path):
    with SecuredBroker({"robot": ("device", "lab"), "eye": ("viewer", "lab")}) as broker:
        device = Device(tmp_path, "")
        config, folder = tmp_path / "device.toml", broker.credentials("robot").folder
        config.write_text(config.read_text().replace('broker = ""', f'credentials = "{folder}"'))
        states = queue.Queue()
        link = broker.link("eye")
        link.subscribe(TOPIC, lambda message: states.put(DeviceState.decode(message.payload)))
        link.connect(timeout_s=20)
        device.start("--policy", device.file(1))
        try:
            state = states.get(timeout=DEADLINE_S)
            while state.policy_version != 1:
                state = states.get(timeout=DEADLINE_S)
            assert state.mode == "deploy"
            revoke_client(broker.directory, "robot")
            while state.status != "gone":
                state = states.get(timeout=DEADLINE_S)
            assert device.command("activate", device.file(2))[0] == 0
            device.until_settled(2)
            assert device.process.poll() is None
        finally:
            link.close()
            device.end(signal.SIGTERM)
        assert device.process.returncode == 0


def test_a_broker_that_refuses_keeps_nobody_from_acting(tmp_path):
    with Mosquitto(users={"robot": "secret"}) as broker:
        device = Device(tmp_path, broker.url)
        device.start("--policy", device.file(1))
        try:
            device.until_settled(1)
            assert device.process.poll() is None
        finally:
            device.process.send_signal(signal.SIGTERM)
            _, errors = device.process.communicate(timeout=30)
        assert device.process.returncode == 0
        assert b"which acts all the same" in errors
