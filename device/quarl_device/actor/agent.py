"""The agent: one actor towards one broker, from the first connection to a clean end.

Threads: the caller's thread steps environments and does nothing else; the link's thread takes births, pushes and acks;
a ticker renews the birth, sends telemetry, re-sends and flushes slow blocks; the inbox verifies pushes. `ActorSession`
decides under one lock.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl_device import __version__
from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.inbox import Inbox
from quarl_device.actor.outbox import MemoryOutbox
from quarl_device.actor.recorder import Recorder
from quarl_device.actor.session import ActorSession
from quarl_device.actor.single import SingleLoop
from quarl_device.actor.stepping import Loop, LoopConfig
from quarl_device.actor.vector import VectorLoop
from quarl_device.environments import EnvSpec, check_matches, check_registered, make_single, make_vector
from quarl_device.errors import KeyMismatch, PayloadRefused, QuarlError
from quarl_device.link import Link, Message, Will
from quarl_device.runtime import PolicyRuntime
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.keys import PublicKey
from quarl_device.wire.messages import Ack, DeviceState, LearnerBirth, Telemetry, check_wire_version
from quarl_device.wire.topics import Topics

_LOG = logging.getLogger(__name__)
_TICK_S = 0.1
_WAIT_S = 0.2
_TELEMETRY_PERIOD_S = 1.0
_FLUSH_AFTER_S = 1.0
_STEADY_S = 1.0
_PROGRESS_PERIOD_S = 5.0
_HIGHEST_BELIEVABLE_EPOCH = 4_000_000_000  # the year 2096; a forged birth could leave no room for another
_GOODBYE_S = 2.0
_DRAIN_S = 5.0
_HURRIED_DRAIN_S = 1.0


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """What a device says of itself.

    Attributes:
        fleet: name of the fleet.
        name: of the device.
        env: the device's own choice of environment, which may import a module; `None` takes the learner's.
        num_envs: environments stepped as one batch.
        actor_index: picks this actor's exploration value.
        seed: of everything random; `None` takes the learner's.
        block_steps: rows per block; `None` takes the learner's.
        max_steps: stop after so many environment steps; 0 for no limit.
        learner_key: the only key to trust; `None` pins the first that is met.
        exit_when_gone: end when the learner says goodbye.
        connect_timeout_s: for the first connection.
    """

    fleet: str
    name: str
    env: str | None = None
    num_envs: int = 1
    actor_index: int = 0
    seed: int | None = None
    block_steps: int | None = None
    max_steps: int = 0
    learner_key: Path | None = None
    exit_when_gone: bool = False
    connect_timeout_s: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What an agent did.

    Attributes:
        steps: environment steps.
        episodes: finished ones.
        blocks: made.
        blocks_pending: not known to be durable at the end.
        steps_per_s: over the time that was not spent blocked.
        act_us_p50: median time of one policy call.
        policies: swapped in.
        blocked_s: seconds spent standing still, by reason.
        reason: why it ended.
    """

    steps: int
    episodes: int
    blocks: int
    blocks_pending: int
    steps_per_s: float
    act_us_p50: float
    policies: int
    blocked_s: dict[str, float] = field(default_factory=dict)
    reason: str = ""


def gone_state(name: str, boot_id: str, *, why: str = "") -> bytes:
    """Return the payload that says that this device is gone; also its MQTT will."""
    return DeviceState(status="gone", device=name, boot_id=boot_id, package=__version__, blocked=why[:256]).encode()


def new_boot_id() -> str:
    """Return 16 random hex digits."""
    return secrets.token_hex(8)


def will_of(config: AgentConfig, boot_id: str) -> Will:
    """Return the will that the agent's link must carry."""
    return Will(topic=Topics(config.fleet).state(config.name), payload=gone_state(config.name, boot_id))


