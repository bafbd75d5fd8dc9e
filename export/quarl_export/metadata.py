"""Writes the contract, golden vectors and provenance into a policy file; `quarl_device.policy_file` reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, Head, Normalizer, ObservationSpec, PolicyContract
from quarl_device.policy_file import METADATA_NAME, GoldenVectors, encode_metadata
from quarl_device.preprocess import InputBinding, layout_of, stack_view
from quarl_export.graph import repack
from quarl_export.ir import ImportedPolicy, PolicyGraph
from quarl_export.ir.policy_graph import FIXED_RANGES
from quarl_export.networks import NetworkSpec, unit_box

Float32 = NDArray[np.float32]


def complete(
    contract: PolicyContract, spec: NetworkSpec, *, scheme: str, normalized: bool, log_std: Float32 | None = None
) -> PolicyContract:
    """Return `contract` with all that the file decides: tensor names, scheme, scaling, where it normalises.

    Our files name their input after the observation key and their output after its role. The normaliser's constants
    stay out of the contract: they are in the graph, and a push changes them there.

    Args:
        contract: of the policy.
        spec: its network.
        scheme: of the file.
        normalized: whether the file has a normaliser.
        log_std: ``[elements]``, of a gaussian head.
    """
    spread = () if log_std is None else tuple(log_std.tolist())
    observations = tuple(dataclasses.replace(given, tensor=given.key) for given in contract.observations)
    return dataclasses.replace(
        contract,
        scheme=scheme,
        observations=observations,
        head=Head(kind=spec.head, outputs={spec.role: spec.role}, log_std=spread),
        action=_action(contract.action, spec, scheme),
        normalizer=Normalizer(where="graph" if normalized else "none"),
    )


def _action(action: ActionSpec, spec: NetworkSpec, scheme: str) -> ActionSpec:
    """Return `action` with the scaling of its head's unit box to the bounds, which an int8 tanh reaches too."""
    int8_tanh = spec.head == "action" and scheme == "int8" and spec.quantization.head_output == "int8"
    return _reaching(unit_box(action)) if int8_tanh else unit_box(action)


def _reaching(action: ActionSpec) -> ActionSpec:
    """Return `action` scaled so that an int8 tanh's largest value, 127/128, counts as 1; the device clips the -1."""
    largest = FIXED_RANGES["tanh"][1]
    return dataclasses.replace(action, scale=tuple(scale / largest for scale in action.scale))


def attach(model: bytes, contract: PolicyContract, golden: GoldenVectors, provenance: Mapping[str, Any]) -> bytes:
    """Return `model` with the policy metadata in it; an older entry is replaced."""
    return repack(model, metadata={METADATA_NAME: encode_metadata(contract, golden, provenance)})


def complete_policy(
    policy: ImportedPolicy, *, scheme: str, io: str, keep_float: frozenset[str] = frozenset()
) -> PolicyContract:
    """Return the contract of a file made from an imported policy, in which the layers `keep_float` stay in float.

    Inputs are named after observation keys and outputs after roles. With float ends the normaliser is in the graph and
    its constants leave the contract; with integer ends they stay in it, for the device.
    """
    contract, normalizer = policy.contract, policy.contract.normalizer
    if not normalizer.offset:
        placed = Normalizer()
    elif io == "float32":
        placed = Normalizer(where="graph")
    else:
        placed = _on_device(policy)
    int8_tanh = scheme == "int8" and _ends_in_tanh(policy.graph, keep_float)
    return dataclasses.replace(
        contract,
        scheme=scheme,
        observations=tuple(dataclasses.replace(given, tensor=given.key) for given in contract.observations),
        head=dataclasses.replace(contract.head, outputs={role: role for role in contract.head.outputs}),
        action=_reaching(contract.action) if int8_tanh else contract.action,
        normalizer=placed,
    )


def _ends_in_tanh(graph: PolicyGraph, keep_float: frozenset[str]) -> bool:
    """Whether the role "action" of `graph` comes from a tanh that is in int8."""
    tanh = {layer.name for layer in graph.layers if layer.kind == "tanh"}
    # Names of no layer are for the conversion to refuse.
    known = keep_float & {layer.name for layer in graph.layers}
    return graph.outputs.get("action") in tanh - graph.float_layers(known)


def _on_device(policy: ImportedPolicy) -> Normalizer:
    """Return the normaliser as a device applies it: to frames as the environment gives them.

    The graph's constants are of its input: stacked frames joined, images with channels last. Where they differ from
    frame to frame of a stack, those of all frames are returned, oldest first.
    """
    normalizer = policy.contract.normalizer
    shapes = {item.key: item.shape for item in policy.graph.inputs}
    offset, scale = (
        {spec.key: _per_frame(spec, shapes[spec.key], part[spec.key])
         for spec in policy.contract.observations if spec.key in part}
        for part in (normalizer.offset, normalizer.scale)
    )  # fmt: skip
    return dataclasses.replace(normalizer, where="device", offset=offset, scale=scale)


def _per_frame(spec: ObservationSpec, shape: tuple[int, ...], values: tuple[float, ...]) -> tuple[float, ...]:
    if len(set(values)) == 1:
        return values[:1]
    # Where the device writes a frame is where its constants are.
    constants = np.asarray(values, np.float64).reshape(1, *shape)
    layout = layout_of(spec, shape)
    binding = InputBinding(spec=spec, shape=shape, dtype=constants.dtype, layout=layout)
    frames = stack_view(binding, constants)[0]
    alike = (frames == frames[0]).all()
    return tuple((frames[0] if alike else frames).ravel().tolist())
