"""Judge the policy that acts: greedy episodes of the very file, in the TFLite runtime, on stated seeds."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from quarl_device.environments import EnvSpec, check_matches, first_line, make_single, missing_part
from quarl_device.errors import EnvironmentMisbehaved, QuarlError, UnsupportedSpace, UsageError
from quarl_device.policy import Policy
from quarl_device.policy_file import PolicyFile
from quarl_device.runtime import PolicyRuntime

MAX_EPISODE_STEPS = 1_000_000
MAX_EPISODES = 1_000_000
# Timing a call costs a tenth of the call, so only one in so many is timed.
_TIME_EVERY = 8
Watch = Callable[[int, gymnasium.Env[Any, Any]], None]
"""Sees the environment as it is played, with the number of its episode; may raise QuarlError alone."""


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
    watch: Watch | None = None,
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
        watch: called with the episode's number and the environment after its reset and after every step.
        allow_module: see `environments.check_registered`.

    Raises:
        UsageError: no episodes, a negative seed, or neither the call nor the contract names an environment.
        EnvironmentMisbehaved: NaN, an exception, or an episode without end, naming episode and step.
        SpaceMismatch: the environment's spaces are not the policy's.
        UnsupportedSpace: the environment's spaces are none that a policy plays in.
        QuarlError: whatever `make_single` and `Policy.load` raise.
    """
    if not 1 <= episodes <= MAX_EPISODES or not 0 <= seed <= 2**31 - 1 - MAX_EPISODES:
        raise UsageError(f"cannot evaluate {episodes} episodes from seed {seed}: expected at least 1, and a seed >= 0")
    contract = policy_file.contract
    named = env or EnvSpec(env_id=contract.env_id, kwargs=contract.env_kwargs)
    spec = EnvSpec.seen_as(contract.observations, named.env_id, named.kwargs, wrappers=contract.wrappers)
    if not spec.env_id:
        raise UsageError("the policy file names no environment", hint="name one with --env ID")
    policy = Policy.load(policy_file, runtime=runtime)
    world = make_single(spec, allow_module=allow_module)
    try:
        check_matches(world, contract.observations, contract.action, given=spec.env_id, made_for=contract.env_id)
        player = _greedy(spec.env_id, world, policy)
        played = play_episodes(world, player, episodes=episodes, seed=seed, stop=stop, progress=progress, watch=watch)
    finally:
        world.close()
    returns, times = played.returns, played.act_ns
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
        steps=played.steps,
    )


@dataclass(frozen=True, kw_only=True)
class Player:
    """Who acts in an environment.

    Attributes:
        choose: gives the action for an observation, as the environment's space takes it.
        begin: called with an episode's seed before it starts.
        check: called with every observation, a place for messages, and the step; raises `EnvironmentMisbehaved`.
        title: " of random actions", behind the episode in messages.
        env_id: of the environment, for messages.
    """

    choose: Callable[[Any], Any]
    begin: Callable[[int], None]
    check: Callable[[Any, str, int], None]
    title: str = ""
    env_id: str = ""


@dataclass(kw_only=True)
class Played:
    """What the completed episodes came to.

    Attributes:
        returns: undiscounted, an episode each.
        act_ns: how long some of the actions took, nanoseconds.
        steps: in all of them.
    """

    returns: list[float] = field(default_factory=list)
    act_ns: list[int] = field(default_factory=list)
    steps: int = 0


def play_episodes(
    world: gymnasium.Env[Any, Any],
    player: Player,
    *,
    episodes: int,
    seed: int,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int], None] | None = None,
    watch: Watch | None = None,
) -> Played:
    """Play episodes one after another, whoever acts.

    Args:
        world: a single environment.
        player: who acts.
        episodes: how many.
        seed: episode i starts with `world.reset(seed=seed + i)`.
        stop: asked before every step; true ends with the episodes completed so far.
        progress: called with the number of completed episodes after each.
        watch: called with an episode's number and the environment after its reset and after each step.

    Raises:
        EnvironmentMisbehaved: NaN, an exception, or an episode without end, naming episode and step.
    """
    played = Played()
    for number in range(episodes):
        where = f"episode {number}{player.title}"
        seen = None if watch is None else functools.partial(watch, number, world)
        result = _episode(world, player, seed=seed + number, stop=stop, times=played.act_ns, where=where, seen=seen)
        if result is None:
            break
        played.returns.append(result[0])
        played.steps += result[1]
        if progress is not None:
            progress(number + 1)
    return played


