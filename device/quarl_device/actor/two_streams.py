"""Which of two streams of pushes an actor with an Edge TPU acts with, as pure decisions: no clock, no thread, no IO.

The learner pushes every policy on `live/policy`, and every so many of them, compiled, a few seconds later on
`live/edgetpu`. A compiled one is therefore always behind the newest. If the actor followed every plain push meanwhile,
each compiled one would come too late to be news (W3: never backwards, whichever stream it comes by), and the TPU would
never act. So, while compiled pushes come, the actor stays with the version that it has until

* a later compiled one is there, which acts at once, or
* that version was replaced `max_lag_s` ago: then the newest plain one acts on the CPU.

Where no compiled push was heard of for `max_lag_s`, the last ones came too late to be news, or the last one could not
be loaded, plain pushes act as they come.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

from quarl_device.delegate_spec import COMPILED_LAG_S
from quarl_device.errors import PayloadRefused
from quarl_device.wire.push import PushHeader, newer

_FIRST_REST_S, _MAX_REST_S = 30.0, 600.0
_ARRIVALS_KEPT = 4_096
_LATE_ONES, _TRY_EVERY = (
    2,
    10,
)  # the first compiled push of a run is always behind; whether later ones are is tried again
_NEVER = float("inf")

Version = tuple[int, int]


class Verdict(Enum):
    """What to do with a push.

    `TAKE` it; `WAIT`: it may be due later; `IGNORE`: it is not news, or its stream rests after a failure.
    """

    TAKE = auto()
    WAIT = auto()
    IGNORE = auto()


class TwoStreams:
    """Decides about the pushes of both streams, together.

    Args:
        edge_tpu: whether compiled files run here; without, plain pushes are taken as they come.
        max_lag_s: how long a version that was replaced may act where a compiled one is awaited; 0: not at all, so that
            compiled ones act where they are the newest alone.

    Attributes:
        latest: (epoch, version) of the policy that was taken last, whichever stream it came by.
    """

    def __init__(self, *, edge_tpu: bool, max_lag_s: float = COMPILED_LAG_S) -> None:
        self.latest: Version = (-1, -1)
        self._edge_tpu = edge_tpu
        self._max_lag_s = max_lag_s
        self._heard: tuple[int, float] = (-1, -_NEVER)  # epoch of the last compiled push, and when it came
        self._arrivals: deque[tuple[Version, float]] = deque()  # of versions newer than `latest`, ascending
        self._failures = 0
        self._late = 0  # compiled pushes since one that was news
        self._compiled: Version = (-1, -1)  # the last one, which may come again
        self._rests_until_s = -_NEVER

    def judge(self, header: PushHeader, now_s: float) -> Verdict:
        """Decide about a push whose signature holds.

        Args:
            header: as signed.
            now_s: monotonic time.

        Raises:
            PayloadRefused: it is compiled for the Edge TPU, and nothing here runs that.
        """
        if header.edge_tpu:
            return self._judge_compiled(header, now_s)
        version = (header.epoch, header.version)
        if not newer(version, self.latest):
            return Verdict.IGNORE
        if not self._edge_tpu or header.epoch != self.latest[0]:
            return Verdict.TAKE
        self._note(version, now_s)
        return Verdict.TAKE if now_s >= self.due_s else Verdict.WAIT

    @property
    def due_s(self) -> float:
        """When the newest plain push acts if no compiled one comes before; monotonic, in the past: at once."""
        epoch, heard_s = self._heard
        if epoch != self.latest[0]:
            return -_NEVER
        replaced_s = self._arrivals[0][1] if self._arrivals else _NEVER
        return min(heard_s, replaced_s) + self._max_lag_s

    def taken(self, header: PushHeader) -> None:
        """A policy was loaded, passed its self-test and acts from now on."""
        self.latest = (header.epoch, header.version)
        while self._arrivals and not newer(self._arrivals[0][0], self.latest):
            self._arrivals.popleft()
        if header.edge_tpu:
            self._failures = 0

    def failed(self, header: PushHeader, now_s: float) -> None:
        """A push could not be loaded. Compiled ones then rest, ever longer: a delegate that hangs takes 30 s."""
        if not header.edge_tpu:
            return
        self._heard = (-1, -_NEVER)
        self._rests_until_s = now_s + min(_FIRST_REST_S * 2.0**self._failures, _MAX_REST_S)
        self._failures = min(self._failures + 1, 16)

    def _note(self, version: Version, now_s: float) -> None:
        """Remember when a version was heard of first. Of too many the first count: they say how old `latest` is."""
        is_last = not self._arrivals or newer(version, self._arrivals[-1][0])
        if is_last and len(self._arrivals) < _ARRIVALS_KEPT:
            self._arrivals.append((version, now_s))

    def _judge_compiled(self, header: PushHeader, now_s: float) -> Verdict:
        if not self._edge_tpu:
            raise PayloadRefused("the push is compiled for the Edge TPU, and no delegate is in use here")
        if now_s < self._rests_until_s:
            return Verdict.IGNORE
        version = (header.epoch, header.version)
        is_news, is_again = newer(version, self.latest), version == self._compiled
        self._compiled = version
        self._late = 0 if is_news else self._late + (not is_again)
        if self._late > _LATE_ONES and self._late % _TRY_EVERY:
            self._heard = (-1, -_NEVER)  # to hold plain pushes back would only make what acts older
        elif header.epoch >= self.latest[0]:
            self._heard = (header.epoch, now_s)
        return Verdict.TAKE if is_news else Verdict.IGNORE
