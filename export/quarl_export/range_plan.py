"""Which tensor of a policy graph carries which range in int8: decided once, read by the converter and the patcher.

Not every tensor has a range of its own. A fused ReLU carries its operator's, pooling and flattening hand theirs on,
three kernels fix theirs, and everything that enters a concatenation has to be on the concatenation's grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from quarl_device.contract import Normalizer
from quarl_device.errors import NonFiniteError, UsageError
from quarl_export.arithmetic import Quantization, activation_quantization, wide_low, wide_quantization, widened_low
from quarl_export.ir.layers import FLOAT_ONLY, FUSED_ACTIVATIONS, Layer
from quarl_export.ir.policy_graph import FIXED_RANGES, SAME_RANGE, PolicyGraph

Range = tuple[float, float]
IoType = Literal["float32", "int8", "uint8"]

MIN_RANGE_WIDTH = 2e-6
"""A range that is narrower is opened: the converter would open one below 1e-6 in a way of its own."""


@dataclass(frozen=True, kw_only=True)
class QuantizationOptions:
    """How a graph becomes int8.

    Attributes:
        io: type of the file's inputs and outputs. With "float32" the normaliser is in the file; with the others it is
            the device's work.
        per_channel: one scale per unit of a dense layer instead of one per layer. Convolutions always have one per
            filter.
        keep_float: layers that compute in float32; a fused activation goes with its operator.
        weight_bits: 2-8; fewer than 8 are stored in int8.
        activation_bits: 2-8, of ReLU layers; inputs, heads and everything else keep 8. Fewer than 8 need LiteRT 2 with
            XNNPACK: older kernels round differently, and a half step is then a whole level.
        wide_outputs: dense layers that give an output of the graph, in int16: what they read is widened for them
            (`quarl_export.wide`). Needs LiteRT.
        bias_opens_weights: a bias that would not fit int32 opens the range of its kernel, as the converter does per
            channel; otherwise it is refused.
        min_weight_range: kernels quantized per layer whose largest magnitude is below are quantized as if it were this.
    """

    io: IoType = "float32"
    per_channel: bool = False
    keep_float: frozenset[str] = frozenset()
    weight_bits: int = 8
    activation_bits: int = 8
    wide_outputs: frozenset[str] = frozenset()
    min_weight_range: float = 1e-6
    bias_opens_weights: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep_float", frozenset(self.keep_float))
        object.__setattr__(self, "wide_outputs", frozenset(self.wide_outputs))
        if self.io not in ("float32", "int8", "uint8"):
            raise UsageError(f"io {self.io!r} is not float32, int8 or uint8")
        if self.wide_outputs and self.io != "float32":
            raise UsageError(f"an int16 output cannot leave a file with {self.io} ends", hint="use float32 ends")
        for name, bits in (("weight", self.weight_bits), ("activation", self.activation_bits)):
            if not 2 <= bits <= 8:
                raise UsageError(f"{bits} {name} bits: expected 2-8")
        if not 0.0 < self.min_weight_range < 1.0:
            raise UsageError(f"smallest weight range {self.min_weight_range} is not in (0, 1)")


@dataclass(frozen=True, kw_only=True)
class RangePlan:
    """The carriers of ranges in `graph` under `options`.

    Attributes:
        graph: the network.
        options: see `QuantizationOptions`.
        clip: of the normaliser, 0 for none.

    Raises:
        UsageError: `options` does not fit the graph.
    """

    graph: PolicyGraph
    options: QuantizationOptions
    clip: float = 0.0

    def __post_init__(self) -> None:
        for layer in self.graph.layers:
            if layer.kind in FLOAT_ONLY and layer.name not in self.floats:
                raise UsageError(
                    f"layer {layer.name!r} ({layer.kind}) has no int8 form", hint=f"keep it in float: {layer.name}"
                )
        ends = [*(item.key for item in self.graph.inputs if item.key in self.live), *self.graph.outputs.values()]
        bare = [name for name in ends if self.carrier(name) is None]
        if bare and self.options.io != "float32":
            raise UsageError(f"{bare[0]!r} stays in float, so the file's ends cannot be {self.options.io}")
        for name in sorted(self.options.wide_outputs):
            self._check_wide(name)

    def _check_wide(self, name: str) -> None:
        alone = name in self.graph.outputs.values() and not self.graph.consumers(name)
        if not alone or name not in self._layers or self.graph.layer(name).kind != "dense" or name in self.floats:
            raise UsageError(f"{name!r} cannot be int16: expected a dense int8 layer that gives an output alone")

    @cached_property
    def floats(self) -> frozenset[str]:
        """Layers that stay in float."""
        return self.graph.float_layers(self.options.keep_float)

    @cached_property
    def live(self) -> frozenset[str]:
        """Inputs and layers that an output depends on; the converter drops the others."""
        found = set(self.graph.outputs.values())
        for layer in reversed(self.graph.layers):
            if layer.name in found:
                found.update(layer.inputs)
        return frozenset(found)

    def carrier(self, name: str) -> str | None:
        """Return the site whose range the tensor `name` carries, its own name if it is fixed; `None` for float."""
        return self._carriers[name]

    def is_input(self, site: str) -> bool:
        """Whether `site` is an input of the graph."""
        return site in self._keys

    def is_fixed(self, site: str) -> bool:
        """Whether the kernel that gives `site` decides its range."""
        return site in self._layers and self.graph.layer(site).kind in FIXED_RANGES

    def bits(self, site: str) -> int:
        """Return the bits of the range of `site`: only a ReLU has a kernel that saturates on both sides of fewer."""
        if site in self.options.wide_outputs:
            return 16
        own = site in self._layers and self.graph.layer(site).kind in FUSED_ACTIVATIONS
        return self.options.activation_bits if own and site not in self.floats else 8

    def entry(self, name: str) -> str | None:
        """Return the site on whose grid the float tensor `name` is put for the int8 layers that read it, if any."""
        if name not in self.floats or all(layer.name in self.floats for layer in self.graph.consumers(name)):
            return None
        return self._absorber(name) or name

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites whose ranges matter, in graph order."""
        carried = {site for name, site in self._carriers.items() if name in self.live}
        used = {site for site in carried if site is not None and not self.is_fixed(site)}
        used |= {site for name in self.floats & self.live if (site := self.entry(name)) is not None}
        return tuple(site for site in self.graph.range_sites(keep_float=self.options.keep_float) if site in used)

    def is_drawn_to_int8(self, layer: Layer) -> bool:
        """Whether the converter would make int8 of the float layer `layer`.

        It does so with what has int8 on both sides, and with kernels that fix their output's range.
        """
        if all(self.carrier(name) is None for name in layer.inputs):
            return False
        return layer.kind in FIXED_RANGES or self._returns(layer.name)

    def _returns(self, name: str) -> bool:
        """Whether the float tensor `name` is read by int8 layers, directly or through others in float."""
        readers = self.graph.consumers(name)
        return any(layer.name not in self.floats or self._returns(layer.name) for layer in readers)

    def clips_in_float(self, key: str) -> bool:
        """Whether the input `key` has to be clipped before it is quantized, for lack of a range of its own."""
        return self.clip > 0.0 and self.carrier(key) != key

    def effective(self, ranges: Mapping[str, Range]) -> dict[str, Range]:
        """Return the range of every site as the file will hold it: float32 values around zero, wide enough.

        Raises:
            UsageError: a site has no range, or its ends are the wrong way round.
            NonFiniteError: a range is NaN or Inf.
        """
        found = {}
        for site in self.sites:
            if site not in ranges:
                raise UsageError(f"no range for {site!r}: calibrate, or take it from training")
            low, high = ranges[site]
            low, high = float(np.float32(low)), float(np.float32(high))
            if not (math.isfinite(low) and math.isfinite(high)):
                raise NonFiniteError(f"policy: range of {site!r} is ({low}, {high})")
            if low > high:
                raise UsageError(f"range of {site!r} is ({low}, {high}): the low end is above the high one")
            if self.clip and site in self._keys:
                low, high = max(low, -self.clip), min(high, self.clip)
            low = 0.0 if self.bits(site) < 8 else min(low, 0.0)
            top = np.float32(max(high, 0.0, low + MIN_RANGE_WIDTH))
            if self.bits(site) == 16:
                top = max(top, np.float32(-low))
                low = float(wide_low(top))
            elif self.bits(site) < 8:
                low = float(widened_low(top, self.bits(site)))
            found[site] = (low, float(top))
        return found

    def quantizations(self, ranges: Mapping[str, Range]) -> dict[str, Quantization]:
        """Return scale and zero point of every site, and of every fixed one, from `effective` ranges."""
        found = {}
        for layer in self.graph.layers:
            if layer.name in self.live and layer.kind in FIXED_RANGES:
                found[layer.name] = activation_quantization(*FIXED_RANGES[layer.kind])
        for site in self.sites:
            make = wide_quantization if self.bits(site) == 16 else activation_quantization
            found[site] = make(*ranges[site])
        return found

    def read_as(self, name: str) -> str | None:
        """Return the site on whose grid int8 layers read the tensor `name`."""
        return self.entry(name) or self.carrier(name)

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(item.key for item in self.graph.inputs)

    @cached_property
    def _layers(self) -> frozenset[str]:
        return frozenset(layer.name for layer in self.graph.layers)

    @cached_property
    def _carriers(self) -> Mapping[str, str | None]:
        carriers: dict[str, str | None] = {}
        for key in (item.key for item in self.graph.inputs):
            readers = self.graph.consumers(key)
            needed = key in self.graph.outputs.values() or any(layer.name not in self.floats for layer in readers)
            carriers[key] = (self._absorber(key) or key) if needed else None
        for layer in self.graph.layers:
            if layer.name in self.floats or layer.name in self.graph.fused:
                carriers[layer.name] = None
            elif layer.kind in FIXED_RANGES:
                carriers[layer.name] = layer.name
            elif layer.kind in SAME_RANGE:
                # A mean has no need of its input's grid.
                taken = self._absorber(layer.name) if layer.kind == "global_average_pool2d" else None
                carriers[layer.name] = taken or carriers[layer.inputs[0]]
            else:
                carriers[layer.name] = self._absorber(layer.name) or layer.name
        return carriers

    def _absorber(self, name: str) -> str | None:
        """Return the concatenation that alone reads the tensor `name`, directly or through pooling and flattening."""
        readers = self.graph.consumers(name)
        if len(readers) != 1 or name in self.graph.outputs.values() or readers[0].name in self.floats:
            return None
        (reader,) = readers
        if reader.kind == "concatenate":
            return self._absorber(reader.name) or reader.name
        if reader.kind in SAME_RANGE and reader.kind != "global_average_pool2d":
            return self._absorber(reader.name)
        return None


def plan_ranges(graph: PolicyGraph, options: QuantizationOptions, *, normalizer: Normalizer | None = None) -> RangePlan:
    """Return the plan for `graph`; a clip of the `normalizer` counts where the file normalises."""
    in_file = options.io == "float32" and normalizer is not None
    return RangePlan(graph=graph, options=options, clip=normalizer.clip if in_file and normalizer else 0.0)
