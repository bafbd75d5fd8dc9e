"""What a run is about: the environment's spaces, and whether its algorithm takes them. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses
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
from quarl_device.frame_stack import input_shape, is_image, restack
from quarl_device.wire.block_spec import BlockSpec
from quarl_device.wire.limits import MAX_POLICY_BYTES
from quarl_edge.algorithms import ALGORITHMS, names_for
from quarl_edge.config import ReplayConfig, RolloutConfig, TrainConfig
from quarl_edge.config.train import parse_convolution

EMBEDDED_BROKER = "embedded"
_GOLDEN_COUNT = 8
_GOLDEN_STEPS = 256
# They are in every push.
_MAX_GOLDEN_BYTES = 64 * 1024
# A flatbuffer's least structure, and that of each layer; measured, and rounded down: the file itself is measured again
# when it is made.
_STRUCTURE_BYTES, _LAYER_BYTES = 2_500, 350
_WIDTHS = (4096, 3072, 2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """An environment, as a learner sees it.

    Attributes:
        observation: the one observation key, with the frames that are stacked of it.
        action: the action space.
        convolutions: of every network that sees the observation.
        golden_observations: [count, *shape], stacks [count, stack, *shape], distinct, from random play.
        played: likewise, all that was observed in it, in order.
    """

    observation: ObservationSpec
    action: ActionSpec
    convolutions: tuple[tuple[int, int, int], ...]
    golden_observations: NDArray[Any]
    played: NDArray[Any]


def look_at(config: TrainConfig) -> Task:
    """Look at the environment: its spaces, and a few observations of random play for the golden vectors.

    Raises:
        UnknownEnvironment: no such id.
        MissingExtra: the environment's own dependency is not installed.
        EnvironmentMisbehaved: it cannot be made, or not be played at random.
        UnsupportedSpace: the algorithm does not take its spaces.
        UsageError: a policy that no push could carry, or a budget in which nothing can be learned.
    """
    env = make_single(EnvSpec(env_id=config.env_id, flat=True, wrappers=config.wrappers), allow_module=True)
    try:
        observations, action = spaces_to_specs(env.observation_space, env.action_space)
        _check_action(config, action)
        _check_observation(config, observations)
        observation = dataclasses.replace(observations[0], stack=config.frames_stacked)
        convolutions = _convolutions(config, observation)
        _check_size(config, observation, action, convolutions)
        _check_budget(config, BlockSpec(observations=(observation,), action=action))
        played = _play_at_random(env, config, observation, action)
    finally:
        env.close()
    distinct = np.unique(played, axis=0)
    count = max(1, min(_GOLDEN_COUNT, len(distinct), _MAX_GOLDEN_BYTES // played[0].nbytes))
    picked = np.linspace(0, len(distinct) - 1, count).astype(int)
    return Task(
        observation=observation,
        action=action,
        convolutions=convolutions,
        golden_observations=distinct[picked],
        played=played,
    )


def _play_at_random(
    env: gymnasium.Env[Any, Any], config: TrainConfig, observation: ObservationSpec, action: ActionSpec
) -> NDArray[Any]:
    """Return observations [steps + 1, *shape] of random play, so that what is wrong shows before a run begins.

    Stacked frames are [steps + 1, stack, *shape]; floats are float32, as policies take them.

    Raises:
        EnvironmentMisbehaved: it raised, changed its spaces, or gave what is no observation or reward.
        MissingExtra: a package is missing that it needs once it is played.
    """
    name, step, stacks = config.env_id, 0, observation.stack > 1
    shape = (observation.stack, *observation.shape) if stacks else observation.shape
    seen: NDArray[Any] = np.empty((_GOLDEN_STEPS + 1, *shape), np.uint8 if is_image(observation) else np.float32)
    env.action_space.seed(config.seed)
    try:
        given, reward = env.reset(seed=config.seed)[0], cast(Any, 0.0)
        check_unchanged(name, env, (observation,), action)
        begins = True
        for step in range(_GOLDEN_STEPS + 1):
            if step:
                given, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                begins = bool(terminated or truncated)
                given = env.reset()[0] if begins else given
            _check_given(name, step, given, reward, observation)
            before = None if begins else seen[step - 1]
            seen[step] = restack(observation, before, np.asarray(given)) if stacks else given
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
    if len(observations) == 1 and is_image(observations[0]):
        if not ALGORITHMS[config.algorithm].images:
            others = [name for name, info in ALGORITHMS.items() if info.images]
            raise UnsupportedSpace(
                f"{config.env_id} observes images of {observations[0].shape}; {config.algorithm} takes vectors alone",
                hint=f"{', '.join(others)} take images",
            )
        if config.observation_scale is not None:
            raise UsageError(f"observation_scale: {config.env_id} observes images, whose pixels are divided by 255")
        return
    if not is_one_vector(observations):
        raise UnsupportedSpace(
            f"{config.env_id} observes {[(spec.key, spec.shape) for spec in observations]}; "
            f"{config.algorithm} takes one vector, or one image of uint8, in this version"
        )
    if (dtype := observations[0].dtype) not in ("float32", "float64"):
        raise UnsupportedSpace(
            f"{config.env_id} observes a vector of {dtype}; {config.algorithm} takes float32 or float64 as yet",
            hint="gymnasium.wrappers.DtypeObservation in the registration's additional_wrappers makes float32 of it",
        )


def _convolutions(config: TrainConfig, observation: ObservationSpec) -> tuple[tuple[int, int, int], ...]:
    """Return the convolutions that `config` asks for, or the usual ones.

    Raises:
        UsageError: there are some and no image, or the other way round, or they do not fit it.
    """
    from quarl_export.networks import feature_shapes, usual_convolutions  # comes with the learner

    found = usual_convolutions(observation)
    if config.convolutions is not None:
        found = tuple(parse_convolution(text) for text in config.convolutions)
    if bool(found) != is_image(observation):
        needs = "images, which need at least one" if is_image(observation) else "no images, which they are for"
        raise UsageError(
            f"convolutions = {','.join(config.convolutions or ())!r}: {config.env_id} observes {needs}",
            hint="--set convolutions=none takes the usual ones",
        )
    if found and config.weight_bits < 8:
        raise UsageError(
            f"weight_bits = {config.weight_bits}: {config.env_id} observes images, and convolutions are trained with 8",
            hint="--set weight_bits=8",
        )
    feature_shapes(input_shape(observation), found)
    return found


def _outputs(action: ActionSpec) -> int:
    return action.n or math.prod(action.shape)


def _check_size(
    config: TrainConfig,
    observation: ObservationSpec,
    action: ActionSpec,
    convolutions: tuple[tuple[int, int, int], ...],
) -> None:
    """Refuse a network that no push can carry before TensorFlow spends seconds, or its patience, on it."""
    from quarl_export.networks import kernel_shapes  # comes with the learner

    room, depth = MAX_POLICY_BYTES, len(config.hidden)

    def least(hidden: tuple[int, ...]) -> int:
        return _least_bytes(kernel_shapes(input_shape(observation), convolutions, (*hidden, _outputs(action))))

    needed = least(config.hidden)
    if needed <= room:
        return
    fitting = [width for width in _WIDTHS if least((width,) * depth) <= room - 1_024]
    raise UsageError(
        f"hidden = {','.join(map(str, config.hidden))} makes a policy of at least {needed:,} bytes; a push carries at "
        f"most {room:,}",
        hint=f"--set hidden={','.join([str(fitting[0])] * depth)}" if fitting else "fewer layers, fewer observations",
    )


def _least_bytes(kernels: tuple[tuple[int, ...], ...]) -> int:
    """Return what an int8 policy takes at least: a byte per weight, four per bias, its structure."""
    weights = sum(math.prod(shape) for shape in kernels)
    return weights + 4 * sum(shape[-1] for shape in kernels) + _STRUCTURE_BYTES + _LAYER_BYTES * (len(kernels) - 1)


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
    if isinstance(config, RolloutConfig) and config.lockstep and rows < config.round_steps:
        raise UsageError(
            f"round_steps = {config.round_steps}: in lockstep a round is a block, and one of {config.env_id} has at "
            f"most {rows} rows",
            hint=f"--set round_steps={rows} --set block_steps={rows}",
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
