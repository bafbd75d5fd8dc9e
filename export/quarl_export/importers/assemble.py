"""From a network with its source's names to a policy with a contract, compared with the source."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, Head, Normalizer, ObservationSpec, PolicyContract
from quarl_device.environments import bare_name
from quarl_device.errors import NonFiniteError, UnsupportedModel
from quarl_export.importers.equality import TOLERANCE, Finish, largest_difference, softmax
from quarl_export.importers.heads import (
    HeadChoice,
    box_action,
    check_width,
    choose_head,
    discrete_action,
    ending,
    scaled_action,
)
from quarl_export.importers.observations import bind_inputs, environment_specs
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.source import SourceNetwork
from quarl_export.ir.draft import Draft, Float64, rewired_layer
from quarl_export.ir.fold import Folded, fold
from quarl_export.ir.layers import Layer
from quarl_export.ir.policy_graph import GraphInput, ImportedPolicy, PolicyGraph

# The mean of a gaussian keeps its scaling: in the action's, it would scale the noise too, and come after a squash.
_SCALED_ROLES = frozenset({"action"})


def assemble(source: SourceNetwork, options: ImportOptions, *, known: PolicyContract | None = None) -> ImportedPolicy:
    """Return the policy that acts with `source`: its acting function alone, folded, bound to observations and action.

    Args:
        source: what was read.
        options: what it cannot say.
        known: a contract that the source has itself, with its tensor names for inputs and outputs; it is kept but
            for the normaliser, which is read from the network.

    Raises:
        UnsupportedModel: something of the network has no place in a policy graph.
        UsageError, SpaceMismatch: the options or the environment do not fit it.
        NonFiniteError: NaN or Inf in weights or outputs.
        SourceMismatch: the numpy reference of what was read differs from the source.
    """
    if known is not None:
        options.refuse_all_but(frozenset({"env_id", "env_kwargs"}), "a file that brings its own contract along")
        options = _as_options(known)
        observations: tuple[ObservationSpec, ...] | None = known.observations
        action: ActionSpec | None = known.action
    else:
        observations, action = environment_specs(options, source.draft.inputs) or (None, None)
    choice = choose_head(source.draft, action, options)
    outputs = {role: source.draft.outputs[name] for role, name in choice.outputs.items()}
    acting = dataclasses.replace(source.draft, outputs=outputs)
    folded = fold(acting, open_outputs=frozenset() if known else _SCALED_ROLES)
    folded, finish = _without_softmax(folded, choice)
    specs = bind_inputs(folded.inputs, source.dtypes, observations, options)
    given, notes = (known.action, ()) if known else _action(acting, folded, action, choice, options)
    _check_widths(folded, choice, given)
    for role, (scale, shift) in folded.output_affines.items():
        _check_finite(f"the scaling of output {role!r}", scale, shift)
        finish[role] = _affine(scale, shift)
    contract = PolicyContract(
        # The module that registers it is named by whoever plays it, never by a file.
        env_id=bare_name(options.env_id),
        env_kwargs=dict(options.env_kwargs),
        wrappers=options.wrappers,
        algorithm=options.algorithm,
        scheme="",
        observations=tuple(dataclasses.replace(spec, tensor="") for spec in specs.values()),
        normalizer=_normalizer(folded, specs, source.draft.clips),
        head=_head(choice, options),
        action=_with_open_scaling(given, folded),
    )
    graph, weights = _graph(folded, specs)
    provenance = {
        **source.provenance,
        "source": source.kind,
        "assumed": [*choice.notes, *notes, *folded.notes],
    }
    policy = ImportedPolicy(graph=graph, weights=weights, contract=contract, provenance=provenance)
    names = {spec.key: name for name, spec in specs.items()}
    difference = largest_difference(policy, _by_role(source, choice, names), finish=finish, given=given)
    checked = {**provenance, "largest_difference": difference, "tolerance": TOLERANCE}
    return dataclasses.replace(policy, provenance=checked)


def _as_options(known: PolicyContract) -> ImportOptions:
    return ImportOptions(
        env_id=known.env_id,
        env_kwargs=known.env_kwargs,
        wrappers=known.wrappers,
        head=known.head.kind,
        outputs=known.head.outputs,
        inputs={spec.tensor: spec.key for spec in known.observations},
        algorithm=known.algorithm,
        squash=known.head.squash,
        log_std=known.head.log_std,
    )


def _by_role(source: SourceNetwork, choice: HeadChoice, names: Mapping[str, str]) -> Any:
    """Return the source as a function of observation keys to roles."""

    def run(observations: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        outputs = source.run({names[key]: values for key, values in observations.items()})
        return {role: np.asarray(outputs[name], np.float32) for role, name in choice.outputs.items()}

    return run


def _without_softmax(folded: Folded, choice: HeadChoice) -> tuple[Folded, dict[str, Finish]]:
    """Take a last softmax off a logits head: the device does it in float, and int8 probabilities underflow."""
    if choice.kind != "logits":
        return folded, {}
    last = next((layer for layer in folded.layers if layer.name == folded.outputs["logits"]), None)
    if last is None or last.kind != "softmax":
        return folded, {}
    layers = tuple(layer for layer in folded.layers if layer is not last)
    if any(last.name in layer.inputs for layer in layers):
        return folded, {}
    return dataclasses.replace(folded, layers=layers, outputs={"logits": last.inputs[0]}), {"logits": softmax}


def _affine(scale: Float64, shift: Float64) -> Finish:
    return lambda values: (values * scale + shift).astype(np.float32)


def _action(
    acting: Draft, folded: Folded, environment: ActionSpec | None, choice: HeadChoice, options: ImportOptions
) -> tuple[ActionSpec, tuple[str, ...]]:
    """Return the action of what the source gives, before any scaling was taken off it, and what was assumed."""
    role = next(role for role in choice.outputs if role != "log_std")
    shape = _shapes(folded)[folded.outputs[role]]
    if len(shape) != 1:
        raise UnsupportedModel(f"output {choice.outputs[role]!r} has shape {shape}, a head gives one vector")
    if choice.kind in ("q_values", "logits"):
        return environment or discrete_action(shape[0]), ()
    return box_action(shape[0], environment, options, ending(acting, role))


def _check_widths(folded: Folded, choice: HeadChoice, action: ActionSpec) -> None:
    shapes = _shapes(folded)
    for name in choice.outputs:
        check_width(name, shapes[folded.outputs[name]], action)


def _with_open_scaling(given: ActionSpec, folded: Folded) -> ActionSpec:
    affine = folded.output_affines.get("action")
    return scaled_action(given, *affine) if affine else given


def _shapes(folded: Folded) -> Mapping[str, tuple[int, ...]]:
    inputs = tuple(GraphInput(key=name, shape=shape) for name, shape in folded.inputs.items())
    return _policy_graph(inputs, folded.layers, folded).shapes


def _policy_graph(inputs: tuple[GraphInput, ...], layers: tuple[Layer, ...], folded: Folded) -> PolicyGraph:
    shapes = {name: array.shape for name, array in folded.weights.items()}
    needed = {name for layer in layers for name in layer.weight_names()}
    return PolicyGraph(
        inputs=inputs,
        layers=layers,
        outputs=folded.outputs,
        weight_shapes={name: shape for name, shape in shapes.items() if name in needed},
    )


def _normalizer(folded: Folded, specs: Mapping[str, ObservationSpec], clips: Mapping[str, float]) -> Normalizer:
    """Return the constants per key; `clips` are those of the source's inputs, all the same by a normaliser."""
    clips = {name: limit for name, limit in clips.items() if name in folded.inputs}
    one = (np.ones(1), np.zeros(1))
    constants = {**dict.fromkeys(clips, one), **folded.normalizers}
    if not constants:
        return Normalizer()
    if clips and (set(clips) != set(constants) or len(set(clips.values())) > 1):
        raise UnsupportedModel(
            f"the inputs {sorted(constants)} are normalised and clipped to {clips}; a policy clips all to the same"
        )
    offsets, scales = {}, {}
    for name, (scale, shift) in constants.items():
        # y = x * scale + shift = (x - offset) * scale
        offset = np.where(scale == 0, 0.0, -shift / np.where(scale == 0, 1.0, scale))
        _check_finite(f"the normaliser of input {name!r}", offset, scale)
        offsets[specs[name].key], scales[specs[name].key] = _values(offset), _values(scale)
    return Normalizer(where="graph", offset=offsets, scale=scales, clip=next(iter(clips.values()), 0.0))


