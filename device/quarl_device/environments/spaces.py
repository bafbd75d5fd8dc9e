"""Spaces as specs: what of gymnasium's spaces a policy can observe and act in, and whether two ends mean the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.wrappers import DtypeObservation, FlattenObservation
from numpy.typing import NDArray

from quarl_device.contract import BARE_KEY, ActionSpec, ObservationSpec
from quarl_device.environments.ids import bare_name
from quarl_device.errors import ContractError, EnvironmentMisbehaved, SpaceMismatch, UnsupportedSpace

_FLAT = (gymnasium.spaces.Box, gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete, gymnasium.spaces.MultiBinary)
Array = NDArray[Any]


class Described(Protocol):
    """What knows the specs of a single environment: a `VectorAdapter`."""

    observations: tuple[ObservationSpec, ...]
    action: ActionSpec


def is_one_vector(observations: Sequence[ObservationSpec]) -> bool:
    """Return whether a policy with these observations sees one vector, as of a space that is not a Dict."""
    return len(observations) == 1 and observations[0].key == BARE_KEY and len(observations[0].shape) == 1


def flattened(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return an environment that observes no array with what it observes as one vector, in the order of its space.

    `gymnasium.wrappers.FlattenObservation` does it: numbers and vectors stay what they are, a Discrete becomes one of
    its n elements. Where there is no float among them, the vector is float32, which a policy takes.

    Raises:
        UnsupportedSpace: a part has no such form, or would lose one: an image.
    """
    if isinstance(env.observation_space, gymnasium.spaces.Box):
        return env
    for key, part in _leaves(BARE_KEY, env.observation_space):
        if not isinstance(part, _FLAT) or len(part.shape or ()) > 1:
            shape = f" of shape {part.shape}" if part.shape else ""
            raise UnsupportedSpace(
                f"{key[:80]!r} is a {type(part).__name__} space{shape}, which no vector can be made of; a policy of "
                "one vector cannot see it",
                hint="leave it out: gymnasium.wrappers.FilterObservation in the registration's additional_wrappers",
            )
    flat: gymnasium.Env[Any, Any] = FlattenObservation(env)
    is_float = flat.observation_space.dtype is not None and flat.observation_space.dtype.kind == "f"
    return flat if is_float else DtypeObservation(flat, np.float32)


