"""A policy that acts in deploy mode: what chooses, and what sees that a number is none.

All is decided when a policy is loaded: a step is one call of a closure that fits its space, its limits and whether it
is watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec
from quarl_device.deploy.limits import Guard
from quarl_device.deploy.probation import Probation
from quarl_device.deploy.signed import SignedPolicy, load_signed
from quarl_device.errors import PolicyFailed
from quarl_device.evaluate import greedy_choice
from quarl_device.policy import Policy
from quarl_device.runtime import LoadedModel, PolicyRuntime
from quarl_device.runtime.wrapping import WrappedRuntime

Array = NDArray[Any]
Act = Callable[[Any], Any]


class FiniteWatch:
    """Says whether the last call of a model gave numbers.

    Attributes:
        finite: it did.
    """

    def __init__(self) -> None:
        self.finite = True


class _WatchedModel:
    """A model whose float outputs are looked at; integers are always numbers."""

    def __init__(self, model: LoadedModel, watch: FiniteWatch) -> None:
        self.batch_size = model.batch_size
        self.run = model.run
        infer, mask = model.infer, np.empty(0, bool)

        def look(results: Array) -> bool:
            nonlocal mask
            if mask.shape != results.shape:
                mask = np.empty(results.shape, bool)  # at the first call alone: a model's outputs have one shape
            return bool(np.isfinite(results, out=mask).all())

        def watched(*inputs: Array) -> Any:
            results = infer(*inputs)
            if isinstance(results, tuple):
                watch.finite = all(each.dtype.kind != "f" or bool(np.isfinite(each).all()) for each in results)
            else:
                watch.finite = results.dtype.kind != "f" or look(results)
            return results

        self.infer = watched


class _WatchedRuntime(WrappedRuntime):
    """A runtime whose models are watched."""

    def __init__(self, inner: PolicyRuntime, watch: FiniteWatch) -> None:
        super().__init__(inner)
        self._watch = watch

    def load(self, model: bytes, **wishes: Any) -> LoadedModel:
        """Load a model. See `quarl_device.runtime.PolicyRuntime`."""
        return _WatchedModel(super().load(model, **wishes), self._watch)


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """A policy that is ready to act.

    Attributes:
        signed: where it came from.
        policy: in its interpreter; one thread at a time.
        watch: of its outputs.
    """

    signed: SignedPolicy
    policy: Policy
    watch: FiniteWatch

    @classmethod
    def load(cls, signed: SignedPolicy, runtime: PolicyRuntime) -> Loaded:
        """Load and self-test a signed policy; raises what `load_signed` raises."""
        watch = FiniteWatch()
        return cls(signed=signed, policy=load_signed(signed, _WatchedRuntime(runtime, watch)), watch=watch)


class Busy:
    """Since when a policy has been computing, for whoever looks whether it ever ends.

    Attributes:
        since_s: monotonic time; 0 while none does.
        limited: actions that a hard limit has changed.
    """

    def __init__(self) -> None:
        self.since_s = 0.0
        self.limited = 0


def make_act(
    world: gymnasium.Env[Any, Any], loaded: Loaded, guard: Guard, busy: Busy, *, probation: Probation | None = None
) -> Act:
    """Return what acts with a policy: observation in, action of the environment's space out, within the limits.

    The closure raises `PolicyFailed` where the outputs are no numbers; on probation also for all that fails one.

    Args:
        world: whose spaces have been compared with the policy's.
        loaded: who acts.
        guard: hard limits.
        busy: is told when a call begins and ends.
        probation: counts each step; `None` for a policy that has passed.
    """
    choose, watch, clock = greedy_choice(world, loaded.policy), loaded.watch, time.monotonic
    limited = guard.low is not None

    def act(observation: Any) -> Any:
        busy.since_s = clock()
        action = choose(observation)
        busy.since_s = 0.0
        if not watch.finite:
            raise PolicyFailed("NaN or Inf in the outputs")
        if limited:
            action, beyond = guard.limit(action)
            busy.limited += beyond
        return action

    if probation is None:
        return act
    inside = _inside(loaded.policy.contract.action)

    def watched(observation: Any) -> Any:
        busy.since_s = began_s = clock()
        action = choose(observation)
        busy.since_s, took_s = 0.0, clock() - began_s
        is_inside, beyond = inside(action), False
        if limited and watch.finite:
            action, beyond = guard.limit(action)
            busy.limited += beyond
        probation.step(took_s=took_s, finite=watch.finite, inside=is_inside, limited=beyond)
        if probation.failure:
            raise PolicyFailed(probation.failure)
        return action

    return watched


def _inside(action: ActionSpec) -> Callable[[Any], bool]:
    """Return what says whether an action lies in its space."""
    if action.kind == "discrete":
        start, end = action.start, action.start + action.n
        return lambda chosen: bool(start <= chosen < end)
    low, high = (np.array(bound, np.float32).reshape(action.shape) for bound in (action.low, action.high))
    return lambda chosen: bool((chosen >= low).all() and (chosen <= high).all())


def make_finite(space: gymnasium.Space[Any]) -> Callable[[Any], bool]:
    """Return what says whether an observation is one of its space's keys, shapes and kinds, and of numbers alone.

    Numbers are looked at as the policy sees them, in float32: beyond its range they are Inf. Bounds are not looked at.
    The closure raises nothing, whatever it is given.
    """
    if not isinstance(space, gymnasium.spaces.Dict):
        return _guarded_look(_make_look(space))
    looks = tuple((key, _make_look(part)) for key, part in space.spaces.items())
    return _guarded_look(lambda observation: all(look(observation[key]) for key, look in looks))


def _make_look(space: gymnasium.Space[Any]) -> Callable[[Any], bool]:
    """Return what looks at one array of a space; it may raise anything where that is none."""
    shape, seen = space.shape, np.dtype(np.float32)
    kinds = "biuf" if space.dtype is None or space.dtype.kind == "f" else "biu"

    def look(given: Any) -> bool:
        array = np.asarray(given)
        if array.shape != shape or array.dtype.kind not in kinds:
            return False
        if array.dtype.kind != "f":
            return True
        if array.dtype != seen:
            with np.errstate(over="ignore"):
                array = array.astype(seen)
        return bool(np.isfinite(array).all())

    return look


def _guarded_look(look: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def guarded_look(observation: Any) -> bool:
        try:
            return look(observation)
        # An environment is anybody's code, and so is what it gives: a key that is missing, no mapping, no array.
        except Exception:
            return False

    return guarded_look
