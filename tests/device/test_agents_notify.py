"""Both agents tell the service manager: ready, what they do, and pings that end when the environment hangs."""

import contextlib
import socket
import threading
from pathlib import Path

import gymnasium
import pytest
from actor_scene import DEADLINE_S, Learner, Running
from deploy_factory import KEY, RUNTIME, settled, signed

from quarl_device.deploy.agent import DeployAgent
from quarl_device.deploy.config import DeployConfig
from quarl_device.deploy.limits import Wishes
from quarl_device.deploy.slots import Slots
from quarl_device.environments import EnvSpec
from quarl_device.errors import BrokerRefused, BrokerUnreachable
from quarl_device.notify import Notifier
from quarl_device.testing.fake_broker import FakeBroker

WATCHDOG_S = 0.3
_PERIODS_OF_SILENCE = 5


class Gate(gymnasium.Wrapper):
    """An environment that hangs while its gate is shut."""

    open = threading.Event()
    waiting = threading.Event()

    def step(self, action):
        if not self.open.is_set():
            self.waiting.set()
            assert self.open.wait(DEADLINE_S)
        return self.env.step(action)


def gated():
    return Gate(gymnasium.make("CartPole-v1", max_episode_steps=50).unwrapped)


@pytest.fixture
def gate():
    gymnasium.register("Gated-v0", gated, max_episode_steps=50)
    Gate.open.set()
    Gate.waiting.clear()
    yield Gate
    Gate.open.set()
    del gymnasium.registry["Gated-v0"]


class Manager:
    """What systemd is to a service."""

    def __init__(self, folder: Path):
        self.address = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.heard: list[str] = []

    def notifier(self, watchdog_s=WATCHDOG_S):
        return Notifier(self.address, watchdog_s=watchdog_s)

    def until(self, line, timeout_s=DEADLINE_S):
        """Read lines until one begins so, and return those that came."""
        self.socket.settimeout(timeout_s)
        lines = []
        while not any(each.startswith(line) for each in lines):
            lines += self.socket.recv(4096).decode().split("\n")
        self.heard += lines
        return lines

    def pings_until_silent(self):
        """Return how many pings come until there is none for some periods."""
        pings = 0
        with contextlib.suppress(TimeoutError):
            while True:
                self.until("WATCHDOG", timeout_s=_PERIODS_OF_SILENCE * WATCHDOG_S / 3)
                pings += 1
        return pings


@pytest.fixture
def manager(tmp_path):
    made = Manager(tmp_path)
    yield made
    made.socket.close()


def test_an_actor_tells_that_it_waits_acts_stands_still_and_ends(manager, gate):
    broker = FakeBroker()
    with Running(broker, env="Gated-v0", notifier=manager.notifier()) as running:
        assert "READY=1" in manager.until("READY")
        manager.until("WATCHDOG")
        learner = Learner(broker, env_id="Gated-v0")
        learner.push()
        manager.until("STATUS=acts with version 100.1")
        for _ in range(3):
            manager.until("WATCHDOG")
        learner.leave(left=True)
        manager.until("STATUS=learner left")
        for _ in range(3):
            manager.until("WATCHDOG")
        running.agent.stop("enough")
        assert "STATUS=enough" in manager.until("STOPPING")


def test_an_actor_under_a_manager_waits_for_its_broker(manager, monkeypatch):
    monkeypatch.setattr("quarl_device.actor.agent._MEET_AGAIN_S", 0.01)
    broker = FakeBroker()
    broker.down()
    with Running(broker, notifier=manager.notifier()):
        assert any(line.startswith("STATUS=waits for a broker: no broker answers") for line in manager.until("READY"))
        manager.until("WATCHDOG")
        broker.up()
        manager.until("STATUS=no learner")


def test_an_actor_under_a_manager_lingers_where_it_is_refused_so_that_no_limit_of_starts_is_met(manager, monkeypatch):
    def refuse(*_, **__):
        raise BrokerRefused("the certificate was revoked")

    broker = FakeBroker()
    running = Running(broker, notifier=manager.notifier())
    monkeypatch.setattr(running.link, "connect", refuse)
    with running:
        said = manager.until("READY")
        assert any("will be started anew: the certificate was revoked" in line for line in said)
        manager.until("WATCHDOG")
        running.agent.stop("enough")
        running.join()
    assert isinstance(running.error, BrokerRefused)


def test_an_actor_that_waits_for_its_broker_can_be_stopped(manager):
    broker = FakeBroker()
    broker.down()
    with Running(broker, notifier=manager.notifier()) as running:
        manager.until("READY")
        running.agent.stop("enough")
        assert running.join().reason == "enough"


def test_an_actor_without_a_manager_ends_where_no_broker_answers():
    broker = FakeBroker()
    broker.down()
    with Running(broker) as running:
        running.join()
    assert isinstance(running.error, BrokerUnreachable)


@pytest.mark.parametrize("envs", [1, 2])
def test_an_actor_whose_environment_hangs_pings_no_more(manager, gate, envs):
    broker = FakeBroker()
    learner = Learner(broker, env_id="Gated-v0")
    learner.push()
    with Running(broker, env="Gated-v0", num_envs=envs, notifier=manager.notifier()):
        manager.until("STATUS=acts")
        manager.until("WATCHDOG")
        gate.open.clear()
        assert gate.waiting.wait(DEADLINE_S)
        assert manager.pings_until_silent() <= 3  # what was in the queue
        gate.open.set()
        manager.until("WATCHDOG")


class Deploying:
    """A deploying agent on a thread."""

    def __init__(self, state, manager, **config):
        slots = Slots(state)
        slots.make()
        slots.take()
        config = DeployConfig(env=EnvSpec(env_id="Gated-v0"), **config)
        self.agent = DeployAgent(config, slots=slots, key=KEY.public, runtime=RUNTIME, notifier=manager.notifier())
        self.thread = threading.Thread(target=self.agent.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self.agent

    def __exit__(self, *_):
        self.agent.stop("enough")
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


def test_deploy_mode_is_ready_where_nothing_may_act_and_pings_all_the_same(manager, gate, tmp_path):
    with Deploying(tmp_path / "state", manager):
        manager.until("READY")
        assert "STATUS=empty: nothing acts" in manager.heard
        for _ in range(3):
            manager.until("WATCHDOG")
    manager.until("STOPPING")


def test_deploy_mode_tells_what_acts(manager, gate, tmp_path):
    slots = settled(tmp_path / "state")
    with Deploying(tmp_path / "state", manager):
        manager.until("READY")
        assert "STATUS=settled: version 1 acts" in manager.heard
        slots.offer(signed(2))
        manager.until("STATUS=probation: version 2 acts")


@pytest.mark.parametrize("hz", [0.0, 0.01])
def test_deploy_mode_pings_while_it_steps_and_while_it_sleeps(manager, gate, tmp_path, hz):
    settled(tmp_path / "state")
    with Deploying(tmp_path / "state", manager, hz=hz, wishes=Wishes(safe_action=(0,))):
        manager.until("READY")
        for _ in range(5):
            manager.until("WATCHDOG")


def test_deploy_mode_whose_environment_hangs_pings_no_more(manager, gate, tmp_path):
    settled(tmp_path / "state")
    with Deploying(tmp_path / "state", manager):
        manager.until("READY")
        manager.until("WATCHDOG")
        gate.open.clear()
        assert gate.waiting.wait(DEADLINE_S)
        assert manager.pings_until_silent() <= 3
        gate.open.set()
        manager.until("WATCHDOG")
