"""Environments by id: find, make, look at their spaces, and step them fast."""

from __future__ import annotations

import copy
import difflib
import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from quarl_device import catch
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import (
    ContractError,
    EnvironmentMisbehaved,
    MissingExtra,
    QuarlError,
    SpaceMismatch,
    UnknownEnvironment,
    UnsupportedSpace,
)

MAX_ENV_ID = 128
_EXTRAS = {
    "box2d": "pip install swig && pip install 'gymnasium[box2d]'",  # its wheel is built with swig
    "mujoco": "pip install 'gymnasium[mujoco]'",
    "phys2d": "pip install 'gymnasium[jax]'",
    "tabular": "pip install 'gymnasium[jax]'",
}
Array = NDArray[Any]

catch.register()


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """Which environment to make.

    Attributes:
        env_id: registered gymnasium id.
        kwargs: keyword arguments of its constructor.
    """

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def check_registered(env_id: str, *, allow_module: bool = False) -> None:
    """Refuse an id that this process cannot make.

    Args:
        env_id: from the user, the wire or a policy file.
        allow_module: true only for an id that this device's own user gave: a prefix "module:" imports that module.

    Raises:
        UnknownEnvironment: not registered, with the nearest ids; or a module prefix that is not allowed.
    """
    _find_spec(env_id, allow_module=allow_module)


def _find_spec(env_id: str, *, allow_module: bool) -> GymnasiumSpec:
    shown, name = repr(env_id[:MAX_ENV_ID]), env_id
    if ":" in env_id:
        if not allow_module:
            raise UnknownEnvironment(
                f"environment id {shown} names a module to import; only this device's own --env may do that",
                hint="start with --env on the device",
            )
        module, name = env_id.split(":", 1)
        _import(module, shown)
    found = gymnasium.registry.get(name)
    if found is not None:
        return found
    near = _nearest(name)
    raise UnknownEnvironment(
        f"no environment {shown} is registered",
        hint=f"did you mean {' or '.join(near)}?" if near else "install and register the package that defines it",
    )


def _import(module: str, shown: str) -> None:
    try:
        with _quiet():
            importlib.import_module(module)
    # The module is anybody's code and may raise anything.
    except Exception as error:
        raise UnknownEnvironment(
            f"the module of environment {shown} cannot be imported: {type(error).__name__}: {first_line(error)}"
        ) from error


def _nearest(env_id: str) -> list[str]:
    if len(env_id) > MAX_ENV_ID:
        return []
    names = list(gymnasium.registry)
    lower = {name.lower(): name for name in names}
    versions = [name for name in names if name.lower().rsplit("-v", 1)[0] == env_id.lower().rsplit("-v", 1)[0]]
    if versions:
        return [versions[-1]]
    return [lower[name] for name in difflib.get_close_matches(env_id.lower(), lower, n=3, cutoff=0.6)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence gymnasium's advice (old versions, bounds): an id that was asked for is made without comment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


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
        parts = {"observation": observation_space}
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
    env: gymnasium.Env[Any, Any] | VectorAdapter,
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
    if isinstance(env, VectorAdapter):
        found, found_action = env.observations, env.action
    else:
        found, found_action = spaces_to_specs(env.observation_space, env.action_space)
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
    if given and made_for and given != made_for:
        said = f"the policy was made for {made_for}, and {given} is another environment: {said}"
        hint = f"--env {made_for}, or leave --env out where the file names it"
    elif given and made_for:
        said = f"{given} is another one here than the policy was made for: {said}"
        hint = "install the version of its package that the policy was made with"
    elif given:
        said = f"{given} is not the environment that the policy was made for: {said}"
        hint = "name that one with --env ID"
    raise SpaceMismatch(said, hint=hint)


def _show(part: tuple[tuple[int, ...], str] | None) -> str:
    return "none" if part is None else f"{part[1]}{list(part[0])}"


def show_action(action: ActionSpec) -> str:
    """Return an action space for use in one of our messages."""
    if action.kind == "discrete":
        return f"{action.n} actions from {action.start}"
    return f"box{list(action.shape)} in {list(action.low)[:4]}..{list(action.high)[:4]}"


def make_single(spec: EnvSpec, *, seed: int | None = None, allow_module: bool = False) -> gymnasium.Env[Any, Any]:
    """Return one environment without the checker and order-enforcing wrappers, which cost more than CartPole itself.

    Args:
        spec: what to make. A time limit and the wrappers that the registration names stay.
        seed: resets the environment once and seeds its action space, so that later resets follow from it.
        allow_module: see `check_registered`.

    Raises:
        UnknownEnvironment: no such id.
        MissingExtra: the environment's own dependency is not installed.
        EnvironmentMisbehaved: its constructor or first reset raised.
    """
    bare = copy.copy(_find_spec(spec.env_id, allow_module=allow_module))
    bare.order_enforce, bare.disable_env_checker = False, True
    with _making(spec):
        env = gymnasium.make(bare, **dict(spec.kwargs))
        if seed is not None:
            env.reset(seed=seed)
            env.action_space.seed(seed)
    return env


@contextmanager
def _making(spec: EnvSpec) -> Iterator[None]:
    try:
        with _quiet():
            yield
    except QuarlError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        hint, said = _extra_hint(spec.env_id), first_line(error)
        # Advice of its own follows after a comma; it is shown where there is no better one.
        said = said.split(",")[0] if hint else said
        raise MissingExtra(f"environment {spec.env_id!r} needs a package: {said}", hint=hint) from error
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"environment {spec.env_id!r} needs the Python module {error.name!r}, which is not installed",
            hint=_extra_hint(spec.env_id),
        ) from error
    except gymnasium.error.UnregisteredEnv as error:
        raise UnknownEnvironment(f"environment {spec.env_id!r} cannot be made: {first_line(error)}") from error
    # The constructor is anybody's code: whatever it raises becomes one line that says what was asked for.
    except Exception as error:
        given = f" with {dict(spec.kwargs)}" if spec.kwargs else ""
        raise EnvironmentMisbehaved(
            f"environment {spec.env_id!r} cannot be made{given}: {type(error).__name__}: {first_line(error)}"
        ) from error


