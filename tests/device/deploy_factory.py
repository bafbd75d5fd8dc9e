"""Signed policies, and a board whose agent is killed, refused by its disk or restarted at any of its steps."""

import dataclasses
import hashlib
from pathlib import Path

from quarl_device.deploy.agent import _TAKES_OFFERS, DeployAgent
from quarl_device.deploy.config import DeployConfig
from quarl_device.deploy.limits import Wishes
from quarl_device.deploy.machine import Kind, Phase
from quarl_device.deploy.probation import ProbationRules
from quarl_device.deploy.signed import sign_policy
from quarl_device.deploy.slots import Slot, Slots
from quarl_device.environments import EnvSpec
from quarl_device.policy_file import read_policy_path
from quarl_device.runtime import find_runtime
from quarl_device.wire.exploration import Exploration
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.push import PushHeader, encode_push

DATA = Path(__file__).parent.parent / "data"
CARTPOLE, ACROBOT, PENDULUM = (
    read_policy_path(DATA / f"{name}.tflite") for name in ("cartpole", "acrobot", "pendulum")
)
KEY = LearnerKey(bytes(range(32)))
OTHER_KEY = LearnerKey(bytes(32))
RUNTIME = find_runtime()


def signed(version, *, policy=CARTPOLE, key=KEY):
    return sign_policy(policy, key, version=version)


def wrong_golden(version):
    """A file that the learner has signed and that answers otherwise than it says."""
    answers = {role: array + 100 for role, array in CARTPOLE.golden.outputs.items()}
    header = PushHeader(
        epoch=0, version=version, env_steps=0, sha256=CARTPOLE.sha256, golden_outputs=answers, lsb=CARTPOLE.golden.lsb,
        exploration=Exploration(kind="none", values=()),
    )  # fmt: skip
    return encode_push(header, CARTPOLE.data, KEY.sign)


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the agent catches it, and nothing is cleaned up."""


class Faults:
    """Counts the steps at which a disk or a process can fail, and fails at the one that is asked for.

    Steps are: before and after every rename, before and after every write, before and after every load.
    """

    def __init__(self, at=None, error=Killed):
        self.at, self.error, self.seen = at, error, []

    def step(self, name):
        self.seen.append(name)
        if len(self.seen) - 1 == self.at:
            raise self.error(f"at step {self.at}: {name}")


class FaultySlots(Slots):
    def __init__(self, state, faults):
        super().__init__(state)
        self.faults = faults

    def _move(self, source, target):
        self.faults.step(f"before {source} -> {target}")
        super()._move(source, target)
        if self.faults.error is Killed:
            self.faults.step(f"after {source} -> {target}")

    def discard(self, slot):
        self.faults.step(f"before discard {slot}")
        super().discard(slot)


class InlineWorker:
    """Does its jobs when they are given, so that a simulated life is one thread."""

    def do(self, job):
        job()

    def abandon(self):
        pass

    def close(self, *, timeout_s):
        pass


class Board(DeployAgent):
    """One life of the agent on a directory: no threads, no clock that matters."""

    def __init__(self, state, faults=None, *, safe=(), runtime=RUNTIME, rules=None, **config):
        self.faults = faults or Faults()
        slots = FaultySlots(state, self.faults)
        slots.make()
        fields = {
            "env": EnvSpec(env_id="CartPole-v1", kwargs={"max_episode_steps": 8}),
            "probation": ProbationRules(episodes=1, steps=1000),
            "wishes": Wishes(safe_action=safe),
            "seed": 0,
            **config,
        }
        if rules:
            fields["rules"] = rules
        self.reports = []
        super().__init__(
            DeployConfig(**fields), slots=slots, key=KEY.public, runtime=runtime, on_change=self.reports.append
        )
        self._worker.close(timeout_s=5.0)
        self._worker = InlineWorker()

    def _write(self, notes):
        self.faults.step("before notes")
        return super()._write(notes)

    def live(self, *, episodes=6, clean=True):
        """Boot, take what is offered, play, and end; returns itself."""
        self._boot()
        for _ in range(episodes):
            if self._state.phase in _TAKES_OFFERS and self._slots.there(Slot.INCOMING):
                self._happen(Kind.OFFERED)
            self._attend()
            if self._act is not None:
                self._play()
        if clean:
            self._write(dataclasses.replace(self._snapshot(), clean=True, starts=0))
        self._world.close()
        return self

    @property
    def phase(self):
        return self._state.phase

    @property
    def acting(self):
        return self._state.acting

    @property
    def fault(self):
        return self._state.fault


def loads_are_steps(monkeypatch, faults):
    """Let a process die as it loads or self-tests a policy, where a native crash would be."""
    from quarl_device.deploy import acting

    real = acting.load_signed

    def load(policy, runtime):
        faults.step(f"before load {policy.name}")
        loaded = real(policy, runtime)
        faults.step(f"after load {policy.name}")
        return loaded

    monkeypatch.setattr(acting, "load_signed", load)


def settled(state, version=1):
    """Return a directory whose current policy has passed its probation."""
    slots = Slots(state)
    slots.make()
    slots.offer(signed(version))
    board = Board(state).live()
    assert board.phase is Phase.SETTLED
    return slots
