"""Tells the fleet's broker what acts in deploy mode: births, a will, a goodbye. Nobody who acts ever waits for it.

All of it happens on a thread of its own. The stepping thread leaves a report and goes on, whether a broker is there,
refuses, lies or falls silent. What joins the fleet is made anew at each attempt: credentials may be renewed, and a
board without a battery learns only later that it is not 1970.

A second device of the name (see `actor.namesakes`) ends an actor. Here a robot hangs on the process, so it goes on to
act, and only falls silent for a while, so that the two do not throw each other off without end.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from quarl_device import __version__
from quarl_device.actor.identity import gone_state
from quarl_device.actor.namesakes import Namesakes
from quarl_device.capped_log import CappedWarnings, Fading
from quarl_device.deploy.config import Report
from quarl_device.errors import IdInUse, LinkLost, QuarlError
from quarl_device.link import Backoff, Link, Message
from quarl_device.wire.messages import DeviceState
from quarl_device.wire.strict_json import MAX_REASON, one_line
from quarl_device.wire.topics import Topics

_LOG = logging.getLogger(__name__)
_CONNECT_S = 10.0
_AGAIN_S = 1.0
_GOODBYE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A device as a member of a fleet.

    Attributes:
        link: not connected yet, with `gone_state` as its will.
        fleet: that it is in.
        name: its own.
    """

    link: Link
    fleet: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a herald waits for what.

    Attributes:
        backoff: between attempts to join.
        silence_s: after a second device of the name was heard.
        rejoin_s: a link that has been down for so long is given up, and joined with whatever credentials lie there now.
        renew_s: between births that say nothing new, as actors renew theirs.
    """

    backoff: Backoff = field(default_factory=lambda: Backoff(base_s=1.0, cap_s=60.0))
    silence_s: float = 600.0
    rejoin_s: float = 600.0
    renew_s: float = 10.0


class Herald:
    """Speaks for a deploying agent.

    Args:
        join: makes the link to the fleet, at each attempt; may raise QuarlError.
        boot_id: of this life.
        runtime: name and version of the inference runtime.
        patience: see `Patience`.

    Attributes:
        last_error: why the last attempt failed, "" if it did not.
    """

    def __init__(
        self, join: Callable[[], Joined], *, boot_id: str, runtime: str = "", patience: Patience | None = None
    ) -> None:
        self._join = join
        self._boot_id = boot_id
        self._runtime = runtime
        self._patience = patience or Patience()
        self._report: Report | None = None
        self._news = threading.Event()
        self._dirty = False
        self._ended = threading.Event()
        self._why = ""
        self._clash: IdInUse | None = None
        self._beat = 0
        self._blocked_since_unix_s = 0.0
        self._link: Link | None = None
        self._refused = CappedWarnings(_LOG)
        self._said = Fading()
        self.last_error = ""
        # Devices that boot together must not come back in one wave.
        self._rng = random.Random()  # noqa: S311
        self._thread = threading.Thread(target=self._run, name="herald", daemon=True)

    def start(self) -> None:
        """Begin to join."""
        self._thread.start()

    def report(self, report: Report) -> None:
        """Take what acts from now on; never waits."""
        self._report = report
        self._dirty = True
        self._news.set()

    def close(self, *, why: str = "") -> None:
        """Say goodbye where somebody listens, and end; never raises, takes a few seconds at most."""
        self._why = why
        self._ended.set()
        self._news.set()
        link = self._link
        if link is not None and not link.connected:
            link.close(timeout_s=0.0)  # ends a wait for a first connection
        if self._thread.is_alive():
            self._thread.join(2 * _GOODBYE_S)

    def _run(self) -> None:
        failures = 0
        while not self._ended.is_set():
            began_s = time.monotonic()
            try:
                self._serve(self._join())
            except QuarlError as error:
                self._tell_why(error)
            # Whatever a network stack or a hostile peer provokes, this thread tries again, and nobody else notices.
            except Exception as error:
                self._tell_why(QuarlError(f"{type(error).__name__}: {error}"))
            failures = 0 if time.monotonic() - began_s > self._patience.rejoin_s else failures + 1
            clash, self._clash = self._clash, None
            delay_s = self._patience.backoff.delay_s(failures, self._rng)
            self._ended.wait(delay_s if clash is None else self._patience.silence_s)

    def _tell_why(self, error: QuarlError) -> None:
        self.last_error = one_line(str(error), max_length=MAX_REASON)
        if not self._ended.is_set() and self._said.is_due(error.code, time.monotonic()):
            _LOG.warning("the fleet does not hear of this device, which acts all the same: %s", self.last_error)

    def _serve(self, joined: Joined) -> None:
        """Connect, and tell what there is to tell until the end.

        Raises:
            QuarlError: no connection, none for long, or another device of the name.
        """
        link, topic = joined.link, Topics(joined.fleet).state(joined.name)
        self._link = link
        namesakes = Namesakes(joined.name, self._boot_id)
        link.subscribe(topic, lambda message: self._heard(message, namesakes), qos=0)
        link.on_connect(self._connected)
        try:
            if not self._ended.is_set():
                link.connect(timeout_s=_CONNECT_S)
            self._speak(link, topic, joined.name)
            if self._clash is not None:
                raise self._clash
            link.publish(topic, gone_state(joined.name, self._boot_id, why=self._why, mode="deploy"), retain=True)
            link.flush(timeout_s=_GOODBYE_S)
        finally:
            self._link = None
            link.close()

    def _speak(self, link: Link, topic: str, name: str) -> None:
        heard_s = time.monotonic()
        renew_s = heard_s
        while not self._ended.is_set() and self._clash is None:
            self._news.clear()
            now_s = time.monotonic()
            if link.connected:
                heard_s, self.last_error = now_s, ""
            elif now_s - heard_s > self._patience.rejoin_s:
                raise LinkLost(f"no connection for {now_s - heard_s:.0f} s")
            if (self._dirty or now_s >= renew_s) and self._report is not None:
                self._dirty = False  # before it is read: what comes meanwhile is told next
                if link.publish(topic, self._birth(self._report, name), retain=True):
                    renew_s = now_s + self._patience.renew_s
                else:
                    self._dirty = True
            # News that no connection takes are told by the next one, which wakes this thread too.
            self._news.wait(_AGAIN_S if self._dirty else max(0.0, renew_s - now_s))

    def _birth(self, report: Report, name: str) -> bytes:
        self._beat += 1
        blocked = "" if report.digest else "no policy"
        self._blocked_since_unix_s = (self._blocked_since_unix_s or time.time()) if blocked else 0.0
        return birth_of(
            report,
            device=name,
            boot_id=self._boot_id,
            beat=self._beat,
            runtime=self._runtime,
            blocked=blocked,
            blocked_since_unix_s=max(0.0, self._blocked_since_unix_s),
        ).encode()

    # -- on the link's thread

    def _connected(self) -> None:
        self._dirty = True
        self._news.set()

    def _heard(self, message: Message, namesakes: Namesakes) -> None:
        if not message.payload:
            return
        try:
            state = DeviceState.decode(message.payload)
        except QuarlError as error:
            self._refused.warning("message on %s refused: %s", message.topic, error)
            return
        clash = namesakes.heard(state.boot_id, time.monotonic())
        if clash is not None:
            self._clash = clash
            self._news.set()


def birth_of(
    report: Report,
    *,
    device: str,
    boot_id: str,
    beat: int,
    runtime: str,
    blocked: str = "",
    blocked_since_unix_s: float = 0.0,
) -> DeviceState:
    """Return what a report says to the fleet.

    Args:
        report: what acts.
        device: the device's name.
        boot_id: of this life.
        beat: counts what was said in it.
        runtime: name and version.
        blocked: why no policy acts, "" if one does.
        blocked_since_unix_s: since when.
    """
    fault = report.fault
    return DeviceState(
        status="online",
        device=device,
        boot_id=boot_id,
        beat=beat,
        mode="deploy",
        epoch=report.epoch,
        policy_version=report.version,
        digest=report.digest,
        runtime=runtime[:128],
        package=__version__,
        blocked=blocked,
        blocked_since_unix_s=blocked_since_unix_s,
        fault="" if fault is None else f"{fault.code}: {fault.message}",
    )
