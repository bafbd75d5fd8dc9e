"""Judge the policy that acts: greedy episodes of the very file, in the TFLite runtime, on stated seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from quarl_device.environments import EnvSpec, check_matches, first_line, make_single
from quarl_device.errors import EnvironmentMisbehaved, UsageError
from quarl_device.policy import Policy
from quarl_device.policy_file import PolicyFile
from quarl_device.runtime import PolicyRuntime

MAX_EPISODE_STEPS = 1_000_000
MAX_EPISODES = 1_000_000
# Timing a call costs a tenth of the call, so only one in so many is timed.
_TIME_EVERY = 8


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What came of an evaluation.

    Attributes:
        env_id: the environment.
        episodes: how many episodes were completed; fewer than asked for if stopped.
        seed: episode i was reset with `seed + i`.
        returns: undiscounted return per episode.
        return_mean: their mean, 0 without episodes.
        return_std: their standard deviation (of this very set, n in the denominator).
        runtime: name and version of the runtime that computed the actions.
        sha256: digest of the policy file.
        act_us_p50: median time from observation to action, microseconds.
        steps: environment steps in all completed episodes.
    """

    env_id: str
    episodes: int
    seed: int
    returns: tuple[float, ...]
    return_mean: float
    return_std: float
    runtime: str
    sha256: str
    act_us_p50: float
    steps: int


def evaluate(
    policy_file: PolicyFile,
    *,
    episodes: int,
    seed: int,
    env: EnvSpec | None = None,
    runtime: PolicyRuntime | None = None,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int], None] | None = None,
    allow_module: bool = False,
) -> Evaluation:
    """Run greedy episodes one after another in a single environment.

    Args:
        policy_file: what to judge.
        episodes: how many.
        seed: episode i starts with `env.reset(seed=seed + i)`.
        env: another environment than the contract's, with the same spaces.
        runtime: which runtime; by default the first that works here.
        stop: asked before every step; true ends the evaluation with the episodes completed so far.
        progress: called with the number of completed episodes after each.
        allow_module: see `environments.check_registered`.

    Raises:
        UsageError: no episodes, a negative seed, or neither the call nor the contract names an environment.
        EnvironmentMisbehaved: NaN, an exception, or an episode without end, naming episode and step.
        SpaceMismatch: the environment's spaces are not the policy's.
        QuarlError: whatever `make_single` and `Policy.load` raise.
    """
    if not 1 <= episodes <= MAX_EPISODES or not 0 <= seed <= 2**31 - 1 - MAX_EPISODES:
        raise UsageError(f"cannot evaluate {episodes} episodes from seed {seed}: expected at least 1, and a seed >= 0")
    contract = policy_file.contract
    spec = env or EnvSpec(env_id=contract.env_id, kwargs=contract.env_kwargs)
    if not spec.env_id:
        raise UsageError("the policy file names no environment", hint="name one with --env")
    policy = Policy.load(policy_file, runtime=runtime)
    world = make_single(spec, allow_module=allow_module)
    returns: list[float] = []
    times: list[int] = []
    steps = 0
    try:
        check_matches(world, contract.observations, contract.action)
        for number in range(episodes):
            result = _episode(world, policy, seed=seed + number, stop=stop, times=times, where=f"episode {number}")
            if result is None:
                break
            returns.append(result[0])
            steps += result[1]
            if progress is not None:
                progress(number + 1)
    finally:
        world.close()
    return Evaluation(
        env_id=spec.env_id,
        episodes=len(returns),
        seed=seed,
        returns=tuple(returns),
        return_mean=float(np.mean(returns)) if returns else 0.0,
        return_std=float(np.std(returns)) if returns else 0.0,
        runtime=policy.runtime_name,
        sha256=policy_file.sha256,
        act_us_p50=round(float(np.median(times)) / 1e3, 3) if times else 0.0,
        steps=steps,
    )


def _episode(
    world: gymnasium.Env[Any, Any],
    policy: Policy,
    *,
    seed: int,
    stop: Callable[[], bool] | None,
    times: list[int],
    where: str,
) -> tuple[float, int] | None:
    """Return (return, steps) of one episode, or `None` if it was stopped."""
    clock, act = time.perf_counter_ns, policy.act
    try:
        observation, _ = world.reset(seed=seed)
    except Exception as error:
        raise _misbehaved(f"reset(seed={seed})", where, 0, error) from error
    total = 0.0
    for step in range(MAX_EPISODE_STEPS):
        if stop is not None and stop():
            return None
        _check_observation(observation, policy, where, step)
        before = clock()
        action = act(observation)
        if step % _TIME_EVERY == 0:
            times.append(clock() - before)
        try:
            observation, reward, terminated, truncated, _ = world.step(action)
            total += float(reward)
        except Exception as error:
            raise _misbehaved("step()", where, step, error) from error
        if not math.isfinite(total):
            raise EnvironmentMisbehaved(f"the environment's reward is {reward} in {where}, step {step} (seed {seed})")
        if terminated or truncated:
            return total, step + 1
    raise EnvironmentMisbehaved(
        f"{where} has not ended after {MAX_EPISODE_STEPS:,} steps (seed {seed})",
        hint="give the environment a time limit, such as max_episode_steps in its registration",
    )


def _check_observation(observation: Any, policy: Policy, where: str, step: int) -> None:
    shape = policy.contract.observations[0].shape
    if np.shape(observation) != shape:
        raise EnvironmentMisbehaved(
            f"the observation in {where}, step {step} has shape {np.shape(observation)}, its space says {shape}"
        )
    if not np.isfinite(observation).all():
        raise EnvironmentMisbehaved(f"the observation in {where}, step {step} holds NaN or Inf")


def _misbehaved(call: str, where: str, step: int, error: Exception) -> EnvironmentMisbehaved:
    return EnvironmentMisbehaved(
        f"the environment raised in {call} in {where}, step {step}: {type(error).__name__}: {first_line(error)}"
    )
