"""Where a comparison's observations come from: recorded ones, an environment, or the policy files themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import Normalizer, ObservationSpec, PolicyContract
from quarl_device.environments import EnvSpec, check_matches, make_single, spaces_to_specs
from quarl_device.errors import EnvironmentMisbehaved, SpaceMismatch, UsageError
from quarl_device.frame_stack import restack
from quarl_export.calibration.data import by_single_key, checked_rows
from quarl_export.npz import read_npz
from quarl_export.reports.acting import finite_width
from quarl_export.reports.side import Side

DEFAULT_ROWS = 512
MAX_ROWS = 100_000
_EXPLORE = 0.1
_FALLBACK = 3.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Observations:
    """Rows of observations.

    Attributes:
        arrays: per key ``[rows, *shape]``, with a stack ``[rows, stack, *shape]``.
        source: where they come from, for people.
        recorded: true if the policy would meet such observations: recorded, or played.
    """

    arrays: Mapping[str, NDArray[Any]]
    source: str
    recorded: bool

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(next(iter(self.arrays.values())))


def stacked_shape(spec: ObservationSpec) -> tuple[int, ...]:
    """Return the shape of one observation with its stack in front, oldest frame first, as on the device."""
    return spec.shape if spec.stack == 1 else (spec.stack, *spec.shape)


def from_archive(path: Path, specs: Sequence[ObservationSpec], *, limit: int = MAX_ROWS) -> Observations:
    """Read observations from an `.npz`: one array per key, ``[rows, *shape]``; for a single one see `by_single_key`.

    Raises:
        UsageError: missing, not an archive of arrays, too large, other keys, shapes or types, or no rows.
        NonFiniteError: NaN or Inf.
    """
    arrays = by_single_key(read_npz(path, what="observations file"), [spec.key for spec in specs])
    checked = checked_rows(specs, arrays, source=str(path))
    total = len(next(iter(checked.values())))
    if not total:
        raise UsageError(f"{path}: no rows of observations")
    if total > limit:
        picked = np.linspace(0, total - 1, limit).astype(int)
        checked = {key: array[picked] for key, array in checked.items()}
    return Observations(arrays=checked, source=f"{min(total, limit):,} rows of {path.name}", recorded=True)


def by_default(side: Side, *, rows: int = DEFAULT_ROWS, seed: int = 0) -> Observations:
    """Return the file's golden observations and random ones within the contract's bounds.

    A dimension without bounds is drawn around the normaliser's offset, else around the golden observations, else
    from -3 to 3.
    """
    rng = np.random.default_rng(seed)
    arrays = {}
    golden = side.golden
    kept = golden.rows if golden is not None else 0
    normalizer = side.contract.normalizer if side.contract else Normalizer()
    for spec in side.observations:
        recorded = None if golden is None else golden.observations[spec.key].reshape(kept, *stacked_shape(spec))
        low, high = _limits(spec, normalizer, recorded)
        drawn = rng.uniform(low, high, (max(0, rows - kept), *stacked_shape(spec)))
        if np.dtype(spec.dtype).kind != "f":
            drawn = np.floor(drawn + 0.5)
        drawn = drawn.astype(spec.dtype)
        arrays[spec.key] = drawn if recorded is None else np.concatenate([recorded, drawn])
    parts = [f"{kept} golden observations"] if kept else []
    parts.append(f"{max(0, rows - kept)} random ones within the bounds (seed {seed})")
    return Observations(arrays=arrays, source=" and ".join(parts), recorded=False)


def _limits(
    spec: ObservationSpec, normalizer: Normalizer, recorded: NDArray[Any] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return where to draw each element, in the shape of one frame."""
    size = math.prod(spec.shape)
    given_low, given_high = (_spread(bound, size) for bound in (spec.low, spec.high))
    low, high = np.full(size, -_FALLBACK), np.full(size, _FALLBACK)
    if recorded is not None:
        frames = recorded.astype(np.float64).reshape(-1, size)
        reach = np.maximum(np.ptp(frames, axis=0), 1e-3)
        low, high = frames.min(axis=0) - reach / 2, frames.max(axis=0) + reach / 2
    if spec.key in normalizer.offset:
        offset, scale = (_spread(part[spec.key], size) for part in (normalizer.offset, normalizer.scale))
        if offset is not None and scale is not None:
            reach = 2.0 / np.where(scale == 0.0, 1.0, np.abs(scale))
            low, high = offset - reach, offset + reach
    if given_low is not None and given_high is not None:
        fits = np.array([finite_width(a, b) for a, b in zip(given_low, given_high, strict=True)])
        low, high = np.where(fits, given_low, low), np.where(fits, given_high, high)
    return low.reshape(spec.shape), high.reshape(spec.shape)


