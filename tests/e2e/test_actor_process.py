"""`quarl-device run` as a process of its own, against a real broker and a learner that follows a script."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from quarl_device.environments import spaces_to_specs
from quarl_device.link import BrokerURL, PahoLink
from quarl_device.policy_file import read_policy_path
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.messages import Ack, DeviceState, LearnerBirth
from quarl_device.wire.push import Exploration, PushHeader, encode_push
from quarl_device.wire.topics import Topics
from quarl_edge.broker import EmbeddedBroker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

CARTPOLE, PENDULUM = (
    read_policy_path(Path(__file__).parent.parent / "data" / f"{name}.tflite") for name in ("cartpole", "pendulum")
)
EXPLORATION = {"CartPole-v1": Exploration(values=(0.1,)), "Pendulum-v1": Exploration(kind="gaussian", values=(0.2,))}
USERS = {"learner": "one", "a": "two"}
FORBIDDEN = re.compile(r"tensorflow|tf_keras|/keras/|torch|amqtt", re.IGNORECASE)


def eventually(condition, what, timeout_s=15.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


class Learner:
    """Births, one push, and an ack for every block."""

    def __init__(self, broker, fleet, file=CARTPOLE, **birth):
        self.file, self.birth, self.env_id = file, birth, file.contract.env_id
        self.topics, self.key, self.epoch = Topics(fleet), LearnerKey.generate(), int(time.time())
        env = gymnasium.make(self.env_id)
        self.specs = spaces_to_specs(env.observation_space, env.action_space)
        self.codec = BlockCodec(BlockSpec(observations=self.specs[0], action=self.specs[1]))
        self.blocks, self.states = [], []
        self.link = PahoLink(BrokerURL.parse(broker.url), client_id="learner", password=USERS["learner"])
        self.link.subscribe(self.topics.any_xp, self._on_xp)
        self.link.subscribe(self.topics.any_state, self._on_state)
        self.link.connect(timeout_s=10.0)

    def serve(self):
        birth = LearnerBirth(**{
            "status": "online", "epoch": self.epoch, "env_id": self.env_id, "algorithm": "dqn", "mode": "async",
            "observations": self.specs[0], "action": self.specs[1], "public_key": self.key.public.hex, "seed": 1,
            "block_steps": 64, "version": "1", **self.birth,
        })  # fmt: skip
        self.link.publish(self.topics.learner, birth.encode(), retain=True)
        self.push(1)

    def push(self, version):
        golden = self.file.golden
        header = PushHeader(
            epoch=self.epoch, version=version, env_steps=0, sha256=self.file.sha256,
            exploration=EXPLORATION[self.env_id], golden_outputs=dict(golden.outputs), lsb=dict(golden.lsb),
        )  # fmt: skip
        self.link.publish(self.topics.policy, encode_push(header, self.file.data, self.key.sign), retain=True)

    def _on_state(self, message):
        if not message.payload:
            return
        state = DeviceState.decode(message.payload)
        self.states.append(state)
        if state.status == "online":
            self._ack(state.boot_id)

    def _on_xp(self, message):
        block = self.codec.decode(message.payload)
        if block.sequence == len(self.blocks):
            self.blocks.append(block)
        self._ack(block.boot_id)

    def _ack(self, boot_id):
        stored = len(self.blocks) - 1
        ack = Ack(boot_id=boot_id, epoch=self.epoch, inserted=stored, durable=stored, credit=stored + 9)
        self.link.publish(self.topics.ack("a"), ack.encode())


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(USERS) as running:
        yield running


@pytest.fixture
def learner(broker, request):
    # A fleet per test: nothing that another test retained is seen.
    one = Learner(broker, "f" + str(abs(hash(request.node.name)) % 10**8), **getattr(request, "param", {}))
    one.serve()
    yield one
    for topic in (one.topics.learner, one.topics.policy, one.topics.state("a")):
        one.link.publish(topic, b"", retain=True)
    one.link.flush(timeout_s=2.0)
    one.link.close()


@pytest.fixture
def start(broker, learner):
    processes = []

    def run(*words, **env):
        command = [sys.executable, "-m", "quarl_device.cli", "run", "--broker", broker.url, "--id", "a"]
        process = subprocess.Popen(
            [*command, "--fleet", learner.topics.fleet, "--format", "json", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "QUARL_MQTT_PASSWORD": USERS["a"], **env},
        )  # fmt: skip
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def test_it_acts_small_without_tensorflow_and_ends_cleanly(learner, start, tmp_path):
    key = tmp_path / "learner.pub"
    learner.key.public.save(key)
    process = start("--learner-key", str(key))
    eventually(lambda: len(learner.blocks) > 20, "blocks")
    proc = Path(f"/proc/{process.pid}")
    assert not FORBIDDEN.findall((proc / "maps").read_text())
    status = (proc / "status").read_text()
    high_mb = int(status.split("VmHWM:")[1].split()[0]) / 1024
    assert high_mb < 100, f"{high_mb:.0f} MB resident"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["reason"] == "SIGTERM"
    eventually(lambda: learner.states[-1].status == "gone", "the farewell")
    eventually(lambda: sum(block.transitions for block in learner.blocks) == summary["steps"], "every step arrives")
    assert summary["blocks"] == len(learner.blocks)
    assert "pinning" not in err
    assert "INFO:" not in err, "the runtime's greeting"
    assert "Traceback" not in err
    assert USERS["a"] not in err + out


@pytest.mark.parametrize("envs", [1, 4])
@pytest.mark.parametrize(
    "learner", [{"file": PENDULUM, "mode": "rounds", "round_steps": 96}], indirect=True, ids=["box"]
)
def test_rounds_in_a_box_with_noise_drawn_by_the_process(learner, start, envs):
    start("--envs", str(envs))
    for version in (1, 2):
        eventually(lambda: learner.states and learner.states[-1].blocked == "waiting for the next policy", "it waits")
        eventually(lambda: sum(b.num_steps for b in learner.blocks) == 96 * version, "a round")  # noqa: B023
        learner.states.clear()
        learner.push(version + 1)
    actions = np.concatenate([block.action for block in learner.blocks])
    assert (actions.dtype, actions.shape[1:]) == (np.float32, (envs, 1))
    assert (np.abs(actions) <= 2).all()
    assert len(np.unique(actions)) > 96
    versions = np.concatenate([block.policy_version for block in learner.blocks])
    assert versions[:192].tolist() == [1] * 96 + [2] * 96


def test_interrupt_ends_it_too(learner, start):
    process = start("--envs", "4")
    eventually(lambda: len(learner.blocks) > 3, "blocks")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["reason"] == "SIGINT"
    assert "pinning the learner's key" in err


def catches(pid, number):
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(learner, start, tmp_path, second):
    (tmp_path / "stuck_env.py").write_text(
        "import time, gymnasium\n"
        "class Stuck(gymnasium.Wrapper):\n"
        "    def step(self, action):\n"
        "        open(__file__ + '.stuck', 'w').close()\n"
        "        time.sleep(60)\n"
        "gymnasium.register('Stuck-v0', lambda: Stuck(gymnasium.make('CartPole-v1')))\n"
    )
    process = start("--env", "stuck_env:Stuck-v0", PYTHONPATH=str(tmp_path))
    eventually((tmp_path / "stuck_env.py.stuck").exists, "it is stuck in a step")
    process.send_signal(signal.SIGTERM)
    # Until the first is handled a second of its kind is the same one.
    eventually(lambda: not catches(process.pid, signal.SIGTERM), "the first signal was handled")
    assert process.poll() is None
    process.send_signal(second)
    process.communicate(timeout=5)
    assert process.returncode == -second


def test_a_signal_ends_the_wait_for_a_broker(start):
    process = start("--broker", "mqtt://127.0.0.1:9")
    # It joins once the signal has its handler, however long a busy machine takes to come so far.
    assert "joins fleet" in process.stderr.readline()
    timer = threading.Timer(0.5, process.send_signal, (signal.SIGTERM,))
    began = time.monotonic()
    timer.start()
    out, err = process.communicate(timeout=9)
    assert time.monotonic() - began < 8
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["reason"] == "SIGTERM"


def test_a_wrong_password_is_code_31(learner, start):
    process = start(QUARL_MQTT_PASSWORD="no")
    out, err = process.communicate(timeout=20)
    assert process.returncode == 31, err
    assert json.loads(out.splitlines()[-1])["error"]["code"] == 31
    assert "Traceback" not in err


def test_of_two_with_one_id_the_older_ends_and_says_why(start, tmp_path):
    # The embedded broker does not throw off the older of two clients with one id, as MQTT wants it.
    with Mosquitto() as broker:
        states = []
        watcher = PahoLink(BrokerURL.parse(broker.url), client_id="watcher")
        watcher.subscribe(Topics("default").any_state, lambda m: states.append(DeviceState.decode(m.payload)))
        watcher.connect(timeout_s=10.0)
        words = ("--broker", broker.url, "--fleet", "default")
        older = start(*words)
        eventually(lambda: states, "the first")
        # As on another machine; on this one its spool would keep it out.
        newcomer = start(*words, "--state-dir", str(tmp_path / "other"))
        out, err = older.communicate(timeout=60)
        assert older.returncode == 52, err
        assert "another process uses the id 'a' on this broker" in err
        assert json.loads(out.splitlines()[-1])["error"]["hint"].startswith("give one of them another --id")
        first = states[0].boot_id
        eventually(lambda: states[-1].status == "online" and states[-1].boot_id != first, "the other stays")
        assert newcomer.poll() is None
        watcher.close()


def test_one_id_in_two_fleets_is_two_devices(start):
    with Mosquitto() as broker:
        states = []
        watcher = PahoLink(BrokerURL.parse(broker.url), client_id="watcher")
        for fleet in ("one", "two"):
            watcher.subscribe(Topics(fleet).any_state, lambda m: states.append(DeviceState.decode(m.payload)))
        watcher.connect(timeout_s=10.0)
        for fleet in ("one", "two"):
            start("--broker", broker.url, "--fleet", fleet)
        eventually(lambda: len({state.boot_id for state in states}) == 2, "both")
        time.sleep(1.0)
        assert {state.status for state in states} == {"online"}
        watcher.close()


def test_another_key_than_the_given_one_is_never_served(learner, start, tmp_path):
    key = tmp_path / "learner.pub"
    LearnerKey.generate().public.save(key)
    process = start("--learner-key", str(key))
    eventually(lambda: learner.states, "it is there")
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=10)
    assert json.loads(out.splitlines()[-1])["steps"] == 0
    assert "pinned is" in err
    assert not learner.blocks


def cpu_s(imports):
    """Return the CPU time of importing in a fresh process, the least of three: a busy machine only ever adds."""
    code = f"import time; began = time.process_time(); {imports}; print(time.process_time() - began)"
    return min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    )


def test_importing_the_actor_is_cheap():
    ours = "import quarl_device.actor.agent, quarl_device.link, quarl_device.runtime as r; r.find_runtime(None)"
    theirs = "import numpy, gymnasium, paho.mqtt.client, ai_edge_litert.interpreter"
    key = "cryptography.hazmat.primitives.asymmetric.ed25519"
    assert cpu_s(ours) < 3.0 * cpu_s(f"{theirs}, {key}")
