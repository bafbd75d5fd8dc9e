"""What an int8 file must compute, in numpy: values on the grids of their ranges, weights and biases on theirs.

This is the fake-quantized network with its biases snapped to the int32 grid (bias rounding is the one thing that fake
quants leave out). Sums of products are whole numbers, and brought to the steps of a layer's output as LiteRT's kernels
do it: times one float32 number. So a right dense network is repeated exactly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import PatchError
from quarl_export.arithmetic import Quantization
from quarl_export.ir import ImportedPolicy, Layer
from quarl_export.ir.layers import WEIGHTED
from quarl_export.ir.reference import normalize, run_layer
from quarl_export.kernels import as_rows, layer_scales, write_kernel
from quarl_export.range_plan import QuantizationOptions, Range, plan_ranges

# Wider outputs have kernels of their own, which multiply in fixed point.
_KERNEL_BITS = 8
Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]


def run_int8_reference(
    policy: ImportedPolicy,
    ranges: Mapping[str, Range],
    observations: Mapping[str, NDArray[Any]],
    *,
    options: QuantizationOptions,
) -> dict[str, Float32]:
    """Return the outputs by role for raw `observations`, per key ``[count, *shape]``.

    Args:
        policy: network, weights and normaliser.
        ranges: of every site.
        observations: as the environment gives them.
        options: as the file was converted with.

    Raises:
        PatchError: a range is empty, or a weight is beyond what can be quantized.
        UsageError, NonFiniteError: a range is missing or not finite.
    """
    network = Int8Network(policy, ranges, options=options)
    return network.run(network.normalized(observations))


class Int8Network:
    """An int8 network in numpy.

    Args:
        policy: network, weights and normaliser.
        ranges: of every site.
        options: as the file was converted with.

    Attributes:
        grids: quantization of every tensor that has one, by name.
        bias_scales: by weighted int8 layer: real size of a step of its bias, ``[1]`` or ``[units]``.

    Raises:
        PatchError, UsageError, NonFiniteError: see `run_int8_reference`.
    """

    def __init__(self, policy: ImportedPolicy, ranges: Mapping[str, Range], *, options: QuantizationOptions) -> None:
        self._policy, self._options = policy, options
        self.plan = plan_ranges(policy.graph, options, normalizer=policy.contract.normalizer)
        self._sites = self.plan.quantizations(self.plan.effective(ranges))
        self.grids = {
            name: self._sites[site] for name in policy.graph.shapes if (site := self.plan.carrier(name)) is not None
        }
        self.bias_scales: dict[str, Float64] = {}
        self._kernel_scales: dict[str, Float64] = {}
        self._arrays: dict[str, list[NDArray[Any]]] = {}
        for layer in policy.graph.layers:
            arrays = [policy.weights[name] for name in layer.weight_names()]
            quantized = layer.kind in WEIGHTED and layer.name not in self.plan.floats
            self._arrays[layer.name] = self._on_grids(layer, arrays) if quantized else arrays

    def _source_scale(self, layer: Layer) -> float:
        """Return the scale of what a weighted layer reads."""
        site = self.plan.read_as(layer.inputs[0])
        if site is None:
            raise PatchError(f"layer {layer.name!r} reads {layer.inputs[0]!r}, which has no range")
        return self._sites[site].scale

    def _on_grids(self, layer: Layer, arrays: list[Float32]) -> list[NDArray[Any]]:
        kernel, bias = arrays[0], arrays[1] if len(arrays) > 1 else None
        scales = layer_scales(layer, kernel, bias, self._source_scale(layer), options=self._options)
        steps = np.empty(as_rows(layer, kernel).T.shape, np.float64)
        write_kernel(layer, kernel, scales, steps, scratch={})
        self.bias_scales[layer.name], self._kernel_scales[layer.name] = scales.bias, scales.kernel
        real = np.ascontiguousarray((steps * scales.kernel[:, None]).T).reshape(kernel.shape)
        return [real] if bias is None else [real, np.rint(bias.astype(np.float64) / scales.bias) * scales.bias]

    def bits_lost_to_bias(self, layer: Layer) -> float:
        """Return how many bits of the weights of an int8 `layer` its bias costs, by opening their scale.

        The layer's own largest weight is the measure: a channel of small weights that opens up to it has lost nothing
        that one scale for all channels would have kept. A kernel of zeros has nothing to lose.
        """
        kernel, bias = (self._policy.weights[name] for name in layer.weight_names())
        if not kernel.any():
            return 0.0
        source = self._source_scale(layer)
        opened, alone = (
            float(layer_scales(layer, kernel, part, source, options=self._options).kernel.max())
            for part in (bias, None)
        )
        return math.log2(opened / alone)

    @property
    def rescalings(self) -> dict[str, float]:
        """By weighted int8 layer: the largest number of steps of its output that one step of its int32 sum is."""
        fused = self._policy.graph.fused
        return {
            name: float(steps.max()) / grid.scale
            for name, steps in self.bias_scales.items()
            if (grid := self.grids.get(fused.get(name, name))) is not None
        }

    def normalized(self, observations: Mapping[str, NDArray[Any]]) -> dict[str, Float32]:
        """Return what the file quantizes: raw `observations` behind the normaliser, per key.

        A device clips what it normalises. A file with float ends leaves that to the input's range, where the ends of
        the clip are steps of their own.
        """
        clipped = normalize(self._policy, observations)
        normalizer = dataclasses.replace(self._policy.contract.normalizer, clip=0.0)
        contract = dataclasses.replace(self._policy.contract, normalizer=normalizer)
        open_ended = normalize(dataclasses.replace(self._policy, contract=contract), observations)
        by_range = self._options.io == "float32"
        return {
            key: open_ended[key] if by_range and self.plan.carrier(key) == key else values
            for key, values in clipped.items()
        }

    def run(self, inputs: Mapping[str, Float32]) -> dict[str, Float32]:
        """Return the outputs by role for `normalized` inputs, per key float32 ``[count, *shape]``."""
        exact, gridded = self.tensors(inputs)
        del gridded
        return {role: exact[name].astype(np.float32) for role, name in self._policy.graph.outputs.items()}

    def tensors(self, inputs: Mapping[str, Float32]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Return every tensor by name: as float layers read it, and as int8 layers do."""
        exact: dict[str, NDArray[Any]] = {}
        gridded: dict[str, NDArray[Any]] = {}
        for item in self._policy.graph.inputs:
            self._store(item.key, inputs[item.key], exact, gridded)
        for layer in self._policy.graph.layers:
            source = exact if layer.name in self.plan.floats else gridded
            result = run_layer(layer, [source[name] for name in layer.inputs], self._arrays[layer.name])
            if layer.name in self.bias_scales:
                result = self._requantized(layer, result)
            self._store(layer.name, result, exact, gridded)
        return exact, gridded

    def _requantized(self, layer: Layer, result: NDArray[Any]) -> NDArray[Any]:
        """Return what a weighted int8 layer gives, in whole steps of its output, not clipped.

        The product of the sum and float32 scales falls on the other side of a half once in a hundred thousand values
        if it is taken in float64.
        """
        grid = self.grids.get(self._policy.graph.fused.get(layer.name, layer.name))
        if grid is None or grid.bits > _KERNEL_BITS:
            return result
        sums = np.rint(result / self.bias_scales[layer.name]).astype(np.float32)
        kernel = self._kernel_scales[layer.name].astype(np.float32)
        by = np.float32(self._source_scale(layer)) * kernel / np.float32(grid.scale)
        return np.rint(sums * by).astype(np.float64) * grid.scale

    def _store(
        self, name: str, tensor: NDArray[Any], exact: dict[str, NDArray[Any]], gridded: dict[str, NDArray[Any]]
    ) -> None:
        grid, entry = self.grids.get(name), self.plan.entry(name)
        exact[name] = tensor if grid is None else on_grid(tensor, grid)
        gridded[name] = exact[name] if entry is None else on_grid(tensor, self._sites[entry])


def on_grid(values: NDArray[Any], grid: Quantization) -> Float64:
    """Return `values` rounded to the nearest step of `grid` and clipped to its steps, in float64.

    What enters the file is float32 and quantized in float32, by the scale as the file stores it.
    """
    single = values.dtype == np.float32
    inverse = np.float32(1.0) / np.float32(grid.scale) if single else 1.0 / grid.scale
    steps = np.clip(np.rint(values * inverse) + grid.zero_point, -(2 ** (grid.bits - 1)), 2 ** (grid.bits - 1) - 1)
    real: Float64 = (steps - grid.zero_point).astype(np.float64) * grid.scale
    return real
