"""What an agent says: births, blocks, telemetry, and the farewell."""

from __future__ import annotations

import dataclasses
import time

from quarl_device import __version__
from quarl_device.actor.acting import ActingPolicy
from quarl_device.actor.identity import AgentConfig, gone_state
from quarl_device.actor.inbox import Inbox
from quarl_device.actor.recorder import Recorder
from quarl_device.actor.shared import Shared
from quarl_device.actor.stepping import Loop
from quarl_device.link import Link
from quarl_device.wire.block import BlockCodec
from quarl_device.wire.messages import DeviceState
from quarl_device.wire.topics import Topics


class Speaker:
    """Publishes for an agent. Every method is called with `shared.changed` held.

    Args:
        config: see `AgentConfig`.
        boot_id: of this life.
        link: to publish on.
        shared: what is said comes from here.
        runtime: name and version of the inference runtime.
    """

    def __init__(self, config: AgentConfig, *, boot_id: str, link: Link, shared: Shared, runtime: str) -> None:
        self._config = config
        self._boot_id = boot_id
        self._link = link
        self._shared = shared
        self._runtime = runtime
        self._topics = Topics(config.fleet)
        self._beat = 0
        self._bases: dict[int, int] = {}  # the base written into each block that is held

    def announce(self) -> None:
        """Publish the device's birth, or renew it."""
        self._beat += 1
        shared = self._shared
        if self._link.publish(self._topics.state(self._config.name), self._state().encode(), retain=True):
            shared.standstill.announced()
            shared.session.announced(time.monotonic())

    def _state(self) -> DeviceState:
        acting, standstill = self._shared.acting, self._shared.standstill
        return DeviceState(
            status="online",
            device=self._config.name,
            boot_id=self._boot_id,
            beat=self._beat,
            epoch=acting.epoch if acting else 0,
            policy_version=acting.version if acting else 0,
            digest=acting.policy.sha256 if acting else "",
            num_envs=self._config.num_envs,
            actor_index=self._config.actor_index,
            runtime=self._runtime,
            package=__version__,
            blocked=standstill.reason,
            blocked_since_unix_s=standstill.since_unix_s(time.monotonic(), time.time()),
        )

    def keep_block(self, recorder: Recorder, codec: BlockCodec, acting: ActingPolicy) -> None:
        """Encode what was recorded and hold it until the learner has it."""
        session = self._shared.session
        sequence, base = session.next_sequence, session.base
        payload = codec.encode(recorder.block(boot_id=self._boot_id, sequence=sequence, base=base))
        session.block_made(payload, epoch=acting.epoch, version=acting.version, now_s=time.monotonic())
        self._bases[sequence] = base

    def forget_blocks(self) -> None:
        """Give up every block that is held."""
        self._shared.session.drop_pending()
        self._bases.clear()

    def send_blocks(self) -> None:
        """Send every block that is due."""
        session, topic = self._shared.session, self._topics.xp(self._config.name)
        while (sequence := session.next_to_send()) is not None:
            payload = self._stamped(sequence)
            # Before the publish: on a link in memory the ack comes before it returns.
            session.sent(sequence)
            if not self._link.publish(topic, payload):
                session.not_taken(sequence)
                return

    def _stamped(self, sequence: int) -> bytes:
        """Return a block with the base of now: a learner that does not know this boot would wait for freed blocks."""
        payload, base, codec = self._shared.outbox.get(sequence), self._shared.session.base, self._shared.codec
        assert payload is not None  # noqa: S101  what is due is held
        assert codec is not None  # noqa: S101  a loop made it
        if self._bases.get(sequence, base) != base:
            payload = codec.encode(dataclasses.replace(codec.decode(payload), base=base))
        return payload

    def freed(self, before: int) -> None:
        """Blocks from `before` up to the session's base are held no longer."""
        for sequence in range(before, self._shared.session.base):
            self._bases.pop(sequence, None)

    def send_telemetry(self, loop: Loop, inbox: Inbox, now_s: float) -> None:
        """Publish rates and counts."""
        shared, errors = self._shared, self._link.counters.handler_errors
        payload = shared.tally.telemetry(loop, self._boot_id, inbox, shared.session, errors, now_s)
        self._link.publish(self._topics.telemetry(self._config.name), payload, qos=0)

    def say_goodbye(self) -> None:
        """Publish that this device is gone, and why if it failed."""
        fault = self._shared.fault
        payload = gone_state(self._config.name, self._boot_id, why=f"failed: {fault}" if fault else "")
        self._link.publish(self._topics.state(self._config.name), payload, retain=True)
