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
    last = ending(draft, name).kind
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Ending:
    """How an output ends.

    Attributes:
        kind: of its last layer, scalings aside: "tanh", "sigmoid", "softmax", else "linear".
        scale: of all scalings behind that layer together, per element.
        shift: likewise.
    """

    kind: str
    scale: Float64
    shift: Float64

    @property
    def plain(self) -> bool:
        """Whether nothing scales it."""
        return bool((self.scale == 1).all() and (self.shift == 0).all())

    @property
    def span(self) -> tuple[float, float]:
        """What its last layer can reach; of a linear one -1..1, for want of anything better."""
        return (0.0, 1.0) if self.kind in ("sigmoid", "softmax") else (-1.0, 1.0)


def ending(draft: Draft, output: str) -> Ending:
    """Return how an output ends."""
    steps = {step.name: step for step in draft.steps}
    step = steps.get(draft.outputs[output])
    scale, shift = np.ones(1), np.zeros(1)
    while isinstance(step, Affine):
        scale, shift = step.scale * scale, step.shift * scale + shift
        step = steps.get(step.input)
    kind = step.kind if step is not None and step.kind in ("tanh", "sigmoid", "softmax") else "linear"
    return Ending(kind=kind, scale=scale, shift=shift)


def discrete_action(width: int) -> ActionSpec:
    """Return the action of a discrete head where no environment was named."""
    return ActionSpec(kind="discrete", n=width)


def box_action(
    width: int, environment: ActionSpec | None, options: ImportOptions, end: Ending
) -> tuple[ActionSpec, tuple[str, ...]]:
    """Return the box action with the scaling that makes it of what the source gives, and what was assumed.

    Args:
        width: elements that the network gives.
        environment: its action space, `None` where none was named.
        options: `action_units` and `squash` decide.
        end: of the action, or of the mean.
    """
    squashes = options.squash == "tanh"
    notes = []
    if environment is None:
        bounded, note = _unknown_space(width, end, unit=squashes or options.action_units == "unit")
        notes.append(note)
    else:
        bounded = environment
    units = options.action_units
    if units is None:
        reaches_ends = squashes or (end.plain and end.kind in ("tanh", "sigmoid"))
        units = "unit" if reaches_ends and environment is not None else "environment"
        notes.append(f"the action leaves the network in {units} units")
    if units == "environment":
        ones = (1.0,) * width
        return dataclasses.replace(bounded, scale=ones, offset=(0.0,) * width), tuple(notes)
    if end.plain and end.kind == "sigmoid" and not squashes:
        notes.append("the sigmoid's 0..1 is scaled to the action's bounds")
        return scaled_action(bounded, np.full(width, 2.0), np.full(width, -1.0)), tuple(notes)
    return bounded, tuple(notes)


def _unknown_space(width: int, end: Ending, *, unit: bool) -> tuple[ActionSpec, str]:
    """Return a box of what the source can reach, and a note of it."""
    if unit or end.kind == "linear":
        low, high = np.full(width, -1.0), np.full(width, 1.0)
    else:
        ends = [np.broadcast_to(value * end.scale.ravel() + end.shift.ravel(), width) for value in end.span]
        low, high = np.minimum(*ends), np.maximum(*ends)
    scale, offset = (high - low) / 2, (high + low) / 2
    space = ActionSpec(
        kind="box", shape=(width,), low=_tuple(low), high=_tuple(high), scale=_tuple(scale), offset=_tuple(offset)
    )
    return space, f"no environment was named: actions are bounded to {low.min():g}..{high.max():g}"


def scaled_action(action: ActionSpec, scale: Float64, shift: Float64) -> ActionSpec:
    """Return the action of a network whose output is scaled before it becomes `action`."""
    outer, offset = (np.asarray(part, np.float64) for part in (action.scale, action.offset))
    inner, moved = scale.ravel(), shift.ravel()
    return dataclasses.replace(action, scale=_tuple(outer * inner), offset=_tuple(outer * moved + offset))


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
