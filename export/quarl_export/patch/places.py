"""Which tensor of a converted file holds which value of a policy, found by content and never by name.

The converter names tensors after graph nodes and merges names as it likes; values do not lie. The file searched is the
conversion of a fingerprint, in which no two values can be mistaken for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import PatchError
from quarl_export.arithmetic import Quantization, quantize_bias
from quarl_export.graph import GraphView, OperatorView, TensorView
from quarl_export.ir.layers import WEIGHTED, Layer
from quarl_export.kernels import as_channels, file_shape, layer_scales, write_kernel
from quarl_export.patch.values import PolicyValues, clip_bound
from quarl_export.range_plan import RangePlan


@dataclass(frozen=True, kw_only=True)
class LayerPlace:
    """Where one int8 layer is.

    Attributes:
        layer: the layer.
        source: site whose scale its input has.
        kernel: tensor index.
        bias: tensor index; -1 where the operator has none. A layer without bias may have one of zeros.
    """

    layer: Layer
    source: str
    kernel: int
    bias: int


@dataclass(frozen=True, kw_only=True)
class Places:
    """Tensor indices by what the tensors hold.

    Attributes:
        carriers: per site that is not fixed, the activations that carry its range, in execution order.
        layers: the int8 layers.
        floats: array name to tensor, of layers in float.
        normalizer: per key (offset, scale); with a clip also (upper bound, lower bound).
    """

    carriers: Mapping[str, tuple[int, ...]]
    layers: tuple[LayerPlace, ...]
    floats: Mapping[str, int]
    normalizer: Mapping[str, tuple[int, ...]]

    def names(self, graph: GraphView) -> dict[int, str]:
        """Return a readable name for every tensor that a patch writes."""
        named: dict[int, str] = dict(_activation_names(graph, self.carriers))
        for place in self.layers:
            named[place.kernel] = f"{place.layer.name}/kernel"
            if place.bias >= 0:
                named[place.bias] = f"{place.layer.name}/bias"
        named.update({index: name for name, index in self.floats.items()})
        for key, indices in self.normalizer.items():
            parts = ("offset", "scale", "upper", "lower")
            named.update({index: f"{key}/{part}" for index, part in zip(indices, parts, strict=False)})
        return named


def find_places(graph: GraphView, plan: RangePlan, values: PolicyValues) -> Places:
    """Find every value of the fingerprint `values` in its conversion.

    Raises:
        PatchError: a value has no place or several, or a tensor holds something that is not the policy's.
    """
    quantizations = plan.quantizations(plan.effective(values.ranges))
    places = Places(
        carriers=_find_carriers(graph, plan, quantizations),
        layers=tuple(_find_layers(graph, plan, values, quantizations)),
        floats=_find_floats(graph, plan, values),
        normalizer=_find_normalizer(graph, plan, values),
    )
    _check_complete(graph, plan, places, quantizations)
    return places


def _find_carriers(
    graph: GraphView, plan: RangePlan, quantizations: Mapping[str, Quantization]
) -> dict[str, tuple[int, ...]]:
    order = {index: step for step, operator in enumerate(graph.operators) for index in operator.outputs}
    carriers: dict[str, tuple[int, ...]] = {}
    for site in plan.sites:
        found = [tensor.index for tensor in _activations(graph) if _carries(tensor, quantizations[site])]
        if not found:
            raise PatchError(f"no tensor carries the range of {site!r}: the converter dropped it")
        carriers[site] = tuple(sorted(found, key=lambda index: order.get(index, -1)))
    taken = [index for indices in carriers.values() for index in indices]
    if len(set(taken)) != len(taken):
        raise PatchError("two ranges of the fingerprint cannot be told apart")
    return carriers


def _activations(graph: GraphView) -> Iterator[TensorView]:
    return (tensor for tensor in graph.tensors if tensor.data is None and tensor.scale is not None)


def _carries(tensor: TensorView, quantization: Quantization) -> bool:
    if tensor.scale is None or tensor.zero_point is None or tensor.scale.size != 1:
        return False
    zero_point = quantization.zero_point + (128 if tensor.dtype is np.uint8 else 0)
    return bool(tensor.scale[0] == np.float32(quantization.scale) and tensor.zero_point[0] == zero_point)


def _find_layers(
    graph: GraphView, plan: RangePlan, values: PolicyValues, quantizations: Mapping[str, Quantization]
) -> Iterator[LayerPlace]:
    for layer in plan.graph.layers:
        if layer.kind not in WEIGHTED or layer.name in plan.floats or layer.name not in plan.live:
            continue
        source = str(plan.read_as(layer.inputs[0]))
        kernel, bias = values.weights[f"{layer.name}/kernel"], values.weights.get(f"{layer.name}/bias")
        scales = layer_scales(layer, kernel, bias, quantizations[source].scale, options=plan.options)
        steps = np.zeros(file_shape(layer, kernel.shape), np.int8)
        write_kernel(layer, kernel, scales, as_channels(layer, steps), scratch={})
        tensor = _the_one(graph, steps, scales.kernel, f"the kernel of {layer.name!r}")
        operator = _user(graph, tensor)
        index = operator.inputs[2] if len(operator.inputs) > 2 else -1
        units = steps.shape[-1] if layer.kind == "depthwise_conv2d" else steps.shape[0]
        _check_bias(graph, layer, index, bias, scales.bias, units)
        yield LayerPlace(layer=layer, source=source, kernel=tensor.index, bias=index)


def _the_one(graph: GraphView, steps: NDArray[np.int8], scales: NDArray[np.float64], what: str) -> TensorView:
    found = [
        tensor
        for tensor in graph.tensors
        if tensor.data is not None
        and tensor.dtype is np.int8
        and tensor.shape == steps.shape
        and tensor.scale is not None
        and np.array_equal(tensor.scale, scales.astype(np.float32))
        and np.array_equal(tensor.data, steps)
    ]
    if len(found) != 1:
        raise PatchError(f"{what} has {len(found)} places in the converted file, not one")
    return found[0]


def _user(graph: GraphView, tensor: TensorView) -> OperatorView:
    users = [operator for operator in graph.operators if tensor.index in operator.inputs]
    if len(users) != 1 or users[0].inputs[1] != tensor.index:
        raise PatchError(f"the kernel {tensor.name!r} is not the kernel of a single operator")
    return users[0]


def _check_bias(
    graph: GraphView,
    layer: Layer,
    index: int,
    bias: NDArray[np.float32] | None,
    scales: NDArray[np.float64],
    units: int,
) -> None:
    if index < 0 and bias is None:
        return
    tensor = graph.tensors[index] if index >= 0 else None
    steps = np.zeros(units) if bias is None else quantize_bias(bias, scales)
    if (
        tensor is None
        or tensor.data is None
        or tensor.dtype is not np.int32
        or tensor.scale is None
        or not np.array_equal(tensor.scale, scales.astype(np.float32))
        or not np.array_equal(tensor.data, steps)
    ):
        raise PatchError(f"the bias of {layer.name!r} is not what the rounding rules say")


def _find_floats(graph: GraphView, plan: RangePlan, values: PolicyValues) -> dict[str, int]:
    found = {}
    for layer in plan.graph.layers:
        if layer.name in plan.floats and layer.name in plan.live:
            for name in layer.weight_names():
                found[name] = _float(graph, name, float_layout(layer, name, values.weights[name]))
    return found


def float_layout(layer: Layer, name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the array `name` of a float layer as the file has it."""
    if layer.kind not in WEIGHTED or name.endswith("/bias"):
        return array
    data = np.empty(file_shape(layer, array.shape), np.float32)
    channels = data.shape[-1] if layer.kind == "depthwise_conv2d" else data.shape[0]
    as_channels(layer, data)[...] = array.reshape(-1, channels).T
    return data


