"""The agent: one actor towards one broker, from the first connection to a clean end.

Threads: the caller's thread steps environments and does nothing else (here); the link's thread takes births, pushes and
acks (`listener`); a ticker renews the birth, sends telemetry, re-sends and flushes slow blocks (`ticker`); the inbox
verifies pushes (`inbox`). `ActorSession` decides, and what they share is under one lock (`shared`).
"""

from __future__ import annotations

import logging
import time

from quarl_device.actor.identity import AgentConfig, gone_state, new_boot_id, will_of
from quarl_device.actor.listener import Listener
from quarl_device.actor.live_slot import LiveSlot
from quarl_device.actor.outbox import MemoryOutbox, Outbox
from quarl_device.actor.session import SessionConfig
from quarl_device.actor.shared import Shared
from quarl_device.actor.speaker import Speaker
from quarl_device.actor.stepping import Loop
from quarl_device.actor.tally import Summary
from quarl_device.actor.task import make_loop
from quarl_device.actor.ticker import Ticker
from quarl_device.capped_log import Fading
from quarl_device.errors import BrokerUnreachable, LinkError, QuarlError
from quarl_device.link import Link
from quarl_device.notify import Notifier, linger
from quarl_device.runtime import PolicyRuntime

_LOG = logging.getLogger(__name__)
_WAIT_S = 0.2
_MEET_AGAIN_S = 2.0
_GOODBYE_S = 2.0
_DRAIN_S = 5.0
_HURRIED_DRAIN_S = 1.0