def _spread(values: Sequence[float] | None, size: int) -> NDArray[np.float64] | None:
    if values is None or len(values) not in (1, size):
        return None
    return np.broadcast_to(np.asarray(values, np.float64), (size,)).copy()


def by_playing(
    place: EnvSpec,
    specs: Sequence[ObservationSpec],
    act: Callable[[Mapping[str, NDArray[Any]]], Any],
    *,
    contract: PolicyContract | None = None,
    rows: int = DEFAULT_ROWS,
    seed: int = 0,
    allow_module: bool = False,
) -> Observations:
    """Play an environment with the float file's greedy actions, one in ten at random, and keep what it shows.

    Args:
        place: which environment.
        specs: what the policy observes; an environment that shows something else is refused.
        act: one observation per key, stacked where the policy stacks, to an action of the environment's space.
        contract: of the policy that plays; `None`: the shapes of observations alone are compared.
        rows: how many observations to keep.
        seed: of the first episode and of the random actions; episode i starts from seed + i.
        allow_module: see `environments.check_registered`.

    Raises:
        UnknownEnvironment: no such id.
        SpaceMismatch: the environment shows or takes something else than the policy.
        EnvironmentMisbehaved: it raised.
    """
    env_id = place.env_id
    env = make_single(place, seed=seed, allow_module=allow_module)
    rng = np.random.default_rng(seed)
    kept: dict[str, list[NDArray[Any]]] = {spec.key: [] for spec in specs}
    try:
        if contract is not None:
            _check_spaces(env, specs, contract, env_id)
        env.action_space.seed(seed)
        episode = 0
        observation, _ = env.reset(seed=seed)
        shown: dict[str, NDArray[Any]] = {}
        for _ in range(rows):
            shown = _stacked(_by_key(observation, specs, env_id), shown, specs)
            for key, array in shown.items():
                kept[key].append(array)
            action = env.action_space.sample() if rng.random() < _EXPLORE else act(shown)
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                episode += 1
                observation, _ = env.reset(seed=seed + episode)
                shown = {}
    except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise EnvironmentMisbehaved(f"{env_id} failed while playing: {str(error)[:200]}") from error
    finally:
        env.close()
    source = f"{rows} steps of {env_id}, played by the float file, one action in ten random (seed {seed})"
    arrays = {key: np.stack(values) for key, values in kept.items()}
    return Observations(arrays=arrays, source=source, recorded=True)


def _check_spaces(
    env: gymnasium.Env[Any, Any], specs: Sequence[ObservationSpec], contract: PolicyContract, env_id: str
) -> None:
    """Refuse the environments that `evaluate` refuses, but for the key of a single observation."""
    wanted = tuple(specs)
    if len(wanted) == 1 and not isinstance(env.observation_space, gymnasium.spaces.Dict):
        found, _ = spaces_to_specs(env.observation_space, env.action_space)
        wanted = (replace(wanted[0], key=found[0].key),)
    check_matches(env, wanted, contract.action, given=env_id, made_for=contract.env_id)


def _by_key(observation: Any, specs: Sequence[ObservationSpec], env_id: str) -> dict[str, NDArray[Any]]:
    parts = observation if isinstance(observation, Mapping) else {specs[0].key: observation}
    arrays = {spec.key: np.asarray(parts[spec.key]) for spec in specs if spec.key in parts}
    wrong = [spec.key for spec in specs if spec.key not in arrays or arrays[spec.key].size != math.prod(spec.shape)]
    if wrong:
        found = {str(key): list(np.shape(value)) for key, value in parts.items()}
        wanted = {spec.key: list(spec.shape) for spec in specs}
        raise SpaceMismatch(f"{env_id} shows {found}, the policy observes {wanted}")
    return {key: array.copy() for key, array in arrays.items()}


def _stacked(
    frames: Mapping[str, NDArray[Any]], before: Mapping[str, NDArray[Any]], specs: Sequence[ObservationSpec]
) -> dict[str, NDArray[Any]]:
    """Return what the policy sees: frames behind those of `before`, which is empty at an episode's first."""
    return {
        spec.key: restack(spec, before.get(spec.key), frames[spec.key].astype(spec.dtype).reshape(spec.shape))
        if spec.stack > 1
        else frames[spec.key]
        for spec in specs
    }
