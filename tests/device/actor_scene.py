"""An agent on a thread, a learner that stores blocks in order, and a broker in memory between them."""

import dataclasses
import threading
import time
from pathlib import Path

from quarl_device.actor.agent import Agent, AgentConfig, new_boot_id, will_of
from quarl_device.policy_file import read_policy
from quarl_device.runtime import find_runtime
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.block_spec import extras_for
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.messages import DeviceState, LearnerBirth
from quarl_device.wire.push import Exploration, PushHeader, encode_push
from quarl_device.wire.topics import Topics
from quarl_edge.ingest.sessions import SessionTable, Verdict

CARTPOLE = (Path(__file__).parents[1] / "data" / "cartpole.tflite").read_bytes()
FILE = read_policy(CARTPOLE)
TOPICS = Topics("lab")
NAME = "pi-1"
DEADLINE_S = 60.0  # of what takes a second on a machine that is free


class Learner:
    """Stores blocks in order and grants credit, as the real one does."""

    def __init__(self, broker, *, ahead=4, mode="async", epoch=100, key=None, sessions=None, **birth):
        self.broker = broker
        self.ahead = ahead
        self.key = key or LearnerKey.generate()
        self.link = broker.link(f"learner-{epoch}")
        self.sessions = sessions or SessionTable(epoch)
        self.sessions.epoch = epoch
        self.birth = LearnerBirth(
            **{
                "status": "online",
                "epoch": epoch,
                "env_id": "CartPole-v1",
                "algorithm": "dqn",
                "observations": FILE.contract.observations,
                "action": FILE.contract.action,
                "public_key": self.key.public.hex,
                "mode": mode,
                "seed": 7,
                "block_steps": 16,
                "version": "0",
                **birth,
            }
        )
        extras = extras_for(self.birth.extras, self.birth.action)
        self.codec = BlockCodec(
            BlockSpec(observations=self.birth.observations, action=self.birth.action, extras=extras)
        )
        self.stored, self.payloads, self.verdicts, self.states = [], [], [], []
        self.version = 0
        self.limit = None
        self.on_stored = lambda: None
        self.link.subscribe(TOPICS.any_state, self.on_state)
        self.link.subscribe(TOPICS.any_xp, self.on_xp)
        self.link.connect(timeout_s=1)
        self.announce()

    def announce(self, **changes):
        self.birth = dataclasses.replace(self.birth, beat=self.birth.beat + 1, **changes)
        self.link.publish(TOPICS.learner, self.birth.encode(), retain=True)

    def push(self, *, epsilon=0.2, reset=False, data=CARTPOLE, version=None, sign=None, outputs=None, **changes):
        self.version = self.version + 1 if version is None else version
        file = FILE if data is CARTPOLE else read_policy(data)
        golden = file.golden
        header = PushHeader(
            **{
                "epoch": self.birth.epoch,
                "version": self.version,
                "env_steps": 0,
                "sha256": file.sha256,
                "exploration": Exploration(values=(epsilon,)),
                "golden_outputs": outputs or golden.outputs,
                "lsb": golden.lsb,
                "tolerance_lsb": golden.tolerance_lsb,
                "variables_read_unix_ns": time.time_ns(),
                "reset": reset,
                **changes,
            }
        )
        self.link.publish(TOPICS.policy, encode_push(header, data, sign or self.key.sign), retain=True)

    def on_state(self, message):
        if message.payload:
            state = DeviceState.decode(message.payload)
            self.states.append(state)
            if state.status == "online":
                self.sessions.open(NAME, state.delivering or state.boot_id)
                self.ack()

    def on_xp(self, message):
        block = self.codec.decode(message.payload)
        steps = {"first_step": block.first_step, "steps": block.transitions}
        verdict = self.sessions.admit(NAME, block.boot_id, block.sequence, block.base, block.dropped, **steps)
        self.verdicts.append(verdict)
        if verdict is Verdict.ACCEPT:
            self.stored.append(block)
            self.payloads.append(message.payload)
            self.on_stored()
        self.ack()

    def ack(self):
        if self.limit is None or len(self.stored) < self.limit:
            self.sessions.grant(NAME, self.ahead)
        self.link.publish(TOPICS.ack(NAME), self.sessions.ack(NAME).encode(), qos=0)

    def leave(self, *, left=False):
        """Be lost, as its will says it, or with a goodbye (`left`)."""
        self.announce(status="gone", left=left)
        self.link.close()


class Running:
    """An agent on a thread of its own; always ended at the end of the test."""

    def __init__(self, broker, *, outbox=None, notifier=None, live=None, **config):
        self.config = AgentConfig(**{"fleet": "lab", "name": NAME, **config})
        self.boot_id = new_boot_id()
        held = outbox(self.boot_id) if outbox else None
        self.link = broker.link(NAME, will=will_of(self.config, self.boot_id))
        self.agent = Agent(
            self.config,
            link=self.link,
            runtime=find_runtime(),
            boot_id=self.boot_id,
            outbox=held,
            notifier=notifier,
            live=live,
        )
        self.summary = self.error = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            self.summary = self.agent.run()
        except Exception as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.agent.stop()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()

    def join(self):
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        return self.summary


def wait_for(condition, what="the condition"):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.005)


def sequences(learner):
    return [block.sequence for block in learner.stored]