class Agent:
    """Runs until asked to stop, out of steps, or at fault.

    Args:
        config: see `AgentConfig`.
        link: not connected yet, with `will_of(config, boot_id)`.
        runtime: for policies.
        boot_id: of this life.
        outbox: keeps the blocks, and may hold some of earlier lives; closed at the end. By default memory.
        notifier: tells the service manager; by default nobody.
        live: keeps the newest policy on the disk; by default nothing does.

    Raises:
        KeyFileError: the learner's key file is missing or holds no key.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        link: Link,
        runtime: PolicyRuntime,
        boot_id: str,
        outbox: Outbox | None = None,
        notifier: Notifier | None = None,
        live: LiveSlot | None = None,
    ) -> None:
        self._config = config
        self._link = link
        session = SessionConfig(
            max_offline_s=config.max_offline_s,
            max_offline_blocks=config.max_offline_blocks,
            max_upload_bytes_per_s=config.max_upload_bytes_per_s,
        )
        outbox = MemoryOutbox(boot_id) if outbox is None else outbox
        self._shared = shared = Shared(outbox, session, notifier=notifier)
        named = f"{runtime.name} {runtime.version}"
        self._speaker = Speaker(config, boot_id=boot_id, link=link, shared=shared, runtime=named)
        keep = {} if live is None else {"keep": live.note}
        self._listener = Listener(
            config, boot_id=boot_id, link=link, runtime=runtime, shared=shared, speaker=self._speaker, **keep
        )
        self._live = live
        self._ticker = Ticker(link, shared=shared, speaker=self._speaker, inbox=self._listener.inbox, live=live)
        self._connecting = False
        self._unmet = Fading()

    def run(self) -> Summary:
        """Act until the end.

        Raises:
            BrokerUnreachable, BrokerRefused: no first connection; a service manager has it wait for an absent broker.
            WireVersionMismatch: the learner speaks another wire version (W10).
            UnknownEnvironment, UnsupportedSpace, SpaceMismatch: no such environment here, or not the learner's spaces.
            MissingExtra: the environment's own dependency is not installed.
            EnvironmentMisbehaved: the environment raised or gave NaN.
        """
        shared = self._shared
        try:
            self._connect()
            shared.notifier.ready("no learner")
            self._ticker.start()
            self._work()
            shared.notifier.stopping(shared.reason)
            self._drain(_DRAIN_S if self._out_of_steps else _HURRIED_DRAIN_S)
        except QuarlError as error:
            shared.fail(error)
        finally:
            self._ticker.stop()
            shared.notifier.stopping(f"failed: {shared.fault.message}" if shared.fault else shared.reason)
            self._leave()
            if self._live is not None:
                self._live.flush()
            with shared.changed:
                shared.outbox.close()
        if shared.fault is not None:
            raise shared.fault
        return shared.tally.summary(shared.session, shared.outbox, shared.standstill, shared.reason)

    def stop(self, reason: str = "stopped") -> None:
        """Ask for a clean end; may be called from a signal handler or any thread."""
        self._shared.stop(reason)

    @property
    def connecting(self) -> bool:
        """Whether `run` waits for its first connection, which only an exception in its thread ends early."""
        return self._connecting

    def _connect(self) -> None:
        self._listener.subscribe(self._link)
        self._connecting = True
        try:
            while not self._shared.mailbox.stop and not self._met():
                with self._shared.changed:
                    self._shared.changed.wait(_MEET_AGAIN_S)
        except KeyboardInterrupt:
            # A signal handler asked for the end and raised, since nothing else ends the wait for a broker.
            if not self._shared.mailbox.stop:
                raise
        finally:
            self._connecting = False

    def _met(self) -> bool:
        """Return whether there is a connection; under a service manager one that nobody answers is waited for.

        It would start this process anew, and give it up after so many times, where nothing is wrong with this board.
        """
        notifier = self._shared.notifier
        try:
            self._link.connect(timeout_s=self._config.connect_timeout_s)
        except BrokerUnreachable as error:
            if not notifier.is_heard:
                raise
            notifier.ready(f"waits for a broker: {error.message}")
            if self._unmet.is_due("", time.monotonic()):
                _LOG.warning("%s; waiting for it", error)
            notifier.alive()
            return False
        except LinkError as error:
            linger(notifier, error.message, ended=lambda: self._shared.mailbox.stop)
            raise
        return True

    def _work(self) -> None:
        shared = self._shared
        try:
            while not shared.mailbox.stop:
                loop = self._ready_loop()
                shared.notifier.alive()
                with shared.changed:
                    if shared.rebuild:
                        continue
                    blocked = "no learner" if loop is None else shared.session.blocked()
                    shared.standstill.note(blocked, time.monotonic())
                    if blocked or loop is None:
                        shared.changed.wait(_WAIT_S)
                        continue
                self._make_block(loop, self._rows(loop))
        finally:
            if shared.loop is not None:
                shared.loop.close()

    def _ready_loop(self) -> Loop | None:
        """Return the loop for the learner's environment, made anew when that has changed."""
        shared = self._shared
        with shared.changed:
            birth, old = shared.birth, shared.loop
            if birth is None or (old is not None and not shared.rebuild):
                return old
            shared.rebuild = False
            shared.tally.retire()
        # Not under the lock: an environment may take seconds to make.
        if old is not None:
            old.close()
        loop, codec = make_loop(self._config, birth, shared.mailbox)
        with shared.changed:
            shared.tally.loop, shared.codec = loop, codec
        return loop

    def _rows(self, loop: Loop) -> int:
        rows = min(loop.recorder.max_rows, loop.round_left or loop.recorder.max_rows)
        if self._config.max_steps:
            left = self._config.max_steps - self._shared.tally.steps
            rows = max(1, min(rows, -(-left // self._config.num_envs)))
        return rows

    def _make_block(self, loop: Loop, rows: int) -> None:
        shared = self._shared
        made = loop.run_block(rows)
        if made and loop.acting is not None and shared.codec is not None:
            with shared.changed:
                # A learner with another task, or that makes a lockstep again, has no use for what was made before.
                if shared.rebuild:
                    self._speaker.leave_block(loop.recorder)
                else:
                    self._speaker.keep_block(loop.recorder, shared.codec, loop.acting, ends_turn=not loop.round_left)
                self._speaker.send_blocks()
        if self._out_of_steps:
            self.stop("all steps made")

    def _drain(self, timeout_s: float) -> None:
        """Wait until the learner has what was experienced, while there is one that could take it."""
        deadline_s = time.monotonic() + timeout_s
        with self._shared.changed:
            while self._shared.session.awaits_insertion and (left_s := deadline_s - time.monotonic()) > 0:
                self._shared.changed.wait(min(left_s, _WAIT_S))

    @property
    def _out_of_steps(self) -> bool:
        return 0 < self._config.max_steps <= self._shared.tally.steps

    def _leave(self) -> None:
        with self._shared.changed:
            if self._shared.loop is not None and self._link.connected:
                self._speaker.send_telemetry(self._shared.loop, self._listener.inbox, time.monotonic())
            self._speaker.say_goodbye()
        self._link.flush(timeout_s=_GOODBYE_S)
        self._listener.close()
        self._link.close()


__all__ = ["Agent", "AgentConfig", "Summary", "gone_state", "new_boot_id", "will_of"]