def _leaves(key: str, space: gymnasium.Space[Any]) -> Iterator[tuple[str, gymnasium.Space[Any]]]:
    if isinstance(space, gymnasium.spaces.Dict):
        for name, part in space.spaces.items():
            yield from _leaves(f"{key}.{name}", part)
    elif isinstance(space, gymnasium.spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(f"{key}.{index}", part)
    else:
        yield key, space


def spaces_to_specs(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> tuple[tuple[ObservationSpec, ...], ActionSpec]:
    """Return the specs of a single environment's spaces.

    Raises:
        UnsupportedSpace: anything but a Box, or a Dict of Boxes, to observe, and a Discrete or Box to act in.
    """
    if isinstance(observation_space, gymnasium.spaces.Dict):
        parts = dict(observation_space.spaces)
    else:
        parts = {BARE_KEY: observation_space}
    try:
        return tuple(_observation(key, space) for key, space in parts.items()), _action(action_space)
    except ContractError as error:
        raise UnsupportedSpace(f"this version cannot carry the environment's spaces: {error.message}") from error


def _observation(key: Any, space: gymnasium.Space[Any]) -> ObservationSpec:
    if not isinstance(space, gymnasium.spaces.Box):
        raise UnsupportedSpace(
            f"observation {str(key)[:64]!r} is a {type(space).__name__} space; this version takes Box and Dict of Box",
            hint="gymnasium.wrappers.FlattenObservation makes a Box of most spaces",
        )
    if not isinstance(key, str):
        raise UnsupportedSpace(f"observation key {key!r} is not a string")
    return ObservationSpec(
        key=key, shape=space.shape, dtype=space.dtype.name, low=_bounds(space.low), high=_bounds(space.high)
    )


def _action(space: gymnasium.Space[Any]) -> ActionSpec:
    if isinstance(space, gymnasium.spaces.Discrete):
        return ActionSpec(kind="discrete", n=int(space.n), start=int(space.start))
    if isinstance(space, gymnasium.spaces.Box):
        low, high = (np.asarray(bound, np.float64).ravel() for bound in (space.low, space.high))
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise UnsupportedSpace("the action space is unbounded; a policy's output needs bounds to be scaled to")
        return ActionSpec(
            kind="box",
            shape=space.shape,
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
            scale=tuple(((high - low) / 2).tolist()),
            offset=tuple(((high + low) / 2).tolist()),
        )
    raise UnsupportedSpace(f"the action space is {type(space).__name__}; this version takes Discrete and Box")


def _bounds(bound: Array) -> tuple[float, ...] | None:
    """Return bounds as the contract has them: `None` unless all are finite, one value where all are equal."""
    flat = np.asarray(bound, np.float64).ravel()
    if not flat.size or not np.isfinite(flat).all():
        return None
    return (float(flat[0]),) if (flat == flat[0]).all() else tuple(flat.tolist())


def check_matches(
    env: gymnasium.Env[Any, Any] | Described,
    observations: tuple[ObservationSpec, ...],
    action: ActionSpec,
    *,
    given: str = "",
    made_for: str = "",
) -> None:
    """Refuse an environment whose spaces are not the given ones; bounds of observations may differ.

    Args:
        env: the environment.
        observations: that it must have.
        action: likewise.
        given: id of `env`, for the message; "" where nobody chose it.
        made_for: id of the environment that the specs come from; "" where it is not known.

    Raises:
        SpaceMismatch: naming each difference.
        UnsupportedSpace: the environment's own spaces are none of ours.
    """
    found, found_action = _specs_of(env)
    ours, theirs = ({s.key: (s.shape, s.dtype) for s in specs} for specs in (found, observations))
    differences = [
        f"observation {key!r}: the environment has {_show(ours.get(key))}, expected {_show(theirs.get(key))}"
        for key in dict.fromkeys((*theirs, *ours))
        if ours.get(key) != theirs.get(key)
    ]
    if found_action.space != action.space:
        differences.append(f"action: the environment has {show_action(found_action)}, expected {show_action(action)}")
    if not differences:
        return
    said, hint = "; ".join(differences), "the policy or learner belongs to another environment"
    if given and made_for and bare_name(given) != bare_name(made_for):
        said = f"the policy was made for {made_for}, and {given} is another environment: {said}"
        hint = f"--env {made_for}, or leave --env out where the file names it"
    elif given and made_for:
        said = f"{given} is another one here than the policy was made for: {said}"
        hint = "install the version of its package that the policy was made with"
    elif given:
        said = f"{given} is not the environment that the policy was made for: {said}"
        hint = "name that one with --env ID"
    raise SpaceMismatch(said, hint=hint)


def _specs_of(env: Any) -> tuple[tuple[ObservationSpec, ...], ActionSpec]:
    # By what it has, not by its class: what stands before an environment to time it is no gymnasium.Env.
    if hasattr(env, "observation_space"):
        return spaces_to_specs(env.observation_space, env.action_space)
    return env.observations, env.action


def check_unchanged(
    env_id: str,
    env: gymnasium.Env[Any, Any],
    observations: tuple[ObservationSpec, ...],
    action: ActionSpec,
) -> None:
    """Refuse an environment that has changed its spaces since it was made, as a reset can.

    Raises:
        EnvironmentMisbehaved: naming each difference.
    """
    try:
        check_matches(env, observations, action)
    except (SpaceMismatch, UnsupportedSpace) as error:
        raise EnvironmentMisbehaved(
            f"environment {env_id!r} has changed its spaces with reset(): {error.message}",
            hint="a policy is made for one pair of spaces: register an id for each",
        ) from error


def _show(part: tuple[tuple[int, ...], str] | None) -> str:
    return "none" if part is None else f"{part[1]}{list(part[0])}"


def show_action(action: ActionSpec) -> str:
    """Return an action space for use in one of our messages."""
    if action.kind == "discrete":
        return f"{action.n} actions from {action.start}"
    return f"box{list(action.shape)} in {list(action.low)[:4]}..{list(action.high)[:4]}"
