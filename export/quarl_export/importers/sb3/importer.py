"""A Stable-Baselines3 `.zip` becomes an `ImportedPolicy`, without PyTorch and without executing a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, ObservationSpec, PolicyContract
from quarl_device.environments import EnvSpec, bare_name, make_single, spaces_to_specs
from quarl_device.errors import SpaceMismatch, UsageError
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.sb3.agent import Agent, read_agent
from quarl_export.importers.sb3.archive import AgentArchive, read_archive
from quarl_export.importers.sb3.arrays import as_floats
from quarl_export.importers.sb3.evidence import kept_observations, statistics_doubts
from quarl_export.importers.sb3.observations import Seen, filled, lost_to_float32, normalizer, observe
from quarl_export.importers.sb3.policies import acting_tensors, build_network, convolved_keys
from quarl_export.importers.sb3.spaces import Box, Discrete, action_space, observation_spaces
from quarl_export.importers.sb3.tensors import TensorArchive
from quarl_export.importers.sb3.vecnormalize import VecNormalize, read_vecnormalize
from quarl_export.ir import ImportedPolicy


def read_sb3(path: Path, *, options: ImportOptions) -> ImportedPolicy:
    """Read the acting function of an agent that `model.save` wrote.

    Args:
        path: the `.zip`.
        options: `env_id` and `env_kwargs` (is an image's channel axis first in the environment, are frames stacked:
            without it, uint8 images are rows, columns, channels), `stack` (needed where there is no `env_id`),
            `vecnormalize`.

    Raises:
        ModelFileError: missing, truncated, damaged or over a cap.
        UnsafeSource: it names what is not allowed; nothing of it was executed.
        UnsupportedModel: a policy, layer, extractor or activation that is not exported, by its name.
        UnsupportedSpace: observations or actions that are not exported.
        SpaceMismatch: the environment or the statistics are of other spaces than the agent.
        NonFiniteError: NaN or Inf in the weights or statistics.
        UsageError: trained behind a `VecNormalize` whose statistics are not given, or certainly without one.
        UnknownEnvironment: no such environment.
    """
    what = path.name
    archive = read_archive(path)
    agent = read_agent(archive.settings, what=what)
    boxes, action = observation_spaces(archive.settings, what=what), action_space(archive.settings, what=what)
    statistics, warnings, unknown = _statistics(agent, archive.settings, options.vecnormalize, what)
    stored = TensorArchive(archive.policy, what=f"{what}: policy.pth")
    names = frozenset(stored.names)
    tensors = stored.read(acting_tensors(agent.family, names))
    environment = _environment(options, action, what)
    seen = observe(
        boxes, convolved=convolved_keys(agent, names, boxes), environment=environment, options=options, what=what
    )
    network = build_network(agent, tensors, seen, action, names=names, what=what)
    constants = normalizer(seen, statistics, divides_images=agent.divides_images, what=what)
    warnings = (*warnings, *lost_to_float32(seen, constants))
    seen = filled(seen, statistics, what=what)
    contract = PolicyContract(
        env_id=bare_name(options.env_id),
        env_kwargs=dict(options.env_kwargs),
        wrappers=options.wrappers,
        algorithm=agent.algorithm,
        scheme="",
        observations=tuple(each.spec for each in seen),
        normalizer=constants,
        head=network.head,
        action=_action_spec(action, unit_actions=network.unit_actions),
    )
    return ImportedPolicy(
        graph=network.graph,
        weights=network.weights,
        contract=contract,
        golden_observations=_last_observations(archive.settings, seen, what),
        provenance=_provenance(
            path, archive, agent, options, environment=environment is not None, warnings=warnings, unknown=unknown
        ),
    )


def _statistics(
    agent: Agent, settings: Mapping[str, Any], path: Path | None, what: str
) -> tuple[VecNormalize | None, tuple[str, ...], tuple[str, ...]]:
    """Return the statistics that were given, warnings about them, and what is assumed of them."""
    if path is not None:
        statistics = read_vecnormalize(path)
        return statistics, *statistics_doubts(agent, settings, statistics, what=what)
    if agent.behind_vecnormalize:
        raise UsageError(
            f"{what} was trained behind a VecNormalize; without its statistics it would act on other numbers",
            hint="give the file that VecNormalize.save(path) wrote: --vecnormalize FILE",
        )
    assumed = () if agent.family == "actor_critic" else ("it was trained without VecNormalize",)
    return None, (), assumed


def _environment(options: ImportOptions, action: Box | Discrete, what: str) -> tuple[ObservationSpec, ...] | None:
    """Return what the environment gives; it must act as the agent does."""
    if not options.env_id:
        return None
    spec = EnvSpec(env_id=options.env_id, kwargs=options.env_kwargs, wrappers=options.wrappers)
    env = make_single(spec, allow_module=True)
    try:
        observations, given = spaces_to_specs(env.observation_space, env.action_space)
    finally:
        env.close()
    own = _action_spec(action, unit_actions=False)
    if (own.kind, own.n, own.start, own.shape) != (given.kind, given.n, given.start, given.shape) or not (
        np.allclose(own.low, given.low, rtol=1e-6) and np.allclose(own.high, given.high, rtol=1e-6)
    ):
        raise SpaceMismatch(
            f"{what} acts in {_show(own)}, the environment takes {_show(given)}",
            hint="name the environment that it was trained on, with its wrappers, or leave --env out",
        )
    return observations


def _show(action: ActionSpec) -> str:
    if action.kind == "discrete":
        return f"{action.n} actions from {action.start}"
    return f"a box of {action.shape} in {action.low[:4]}..{action.high[:4]}"


def _action_spec(action: Box | Discrete, *, unit_actions: bool) -> ActionSpec:
    if isinstance(action, Discrete):
        return ActionSpec(kind="discrete", n=action.n)
    low, high = (as_floats(bound).ravel() for bound in (action.low, action.high))
    ones = np.ones(low.size)
    scale, offset = ((high - low) / 2, (high + low) / 2) if unit_actions else (ones, 0 * ones)
    return ActionSpec(
        kind="box",
        shape=action.shape,
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        scale=tuple(scale.tolist()),
        offset=tuple(offset.tolist()),
    )


def _last_observations(settings: Mapping[str, Any], seen: tuple[Seen, ...], what: str) -> dict[str, NDArray[Any]]:
    """Return the observations that training ended with, one row per environment, as the environment gave them.

    They are a gift: where the archive does not have them in a form that fits, there are none.
    """
    name = "_last_original_obs" if settings.get("_last_original_obs") is not None else "_last_obs"
    found = kept_observations(settings, name, what=what)
    given = [_as_given(found[each.spec.key], each) if each.spec.key in found else None for each in seen]
    rows = [array for array in given if array is not None]
    if len(rows) < len(seen):
        return {}
    return {each.spec.key: array for each, array in zip(seen, rows, strict=True)}


def _as_given(array: NDArray[Any], seen: Seen) -> NDArray[Any] | None:
    """Return observations [N, *spec.shape] of what the policy saw, `None` where they are of anything else."""
    if not len(array) or not np.isfinite(array).all() or seen.spec.stack > 1:
        return None
    if array.shape[1:] == seen.spec.shape:
        return array
    if array.shape[1:] != seen.box.shape:
        return None
    if seen.is_image and seen.spec.shape == seen.shape:
        array = np.moveaxis(array, 1, -1)
    return array.reshape(len(array), *seen.spec.shape)


def _provenance(
    path: Path,
    archive: AgentArchive,
    agent: Agent,
    options: ImportOptions,
    *,
    environment: bool,
    warnings: tuple[str, ...],
    unknown: tuple[str, ...],
) -> dict[str, Any]:
    images = () if environment else ("uint8 images are rows, columns, channels in the environment",)
    return {
        "kind": "stable-baselines3",
        "path": path.name,
        "version": archive.version,
        "policy_class": agent.policy_class,
        "vecnormalize": options.vecnormalize.name if options.vecnormalize else "",
        "assumed": [*images, *unknown],
        "warnings": list(warnings),
    }
