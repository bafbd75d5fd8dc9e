"""From a policy and a block's numbers to functions that choose actions: one for one environment, one for many.

Greedy and epsilon-greedy choices of one environment are the policy's own hot path; random actions overrule it in the
loop. Everything else is a closure that is made when a policy comes, or a block begins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.actor.acting import ActingPolicy
from quarl_device.actor.exploration import OU_THETA, BoxNoise, DiscreteNoise, Noise
from quarl_device.actor.recorder import Recorder
from quarl_device.contract import ActionSpec
from quarl_device.errors import UsageError
from quarl_device.heads import FEW, float32_bounds
from quarl_device.hot_path import Act

Array = NDArray[Any]
Add = Callable[[Array, int], Array]
ChooseMany = Callable[[int, Array, Array], Array]
POLICY_DECIDES = -1


def forced_actions(noise: Noise, row: int, rows: int) -> list[int]:
    """Return for each of rows `row`..`rows`-1 of one environment: a random action, or -1 where the policy decides."""
    if not isinstance(noise, DiscreteNoise):
        return [POLICY_DECIDES] * (rows - row)
    forced: list[int] = np.where(noise.explore[row:rows, 0], noise.action[row:rows, 0], POLICY_DECIDES).tolist()
    return forced


def choose_one(acting: ActingPolicy, noise: Noise, recorder: Recorder, row: int, action: ActionSpec) -> Act:
    """Return what takes an observation and returns the action of `row`, called again that of the row after, and so on.

    Args:
        acting: the policy, and how to explore.
        noise: of this block, of one environment.
        recorder: where extras go.
        row: of the first call.
        action: the space.
    """
    kind, policy = acting.exploration.kind, acting.policy
    if kind in ("none", "epsilon"):
        return policy.act_index
    rows = itertools.count(row)
    if kind == "sample":
        draw, keep = policy.drawing(log_std=acting.exploration.values), _keeper(recorder)
        # A fraction as a float: as an array of one it would make numpy of all that is computed with it.
        number = noise.fraction[:, 0].item if isinstance(noise, DiscreteNoise) else _numbers(noise).__getitem__

        def sampled(observation: Any) -> Any:
            at = next(rows)
            chosen, sample, log_prob = draw(observation, number(at))
            keep(at, sample, log_prob)
            return chosen

        return sampled
    greedy, add = policy.act_index, _adder(acting, noise, action)
    if math.prod(action.shape) <= FEW:
        add = _few_adder(acting, noise, action)

    def noisy(observation: Any) -> Any:
        return add(greedy(observation), next(rows)).reshape(action.shape)

    return noisy


def choose_many(acting: ActingPolicy, noise: Noise, recorder: Recorder, action: ActionSpec) -> ChooseMany:
    """Return what takes (row, observations [N, *shape], where to record [N, ...]) and returns what N environments get.

    Args:
        acting: the policy at batch size N, and how to explore.
        noise: of this block.
        recorder: where extras go.
        action: the space.
    """
    kind, policy = acting.exploration.kind, acting.policy
    act = policy.act_batch
    if isinstance(noise, DiscreteNoise) and kind != "sample":
        explore, random_action = noise.explore, noise.action

        def epsilon_greedy(row: int, observations: Array, chosen: Array) -> Array:
            chosen[...] = act(observations)
            np.copyto(chosen, random_action[row], where=explore[row], casting="unsafe")
            return chosen

        return epsilon_greedy
    if kind == "sample":
        draw = policy.drawing(log_std=acting.exploration.values, batch=True)
        numbers, keep = _numbers(noise), _keeper(recorder)

        def sampled(row: int, observations: Array, chosen: Array) -> Array:
            actions: Array
            actions, sample, log_prob = draw(observations, numbers[row])
            keep(row, sample, log_prob)
            chosen[...] = actions
            return actions

        return sampled
    add = None if kind == "none" else _adder(acting, noise, action)

    def noisy(row: int, observations: Array, chosen: Array) -> Array:
        actions: Array = act(observations)
        actions = actions if add is None else add(actions, row)
        chosen[...] = actions
        # Not `chosen`: an environment may change in place what it is given.
        return actions

    return noisy


def _numbers(noise: Noise) -> Array:
    if isinstance(noise, BoxNoise):
        return noise.number
    if isinstance(noise, DiscreteNoise):
        return noise.fraction
    raise UsageError(f"{type(noise).__name__} has no numbers to sample by")


def _keeper(recorder: Recorder) -> Callable[[int, Any, Any], None]:
    """Return what records a row's log probability, and its sample, where the learner asks for them."""
    log_probs, samples = recorder.extra.get("log_prob"), recorder.extra.get("sample")

    def keep(row: int, sample: Any, log_prob: Any) -> None:
        if log_probs is not None:
            log_probs[row] = log_prob
        if samples is not None:
            samples[row] = sample

    return keep


def _adder(acting: ActingPolicy, noise: Noise, action: ActionSpec) -> Add:
    """Return what adds a row's noise to actions and clips them to the space: float32 [N, *shape], also of one [*shape].

    In float64, rounded once, so that nothing overflows on the way and a bound stays what it is.
    """
    low, high = float32_bounds(action)
    noise = _of_box(noise, acting, action)
    number, drift = noise.number, noise.drift
    drifts, kept = acting.exploration.kind == "ornstein_uhlenbeck", 1.0 - OU_THETA

    def add(actions: Array, row: int) -> Array:
        added = number[row]
        if drifts:
            np.multiply(drift, kept, out=drift)
            np.add(drift, added, out=drift)
            added = drift
        noisy: Array = np.minimum(np.maximum(actions + added, low), high).astype(np.float32)
        return noisy

    return add


def _few_adder(acting: ActingPolicy, noise: Noise, action: ActionSpec) -> Add:
    """Return the same for the few numbers of one environment, which are faster one by one: the same float64 sums."""
    noise = _of_box(noise, acting, action)
    size = math.prod(action.shape)
    number, drift = noise.number.reshape(-1, size), noise.drift.reshape(size)
    drifts, kept = acting.exploration.kind == "ornstein_uhlenbeck", 1.0 - OU_THETA
    bounds = list(zip(*(bound.ravel().tolist() for bound in float32_bounds(action)), strict=True))
    empty = np.zeros(size, np.float32)

    def add(actions: Array, row: int) -> Array:
        added = number[row].tolist()
        if drifts:
            added = [x * kept + n for x, n in zip(drift.tolist(), added, strict=True)]
            drift[...] = added
        noisy = empty.copy()
        noisy[...] = [
            low if (value := chosen + n) < low else high if value > high else value
            for chosen, n, (low, high) in zip(actions.ravel().tolist(), added, bounds, strict=True)
        ]
        return noisy

    return add


def _of_box(noise: Noise, acting: ActingPolicy, action: ActionSpec) -> BoxNoise:
    if not isinstance(noise, BoxNoise):
        raise UsageError(f"exploration {acting.exploration.kind!r} in a {action.kind} action space")
    return noise