def _float(graph: GraphView, name: str, array: NDArray[np.float32]) -> int:
    found = [
        tensor.index
        for tensor in graph.tensors
        if tensor.dtype is np.float32
        and tensor.data is not None
        and tensor.data.size == array.size
        and np.array_equal(tensor.data.ravel(), array.ravel())
    ]
    if len(found) != 1:
        raise PatchError(f"{name} has {len(found)} places in the converted file, not one")
    return found[0]


def _find_normalizer(graph: GraphView, plan: RangePlan, values: PolicyValues) -> dict[str, tuple[int, ...]]:
    found = {}
    for key, (offset, scale) in values.normalizer.items():
        arrays = [offset, scale]
        if plan.clips_in_float(key):
            bound = clip_bound(scale, plan.clip)
            arrays += [bound, -bound]
        found[key] = tuple(_float(graph, f"the normaliser of {key!r}", array) for array in arrays)
    return found


def _check_complete(
    graph: GraphView, plan: RangePlan, places: Places, quantizations: Mapping[str, Quantization]
) -> None:
    """Every quantized tensor must be explained; other constants are structure, which a second conversion verifies."""
    mapped = places.names(graph)
    fixed = [quantizations[site] for site in quantizations if plan.is_fixed(site)]
    for tensor in graph.tensors:
        explained = tensor.index in mapped or (
            tensor.data is None and any(_carries(tensor, quantization) for quantization in fixed)
        )
        if tensor.scale is not None and not explained:
            raise PatchError(f"the converted file holds {tensor.name!r}, which the policy does not explain")
        uses = sum(operator.inputs.count(tensor.index) for operator in graph.operators)
        if tensor.data is not None and tensor.index in mapped and uses != 1:
            raise PatchError(f"the constant {mapped[tensor.index]!r} has {uses} users, not one")


def _activation_names(graph: GraphView, carriers: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[int, str]]:
    """Name the tensor that an operator of its own gives after the site, and those that hand it on by number."""
    made_by = {index: operator.name for operator in graph.operators for index in operator.outputs}
    for site, indices in carriers.items():
        first = next((index for index in indices if made_by.get(index) == "CONCATENATION"), indices[0])
        others = [index for index in indices if index != first]
        yield first, site
        yield from ((index, f"{site}.{number}") for number, index in enumerate(others, 1))
