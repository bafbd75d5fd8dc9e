"""N environments behind one step."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from quarl_device.environments.ids import find_spec, first_line
from quarl_device.environments.making import EnvSpec, make_single, making, missing_part
from quarl_device.environments.spaces import spaces_to_specs
from quarl_device.errors import EnvironmentMisbehaved, QuarlError


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
        self._start, self._is_discrete = self.action.start, self.action.kind == "discrete"

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
        if self._is_discrete:
            # What travels as uint8 wraps around where an environment subtracts from it, as LunarLander does.
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

    @property
    def singles(self) -> tuple[gymnasium.Env[Any, Any], ...]:
        """The N environments where they are separate, none where one implementation steps all of them."""
        return tuple(self.env.envs) if isinstance(self.env, SyncVectorEnv) else ()

    def close(self) -> None:
        """Close all environments."""
        self.env.close()


def _stepping_failed(what: str, error: BaseException) -> QuarlError:
    return missing_part("", error) or EnvironmentMisbehaved(
        f"an environment raised in {what}(): {type(error).__name__}: {first_line(error)}"
    )


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
    registered = find_spec(spec.env_id, allow_module=allow_module)
    with making(spec):
        if registered.vector_entry_point is not None and (env := _own_vector(registered, spec, num_envs)):
            return VectorAdapter(env, mode="next_step")
        makers = [lambda: make_single(spec, allow_module=allow_module)] * num_envs
        return VectorAdapter(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP), mode="same_step")


def _own_vector(registered: GymnasiumSpec, spec: EnvSpec, num_envs: int) -> VectorEnv[Any, Any, Any] | None:
    """Return the registration's own vector implementation, `None` where it is another environment than the single one.

    It applies none of the wrappers that the registration names, and none of ours.
    """
    if registered.additional_wrappers or spec.wrappers:
        return None
    env = gymnasium.make_vec(
        registered.id, num_envs=num_envs, vectorization_mode="vector_entry_point", **dict(spec.kwargs)
    )
    if env.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP and _is_alike(env, spec):
        return env
    env.close()
    return None


def _is_alike(env: VectorEnv[Any, Any, Any], spec: EnvSpec) -> bool:
    single = make_single(spec, allow_module=True)
    try:
        spaces = (single.observation_space, single.action_space)
        return (env.single_observation_space, env.single_action_space) == spaces
    finally:
        single.close()