class Agent:
    """Runs until asked to stop, out of steps, or at fault.

    Args:
        config: see `AgentConfig`.
        link: not connected yet, with `will_of(config, boot_id)`.
        runtime: for policies.
        boot_id: of this life.
    """

    def __init__(self, config: AgentConfig, *, link: Link, runtime: PolicyRuntime, boot_id: str) -> None:
        self._config = config
        self._link = link
        self._runtime = runtime
        self._boot_id = boot_id
        self._topics = Topics(config.fleet)
        self._outbox = MemoryOutbox()
        self._session = ActorSession(self._outbox)
        self._mailbox = Mailbox()
        self._changed = threading.Condition(threading.RLock())
        self._key = PublicKey.from_file(config.learner_key) if config.learner_key else None
        self._birth: LearnerBirth | None = None
        self._loop: Loop | None = None
        self._codec: BlockCodec | None = None
        self._inbox = Inbox(
            runtime=runtime,
            batch_size=config.num_envs,
            actor_index=config.actor_index,
            on_ready=self._policy_ready,
        )
        self._fault: QuarlError | None = None
        self._reason = ""
        self._rebuild = False
        self._connecting = False
        self._link_was_up = False
        self._beat = 0
        self._blocked, self._blocked_since_s = "", time.monotonic()
        self._noted_s = self._blocked_since_s
        self._announced_blocked = ""
        self._bases: dict[int, int] = {}  # the base written into each block that is held
        self._last_refused = -1
        self._progress_due_s = 0.0
        self._blocked_s: dict[str, float] = {}
        self._telemetry_due_s = 0.0
        self._telemetry_steps, self._telemetry_at_s = 0, time.monotonic()
        self._steps_before = 0
        self._episodes_before = 0
        self._policies_before = 0
        self._began_s = time.monotonic()

    # -- the caller's thread -------------------------------------------------------------------------------------------

    def run(self) -> Summary:
        """Act until the end.

        Raises:
            BrokerUnreachable, BrokerRefused: no first connection.
            WireVersionMismatch: the learner speaks another wire version (W10).
            UnknownEnvironment, UnsupportedSpace, SpaceMismatch: no such environment here, or not the learner's spaces.
            EnvironmentMisbehaved: the environment raised or gave NaN.
        """
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick_until, args=(ended,), name="ticker", daemon=True)
        try:
            self._connect()
            ticker.start()
            self._work()
            self._drain(_DRAIN_S if self._out_of_steps else _HURRIED_DRAIN_S)
        except QuarlError as error:
            self._fail(error)
        finally:
            ended.set()
            if ticker.is_alive():
                ticker.join(timeout=2.0)
            self._leave()
        if self._fault is not None:
            raise self._fault
        return self._summary()

    def _connect(self) -> None:
        self._subscribe()
        self._connecting = True
        try:
            if self._mailbox.stop:
                return
            self._link.connect(timeout_s=self._config.connect_timeout_s)
        except KeyboardInterrupt:
            # A signal handler asked for the end and raised, since nothing else ends the wait for a broker.
            if not self._mailbox.stop:
                raise
        finally:
            self._connecting = False

    def stop(self, reason: str = "stopped") -> None:
        """Ask for a clean end; may be called from a signal handler or any thread."""
        self._reason = self._reason or reason
        self._mailbox.ask_stop()

    @property
    def connecting(self) -> bool:
        """Whether `run` waits for its first connection, which only an exception in its thread ends early."""
        return self._connecting

    def _work(self) -> None:
        try:
            while not self._mailbox.stop:
                loop = self._ready_loop()
                with self._changed:
                    blocked = "no learner" if loop is None else self._session.blocked()
                    if self._rebuild:
                        continue
                    self._note_blocked(blocked)
                    if blocked or loop is None:
                        self._changed.wait(_WAIT_S)
                        continue
                self._make_block(loop, self._rows(loop))
        finally:
            if self._loop is not None:
                self._loop.close()

    def _ready_loop(self) -> Loop | None:
        """Return the loop for the learner's environment, made anew when that has changed."""
        with self._changed:
            birth, old = self._birth, self._loop
            if birth is None or (old is not None and not self._rebuild):
                return old
            self._rebuild = False
        # Not under the lock: an environment may take seconds to make.
        if old is not None:
            self._steps_before += old.episodes.steps
            self._episodes_before += old.episodes.episodes
            self._policies_before += old.versions_seen
            self._loop = None
            old.close()
        loop, codec = self._make_loop(birth)
        with self._changed:
            self._loop, self._codec = loop, codec
        return loop

    def _make_loop(self, birth: LearnerBirth) -> tuple[Loop, BlockCodec]:
        config = self._config
        spec = BlockSpec(observations=birth.observations, action=birth.action)
        lockstep = birth.mode == "lockstep"
        if lockstep and (config.seed is not None or config.block_steps is not None):
            _LOG.warning("the learner runs in lockstep: its seed and block size are used, not this device's")
        rows = birth.block_steps if lockstep else config.block_steps or birth.block_steps
        loop_config = LoopConfig(
            env_id=config.env or birth.env_id,
            spec=spec,
            num_envs=config.num_envs,
            max_rows=min(rows, spec.max_steps(config.num_envs)),
            seed=birth.seed if lockstep or config.seed is None else config.seed,
            actor_index=config.actor_index,
            lockstep=lockstep,
        )
        env_spec = EnvSpec(env_id=loop_config.env_id, kwargs={} if config.env else birth.env_kwargs)
        # Only the device's own configuration may name a module to import.
        own = config.env is not None
        check_registered(env_spec.env_id, allow_module=own)
        if config.num_envs == 1:
            env = make_single(env_spec, allow_module=own)
            with _closed_on_error(env):
                check_matches(env, birth.observations, birth.action)
                return SingleLoop(env, loop_config, self._mailbox), BlockCodec(spec)
        vector = make_vector(env_spec, config.num_envs, allow_module=own)
        with _closed_on_error(vector):
            check_matches(vector, birth.observations, birth.action)
            return VectorLoop(vector, loop_config, self._mailbox), BlockCodec(spec)

    def _rows(self, loop: Loop) -> int:
        rows = loop.recorder.max_rows
        if self._config.max_steps:
            left = self._config.max_steps - self._steps
            rows = max(1, min(rows, -(-left // self._config.num_envs)))
        return rows

    def _make_block(self, loop: Loop, rows: int) -> None:
        made = loop.run_block(rows)
        acting = loop.acting
        if made and acting is not None and self._codec is not None:
            with self._changed:
                # A learner with another task, or that makes a lockstep again, has no use for what was made before.
                if not self._rebuild:
                    self._keep_block(loop.recorder, self._codec, acting)
                self._send()
        if self._out_of_steps:
            self.stop("all steps made")

    def _drain(self, timeout_s: float) -> None:
        """Wait until the learner has what was experienced, while there is one that could take it."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while self._session.awaits_insertion and (left_s := deadline_s - time.monotonic()) > 0:
                self._changed.wait(min(left_s, _WAIT_S))

    @property
    def _out_of_steps(self) -> bool:
        return 0 < self._config.max_steps <= self._steps

    def _keep_block(self, recorder: Recorder, codec: BlockCodec, acting: ActingPolicy) -> None:
        sequence, base = self._session.next_sequence, self._session.base
        payload = codec.encode(recorder.block(boot_id=self._boot_id, sequence=sequence, base=base))
        self._session.block_made(payload, epoch=acting.epoch, version=acting.version, now_s=time.monotonic())
        self._bases[sequence] = base

    @property
    def _steps(self) -> int:
        return self._steps_before + (self._loop.episodes.steps if self._loop is not None else 0)

    # -- the link's thread ---------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        self._link.subscribe(self._topics.learner, self._guarded(self._on_learner))
        self._link.subscribe(self._topics.policy, self._guarded(self._on_policy))
        self._link.subscribe(self._topics.ack(self._config.name), self._guarded(self._on_ack), qos=0)
        self._link.on_connect(self._on_connected)

    def _guarded(self, handler: Callable[[Message], None]) -> Callable[[Message], None]:
        def call(message: Message) -> None:
            try:
                handler(message)
            except QuarlError as error:
                # What a peer sends is refused and counted; what can never work here ends the agent.
                _LOG.warning("message on %s refused: %s", message.topic, error)

        return call

    def _on_connected(self) -> None:
        with self._changed:
            self._session.link_changed(up=True, now_s=time.monotonic())
            self._link_was_up = True
            self._announce()
            self._send()
            self._changed.notify_all()

    def _on_learner(self, message: Message) -> None:
        if not message.payload:
            return
        birth = LearnerBirth.decode(message.payload)
        with self._changed:
            if birth.status == "gone":
                if self._session.learner_gone(epoch=birth.epoch) and self._config.exit_when_gone:
                    self.stop("the learner is gone")
            else:
                # Births are not signed: what comes under another key, or from the past, must not end this actor.
                self._check_key(birth)
                if birth.epoch < self._session.epoch:
                    return
                try:
                    check_wire_version(birth.wire, peer="the learner")
                except QuarlError as error:
                    self._fail(error)
                    return
                self._meet(birth)
            self._changed.notify_all()

    def _check_key(self, birth: LearnerBirth) -> None:
        if birth.epoch > _HIGHEST_BELIEVABLE_EPOCH:
            raise PayloadRefused(f"learner birth: epoch {birth.epoch} is not a time")
        if self._key is not None and self._key != PublicKey.from_hex(birth.public_key):
            raise KeyMismatch(
                f"learner epoch {birth.epoch} has key {birth.public_key[:16]}..., pinned is {self._key.hex[:16]}...",
                hint="restart the actor to trust it, or give its key with --learner-key",
            )

    def _meet(self, birth: LearnerBirth) -> None:
        if self._key is None:
            _LOG.warning("pinning the learner's key %s, the first that was met", birth.public_key[:16])
            self._key = PublicKey.from_hex(birth.public_key)
        known = self._birth
        if known is not None and birth.epoch == known.epoch and _task(birth) != _task(known):
            raise PayloadRefused(f"learner epoch {birth.epoch} changed its task; only a new epoch may")
        new_epoch = self._session.learner_online(
            epoch=birth.epoch, beat=birth.beat, lockstep=birth.mode == "lockstep", now_s=time.monotonic()
        )
        if birth.epoch < self._session.epoch:
            return
        self._birth = birth
        if known is not None and new_epoch:
            changed = _task(known) != _task(birth)
            self._rebuild = self._rebuild or changed or birth.mode == "lockstep"
            if changed or birth.mode == "lockstep":
                # Neither blocks nor policies of another task, or of a lockstep that is made again, are of use.
                self._session.drop_pending()
                self._session.policy_lost()
                self._mailbox.policy = None
                self._bases.clear()
                self._mailbox.ask_flush()
        self._inbox.trust(self._key, birth.observations, birth.action, epoch=birth.epoch)
        if new_epoch:
            self._announce()
        self._send()

    def _on_policy(self, message: Message) -> None:
        if message.payload:
            self._inbox.offer(message.payload)

    def _policy_ready(self, acting: ActingPolicy) -> None:
        with self._changed:
            # It may have been on its way while a new learner with another task came.
            if self._birth is not None and not _same_spaces(acting, self._birth):
                return
            self._session.policy_accepted(acting.epoch, acting.version)
            self._mailbox.post_policy(acting)
            self._changed.notify_all()

    def _on_ack(self, message: Message) -> None:
        ack = Ack.decode(message.payload)
        if ack.boot_id != self._boot_id:
            return
        self._note_refused(ack)
        with self._changed:
            before = self._session.base
            self._session.ack(
                epoch=ack.epoch,
                inserted=ack.inserted,
                durable=ack.durable,
                credit=ack.credit,
                now_s=time.monotonic(),
            )
            for freed in range(before, self._session.base):
                self._bases.pop(freed, None)
            self._send()
            self._changed.notify_all()

    def _note_refused(self, ack: Ack) -> None:
        # An ack repeats the refusals of a while.
        for sequence, code in sorted(ack.refused.items()):
            if sequence > self._last_refused:
                self._last_refused = sequence
                _LOG.warning("the learner refused block %d with code %d", sequence, code)

    # -- the ticker's thread -------------------------------------------------------------------------------------------

    def _tick_until(self, ended: threading.Event) -> None:
        while not ended.wait(_TICK_S):
            try:
                self._tick(time.monotonic())
            # Births, re-sends and telemetry must go on whatever went wrong this time.
            except Exception:
                _LOG.exception("tick failed")

    def _tick(self, now_s: float) -> None:
        with self._changed:
            if self._link_was_up and not self._link.connected:
                self._link_was_up = False
                self._session.link_changed(up=False, now_s=now_s)
            self._session.tick(now_s)
            self._tell_blocked(now_s)
            if self._session.announce_due(now_s):
                self._announce()
            self._send()
            loop = self._loop
            if loop is not None and now_s >= self._telemetry_due_s:
                self._telemetry_due_s = now_s + _TELEMETRY_PERIOD_S
                self._link.publish(self._topics.telemetry(self._config.name), self._telemetry(loop, now_s), qos=0)
            if loop is not None:
                self._log_progress(loop, now_s)
            slow = loop is not None and 0 < loop.block_began_s < now_s - _FLUSH_AFTER_S
            if slow and self._birth is not None and self._birth.mode != "lockstep":
                self._mailbox.ask_flush()

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        topic = self._topics.xp(self._config.name)
        while (sequence := self._session.next_to_send()) is not None:
            payload = self._stamped(sequence)
            # Before the publish: on a link in memory the ack comes before it returns.
            self._session.sent(sequence)
            if not self._link.publish(topic, payload):
                self._session.not_taken(sequence)
                return

    def _stamped(self, sequence: int) -> bytes:
        """Return a block with the base of now: a learner that does not know this boot would wait for freed blocks."""
        payload, base = self._outbox.get(sequence), self._session.base
        assert payload is not None  # noqa: S101  what is due is held
        assert self._codec is not None  # noqa: S101  a loop made it
        if self._bases.get(sequence, base) != base:
            payload = self._codec.encode(dataclasses.replace(self._codec.decode(payload), base=base))
        return payload

    def _announce(self) -> None:
        self._beat += 1
        acting = self._loop.acting if self._loop is not None else None
        state = DeviceState(
            status="online",
            device=self._config.name,
            boot_id=self._boot_id,
            beat=self._beat,
            epoch=acting.epoch if acting else 0,
            policy_version=acting.version if acting else 0,
            digest=acting.policy.sha256 if acting else "",
            num_envs=self._config.num_envs,
            actor_index=self._config.actor_index,
            runtime=f"{self._runtime.name} {self._runtime.version}",
            package=__version__,
            blocked=self._blocked,
            blocked_since_unix_s=time.time() - (time.monotonic() - self._blocked_since_s) if self._blocked else 0.0,
        )
        if self._link.publish(self._topics.state(self._config.name), state.encode(), retain=True):
            self._announced_blocked = self._blocked
            self._session.announced(time.monotonic())

    def _note_blocked(self, blocked: str) -> None:
        now_s = time.monotonic()
        if self._blocked:
            self._blocked_s[self._blocked] = self._blocked_s.get(self._blocked, 0.0) + now_s - self._noted_s
        self._noted_s = now_s
        if blocked != self._blocked:
            if blocked not in ("", "no credit", "waiting for the next policy"):
                _LOG.info("standing still: %s", blocked)
            self._blocked, self._blocked_since_s = blocked, now_s

    def _tell_blocked(self, now_s: float) -> None:
        """Renew the birth when what it says of standing still has been untrue for a while; short stops are no news."""
        if self._blocked != self._announced_blocked and now_s - self._blocked_since_s > _STEADY_S:
            self._session.request_announce()

    def _log_progress(self, loop: Loop, now_s: float) -> None:
        if now_s >= self._progress_due_s:
            self._progress_due_s = now_s + _PROGRESS_PERIOD_S
            acting = loop.acting
            _LOG.info(
                "%s steps, %s episodes, mean return %.1f, policy %s%s",
                f"{self._steps:,}",
                f"{self._episodes_before + loop.episodes.episodes:,}",
                loop.episodes.return_mean,
                acting.version if acting else "none",
                f", standing still: {self._blocked}" if self._blocked else "",
            )

    def _telemetry(self, loop: Loop, now_s: float) -> bytes:
        steps = self._steps
        elapsed = max(now_s - self._telemetry_at_s, 1e-9)
        rate = (steps - self._telemetry_steps) / elapsed
        self._telemetry_steps, self._telemetry_at_s = steps, now_s
        acts, pushes = sorted(loop.act_us), list(self._inbox.ready_ms)
        return Telemetry(
            boot_id=self._boot_id,
            steps=steps,
            episodes=self._episodes_before + loop.episodes.episodes,
            steps_per_s=rate,
            act_us_p50=acts[len(acts) // 2] if acts else 0.0,
            act_us_p99=acts[int(0.99 * len(acts))] if acts else 0.0,
            push_ms_p50=max(0.0, statistics.median(pushes)) if pushes else 0.0,
            pushes=self._inbox.accepted,
            pushes_refused=self._inbox.refused,
            blocks_pending=self._session.pending,
            blocks_resent=self._session.resends,
            return_mean=loop.episodes.return_mean,
            handler_errors=self._link.counters.handler_errors,
        ).encode()

    def _fail(self, error: QuarlError) -> None:
        self._fault = self._fault or error
        self.stop("failed")

    def _leave(self) -> None:
        if self._loop is not None and self._link.connected:
            self._link.publish(
                self._topics.telemetry(self._config.name), self._telemetry(self._loop, time.monotonic()), qos=0
            )
        self._link.publish(
            self._topics.state(self._config.name),
            gone_state(self._config.name, self._boot_id, why=f"failed: {self._fault}" if self._fault else ""),
            retain=True,
        )
        self._link.flush(timeout_s=_GOODBYE_S)
        self._inbox.close()
        self._link.close()

    def _summary(self) -> Summary:
        loop = self._loop
        acting_s = time.monotonic() - self._began_s - sum(self._blocked_s.values())
        acts = sorted(loop.act_us) if loop is not None else []
        return Summary(
            steps=self._steps,
            episodes=self._episodes_before + (loop.episodes.episodes if loop is not None else 0),
            blocks=self._session.next_sequence,
            blocks_pending=self._session.pending,
            steps_per_s=self._steps / acting_s if acting_s > 0 else 0.0,
            act_us_p50=acts[len(acts) // 2] if acts else 0.0,
            policies=self._policies_before + (loop.versions_seen if loop is not None else 0),
            blocked_s={reason: round(spent, 3) for reason, spent in self._blocked_s.items()},
            reason=self._reason,
        )


@contextmanager
def _closed_on_error(env: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        env.close()
        raise


def _same_spaces(acting: ActingPolicy, birth: LearnerBirth) -> bool:
    contract = acting.policy.contract
    found, wanted = (
        [(spec.key, spec.shape, spec.dtype) for spec in specs] for specs in (contract.observations, birth.observations)
    )
    return found == wanted and contract.action.n == birth.action.n


def _task(birth: LearnerBirth) -> tuple[object, ...]:
    return (birth.env_id, birth.env_kwargs, birth.observations, birth.action, birth.mode, birth.block_steps)


__all__ = ["Agent", "AgentConfig", "Summary", "gone_state", "new_boot_id", "will_of"]
