"""What an agent says: births, blocks, telemetry, and the farewell."""

from __future__ import annotations

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
from quarl_device.wire.block_stamp import restamped
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
        self._steps = 0  # that this life has made
        self._said_edge_tpu = False

    def announce(self) -> None:
        """Publish the device's birth, or renew it."""
        self._beat += 1
        shared = self._shared
        now_s = time.monotonic()
        if self._link.publish(self._topics.state(self._config.name), self._state(now_s).encode(), retain=True):
            shared.standstill.announced(now_s)
            shared.session.announced(now_s)
            self._said_edge_tpu = self._on_edge_tpu

    @property
    def is_outdated(self) -> bool:
        """Whether the policy that acts has moved between CPU and Edge TPU since the last birth."""
        return self._said_edge_tpu != self._on_edge_tpu

    @property
    def _on_edge_tpu(self) -> bool:
        acting = self._shared.acting
        return acting is not None and acting.edge_tpu

    def _state(self, now_s: float) -> DeviceState:
        acting, standstill = self._shared.acting, self._shared.standstill
        blocked = standstill.lasting(now_s)
        absent_s = self._shared.session.absent_s
        if blocked.startswith("spool full") and absent_s:
            # The learner may have been gone for long before the spool was full.
            blocked += f" since {time.strftime('%H:%M:%S', time.gmtime(time.time() - absent_s))} UTC"
        return DeviceState(
            status="online",
            device=self._config.name,
            boot_id=self._boot_id,
            delivering=self._shared.session.delivering,
            beat=self._beat,
            epoch=acting.epoch if acting else 0,
            policy_version=acting.version if acting else 0,
            digest=acting.policy.sha256 if acting else "",
            num_envs=self._config.num_envs,
            actor_index=self._config.actor_index,
            runtime=self._runtime,
            package=__version__,
            blocked=blocked,
            blocked_since_unix_s=standstill.since_unix_s(now_s, time.time()) if blocked else 0.0,
            edge_tpu=self._on_edge_tpu,
        )

    def keep_block(
        self, recorder: Recorder, codec: BlockCodec, acting: ActingPolicy, *, ends_turn: bool = True
    ) -> None:
        """Encode what was recorded and hold it until the learner has it."""
        session, steps = self._shared.session, recorder.steps
        sequence = session.next_sequence
        # A block that is new has nothing of its life before it but what can still be sent, or what came.
        base = session.base if session.delivering == self._boot_id else 0
        block = recorder.block(boot_id=self._boot_id, sequence=sequence, base=base, first_step=self._steps)
        payload = codec.encode(block)
        session.block_made(
            payload,
            steps=steps,
            first_step=self._steps,
            epoch=acting.epoch,
            version=acting.version,
            now_s=time.monotonic(),
            ends_turn=ends_turn,
        )
        self._steps += steps

    def leave_block(self, recorder: Recorder) -> None:
        """Count what was recorded and is of no use: the learner's account of steps shows that it is missing."""
        self._steps += recorder.steps

    def send_blocks(self) -> None:
        """Send every block that is due, each with the `base` and the gaps of now."""
        session, outbox, topic = self._shared.session, self._shared.outbox, self._topics.xp(self._config.name)
        while (sequence := session.next_to_send(time.monotonic())) is not None:
            payload = outbox.get(sequence)
            if payload is None:
                session.not_held(time.monotonic())
                if outbox.next_held(sequence) == sequence:
                    return  # for now: it is tried again at the next event
                continue
            payload = restamped(payload, base=session.base, dropped=outbox.gap_before(sequence))
            # Before the publish: on a link in memory the ack comes before it returns.
            session.sent(sequence, len(payload))
            if not self._link.publish(topic, payload):
                session.not_taken(sequence)
                return

    def send_telemetry(self, loop: Loop, inbox: Inbox, now_s: float) -> None:
        """Publish rates and counts."""
        shared = self._shared
        payload = shared.tally.telemetry(
            loop,
            self._boot_id,
            inbox=inbox,
            session=shared.session,
            outbox=shared.outbox,
            handler_errors=self._link.counters.handler_errors,
            now_s=now_s,
        )
        self._link.publish(self._topics.telemetry(self._config.name), payload, qos=0)

    def say_goodbye(self) -> None:
        """Publish that this device is gone, and why if it failed."""
        fault = self._shared.fault
        payload = gone_state(self._config.name, self._boot_id, why=f"failed: {fault}" if fault else "")
        self._link.publish(self._topics.state(self._config.name), payload, retain=True)
