"""One sender of `quarl-edge bench stream`: `python -m quarl_edge.bench.stream.sender ORDER`, ORDER as JSON.

Everything but the environment and the policy is the actor's own: recorder, codec, outbox in memory, session, speaker.
It says "ready" on stdout, streams from the first line on stdin to the second, waits until all of it is durable, and
says what it did; one line of JSON each. It ends with its stdin.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

from quarl_device.actor.identity import AgentConfig, new_boot_id, will_of
from quarl_device.actor.outbox import MemoryOutbox
from quarl_device.actor.shared import Shared
from quarl_device.actor.speaker import Speaker
from quarl_device.link import BrokerURL, Message, PahoLink, read_password
from quarl_device.wire.block import BlockCodec
from quarl_device.wire.messages import Ack
from quarl_device.wire.topics import Topics
from quarl_edge.bench.stream.workload import Stream, Workload

EPOCH = 1
_TICK_S = 0.1
_DRAIN_S = 60.0
_LATENCIES_KEPT = 4_096


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one sender does.

    Attributes:
        url: of the broker; the password comes from the environment.
        fleet: its topics.
        index: which sender this is.
        workload: what it streams.
    """

    url: str
    fleet: str
    index: int
    workload: Workload

    def encode(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Order:
        """Read what `encode` gave."""
        fields = json.loads(text)
        return cls(**{**fields, "workload": Workload(**fields["workload"])})


class Sender:
    """An actor without environments."""

    def __init__(self, order: Order) -> None:
        self.boot_id = new_boot_id()
        self._name = f"actor-{order.index}"
        config = AgentConfig(fleet=order.fleet, name=self._name, num_envs=order.workload.envs)
        self._topics = Topics(order.fleet)
        self._stream = Stream(order.workload, order.index)
        self._shared = Shared(MemoryOutbox(self.boot_id))
        self._shared.codec = self._codec = BlockCodec(order.workload.spec)
        self._link = PahoLink(
            BrokerURL.parse(order.url),
            client_id=f"{order.fleet}-{order.index}"[:23],
            password=read_password(None),
            will=will_of(config, self.boot_id),
        )
        self._speaker = Speaker(config, boot_id=self.boot_id, link=self._link, shared=self._shared, runtime="none")
        self._acting: Any = SimpleNamespace(epoch=EPOCH, version=1)
        self._made_s: deque[float] = deque()  # when each block that is not durable yet was made
        self._latencies_s: deque[float] = deque(maxlen=_LATENCIES_KEPT)
        self._bytes = 0
        self._tick_due_s = 0.0

    def connect(self) -> None:
        """Be there, as an actor is whose learner has pushed a policy."""
        session = self._shared.session
        self._link.subscribe(self._topics.ack(self._name), self._on_ack, qos=0)
        self._link.on_connect(self._came_up)
        self._link.connect(timeout_s=20.0)
        with self._shared.changed:
            session.learner_online(epoch=EPOCH, beat=0, in_turns=False, now_s=time.monotonic())
            session.policy_accepted(EPOCH, 1)
        self._tick()

    def stream(self, ended: threading.Event) -> None:
        """Make and send blocks until `ended`."""
        shared = self._shared
        while not ended.is_set():
            self._tick()
            with shared.changed:
                if shared.session.blocked():
                    shared.changed.wait(_TICK_S)
                    continue
            self._stream.fill()
            with shared.changed:
                before = shared.outbox.pending_bytes
                self._made_s.append(time.monotonic())
                self._speaker.keep_block(self._stream.recorder, self._codec, self._acting)
                self._bytes += shared.outbox.pending_bytes - before
                self._speaker.send_blocks()

    def drain(self) -> None:
        """Wait until everything is durable, at most a minute."""
        deadline_s = time.monotonic() + _DRAIN_S
        while self._shared.session.pending and time.monotonic() < deadline_s:
            self._tick()
            with self._shared.changed:
                self._shared.changed.wait(_TICK_S)

    def report(self) -> dict[str, Any]:
        """Return what it did."""
        session = self._shared.session
        return {
            "blocks": session.next_sequence,
            "pending": session.pending,
            "resends": session.resends,
            "transitions": self._stream.transitions,
            "bytes": self._bytes,
            "checksum": self._stream.checksum,
            "latencies_ms": [1e3 * latency_s for latency_s in self._latencies_s],
            "cpu_s": time.process_time(),
        }

    def close(self) -> None:
        """Leave without a trace."""
        self._link.publish(self._topics.state(self._name), b"", retain=True)
        self._link.flush(timeout_s=2.0)
        self._link.close()

    def _came_up(self) -> None:
        with self._shared.changed:
            self._shared.session.link_changed(up=True, now_s=time.monotonic())

    def _on_ack(self, message: Message) -> None:
        ack, shared = Ack.decode(message.payload), self._shared
        with shared.changed:
            if ack.boot_id != self.boot_id:
                return
            now_s, before = time.monotonic(), shared.session.durable
            shared.session.ack(
                boot_id=ack.boot_id,
                epoch=ack.epoch,
                inserted=ack.inserted,
                durable=ack.durable,
                credit=ack.credit,
                now_s=now_s,
            )
            for _ in range(shared.session.durable - before):
                self._latencies_s.append(now_s - self._made_s.popleft())
            self._speaker.send_blocks()
            shared.changed.notify_all()

    def _tick(self) -> None:
        """Do what an actor's ticker does."""
        now_s, shared = time.monotonic(), self._shared
        if now_s < self._tick_due_s:
            return
        self._tick_due_s = now_s + _TICK_S
        with shared.changed:
            if shared.session.link_up and not self._link.connected:
                shared.session.link_changed(up=False, now_s=now_s)
            # The learner of a measurement says no word but its acks.
            shared.session.learner_online(epoch=EPOCH, beat=int(now_s), in_turns=False, now_s=now_s)
            shared.session.tick(now_s)
            if shared.session.announce_due(now_s):
                self._speaker.announce()
            self._speaker.send_blocks()


def main(arguments: list[str]) -> int:
    """Do what the order says."""
    [text] = arguments
    sender = Sender(Order.decode(text))
    sender.connect()
    say(ready=True)
    if not sys.stdin.readline():
        return 1
    say(begun=True, cpu_s=time.process_time())
    ended, drained = threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(ended, drained), daemon=True).start()
    sender.stream(ended)
    sender.drain()
    drained.set()
    say(**sender.report())
    sender.close()
    return 0


def _listen(ended: threading.Event, drained: threading.Event) -> None:
    """Wait for the word to end, and from then on for the end of whoever would have said it."""
    if sys.stdin.readline():
        ended.set()
        sys.stdin.readline()
    if not drained.is_set():
        os._exit(1)  # nobody is there to take a report


def say(**fields: Any) -> None:
    """Write a line at once."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
