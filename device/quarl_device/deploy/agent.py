"""The agent of deploy mode: the machine's hands. It steps one environment, and needs no broker.

Three threads: the main one steps the environment and asks the machine; the worker verifies, self-tests and writes
slots; the ticker looks four times a second for a file that was handed over, and at a policy that does not end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from quarl_device.deploy.acting import Loaded, make_act
from quarl_device.deploy.boot import NOTHING, PREVIOUS_ONLY, SOUND, boot
from quarl_device.deploy.candidates import AlreadyActing, Candidates, as_fault, guarded
from quarl_device.deploy.config import DeployConfig, DeploySummary, OnChange, Report
from quarl_device.deploy.machine import Decision, Deployment, Do, Event, Fault, Kind, Phase, Rules, handle
from quarl_device.deploy.notes import Notes, believable_unix_s, read_notes, write_notes
from quarl_device.deploy.probation import Probation
from quarl_device.deploy.slots import Slot, Slots
from quarl_device.deploy.stepping import TICK_S, Stepping
from quarl_device.deploy.worker import Worker
from quarl_device.environments import first_line
from quarl_device.errors import PolicyFailed, QuarlError, StateUnwritable
from quarl_device.files import is_there
from quarl_device.notify import Notifier
from quarl_device.runtime import PolicyRuntime
from quarl_device.wire.keys import PublicKey
from quarl_device.wire.strict_json import one_line

_LOG = logging.getLogger(__name__)
_LEAVE_S = 5.0
_DISK_PAUSE_S = 30.0
_LOADED_AT_START = 3  # current, previous, and one on probation
_TAKES_OFFERS = (Phase.EMPTY, Phase.WAITING, Phase.SETTLED, Phase.PARKED)
_LOOKS = (Phase.VERIFYING, Phase.TESTING)


class DeployAgent(Stepping):
    """Acts until it is told to stop.

    Args:
        config: see `DeployConfig`.
        slots: the device's, taken by this process.
        key: that policies must be signed by.
        runtime: that they are loaded into.
        on_change: is told at the start and whenever something else acts; called on the stepping thread.
        notifier: tells the service manager; by default nobody.

    Attributes:
        connecting: false; nothing here waits for a peer.

    Raises:
        QuarlError: the environment cannot be made, or limits and safe action do not fit it.
    """

    connecting = False

    def __init__(
        self,
        config: DeployConfig,
        *,
        slots: Slots,
        key: PublicKey,
        runtime: PolicyRuntime,
        on_change: OnChange = lambda _: None,
        notifier: Notifier | None = None,
    ) -> None:
        super().__init__(config, notifier=notifier)
        self._slots, self._on_change = slots, on_change
        self._rules: Rules = replace(config.rules, has_safe_action=self._guard.safe_action is not None)
        self._candidates = Candidates(
            slots=slots,
            key=key,
            runtime=runtime,
            world=self._world,
            env_id=config.env.env_id,
            wrappers=config.env.wrappers,
        )
        self._events: deque[Event] = deque()
        self._changed = threading.Event()
        self._state = Deployment(phase=Phase.EMPTY, since_s=time.monotonic())
        self._notes, self._dirty, self._noted_s = Notes(), False, time.monotonic()
        self._acted = ""
        self._probation: Probation | None = None
        self._worker = Worker()
        self._began_s = time.monotonic()
        self._no_offer_before_s = 0.0
        self._first_look = False

    def run(self) -> DeploySummary:
        """Act until stopped, or until all episodes or steps are made.

        Raises:
            EnvironmentMisbehaved: the environment raised, or gave NaN and there is no safe action.
        """
        ticker = threading.Thread(target=self._tick, name="ticker", daemon=True)
        raised = False
        # What lies on the disk is loaded here, for which nobody else has an eye yet.
        boot = threading.Timer(_LOADED_AT_START * self._rules.work_s, self._die_at_the_start)
        boot.daemon = True
        boot.start()
        try:
            self._boot()
            boot.cancel()
            ticker.start()
            self._await_first()
            self._notifier.ready()
            while not self._reason:
                self._attend()
                if self._act is None:
                    self._changed.wait(TICK_S)
                elif not self._reason:
                    self._play()
        except Exception as error:
            self._reason, raised = one_line(f"error: {error}", max_length=200), True
            raise
        finally:
            boot.cancel()
            self._leave(ticker, raised=raised)
        return self._summary()

    # -- start and end

    def _boot(self) -> None:
        """Find out from the slots what may act."""
        notes, why_none = read_notes(self._slots.notes_path)
        if why_none and is_there(self._slots.notes_path):
            _LOG.warning("%s: the slots themselves say what is there", why_none)
        guarded(self._slots.recover)
        if notes.clean:
            guarded(self._slots.examine_again)
        self._notes = replace(notes, env_id=self._config.env.env_id[:128])
        # Before anything is loaded that may end this process.
        fresh = replace(self._notes, clean=False, starts=1 if notes.clean else notes.starts + 1)
        if not self._write(fresh):
            # A disk that takes no notes would say at every start that the last one had ended cleanly.
            notes = replace(notes, clean=False)
        found = self._candidates.look(notes, self._rules)
        booted = boot(found, self._rules, now_s=time.monotonic())
        self._state = booted.state
        self._notes = replace(self._notes, clean=False, starts=booted.starts, level=booted.level)
        failed: Exception | None = None
        if booted.state.phase is Phase.PROBATION:
            try:
                self._candidates.load_trial()
            except Exception as error:
                failed = error
        for decision in booted.decisions:
            self._carry_out(decision)
        self._change(None)
        if failed is not None:
            self._fail(failed)

    def _await_first(self) -> None:
        """Have a policy that lies there looked at; where nothing may act, not even the safe action, wait for it.

        What else acts goes on meanwhile, but `--episodes` and `--steps`, meant for the policy, count afterwards.
        """
        if self._state.phase in _TAKES_OFFERS and self._slots.there(Slot.INCOMING):
            self._first_look = True
            self._count_nothing()
            self._happen(Kind.OFFERED)
        while self._act is None and self._state.phase in _LOOKS and not self._reason:
            self._changed.wait(TICK_S)
            self._attend()

    def _leave(self, ticker: threading.Thread, *, raised: bool) -> None:
        self._reason = self._reason or "stopped"
        self._notifier.stopping(self._reason)
        self._changed.set()
        if ticker.is_alive():
            ticker.join(_LEAVE_S)
        self._worker.close(timeout_s=_LEAVE_S)
        self._attend()  # a slot may have been written meanwhile
        # An error of the environment is an orderly end, for which no settled policy is suspected. One on probation is:
        # its actions may be what the environment raises at, and begun anew at each start it would do so for ever.
        suspected = raised and self._state.phase in (Phase.PROBATION, Phase.SETTLING)
        notes = self._snapshot()
        self._write(notes if suspected else replace(notes, clean=True, starts=0))
        self._world.close()
        self._slots.release()

    def _summary(self) -> DeploySummary:
        acting = self._candidates.loaded.get(self._state.acting)
        return DeploySummary(
            reason=self._reason,
            phase=self._state.phase,
            digest=acting.signed.header.sha256 if acting else "",
            version=acting.signed.name if acting else "",
            steps=self._steps,
            episodes=self._episodes,
            return_mean=self._return_mean,
            counters=self._snapshot().counters,
            fault=self._state.fault,
        )

    # -- the machine

    def _begin_episode(self) -> None:
        if self._state.acting in self._candidates.loaded:
            self._candidates.loaded[self._state.acting].policy.begin_episode()

    def _episode_ended(self, steps: int) -> None:
        if self._probation is not None:
            self._probation.end_episode(steps)
            if self._probation.failure:
                self._fail(PolicyFailed(self._probation.failure))
        if self._episodes == self._config.probation.episodes and self._state.phase in (Phase.SETTLED, Phase.PARKED):
            self._happen(Kind.PASSED)
        self._attend()
        self._happen(Kind.BOUNDARY)

    def _attend(self) -> None:
        """Handle what has happened, on the stepping thread."""
        self._notifier.alive()
        self._raised = False
        self._changed.clear()
        while self._events:
            event = self._events.popleft()
            late = event.kind is Kind.FAILED and event.fault is not None and event.fault.digest != self._state.acting
            if not late:  # else what failed has been replaced since
                self._handle(event)
        probation = self._probation
        if probation is not None and probation.passed and self._state.phase is Phase.PROBATION:
            self._happen(Kind.PASSED)
        now_s = time.monotonic()
        if self._notes.starts and now_s - self._began_s > self._config.life_s:
            # Behind a crash loop that ended in the safe action, the next start tries the last good policy again.
            level = PREVIOUS_ONLY if self._notes.level == NOTHING else self._notes.level
            self._notes, self._dirty = replace(self._notes, starts=0, level=level), True
        if self._dirty or now_s - self._noted_s > self._config.notes_s:
            self._dirty, self._noted_s = False, now_s
            self._worker.do(partial(self._write, self._snapshot()))

    def _post(self, event: Event) -> None:
        """Have the stepping thread handle an event, from any thread."""
        self._events.append(event)
        self._raised = True
        self._changed.set()

    def _happen(self, kind: Kind, *, fault: Fault | None = None) -> None:
        self._handle(Event(kind=kind, now_s=time.monotonic(), fault=fault))

    def _handle(self, event: Event) -> None:
        before = self._state
        self._state, decisions = handle(before, event, self._rules)
        for decision in decisions:
            self._carry_out(decision)
        if self._state != before:
            self._change(before)

    def _change(self, before: Deployment | None) -> None:
        """Note and tell what is new."""
        state, self._dirty = self._state, True
        if self._first_look and state.phase not in _LOOKS:
            self._first_look = False
            self._count_from_here()
        acting = self._candidates.loaded.get(state.acting)
        if before is None or (before.phase, before.acting) != (state.phase, state.acting):
            name = f"version {acting.signed.name}" if acting else self._resting_words()
            _LOG.info("%s: %s acts", state.phase, name)
            self._notifier.status(f"{state.phase}: {name} acts")
            self._notes = replace(self._notes, since_unix_s=believable_unix_s(time.time()))
        if before is None or before.acting != state.acting:
            self._notes = replace(self._notes, activated_unix_s=believable_unix_s(time.time()))
        known = self._notes.fault if before is None else before.fault
        if state.fault is not None and state.fault != known:
            _LOG.warning("fault %d: %s", state.fault.code, state.fault.message)
            self._notes = replace(self._notes, fault_unix_s=believable_unix_s(time.time()))
        header = acting.signed.header if acting else None
        self._on_change(
            Report(
                phase=state.phase,
                digest=header.sha256 if header else "",
                epoch=header.epoch if header else 0,
                version=header.version if header else 0,
                fault=state.fault,
            )
        )

    def _resting_words(self) -> str:
        return "nothing" if self._guard.safe_action is None else "the safe action"

    def _fail(self, error: Exception) -> None:
        """What acts has failed."""
        said = error if isinstance(error, QuarlError) else PolicyFailed(f"{type(error).__name__}: {first_line(error)}")
        fault = Fault(code=said.code, message=one_line(said.message, max_length=300), digest=self._state.acting)
        self._tally.fallbacks += 1
        self._happen(Kind.FAILED, fault=fault)

    # -- decisions

    def _carry_out(self, decision: Decision) -> None:
        do, digest, ticket = decision.do, decision.digest, decision.ticket
        if do is Do.ACT:
            self._let_act(digest)
        elif do is Do.VERIFY:
            self._worker.do(partial(self._verify, ticket))
        elif do is Do.TEST:
            self._worker.do(partial(self._test, ticket))
        elif do is Do.BEGIN:
            self._begin(ticket)
        elif do in (Do.COMMIT, Do.COMMIT_OVER):
            self._worker.do(partial(self._commit, ticket, over=do is Do.COMMIT_OVER))
        elif do is Do.CALM:
            self._notes = replace(self._notes, starts=0, level=PREVIOUS_ONLY if self._state.distrusted else SOUND)
            self._candidates.forget_all_but((self._state.acting, *self._state.good))
            self._dirty = True
        else:
            self._clear_away(do, digest)

    def _clear_away(self, do: Do, digest: str) -> None:
        slots = self._slots
        if do is Do.ABANDON:
            self._worker.abandon()
        elif do is Do.REFUSE:
            self._worker.do(partial(guarded, slots.refuse))
        else:
            self._worker.do(partial(guarded, partial(slots.reject if do is Do.REJECT else slots.drop, digest)))
            if digest not in (self._state.acting, *self._state.good):
                self._candidates.loaded.pop(digest, None)

    def _let_act(self, digest: str) -> None:
        """Have a policy, or the safe action, choose from the next step on."""
        loaded = self._candidates.loaded.get(digest)
        on_probation = self._state.phase is Phase.PROBATION and loaded is not None
        self._probation = Probation(self._config.probation) if on_probation else None
        if loaded is None:
            self._act = None if self._guard.safe_action is None else self._safe
            if digest:
                fault = Fault(code=PolicyFailed.code, message="a policy that is not loaded was to act", digest=digest)
                self._post(Event(kind=Kind.FAILED, now_s=time.monotonic(), fault=fault))
            return
        if digest != self._acted:
            loaded.policy.begin_episode()
        self._acted = digest
        self._act = make_act(self._world, loaded, self._guard, self._busy, probation=self._probation)

    def _begin(self, ticket: int) -> None:
        # Here and not on the worker: it must be on the disk before the first action, and comes once in a policy's life.
        self._tally.accepted += 1
        fault = guarded(self._slots.begin)
        if fault is not None:
            self._post(Event(kind=Kind.NOT_STORED, now_s=time.monotonic(), ticket=ticket, fault=fault))

    def _verify(self, ticket: int) -> None:
        if not self._slots.there(Slot.INCOMING):
            self._answer(ticket, Kind.REFUSED)
            return
        good = self._state.good
        acting = self._candidates.loaded.get(good[0]) if good else None
        verify = partial(self._candidates.verify, _signed(acting), busy_with=self._state.acting)
        self._answered(ticket, Kind.HOLDS, verify)

    def _test(self, ticket: int) -> None:
        self._answered(ticket, Kind.READY, partial(self._candidates.test, lambda: self._state.ticket == ticket))

    def _commit(self, ticket: int, *, over: bool) -> None:
        fault = guarded(partial(self._slots.commit, over=over))
        self._answer(ticket, Kind.STORED if fault is None else Kind.NOT_STORED, fault=fault)

    def _answered(self, ticket: int, kind: Kind, work: Callable[[], str | None]) -> None:
        """Do a candidate's work on the worker, and answer with what came of it."""
        try:
            self._answer(ticket, kind, digest=work() or "")
        except AlreadyActing:
            _LOG.info("the policy that was handed over is the one that acts")
            self._answer(ticket, Kind.REFUSED)
        # A hostile file may provoke anything; the worker must live.
        except Exception as error:
            self._tally.refused += 1
            if isinstance(error, StateUnwritable):
                self._no_offer_before_s = time.monotonic() + _DISK_PAUSE_S
            said = as_fault(error)
            self._answer(ticket, Kind.REFUSED, fault=replace(said, message=f"refused: {said.message}"))

    def _answer(self, ticket: int, kind: Kind, *, digest: str = "", fault: Fault | None = None) -> None:
        self._post(Event(kind=kind, now_s=time.monotonic(), ticket=ticket, digest=digest, fault=fault))

    # -- ticker and notes

    def _tick(self) -> None:
        told = False
        while not self._reason:
            try:
                self._look_around(time.monotonic())
            # Without this thread no hang would be seen, and no deadline would pass.
            except Exception:
                if not told:
                    _LOG.exception("the ticker goes on after an error that nobody foresaw, told once")
                told = True
            time.sleep(TICK_S)

    def _look_around(self, now_s: float) -> None:
        since_s = self._busy.since_s
        if since_s and now_s - since_s > self._config.hang_s:
            self._die_of_a_hang(now_s - since_s)
        self._post(Event(kind=Kind.TICK, now_s=now_s))
        takes = now_s >= self._no_offer_before_s and self._state.phase in _TAKES_OFFERS
        if takes and self._slots.there(Slot.INCOMING):
            self._post(Event(kind=Kind.OFFERED, now_s=now_s))

    def _die_of_a_hang(self, hung_s: float) -> None:
        """End this process: a call that does not return can be left in no other way; the next start falls back."""
        fault = Fault(code=55, message=f"an action has not ended after {hung_s:.1f} s", digest=self._state.acting)
        _LOG.critical("fault %d: %s; this process ends, and the next start falls back", fault.code, fault.message)
        # On a thread of its own, since a disk may hang too.
        last = threading.Thread(target=self._write, args=(replace(self._snapshot(), fault=fault),), daemon=True)
        last.start()
        last.join(1.0)
        os._exit(PolicyFailed.code)

    def _die_at_the_start(self) -> None:
        """End a process that does not come to act: notes say already that this start did not end cleanly."""
        _LOG.critical("fault %d: loading the policies has not ended; this process ends", PolicyFailed.code)
        os._exit(PolicyFailed.code)

    def _snapshot(self) -> Notes:
        state, counters, tally = self._state, self._notes.counters, self._tally
        fresh = replace(
            counters,
            steps=counters.steps + self._steps,
            episodes=counters.episodes + self._episodes,
            limited=counters.limited + self._busy.limited,
            **{name: getattr(counters, name) + value for name, value in vars(tally).items()},
        )
        return replace(self._notes, phase=state.phase, acting=state.acting, fault=state.fault, counters=fresh)

    def _write(self, notes: Notes) -> bool:
        """Return whether the disk has taken the notes."""
        try:
            write_notes(self._slots.notes_path, notes)
        except StateUnwritable as error:
            _LOG.warning("%s", error)
            return False
        return True


def _signed(loaded: Loaded | None) -> Any:
    return None if loaded is None else loaded.signed