def _extra_hint(env_id: str) -> str:
    """Return the command that adds what a gymnasium family of environments needs, "" if none is known."""
    name = env_id.rpartition(":")[2]
    entry = str(gymnasium.registry[name].entry_point) if name in gymnasium.registry else ""
    return next((command for family, command in _EXTRAS.items() if f".{family}" in entry), "")


def first_line(error: BaseException) -> str:
    """Return an exception's first line, or its class's name, for use in one of our messages."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


class VectorStep(NamedTuple):
    """One step of N environments.

    Attributes:
        observation: [N, *shape], or a dict of such, after the step; where a same-step episode ended, of the new one.
        reward: float32 [N].
        terminated: bool [N].
        truncated: bool [N].
        valid: bool [N]; false marks a row in which the environment only reset and ignored the action.
        start: bool [N]; `observation` begins an episode.
        final_rows: int [K], environments whose true last observation is in `final_observation`.
        final_observation: [K, *shape], or a dict of such; `None` if K is 0.
    """

    observation: Any
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    start: NDArray[np.bool_]
    final_rows: NDArray[np.intp]
    final_observation: Any


class VectorAdapter:
    """N environments behind one step, whichever way they reset.

    Attributes:
        num_envs: N.
        mode: "next_step" (the row after an end is a dummy) or "same_step" (`final_observation` holds the last one).
        observations: specs of a single environment.
        action: likewise.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, mode: Literal["same_step", "next_step"]) -> None:
        self.env = env
        self.mode: Literal["same_step", "next_step"] = mode
        self.num_envs = int(env.num_envs)
        self.observations, self.action = spaces_to_specs(env.single_observation_space, env.single_action_space)
        self._always = np.ones(self.num_envs, np.bool_)
        self._always.flags.writeable = False
        self._valid = self._always
        self._none = np.empty(0, np.intp)
        self._start = self.action.start

    def reset(self, *, seed: int | None = None) -> Any:
        """Start N episodes; environment i is seeded with `seed + i` where they are separate environments.

        Raises:
            EnvironmentMisbehaved: an environment raised.
        """
        self._valid = self._always
        try:
            return self.env.reset(seed=seed)[0]
        except Exception as error:
            raise _stepping_failed("reset", error) from error

    def step(self, actions: NDArray[Any]) -> VectorStep:
        """Step with [N] action indices counted from 0 (or [N, *shape] of a box).

        Raises:
            EnvironmentMisbehaved: an environment raised.
        """
        if self._start:
            actions = actions.astype(np.int64) + self._start
        try:
            observation, reward, terminated, truncated, info = self.env.step(actions)
        except Exception as error:
            raise _stepping_failed("step", error) from error
        done = terminated | truncated
        reward = reward.astype(np.float32)
        if self.mode == "next_step":
            valid, self._valid = self._valid, ~done
            # A dummy row is no end, whatever the environment says of it.
            return VectorStep(observation, reward, terminated, truncated, valid, ~valid, self._none, None)
        if not done.any():
            return VectorStep(observation, reward, terminated, truncated, self._always, done, self._none, None)
        rows = np.flatnonzero(done)
        final = _gather(info["final_obs"], rows, self.env.single_observation_space)
        return VectorStep(observation, reward, terminated, truncated, self._always, done, rows, final)

    def close(self) -> None:
        """Close all environments."""
        self.env.close()


def _stepping_failed(what: str, error: BaseException) -> EnvironmentMisbehaved:
    return EnvironmentMisbehaved(f"an environment raised in {what}(): {type(error).__name__}: {first_line(error)}")


def _gather(final: Any, rows: NDArray[np.intp], space: gymnasium.Space[Any]) -> Any:
    """Stack the last observations of `rows`; gymnasium gives an object array of observations, `None` elsewhere."""
    picked = [final[row] for row in rows]
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: np.stack([part[key] for part in picked]) for key in space.spaces}
    return np.stack(picked)


def make_vector(spec: EnvSpec, num_envs: int, *, allow_module: bool = False) -> VectorAdapter:
    """Return N environments: the registration's own vector implementation if it has one, else N single ones in a loop.

    Raises:
        UnknownEnvironment: no such id.
        MissingExtra: the environment's own dependency is not installed.
        EnvironmentMisbehaved: its constructor raised.
        UnsupportedSpace: spaces that this version does not take.
    """
    registered = _find_spec(spec.env_id, allow_module=allow_module)
    with _making(spec):
        if registered.vector_entry_point is not None and not _needs_wrappers(registered):
            env = gymnasium.make_vec(
                registered.id, num_envs=num_envs, vectorization_mode="vector_entry_point", **dict(spec.kwargs)
            )
            if env.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
                return VectorAdapter(env, mode="next_step")
            env.close()
        makers = [lambda: make_single(spec, allow_module=allow_module)] * num_envs
        return VectorAdapter(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP), mode="same_step")


def _needs_wrappers(registered: GymnasiumSpec) -> bool:
    # A vector entry point applies none of the registration's wrappers, so it would be another environment.
    return bool(registered.additional_wrappers)
