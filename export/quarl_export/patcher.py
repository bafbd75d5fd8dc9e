"""Writes policies into the bytes of a file that was converted once.

What it writes equals the converter's own output in every tensor. That is not taken on trust: `Patcher.build` finds
each value's place by converting a fingerprint, and then patches and converts a second one and compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import PatchError
from quarl_export.arithmetic import quantize_bias, quantize_kernel, weight_limit, weight_scale
from quarl_export.compare import difference
from quarl_export.converter import convert
from quarl_export.graph import GraphView, TensorView, repack, view
from quarl_export.networks import NetworkSpec
from quarl_export.qat import QatPolicy
from quarl_export.quantizers import MIN_WEIGHT_RANGE
from quarl_export.sites import Sites, find_sites, fingerprint, probe, range_quantizations
from quarl_export.snapshot import Float32, PolicySnapshot, for_export

_PROBE_SEED = 7


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tensor:
    """Views on one patched tensor, into the file's bytes."""

    data: NDArray[Any]
    scale: NDArray[np.float32]

    @classmethod
    def of(cls, tensor: TensorView) -> _Tensor:
        if tensor.data is None or tensor.scale is None:
            raise PatchError(f"tensor {tensor.name!r} is not a quantized constant")
        return cls(data=tensor.data, scale=tensor.scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Range:
    """Views on the scale and zero point of one patched activation, into the file's bytes."""

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]

    @classmethod
    def of(cls, tensor: TensorView) -> _Range:
        if tensor.scale is None or tensor.zero_point is None:
            raise PatchError(f"tensor {tensor.name!r} is not quantized")
        return cls(scale=tensor.scale, zero_point=tensor.zero_point)


class Patcher:
    """A converted file with cached views on everything that a policy decides.

    Not thread-safe: `patch` writes into one buffer and hands out a copy.

    Attributes:
        spec: the architecture that fits.
        normalized: whether the file has a normaliser.
    """

    def __init__(self, spec: NetworkSpec, *, normalized: bool, model: bytes, sites: Sites) -> None:
        self.spec = spec
        self.normalized = normalized
        self._sites = sites
        self._shapes = [*spec.kernel_shapes]
        self._open(model)

    @classmethod
    def build(cls, spec: NetworkSpec, *, normalized: bool = False, verify: bool = True) -> Patcher:
        """Convert two fingerprints of `spec`: one to find every value's place, one to verify the patching.

        Takes two conversions, 1-3 s.

        Args:
            spec: the architecture.
            normalized: whether the file has a normaliser.
            verify: false leaves out the second conversion, for a caller that compares its own patch with a conversion.

        Raises:
            ConversionError: TensorFlow could not convert the architecture.
            PatchError: the converted file is not explained by the policy, or a patched file differs from a converted.
        """
        policy = QatPolicy(spec, normalize=normalized)
        snapshot = fingerprint(spec, normalized=normalized)
        policy.restore(snapshot)
        model = convert(policy)
        graph = view(model)
        sites = find_sites(graph, snapshot)
        patcher = cls(spec, normalized=normalized, model=repack(model, names=_names(graph, sites, spec)), sites=sites)
        if not verify:
            return patcher
        snapshot = probe(spec, normalized=normalized, seed=_PROBE_SEED)
        policy.restore(snapshot)
        found = difference(patcher._write(snapshot), convert(policy))
        if found:
            raise PatchError(f"a patched file differs from a converted one: {found}")
        return patcher

    def patch(self, snapshot: PolicySnapshot) -> bytes:
        """Return the complete file of `snapshot`, equal in every tensor to its conversion.

        Raises:
            PatchError: another architecture, a degenerate range, or a bias that does not fit int32.
            NonFiniteError: NaN or Inf anywhere.
        """
        self._check(snapshot)
        return self._write(for_export(self.spec, snapshot))

    def with_metadata(self, name: str, content: bytes) -> Patcher:
        """Return a patcher whose files carry this metadata entry."""
        model = repack(bytes(self._buffer), metadata={name: content})
        return Patcher(self.spec, normalized=self.normalized, model=model, sites=self._sites)

    @property
    def data(self) -> bytes:
        """The file as last written."""
        return bytes(self._buffer)

    def _open(self, model: bytes) -> None:
        self._buffer = bytearray(model)
        graph, sites = view(self._buffer), self._sites
        self._kernels = [_Tensor.of(graph.tensors[index]) for index in sites.kernels]
        self._biases = [_Tensor.of(graph.tensors[index]) for index in sites.biases]
        self._ranges = [[_Range.of(graph.tensors[index]) for index in indices] for indices in sites.ranges]
        self._offset = graph.tensors[sites.offset].data if self.normalized else None
        self._scale = graph.tensors[sites.scale].data if self.normalized else None
        self._scratch = [np.empty(shape, np.float32) for shape in self._shapes]

    def _check(self, snapshot: PolicySnapshot) -> None:
        if [kernel.shape for kernel in snapshot.kernels] != self._shapes:
            shapes = [kernel.shape for kernel in snapshot.kernels]
            raise PatchError(f"policy has kernels {shapes}, the file {self._shapes}")
        if snapshot.normalized != self.normalized:
            raise PatchError("policy and file differ: one has a normaliser, the other none")
        snapshot.check_finite()

    def _write(self, snapshot: PolicySnapshot) -> bytes:
        quantizations = range_quantizations(snapshot)
        for views, quantization in zip(self._ranges, quantizations, strict=True):
            for range_view in views:
                range_view.scale[0] = quantization.scale
                range_view.zero_point[0] = quantization.zero_point
        for layer, (kernel, bias) in enumerate(zip(snapshot.kernels, snapshot.biases, strict=True)):
            self._write_layer(layer, kernel, bias, quantizations[layer].scale)
        if self._offset is not None and self._scale is not None:
            self._offset[...] = snapshot.offset
            self._scale[...] = snapshot.scale
        return bytes(self._buffer)

    def _write_layer(self, layer: int, kernel: Float32, bias: Float32, input_scale: float) -> None:
        limit = weight_limit(kernel, floor=MIN_WEIGHT_RANGE)
        steps = quantize_kernel(kernel, limit, self._scratch[layer])
        np.copyto(self._kernels[layer].data, steps.T, casting="unsafe")
        self._kernels[layer].scale[0] = weight_scale(limit)
        bias_scale = input_scale * weight_scale(limit)
        np.copyto(self._biases[layer].data, quantize_bias(bias, bias_scale), casting="unsafe")
        self._biases[layer].scale[0] = bias_scale


def _names(graph: GraphView, sites: Sites, spec: NetworkSpec) -> dict[int, str]:
    names = {tensor.index: f"tensor_{tensor.index}" for tensor in graph.tensors}
    names.update(sites.names())
    names[graph.inputs[0]] = spec.observations[0].key
    names[graph.outputs[0]] = spec.head
    return names
