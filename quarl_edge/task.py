"""What a run is about: the environment's spaces, and whether its algorithm takes them. Needs no TensorFlow."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import (
    EnvSpec,
    check_unchanged,
    first_line,
    is_one_vector,
    make_single,
    missing_part,
    spaces_to_specs,
)
from quarl_device.errors import EnvironmentMisbehaved, QuarlError, UnsupportedSpace, UsageError
from quarl_device.wire.block_spec import BlockSpec
from quarl_device.wire.limits import MAX_POLICY_BYTES
from quarl_edge.algorithms import ALGORITHMS, names_for
from quarl_edge.config import ReplayConfig, TrainConfig

EMBEDDED_BROKER = "embedded"
_GOLDEN_COUNT = 8
_GOLDEN_STEPS = 256
# A flatbuffer's least structure, and that of each layer; measured, and rounded down: the file itself is measured again
# when it is made.
_STRUCTURE_BYTES, _LAYER_BYTES = 2_500, 350
_WIDTHS = (4096, 3072, 2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """An environment, as a learner sees it.

    Attributes:
        observation: the one observation key.
        action: the action space.
        golden_observations: float32[count, n], distinct, from random play.
        played: float32[count, n], all that was observed in it, in order.
    """

    observation: ObservationSpec
    action: ActionSpec
    golden_observations: NDArray[np.float32]
    played: NDArray[np.float32]


def look_at(config: TrainConfig) -> Task:
    """Look at the environment: its spaces, and a few observations of random play for the golden vectors.

    Raises:
        UnknownEnvironment: no such id.
        MissingExtra: the environment's own dependency is not installed.
        EnvironmentMisbehaved: it cannot be made, or not be played at random.
        UnsupportedSpace: the algorithm does not take its spaces.
        UsageError: a policy that no push could carry, or a budget in which nothing can be learned.
    """
    env = make_single(EnvSpec(env_id=config.env_id, flat=True), allow_module=True)
    try:
        observations, action = spaces_to_specs(env.observation_space, env.action_space)
        _check_action(config, action)
        _check_observation(config, observations)
        _check_size(config, observations[0], action)
        _check_budget(config, BlockSpec(observations=observations, action=action))
        played = _play_at_random(env, config, observations[0], action)
    finally:
        env.close()
    distinct = np.unique(played, axis=0)
    picked = np.linspace(0, len(distinct) - 1, min(_GOLDEN_COUNT, len(distinct))).astype(int)
    return Task(observation=observations[0], action=action, golden_observations=distinct[picked], played=played)


def _play_at_random(
    env: gymnasium.Env[Any, Any], config: TrainConfig, observation: ObservationSpec, action: ActionSpec
) -> NDArray[np.float32]:
    """Return observations float32[steps + 1, n] of random play, so that what is wrong shows before a run begins.

    Raises:
        EnvironmentMisbehaved: it raised, changed its spaces, or gave what is no observation or reward.
        MissingExtra: a package is missing that it needs once it is played.
    """
    name, seen, step = config.env_id, np.empty((_GOLDEN_STEPS + 1, *observation.shape), np.float32), 0
    env.action_space.seed(config.seed)
    try:
        given, reward = env.reset(seed=config.seed)[0], cast(Any, 0.0)
        check_unchanged(name, env, (observation,), action)
        for step in range(_GOLDEN_STEPS + 1):
            if step:
                given, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                given = env.reset()[0] if terminated or truncated else given
            _check_given(name, step, given, reward, observation)
            seen[step] = given
    # The environment is anybody's code: whatever it raises is told with the step.
    except Exception as error:
        if isinstance(error, QuarlError):
            raise
        raise missing_part(name, error) or EnvironmentMisbehaved(
            f"environment {name!r} failed at step {step} of random play: {type(error).__name__}: {first_line(error)}"
        ) from error
    return seen


def _check_given(env_id: str, step: int, given: Any, reward: Any, observation: ObservationSpec) -> None:
    """Refuse an observation of another shape than its space's, and NaN or Inf."""
    where = f"environment {env_id!r}, step {step} of random play:"
    array = np.asarray(given)
    if array.shape != observation.shape:
        raise EnvironmentMisbehaved(f"{where} the observation has shape {array.shape}, its space {observation.shape}")
    if not np.isfinite(array).all():
        raise EnvironmentMisbehaved(f"{where} the observation {np.array2string(array, threshold=8)} is not finite")
    if not math.isfinite(reward):
        raise EnvironmentMisbehaved(f"{where} the reward is {reward}")