def _check_finite(what: str, *arrays: Float64) -> None:
    limit = np.finfo(np.float32).max
    if not all(bool((np.abs(array) <= limit).all()) for array in arrays):
        raise NonFiniteError(f"{what} holds NaN, Inf, or a number that float32 does not have")


def _values(array: Float64) -> tuple[float, ...]:
    """Return the elements flattened; of an image that is scaled evenly, one value."""
    flat = array.ravel() + 0.0  # no negative zeros
    even = array.ndim > 1 and bool((flat == flat[0]).all())
    return (float(flat[0]),) if even else tuple(flat.tolist())


def _head(choice: HeadChoice, options: ImportOptions) -> Head:
    names = dict.fromkeys(choice.outputs, "")
    if choice.kind != "gaussian":
        return Head(kind=choice.kind, outputs=names)
    return Head(kind="gaussian", outputs=names, log_std=options.log_std, squash=options.squash)


def _graph(folded: Folded, specs: Mapping[str, ObservationSpec]) -> tuple[PolicyGraph, dict[str, NDArray[np.float32]]]:
    """Return the graph with observation keys for input names, and its weights."""
    keys = {name: spec.key for name, spec in specs.items()}
    taken = set(keys.values())
    layers, weights = [], {}
    renamed = dict(keys)
    for layer in folded.layers:
        name = layer.name
        while name in taken:
            name += "_"
        taken.add(name)
        renamed[layer.name] = name
        layers.append(dataclasses.replace(rewired_layer(layer, renamed), name=name))
        for old, new in zip(layer.weight_names(), layers[-1].weight_names(), strict=True):
            weights[new] = np.ascontiguousarray(folded.weights[old])
    inputs = tuple(GraphInput(key=spec.key, shape=folded.inputs[name]) for name, spec in specs.items())
    outputs = {role: renamed[name] for role, name in folded.outputs.items()}
    shapes = {name: array.shape for name, array in weights.items()}
    return PolicyGraph(inputs=inputs, layers=tuple(layers), outputs=outputs, weight_shapes=shapes), weights