def greedy_choice(world: gymnasium.Env[Any, Any], policy: Policy) -> Callable[[Any], Any]:
    """Return what gives a policy's greedy action for an observation of `world`, as its action space takes it.

    Args:
        world: an environment whose spaces have been compared with the policy's contract.
        policy: who acts; frames are stacked by it.

    Raises:
        UnsupportedSpace: a Box of integers to act in.
    """
    act, observations = policy.act, policy.contract.observations
    if isinstance(world.observation_space, gymnasium.spaces.Dict) and len(observations) == 1:
        act = _of_key(act, observations[0].key)
    return _to_space(act, world.action_space)


def _greedy(env_id: str, world: gymnasium.Env[Any, Any], policy: Policy) -> Player:
    """Return `policy` as a player of `world`, whose spaces have been compared with its contract."""
    shapes = [(spec.key, spec.shape) for spec in policy.contract.observations]
    is_dict = isinstance(world.observation_space, gymnasium.spaces.Dict)

    def check(observation: Any, where: str, step: int) -> None:
        if is_dict:
            _check_dict(observation, shapes, where, step)
        else:
            _check_array(observation, shapes[0][1], "", where, step)

    return Player(
        choose=greedy_choice(world, policy),
        begin=lambda _: policy.begin_episode(),
        check=check,
        env_id=env_id,
    )


def _check_dict(observation: Any, shapes: Sequence[tuple[str, tuple[int, ...]]], where: str, step: int) -> None:
    """Refuse an observation whose entries are not of their spaces' shapes, or not finite."""
    for key, shape in shapes:
        try:
            array = observation[key]
        except (KeyError, TypeError, IndexError) as error:
            raise EnvironmentMisbehaved(
                f"the observation in {where}, step {step} is no dict with the keys of its space: {first_line(error)}"
            ) from error
        _check_array(array, shape, key, where, step)


def _check_array(observation: Any, shape: tuple[int, ...], key: str, where: str, step: int) -> None:
    try:
        array = np.asarray(observation)
    except ValueError:
        array = np.array(None)
    name = f" {key!r}" if key else ""
    if array.shape != shape:
        raise EnvironmentMisbehaved(
            f"the observation{name} in {where}, step {step} has shape {array.shape}, its space says {shape}"
        )
    if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        raise EnvironmentMisbehaved(f"the observation{name} in {where}, step {step} holds NaN or Inf, or no numbers")


def _of_key(act: Callable[[Any], Any], key: str) -> Callable[[Any], Any]:
    return lambda observation: act(observation[key])


def _to_space(act: Callable[[Any], Any], space: gymnasium.Space[Any]) -> Callable[[Any], Any]:
    """Return `act` with its float32 actions in the dtype of the environment's Box."""
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype == np.float32:
        return act
    if space.dtype.kind != "f":
        raise UnsupportedSpace(f"the action space is a Box of {space.dtype.name}; a policy's actions are floats")
    dtype, low, high = space.dtype, space.low, space.high
    # Rounding to fewer digits may cross a bound that float32 met exactly.
    return lambda observation: np.clip(act(observation).astype(dtype), low, high)


def _episode(
    world: gymnasium.Env[Any, Any],
    player: Player,
    *,
    seed: int,
    stop: Callable[[], bool] | None,
    times: list[int],
    where: str,
    seen: Callable[[], None] | None,
) -> tuple[float, int] | None:
    """Return (return, steps) of one episode, or `None` if it was stopped."""
    clock, choose, check = time.perf_counter_ns, player.choose, player.check
    player.begin(seed)
    try:
        observation, _ = world.reset(seed=seed)
    except Exception as error:
        raise _misbehaved(player.env_id, f"reset(seed={seed})", where, 0, error) from error
    if seen is not None:
        seen()
    total = 0.0
    for step in range(MAX_EPISODE_STEPS):
        if stop is not None and stop():
            return None
        check(observation, where, step)
        before = clock()
        action = choose(observation)
        if step % _TIME_EVERY == 0:
            times.append(clock() - before)
        try:
            observation, reward, terminated, truncated, _ = world.step(action)
            total, ended = total + float(reward), bool(terminated or truncated)
        except Exception as error:
            raise _misbehaved(player.env_id, "step()", where, step, error) from error
        if not math.isfinite(total):
            raise EnvironmentMisbehaved(f"the environment's reward is {reward} in {where}, step {step} (seed {seed})")
        if seen is not None:
            seen()
        if ended:
            return total, step + 1
    raise EnvironmentMisbehaved(
        f"{where} has not ended after {MAX_EPISODE_STEPS:,} steps (seed {seed})",
        hint="give the environment a time limit, such as max_episode_steps in its registration",
    )


def _misbehaved(env_id: str, call: str, where: str, step: int, error: Exception) -> QuarlError:
    """Return what the environment's code has raised as an error of ours."""
    return missing_part(env_id, error) or EnvironmentMisbehaved(
        f"the environment raised in {call} in {where}, step {step}: {type(error).__name__}: {first_line(error)}"
    )
