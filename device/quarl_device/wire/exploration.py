"""How actors explore with a pushed policy, as the push header says it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from quarl_device.contract import ActionSpec, Head
from quarl_device.errors import PayloadRefused, SpaceMismatch
from quarl_device.wire.strict_json import Reader

ExplorationKind = Literal["none", "epsilon", "gaussian", "ornstein_uhlenbeck", "sample"]

KINDS: tuple[str, ...] = get_args(ExplorationKind)
MAX_EXPLORATION_VALUES = 4096
_PER_ACTOR = ("epsilon", "gaussian", "ornstein_uhlenbeck")
# A standard deviation beyond e^±20 is no wish of any policy, see `heads.MAX_LOG_STD`.
_MAX_LOG_STD = 20.0
_MAX_VALUE = 1e6
_WHAT = "push header: exploration"


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """How actors explore with a policy. All noise is drawn on the device.

    Attributes:
        kind: "none": the policy's own choice; "epsilon": in a discrete space, a uniformly random action with this
            probability; "gaussian" and "ornstein_uhlenbeck": in a box, independent or drifting noise is added to the
            action (see `actor.exploration`); "sample": the action is drawn from the distribution of a logits or
            gaussian head.
        values: "none": empty. "epsilon": probability per actor index. "gaussian", "ornstein_uhlenbeck": sigma per
            actor index, in units of half the action's range. "sample": log_std per action element of a gaussian head
            whose standard deviation does not depend on the observation, in place of the one in its contract; else
            empty. An actor takes the value at its index modulo their number.
    """

    kind: ExplorationKind = "epsilon"
    values: tuple[float, ...] = (0.0,)

    def value_for(self, actor_index: int) -> float:
        """Return this actor's value; of kinds with one value per actor."""
        return self.values[actor_index % len(self.values)]

    def for_actor(self, actor_index: int) -> Exploration:
        """Return the same with this actor's value alone; what all actors share stays as it is."""
        if self.kind not in _PER_ACTOR:
            return self
        return replace(self, values=(self.value_for(actor_index),))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict that `exploration_from_json` reads back equal."""
        return {"kind": self.kind, "values": list(self.values)}


def exploration_from_json(data: dict[str, Any]) -> Exploration:
    """Read an untrusted object.

    Raises:
        PayloadRefused: an unknown kind, or values that it does not take.
    """
    inner = Reader(data, what=_WHAT)
    kind = inner.choice("kind", KINDS)
    values = inner.array("values", max_length=MAX_EXPLORATION_VALUES)
    low, high = (-_MAX_LOG_STD, _MAX_LOG_STD) if kind == "sample" else (0.0, _MAX_VALUE)
    if any(type(value) not in (int, float) or not low <= value <= high for value in values):
        raise PayloadRefused(f"{_WHAT} values of {kind!r} must be numbers in {low:g}..{high:g}")
    if kind in _PER_ACTOR and not values:
        raise PayloadRefused(f"{_WHAT} {kind!r} needs one or more values, found none")
    if kind == "none" and values:
        raise PayloadRefused(f"{_WHAT} 'none' takes no values, found {len(values)}")
    return Exploration(kind=cast(ExplorationKind, kind), values=tuple(float(value) for value in values))


def check_exploration(exploration: Exploration, head: Head, action: ActionSpec, *, extras: tuple[str, ...]) -> None:
    """Refuse exploration that does not go with a policy, or does not give what blocks must carry.

    Args:
        exploration: of a push.
        head: of its policy.
        action: likewise.
        extras: names in the learner's birth.

    Raises:
        PayloadRefused: naming what does not fit.
        SpaceMismatch: blocks would lack extras; another birth may not ask for them.
    """
    kind, size = exploration.kind, math.prod(action.shape)
    if kind == "epsilon" and action.kind != "discrete":
        raise PayloadRefused(f"{_WHAT} 'epsilon' needs a discrete action space, the policy's is a {action.kind}")
    if kind in ("gaussian", "ornstein_uhlenbeck") and action.kind != "box":
        raise PayloadRefused(f"{_WHAT} {kind!r} needs a box action space, the policy's is {action.kind}")
    if kind != "sample":
        if extras:
            raise SpaceMismatch(f"{_WHAT} {kind!r} gives no {' or '.join(extras)}, which the learner's birth asks for")
        return
    if head.kind not in ("logits", "gaussian"):
        raise PayloadRefused(f"{_WHAT} 'sample' needs a logits or gaussian head, the policy's is {head.kind}")
    if exploration.values and (not head.log_std or len(exploration.values) != size):
        wanted = size if head.log_std else 0
        raise PayloadRefused(
            f"{_WHAT} 'sample' has {len(exploration.values)} values for a {head.kind} head that takes {wanted} of them"
        )
