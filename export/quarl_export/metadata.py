"""Writes the contract, golden vectors and provenance into a policy file; `quarl_device.policy_file` reads them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from quarl_device.contract import Head, Normalizer, ObservationSpec, PolicyContract
from quarl_device.errors import UsageError
from quarl_device.policy_file import METADATA_NAME, GoldenVectors, encode_metadata
from quarl_export.graph import repack
from quarl_export.networks import NetworkSpec


def complete(contract: PolicyContract, spec: NetworkSpec, *, scheme: str, normalized: bool) -> PolicyContract:
    """Return `contract` with all that the file decides: tensor names, scheme, where it normalises.

    Our files name their input after the observation key and their output after the head. The normaliser's constants
    stay out of the contract: they are in the graph, and a push changes them there.
    """
    observations = tuple(dataclasses.replace(given, tensor=given.key) for given in contract.observations)
    return dataclasses.replace(
        contract,
        scheme=scheme,
        observations=observations,
        head=Head(kind=spec.head, outputs={spec.head: spec.head}),
        normalizer=Normalizer(where="graph" if normalized else "none"),
    )


def attach(model: bytes, contract: PolicyContract, golden: GoldenVectors, provenance: Mapping[str, Any]) -> bytes:
    """Return `model` with the policy metadata in it; an older entry is replaced."""
    return repack(model, metadata={METADATA_NAME: encode_metadata(contract, golden, provenance)})


def complete_policy(contract: PolicyContract, *, scheme: str, io: str) -> PolicyContract:
    """Return the contract of a file made from an imported policy.

    Inputs are named after observation keys and outputs after roles. With float ends the normaliser is in the graph and
    its constants leave the contract; with integer ends they stay in it, for the device.
    """
    normalizer = contract.normalizer
    if not normalizer.offset:
        placed = Normalizer()
    elif io == "float32":
        placed = Normalizer(where="graph")
    else:
        placed = _on_device(contract)
    return dataclasses.replace(
        contract,
        scheme=scheme,
        observations=tuple(dataclasses.replace(given, tensor=given.key) for given in contract.observations),
        head=dataclasses.replace(contract.head, outputs={role: role for role in contract.head.outputs}),
        normalizer=placed,
    )


def _on_device(contract: PolicyContract) -> Normalizer:
    """Return the normaliser as a device applies it: to one frame, as the environment gives it.

    The graph's constants are of its input: stacked frames joined, images with channels last.

    Raises:
        UsageError: it differs from frame to frame, or over an image that lies otherwise in the graph.
    """
    normalizer = contract.normalizer
    specs = {spec.key: spec for spec in contract.observations}
    frames: dict[str, dict[str, tuple[float, ...]]] = {"offset": {}, "scale": {}}
    for name, part in (("offset", normalizer.offset), ("scale", normalizer.scale)):
        for key, values in part.items():
            frames[name][key] = _per_frame(specs[key], values)
    return dataclasses.replace(normalizer, where="device", offset=frames["offset"], scale=frames["scale"])


def _per_frame(spec: ObservationSpec, values: tuple[float, ...]) -> tuple[float, ...]:
    if len(set(values)) == 1:
        return values[:1]
    if spec.stack == 1 and len(spec.shape) <= 1:
        return values
    size = math.prod(spec.shape)
    if len(spec.shape) <= 1 and values == values[:size] * spec.stack:
        return values[:size]
    raise UsageError(
        f"the normaliser of {spec.key!r} differs over an image or a stack, which a device cannot apply",
        hint="use --io float32: the normaliser is in the file then",
    )
