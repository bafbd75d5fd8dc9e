"""What a source's outputs mean: which head, which output has which role, and how a box action is scaled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, HeadKind
from quarl_device.errors import SpaceMismatch, UsageError
from quarl_export.importers.options import ImportOptions
from quarl_export.ir.draft import Affine, Draft

Float64 = NDArray[np.float64]
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "mean": ("mean", "mu", "action_mean"),
    "log_std": ("log_std", "logstd", "log_sigma", "log_stddev"),
    "q_values": ("q_values", "q", "q_value", "qvalues"),
    "logits": ("logits", "action_logits"),
    "action": ("action", "actions"),
}


@dataclass(frozen=True, kw_only=True)
class HeadChoice:
    """What was decided.

    Attributes:
        kind: of the contract's head.
        outputs: role to the source's output name.
        notes: what was assumed, in words.
    """

    kind: HeadKind
    outputs: Mapping[str, str]
    notes: tuple[str, ...] = ()


def choose_head(draft: Draft, action: ActionSpec | None, options: ImportOptions) -> HeadChoice:
    """Return head and roles: what the user said first, then the outputs' names, then the last activation.

    Args:
        draft: outputs by the source's names.
        action: of the environment, `None` where none was named.
        options: `head` and `outputs` decide.

    Raises:
        UsageError: an output that does not exist, roles that do not make the head, or nothing to decide by.
        SpaceMismatch: the head does not fit the environment's action space.
    """
    unknown = sorted(set(options.outputs.values()) - set(draft.outputs))
    if unknown:
        raise UsageError(
            f"the model has no outputs {unknown}; it has {sorted(draft.outputs)}", hint="--output ROLE=NAME"
        )
    choice = _by_roles(options) or _by_head(draft, options) or _by_names(draft, action) or _by_activation(draft, action)
    discrete = choice.kind in ("q_values", "logits")
    if action is not None and discrete != (action.kind == "discrete"):
        raise SpaceMismatch(f"a head of {choice.kind} does not act in a {action.kind} space")
    return choice


def _by_roles(options: ImportOptions) -> HeadChoice | None:
    if not options.outputs:
        return None
    kind = options.head or _kind_of(options.outputs)
    roles = _roles(kind, options)
    if set(options.outputs) != set(roles):
        raise UsageError(
            f"a {kind} head has the outputs {list(roles)}, found {sorted(options.outputs)}",
            hint=" ".join(f"--output {role}=NAME" for role in roles),
        )
    return HeadChoice(kind=kind, outputs=dict(options.outputs))


def _kind_of(roles: Mapping[str, str]) -> HeadKind:
    kinds: tuple[HeadKind, ...] = ("q_values", "logits", "action")
    return next((kind for kind in kinds if kind in roles), "gaussian")


def _by_head(draft: Draft, options: ImportOptions) -> HeadChoice | None:
    if options.head is None:
        return None
    roles = _roles(options.head, options)
    named = {role: name for role in roles for name in draft.outputs if _means(name, role)}
    if len(named) < len(roles) and len(draft.outputs) == len(roles) == 1:
        named = {roles[0]: next(iter(draft.outputs))}
    if len(named) < len(roles):
        raise _undecided(draft, f"a {options.head} head needs {list(roles)}")
    return HeadChoice(kind=options.head, outputs=named)


def _by_names(draft: Draft, action: ActionSpec | None) -> HeadChoice | None:
    named = {role: name for role in _SYNONYMS for name in draft.outputs if _means(name, role)}
    discrete = None if action is None else action.kind == "discrete"
    if {"mean", "log_std"} <= set(named) and not discrete:
        roles = {role: named[role] for role in ("mean", "log_std")}
        return HeadChoice(kind="gaussian", outputs=roles, notes=("the outputs are named like a gaussian's",))
    kinds: tuple[HeadKind, ...] = ("q_values", "logits") if discrete else ("action",)
    found = [kind for kind in (kinds if action else ("q_values", "logits", "action")) if kind in named]
    if len(found) != 1:
        return None
    note = f"output {named[found[0]]!r} is taken for {found[0]} by its name"
    others = f"; {len(draft.outputs) - 1} others stay behind" if len(draft.outputs) > 1 else ""
    return HeadChoice(kind=found[0], outputs={found[0]: named[found[0]]}, notes=(note + others,))


def _by_activation(draft: Draft, action: ActionSpec | None) -> HeadChoice:
    if len(draft.outputs) != 1:
        raise _undecided(draft, "the model has several outputs")
    (name,) = draft.outputs
    last = last_kind(draft, name)
    kind: HeadKind
    if last == "softmax" and (action is None or action.kind == "discrete"):
        kind, why = "logits", "it ends in a softmax"
    elif action is not None:
        kind = "q_values" if action.kind == "discrete" else "action"
        why = f"the action space is {action.kind} and it ends in {last}"
    else:
        kind = "action" if last == "tanh" else "q_values"
        why = f"no environment was named and it ends in {last}"
    return HeadChoice(kind=kind, outputs={kind: name}, notes=(f"output {name!r} is taken for {kind}: {why}",))


def _roles(kind: str, options: ImportOptions) -> tuple[str, ...]:
    if kind == "gaussian":
        return ("mean",) if options.log_std else ("mean", "log_std")
    return (kind,)


def _means(name: str, role: str) -> bool:
    return name.lower().rsplit("/", 1)[-1] in _SYNONYMS[role]


def _undecided(draft: Draft, why: str) -> UsageError:
    return UsageError(
        f"{why}; its outputs are {sorted(draft.outputs)}",
        hint="say which is which, such as --output q_values=NAME; others are left behind",
    )


def last_kind(draft: Draft, output: str) -> str:
    """Return the kind of the last layer of an output, scalings aside; "linear" unless it is an activation."""
    steps = {step.name: step for step in draft.steps}
    step = steps.get(draft.outputs[output])
    while isinstance(step, Affine):
        step = steps.get(step.input)
    return step.kind if step is not None and step.kind in ("tanh", "sigmoid", "softmax") else "linear"


def discrete_action(width: int) -> ActionSpec:
    """Return the action of a discrete head where no environment was named."""
    return ActionSpec(kind="discrete", n=width)


def box_action(
    width: int,
    environment: ActionSpec | None,
    options: ImportOptions,
    *,
    last: str,
    affine: tuple[Float64, Float64] | None,
) -> tuple[ActionSpec, tuple[str, ...]]:
    """Return the box action with the scaling that makes it of the network's output, and what was assumed.

    Args:
        width: elements that the network gives.
        environment: its action space, `None` where none was named.
        options: `action_units` and `squash` decide.
        last: the head's last activation, "tanh", "sigmoid" or "linear".
        affine: (scale, shift) that was taken off the network's end.
    """
    notes = []
    if environment is None:
        ones = (1.0,) * width
        bounds = _reach(affine, width)
        environment = ActionSpec(
            kind="box", shape=(width,), low=bounds[0], high=bounds[1], scale=ones, offset=(0.0,) * width
        )
        if last == "linear" and options.squash == "none":
            notes.append("no environment was named: actions are bounded to -1..1")
    scale, offset = (np.asarray(part, np.float64) for part in (environment.scale, environment.offset))
    units = options.action_units
    if units is None:
        squashed = last in ("tanh", "sigmoid") or options.squash == "tanh"
        units = "unit" if squashed and affine is None else "environment"
        notes.append(f"the action leaves the network in {units} units")
        if last == "sigmoid" and units == "unit":
            # From 0..1 instead of -1..1.
            affine = (np.full(width, 2.0), np.full(width, -1.0))
    if units == "environment":
        scale, offset = np.ones(width), np.zeros(width)
    if affine is not None:
        scale, offset = scale * affine[0].ravel(), scale * affine[1].ravel() + offset
    return dataclasses.replace(environment, scale=_tuple(scale), offset=_tuple(offset)), tuple(notes)


def _reach(affine: tuple[Float64, Float64] | None, width: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return what a network can reach whose output before `affine` lies in -1..1."""
    scale, shift = affine or (np.ones(width), np.zeros(width))
    spread = np.abs(scale.ravel())
    return _tuple(shift.ravel() - spread), _tuple(shift.ravel() + spread)


def _tuple(values: Float64) -> tuple[float, ...]:
    return tuple(values.tolist())


def check_width(role: str, shape: Sequence[int], action: ActionSpec) -> None:
    """Refuse an output that does not have one element per action.

    Raises:
        SpaceMismatch: saying both.
    """
    wanted = action.n if action.kind == "discrete" else math.prod(action.shape)
    if tuple(shape) != (max(1, wanted),):
        raise SpaceMismatch(f"output {role!r} has shape {tuple(shape)}, the action space takes {wanted} elements")