def check_company(config: TrainConfig, broker: str) -> None:
    """Refuse a run that no actor can ever join.

    Args:
        config: hyperparameters.
        broker: "embedded" or a URL.

    Raises:
        UsageError: no local actors, and a broker that lets nobody else in.
    """
    if broker == EMBEDDED_BROKER and not config.actors:
        raise UsageError(
            "actors = 0 with the embedded broker: it lets only this machine's actors in, so none would ever come",
            hint="meet actors elsewhere at a broker of yours with --broker mqtt://USER@HOST, or give --actors 1",
        )


def _check_action(config: TrainConfig, action: ActionSpec) -> None:
    """Refuse an algorithm that does not act in this action space, or a box without bounds."""
    if action.kind not in ALGORITHMS[config.algorithm].heads:
        kind, wanted = ("continuous", "discrete") if action.kind == "box" else ("discrete", "continuous")
        others = names_for(action.kind)
        raise UnsupportedSpace(
            f"{config.env_id} has {kind} actions; {config.algorithm} takes {wanted} ones",
            hint=f"--algorithm {others[0]}" if others else "",
        )
    if not all(math.isfinite(bound) for bound in (*action.low, *action.high)):
        raise UnsupportedSpace(
            f"{config.env_id} has actions without bounds; {config.algorithm} scales its outputs to them",
            hint="wrap the environment in gymnasium.wrappers.RescaleAction or ClipAction",
        )


def _check_observation(config: TrainConfig, observations: tuple[ObservationSpec, ...]) -> None:
    if not is_one_vector(observations):
        raise UnsupportedSpace(
            f"{config.env_id} observes {[(spec.key, spec.shape) for spec in observations]}; "
            f"{config.algorithm} takes one vector in this version"
        )
    if (dtype := observations[0].dtype) not in ("float32", "float64"):
        raise UnsupportedSpace(
            f"{config.env_id} observes a vector of {dtype}; {config.algorithm} takes float32 or float64 as yet",
            hint="gymnasium.wrappers.DtypeObservation in the registration's additional_wrappers makes float32 of it",
        )


def _outputs(action: ActionSpec) -> int:
    return action.n or math.prod(action.shape)


def _check_size(config: TrainConfig, observation: ObservationSpec, action: ActionSpec) -> None:
    """Refuse a network that no push can carry before TensorFlow spends seconds, or its patience, on it."""
    room = MAX_POLICY_BYTES
    inputs, depth = observation.shape[0], len(config.hidden)
    needed = _least_bytes((inputs, *config.hidden, _outputs(action)))
    if needed <= room:
        return
    fitting = [
        width for width in _WIDTHS if _least_bytes((inputs, *(width,) * depth, _outputs(action))) <= room - 1_024
    ]
    raise UsageError(
        f"hidden = {','.join(map(str, config.hidden))} makes a policy of at least {needed:,} bytes; a push carries at "
        f"most {room:,}",
        hint=f"--set hidden={','.join([str(fitting[0])] * depth)}" if fitting else "fewer layers, fewer observations",
    )


def _least_bytes(sizes: tuple[int, ...]) -> int:
    """Return what an int8 policy takes at least: a byte per weight, four per bias, its structure."""
    weights = sum(before * after for before, after in itertools.pairwise(sizes))
    return weights + 4 * sum(sizes[1:]) + _STRUCTURE_BYTES + _LAYER_BYTES * (len(sizes) - 2)


def _check_budget(config: TrainConfig, spec: BlockSpec) -> None:
    """Refuse units so large that one of them is over the whole budget: the run would end before it has learned."""
    rows = min(config.block_steps, spec.max_steps(config.envs_per_actor))
    block = rows * config.envs_per_actor
    budget = f"more than the whole budget of {config.steps:,} steps"
    if block > config.steps:
        raise UsageError(
            f"a block of {rows:,} rows of {config.envs_per_actor:,} environments is {block:,} steps, {budget}",
            hint="fewer --envs-per-actor, a smaller --set block_steps=N, or more --steps",
        )
    if not isinstance(config, ReplayConfig):
        return
    call = config.updates_per_call * config.batch_size / config.samples_per_insert
    if call > config.steps:
        raise UsageError(
            f"updates_per_call = {config.updates_per_call:,}: one call follows {call:,.0f} steps, {budget}",
            hint="a smaller --set updates_per_call=N, or more --steps",
        )
    if config.learning_starts > config.steps:
        raise UsageError(
            f"learning_starts = {config.learning_starts:,}: {budget}, so nothing would be learned",
            hint="a smaller --set learning_starts=N, or more --steps",
        )
