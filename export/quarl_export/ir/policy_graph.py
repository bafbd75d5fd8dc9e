"""`PolicyGraph`: layers in order, inputs by observation key, outputs by role; `ImportedPolicy`: one with weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.errors import NonFiniteError, UsageError
from quarl_export.ir.layers import (
    ACTIVATIONS,
    FLOAT_ONLY,
    FUSED_ACTIVATIONS,
    KINDS,
    WEIGHTED,
    Layer,
    Shape,
    output_shape,
)

Float32 = NDArray[np.float32]
FIXED_RANGES: Mapping[str, tuple[float, float]] = {
    "tanh": (-1.0, 127 / 128),
    "sigmoid": (0.0, 255 / 256),
    "softmax": (0.0, 255 / 256),
}
"""What the int8 kernels fix their output ranges to (TFLite 8-bit quantization specification)."""

SATURATED: Mapping[str, float] = {"tanh": 4.0, "sigmoid": 8.0}
"""Beyond these, either side of zero, the activation does not move by half an int8 step any more."""

SAME_RANGE = frozenset({"flatten", "max_pool2d", "average_pool2d", "global_average_pool2d"})
"""Kinds whose output is on the grid of their input."""


@dataclass(frozen=True, kw_only=True)
class GraphInput:
    """What enters the network: one observation key, normalised.

    Attributes:
        key: of the observation; also the name of the file's input tensor.
        shape: as the network sees it, without batch: stacked frames are in the last axis.
    """

    key: str
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class PolicyGraph:
    """A feed-forward network. Frozen data, checked when it is made; weights are beside it.

    Attributes:
        inputs: in the contract's order.
        layers: in an order in which each one's inputs come before it.
        outputs: role of the contract's head to the name of the layer that gives it.
        weight_shapes: of every array of every layer, by name.

    Raises:
        UsageError: a name that is unknown or taken twice, an unknown kind, or shapes that do not fit.
    """

    inputs: tuple[GraphInput, ...]
    layers: tuple[Layer, ...]
    outputs: Mapping[str, str]
    weight_shapes: Mapping[str, Shape] = field(repr=False)

    def __post_init__(self) -> None:
        known = [item.key for item in self.inputs]
        for layer in self.layers:
            if layer.kind not in KINDS:
                raise UsageError(f"layer {layer.name!r}: unknown kind {layer.kind!r}")
            missing = [name for name in layer.inputs if name not in known]
            if missing or not layer.inputs:
                raise UsageError(f"layer {layer.name!r} reads {missing or 'nothing'}, which no earlier layer gives")
            known.append(layer.name)
        if not known or len(set(known)) != len(known):
            raise UsageError(f"a graph needs layers with different names, found {known}")
        unknown = [name for name in self.outputs.values() if name not in known]
        if unknown or not self.outputs:
            raise UsageError(f"the outputs name layers that do not exist: {unknown or 'none'}")
        _ = self.shapes

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every input and layer output, without batch."""
        shapes: dict[str, Shape] = {item.key: item.shape for item in self.inputs}
        for layer in self.layers:
            for name in layer.weight_names():
                if name not in self.weight_shapes:
                    raise UsageError(f"layer {layer.name!r} has no array {name!r}")
            kernel = self.weight_shapes.get(f"{layer.name}/kernel") if layer.kind in WEIGHTED else None
            shapes[layer.name] = output_shape(layer, [shapes[name] for name in layer.inputs], kernel)
        return shapes

    def layer(self, name: str) -> Layer:
        """Return the layer of that name."""
        return self._by_name[name]

    def consumers(self, name: str) -> tuple[Layer, ...]:
        """Return the layers that read the tensor `name`."""
        return tuple(layer for layer in self.layers if name in layer.inputs)

    @cached_property
    def fused(self) -> Mapping[str, str]:
        """Layer name to the ReLU or ReLU6 that its int8 operator computes too; its own output is never quantized."""
        pairs = {}
        for layer in self.layers:
            users = self.consumers(layer.name)
            fits = layer.kind in WEIGHTED or layer.kind in ("add", "subtract", "multiply")
            alone = len(users) == 1 and layer.name not in self.outputs.values()
            if fits and alone and users[0].kind in FUSED_ACTIVATIONS:
                pairs[layer.name] = users[0].name
        return pairs

    def range_sites(self, *, keep_float: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Return the tensors that need a range of their own in int8, in graph order.

        A fused activation carries its operator's range; pooling, flattening and reshaping pass theirs on; a kernel
        with a fixed output range (`FIXED_RANGES`) needs none. Everything that enters a concatenation is carried by
        the concatenation's range at conversion, but still has one here. A float layer that an int8 layer reads needs
        one for the way back to int8.

        Args:
            keep_float: layers that stay in float.

        Raises:
            UsageError: `keep_float` names a layer that does not exist.
        """
        floats = self.float_layers(keep_float) | {layer.name for layer in self.layers if layer.kind in FLOAT_ONLY}
        sites = [item.key for item in self.inputs]
        for layer in self.layers:
            free = layer.kind in SAME_RANGE or layer.kind in FIXED_RANGES or layer.name in self.fused
            if layer.name in floats:
                free = layer.name in self.fused or all(user.name in floats for user in self.consumers(layer.name))
            if not free:
                sites.append(layer.name)
        return tuple(sites)

    def float_layers(self, keep_float: frozenset[str]) -> frozenset[str]:
        """Return `keep_float` with what goes with it.

        An operator stays with the activation that it computes, and what only reshapes, pools or activates the output
        of a float layer gains nothing from a detour through int8.

        Raises:
            UsageError: `keep_float` names a layer that does not exist.
        """
        unknown = sorted(keep_float - set(self._by_name))
        if unknown:
            raise UsageError(f"no layer {unknown[0]!r} to keep in float: the layers are {', '.join(self._by_name)}")
        floats = keep_float | {operator for operator, activation in self.fused.items() if activation in keep_float}
        for layer in self.layers:
            if (layer.kind in ACTIVATIONS or layer.kind in SAME_RANGE) and layer.inputs[0] in floats:
                floats |= {layer.name}
        return floats

    @cached_property
    def _by_name(self) -> Mapping[str, Layer]:
        return {layer.name: layer for layer in self.layers}


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportedPolicy:
    """A trained policy of any origin, in float.

    Attributes:
        graph: its network, which starts behind the normaliser.
        weights: every array of the graph, float32, by name.
        contract: observations, normaliser (with its constants per key; `where` is decided at the export), head and
            action; tensor names and scheme are filled in at the export too.
        golden_observations: per key, float rows as the environment gives them, where the source has some.
        ranges: per `PolicyGraph.range_sites` name, (low, high) that training has found; empty where it found none.
        provenance: JSON values: kind of source, path, versions.
    """

    graph: PolicyGraph
    weights: Mapping[str, Float32]
    contract: PolicyContract
    golden_observations: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = {name: array.shape for name, array in self.weights.items()}
        if found != dict(self.graph.weight_shapes):
            wrong = sorted(set(found.items()) ^ set(self.graph.weight_shapes.items()))
            raise UsageError(f"weights do not fit the graph: {wrong[:4]}")
        if any(array.dtype != np.float32 for array in self.weights.values()):
            raise UsageError("weights are not float32")
        for name, array in self.weights.items():
            if not np.isfinite(array).all():
                raise NonFiniteError(f"policy: {name} holds NaN or Inf")
        if {item.key for item in self.graph.inputs} != {spec.key for spec in self.contract.observations}:
            raise UsageError("the graph's inputs are not the contract's observations")
        if set(self.graph.outputs) != set(self.contract.head.outputs):
            raise UsageError(f"the graph gives {sorted(self.graph.outputs)}, the head is {self.contract.head.kind!r}")
