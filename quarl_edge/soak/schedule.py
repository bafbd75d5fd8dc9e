"""Which fault comes when: the same for the same seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quarl_device.errors import UsageError

BROKER, LEARNER = "broker", "learner"
LEARNER_RESTORED = "learner restored"
LONGEST_S = 25.0
"""A connection that is silent for longer than 1.5 keep-alives (22.5 s) is noticed by its ends."""
_GAP_S = 1.5


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong, and is mended.

    Attributes:
        at_s: when it begins, since the schedule began.
        lasts_s: until it is mended; 0 for what mends itself.
        kind: a key of `KINDS`.
        target: `broker`, `learner` or a device.
        amount: what the kind makes of it, such as bytes per second.
    """

    at_s: float
    lasts_s: float
    kind: str
    target: str
    amount: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a fault may be.

    Attributes:
        hits: `process` or `link`: what of the target is busy while it lasts.
        of: whom it can hit.
        lasts_s: shortest and longest.
        amount: drawn per fault.
        rest_s: after it, before the next of the same target.
    """

    hits: str
    of: tuple[str, ...]
    lasts_s: tuple[float, float]
    amount: Callable[[random.Random], float] = lambda _: 0.0
    rest_s: float = 0.0


_ACTOR = "actor"
_ENDS = (LEARNER, _ACTOR)
KINDS = {
    # amount 1: the broker has forgotten everything when it comes back, 0: it finds what it had saved.
    "broker kill": Kind(hits="process", of=(BROKER,), lasts_s=(0.2, 3.0), amount=lambda rng: rng.randrange(2)),
    "learner kill": Kind(hits="process", of=(LEARNER,), lasts_s=(0.2, 3.0)),
    # amount: share of what it had stored that it knows no more.
    LEARNER_RESTORED: Kind(
        hits="process", of=(LEARNER,), lasts_s=(0.2, 3.0), amount=lambda rng: rng.uniform(0.02, 0.15)
    ),
    "learner disk full": Kind(hits="process", of=(LEARNER,), lasts_s=(1.0, 4.0)),
    "actor kill": Kind(hits="process", of=(_ACTOR,), lasts_s=(0.1, 2.0)),
    # Its rest: the block that waits in memory is tried again every second, and a kill before that would take it along.
    "actor disk full": Kind(hits="process", of=(_ACTOR,), lasts_s=(1.0, 4.0), rest_s=3.0),
    "cut": Kind(hits="link", of=_ENDS, lasts_s=(0.0, 0.0)),
    # amount: bytes; up when even, down when odd.
    "cut at byte": Kind(hits="link", of=_ENDS, lasts_s=(3.0, 3.0), amount=lambda rng: rng.randint(1, 30_000)),
    "refuse": Kind(hits="link", of=_ENDS, lasts_s=(0.5, 4.0)),
    "stall": Kind(hits="link", of=_ENDS, lasts_s=(0.5, 6.0)),
    "half open": Kind(hits="link", of=_ENDS, lasts_s=(2.0, LONGEST_S)),
    "delay": Kind(hits="link", of=_ENDS, lasts_s=(2.0, 6.0), amount=lambda rng: rng.uniform(0.02, 0.3)),
    "throttle": Kind(hits="link", of=_ENDS, lasts_s=(2.0, 6.0), amount=lambda rng: rng.randint(2_000, 60_000)),
    # amount: share of messages that is lost, of those that are doubled, of those that are late.
    "packets": Kind(hits="link", of=_ENDS, lasts_s=(2.0, 6.0), amount=lambda rng: rng.uniform(0.02, 0.2)),
}


def make_schedule(
    seed: int, *, seconds: float, devices: Sequence[str], only: Sequence[str] = (), learner_rest_s: float = 0.0
) -> tuple[Fault, ...]:
    """Draw the faults of a soak: all kinds in turn, in an order of chance, never two of one target's process or link.

    Args:
        seed: of every draw.
        seconds: that the schedule takes; the last fault is mended before.
        devices: names of the actors.
        only: kinds to take, all by default.
        learner_rest_s: after each fault of the learner's process, so that one which starts slowly gets to start.

    Raises:
        UsageError: no such kind.
    """
    if unknown := sorted(set(only) - set(KINDS)):
        raise UsageError(f"{unknown[0][:80]!r} is no fault", hint=f"there are {', '.join(KINDS)}")
    rng = random.Random(seed)  # noqa: S311 - faults, no secrets
    free_at_s: dict[tuple[str, str], float] = {}
    faults: list[Fault] = []
    deck: list[str] = []
    now_s = rng.expovariate(1 / _GAP_S)
    while now_s < seconds:
        deck = deck or rng.sample(only or list(KINDS), len(only or KINDS))
        name = deck.pop()
        kind = KINDS[name]
        targets = [target for one in kind.of for target in (devices if one == _ACTOR else (one,))]
        target, lasts_s = rng.choice(targets), rng.uniform(*kind.lasts_s)
        amount = kind.amount(rng)
        lasts_s = min(lasts_s, seconds - now_s)
        if free_at_s.get((kind.hits, target), 0.0) <= now_s:
            faults.append(Fault(at_s=now_s, lasts_s=lasts_s, kind=name, target=target, amount=amount))
            rest_s = max(kind.rest_s, learner_rest_s if (kind.hits, target) == ("process", LEARNER) else 0.0)
            free_at_s[kind.hits, target] = now_s + lasts_s + rest_s
        now_s += rng.expovariate(1 / _GAP_S)
    return tuple(faults)
