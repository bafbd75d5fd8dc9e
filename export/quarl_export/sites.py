"""Which tensor of a converted file holds which value of a snapshot, found by content and never by name.

The converter names tensors after graph nodes and merges names as it likes; values do not lie. A fingerprint is a
snapshot in which no two values can be mistaken for each other; its conversion is searched for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quarl_device.errors import PatchError
from quarl_export.arithmetic import (
    Quantization,
    activation_quantization,
    quantize_bias,
    quantize_kernel,
    weight_limit,
    weight_scale,
)
from quarl_export.graph import GraphView, OperatorView, TensorView
from quarl_export.networks import NetworkSpec
from quarl_export.quantizers import MIN_WEIGHT_RANGE
from quarl_export.snapshot import Float32, PolicySnapshot


@dataclass(frozen=True, kw_only=True)
class Sites:
    """Tensor indices by what the tensors hold.

    Attributes:
        ranges: for each range of the snapshot, the head's last: the tensors that carry it.
        kernels: per dense layer, head last.
        biases: per dense layer, head last.
        offset: of the normaliser; -1 where there is none.
        scale: of the normaliser; -1 where there is none.
    """

    ranges: tuple[tuple[int, ...], ...]
    kernels: tuple[int, ...]
    biases: tuple[int, ...]
    offset: int = -1
    scale: int = -1

    def names(self) -> dict[int, str]:
        """Return a readable name for every tensor that a patch writes."""
        named = {index: f"kernel_{layer}" for layer, index in enumerate(self.kernels)}
        named.update({index: f"bias_{layer}" for layer, index in enumerate(self.biases)})
        for site, indices in enumerate(self.ranges):
            named.update(dict.fromkeys(indices, f"activation_{site}"))
        if self.offset >= 0:
            named.update({self.offset: "offset", self.scale: "scale"})
        return named


def fingerprint(spec: NetworkSpec, *, normalized: bool) -> PolicySnapshot:
    """Return a snapshot of `spec` without zeros, without equal values, and with a distinct range at every site."""
    rng = np.random.default_rng(20_210)
    snapshot = _random(spec, rng, normalized=normalized)
    sites = np.arange(len(snapshot.ranges) + 1, dtype=np.float32)
    ranges = np.stack([-(0.5 + 0.07 * sites), 2.0 + 0.31 * sites], axis=1)
    return _with_ranges(snapshot, ranges)


def probe(spec: NetworkSpec, *, normalized: bool, seed: int) -> PolicySnapshot:
    """Return a random snapshot of `spec` with ranges as training makes them, to verify a mapping with."""
    rng = np.random.default_rng(seed)
    snapshot = _random(spec, rng, normalized=normalized)
    ranges = np.stack([np.zeros(len(snapshot.ranges) + 1), rng.uniform(0.2, 9.0, len(snapshot.ranges) + 1)], axis=1)
    ranges[0, 0], ranges[-1, 0] = -rng.uniform(0.2, 9.0, 2)
    return _with_ranges(snapshot, ranges)


def find_sites(graph: GraphView, snapshot: PolicySnapshot) -> Sites:
    """Find every value of the fingerprint `snapshot` in its conversion.

    Raises:
        PatchError: a value has no place or several, or a tensor holds something that is not the snapshot's.
    """
    quantizations = range_quantizations(snapshot)
    ranges = tuple(_carriers(graph, quantization) for quantization in quantizations)
    dense = [operator for operator in graph.operators if operator.name == "FULLY_CONNECTED"]
    kernels, biases = [], []
    for layer, (kernel, bias) in enumerate(zip(snapshot.kernels, snapshot.biases, strict=True)):
        tensor = _kernel(graph, kernel)
        kernels.append(tensor.index)
        limit = weight_limit(kernel, floor=MIN_WEIGHT_RANGE)
        biases.append(_bias(graph, dense, tensor, bias, quantizations[layer].scale * weight_scale(limit)))
    normalizer = {} if snapshot.offset is None else {"offset": snapshot.offset, "scale": snapshot.scale}
    floats = {name: _float(graph, name, value) for name, value in normalizer.items() if value is not None}
    sites = Sites(ranges=ranges, kernels=tuple(kernels), biases=tuple(biases), **floats)
    _check_complete(graph, sites)
    return sites


def range_quantizations(snapshot: PolicySnapshot) -> list[Quantization]:
    """Return the quantization of every range of `snapshot`, the head's last.

    Raises:
        PatchError: a range is empty or does not include zero.
    """
    return [activation_quantization(low, high) for low, high in (*snapshot.ranges.tolist(), snapshot.head_range)]


def _random(spec: NetworkSpec, rng: np.random.Generator, *, normalized: bool) -> PolicySnapshot:
    kernels, biases = [], []
    for inputs, units in spec.kernel_shapes:
        # A different extreme in every channel, so that per-channel quantization would show.
        kernels.append((rng.uniform(-1, 1, (inputs, units)) * rng.uniform(0.1, 0.9, units)).astype(np.float32))
        biases.append((rng.uniform(0.03, 0.3, units) * rng.choice([-1.0, 1.0], units)).astype(np.float32))
    size = spec.observation_size
    return PolicySnapshot(
        kernels=tuple(kernels),
        biases=tuple(biases),
        ranges=np.zeros((1 + len(spec.hidden), 2), np.float32),
        range_updates=np.zeros(1 + len(spec.hidden), np.float32),
        head_range=np.zeros(2, np.float32),
        offset=rng.uniform(0.5, 1.5, size).astype(np.float32) if normalized else None,
        scale=rng.uniform(2.0, 3.0, size).astype(np.float32) if normalized else None,
    )


def _with_ranges(snapshot: PolicySnapshot, ranges: np.ndarray) -> PolicySnapshot:
    values = ranges.astype(np.float32)
    arrays = {**vars(snapshot), "ranges": values[:-1], "head_range": values[-1]}
    return PolicySnapshot(**arrays)


def _carriers(graph: GraphView, quantization: Quantization) -> tuple[int, ...]:
    found = tuple(
        tensor.index
        for tensor in graph.tensors
        if tensor.data is None
        and tensor.scale is not None
        and tensor.zero_point is not None
        and tensor.scale.size == 1
        and tensor.scale[0] == np.float32(quantization.scale)
        and tensor.zero_point[0] == quantization.zero_point
    )
    if not found:
        raise PatchError(f"no tensor carries the range of scale {quantization.scale:.6g}: the converter dropped it")
    return found


def _kernel(graph: GraphView, kernel: Float32) -> TensorView:
    limit = weight_limit(kernel, floor=MIN_WEIGHT_RANGE)
    steps = quantize_kernel(kernel, limit, np.empty_like(kernel)).T
    found = [
        tensor
        for tensor in graph.tensors
        if tensor.data is not None
        and tensor.dtype is np.int8
        and tensor.shape == steps.shape
        and tensor.scale is not None
        and tensor.scale.size == 1
        and tensor.scale[0] == np.float32(weight_scale(limit))
        and np.array_equal(tensor.data, steps)
    ]
    if len(found) != 1:
        raise PatchError(f"a kernel of shape {kernel.shape} has {len(found)} places in the converted file, not one")
    return found[0]


def _bias(graph: GraphView, dense: list[OperatorView], kernel: TensorView, bias: Float32, scale: float) -> int:
    users = [operator for operator in dense if operator.inputs[1] == kernel.index]
    if len(users) != 1 or len(users[0].inputs) != 3 or users[0].inputs[2] < 0:
        raise PatchError(f"the kernel {kernel.name!r} has no single dense operator with a bias")
    tensor = graph.tensors[users[0].inputs[2]]
    if (
        tensor.dtype is not np.int32
        or tensor.scale is None
        or tensor.data is None
        or tensor.scale.size != 1
        or tensor.scale[0] != np.float32(scale)
        or not np.array_equal(tensor.data, quantize_bias(bias, scale))
    ):
        raise PatchError(f"the bias beside kernel {kernel.name!r} is not what the rounding rules say")
    return tensor.index


def _float(graph: GraphView, name: str, value: Float32) -> int:
    found = [
        tensor.index
        for tensor in graph.tensors
        if tensor.dtype is np.float32 and tensor.data is not None and np.array_equal(tensor.data.ravel(), value)
    ]
    if len(found) != 1:
        raise PatchError(f"the normaliser's {name} has {len(found)} places in the converted file, not one")
    return found[0]


def _check_complete(graph: GraphView, sites: Sites) -> None:
    mapped = sites.names()
    uses = [index for operator in graph.operators for index in operator.inputs]
    for tensor in graph.tensors:
        if (tensor.data is not None or tensor.scale is not None) and tensor.index not in mapped:
            raise PatchError(f"the converted file holds {tensor.name!r}, which the policy does not explain")
        if tensor.data is not None and uses.count(tensor.index) != 1:
            raise PatchError(f"the constant {tensor.name!r} has {uses.count(tensor.index)} users, not one")
    allowed = {"FULLY_CONNECTED", "QUANTIZE", "DEQUANTIZE"} | ({"SUB", "MUL"} if sites.offset >= 0 else set())
    found = {operator.name for operator in graph.operators}
    if found != allowed:
        raise PatchError(f"the converted file has operators {sorted(found)}, expected {sorted(allowed)}")
