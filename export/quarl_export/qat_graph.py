"""A network in quantization-aware training, seen as a policy graph: what patches and reports of any network take."""

from __future__ import annotations

import numpy as np

from quarl_export.arithmetic import Quantization, activation_quantization
from quarl_export.ir import GraphInput, Layer, PolicyGraph
from quarl_export.ir.layers import Shape
from quarl_export.networks import NetworkSpec
from quarl_export.patch.values import PolicyValues
from quarl_export.quantizers import MIN_WEIGHT_RANGE
from quarl_export.range_plan import QuantizationOptions, RangePlan
from quarl_export.snapshot import START_RANGE, PolicySnapshot


def spec_options(spec: NetworkSpec) -> QuantizationOptions:
    """Return what quantizes exactly as training's fake quants do."""
    head = spec.quantization.head_output
    return QuantizationOptions(
        keep_float=frozenset({spec.head_layer} if head == "float32" else ()),
        wide_outputs=frozenset({spec.head_layer} if head == "int16" else ()),
        weight_bits=spec.quantization.weight_bits,
        activation_bits=spec.quantization.activation_bits,
        min_weight_range=MIN_WEIGHT_RANGE,
        bias_opens_weights=False,
    )


def spec_graph(spec: NetworkSpec) -> PolicyGraph:
    """Return the network of `spec` behind its normaliser.

    Its layers are "convolution_<n>" and "convolution_relu_<n>", then "flatten", where it sees images, "hidden_<n>" and
    "relu_<n>" and, last, the head.
    """
    key = spec.observations[0].key
    layers: list[Layer] = []
    source = key
    for index, (_, _, stride) in enumerate(spec.convolutions):
        name, strides = f"convolution_{index}", {"strides": (stride, stride)}
        layers.append(Layer(name=name, kind="conv2d", inputs=(source,), settings=strides))
        source = f"convolution_relu_{index}"
        layers.append(Layer(name=source, kind="relu", inputs=(name,)))
    if spec.convolutions:
        layers.append(Layer(name="flatten", kind="flatten", inputs=(source,)))
        source = "flatten"
    for index in range(len(spec.hidden)):
        layers.append(Layer(name=f"hidden_{index}", kind="dense", inputs=(source,)))
        source = f"relu_{index}"
        layers.append(Layer(name=source, kind="relu", inputs=(f"hidden_{index}",)))
    layers.append(Layer(name=spec.head_layer, kind="dense", inputs=(source,)))
    if spec.head == "action":
        layers.append(Layer(name=spec.role, kind="tanh", inputs=(spec.head_layer,)))
    shapes: dict[str, Shape] = {}
    for name, shape in zip(layer_names(spec), spec.kernel_shapes, strict=True):
        shapes |= {f"{name}/kernel": shape, f"{name}/bias": shape[-1:]}
    inputs = (GraphInput(key=key, shape=spec.input_shape),)
    return PolicyGraph(inputs=inputs, layers=tuple(layers), outputs={spec.role: spec.role}, weight_shapes=shapes)


def spec_plan(spec: NetworkSpec) -> RangePlan:
    """Return where the ranges of `spec` are carried."""
    return RangePlan(graph=spec_graph(spec), options=spec_options(spec))


def layer_names(spec: NetworkSpec) -> list[str]:
    """Return the names of the layers with weights, in the order of a snapshot's kernels."""
    convolutions = (f"convolution_{index}" for index in range(len(spec.convolutions)))
    return [*convolutions, *(f"hidden_{index}" for index in range(len(spec.hidden))), spec.head_layer]


def _site_names(spec: NetworkSpec) -> list[str]:
    """Return the sites in the order of a snapshot's ranges, the head's last."""
    convolutions = (f"convolution_relu_{index}" for index in range(len(spec.convolutions)))
    hidden = (f"relu_{index}" for index in range(len(spec.hidden)))
    return [spec.observations[0].key, *convolutions, *hidden, spec.head_layer]


def snapshot_values(spec: NetworkSpec, snapshot: PolicySnapshot) -> PolicyValues:
    """Return `snapshot` as the values of `spec_graph`; arrays are not copied."""
    weights = {}
    for name, kernel, bias in zip(layer_names(spec), snapshot.kernels, snapshot.biases, strict=True):
        weights[f"{name}/kernel"], weights[f"{name}/bias"] = kernel, bias
    key = spec.observations[0].key
    found = [*snapshot.ranges.tolist(), snapshot.head_range.tolist()]
    normalizer = {}
    if snapshot.offset is not None and snapshot.scale is not None:
        normalizer[key] = (snapshot.offset, snapshot.scale)
    ranges = {site: (low, high) for site, (low, high) in zip(_site_names(spec), found, strict=True)}
    return PolicyValues(weights=weights, ranges=ranges, normalizer=normalizer)


def values_snapshot(spec: NetworkSpec, values: PolicyValues) -> PolicySnapshot:
    """Return the values of `spec_graph` as a snapshot: the inverse of `snapshot_values`.

    A gaussian's log_std is no value of the graph: it is 0 in the snapshot.
    """
    names = layer_names(spec)
    ranges = np.array([limits for site, limits in values.ranges.items() if site != spec.head_layer], np.float32)
    offset, scale = values.normalizer.get(spec.observations[0].key, (None, None))
    return PolicySnapshot(
        kernels=tuple(values.weights[f"{name}/kernel"] for name in names),
        biases=tuple(values.weights[f"{name}/bias"] for name in names),
        ranges=ranges,
        range_updates=np.ones(len(ranges), np.float32),
        head_range=np.array(values.ranges.get(spec.head_layer, (-START_RANGE, START_RANGE)), np.float32),
        log_std=np.zeros(spec.head_units, np.float32) if spec.head == "gaussian" else None,
        offset=offset,
        scale=scale,
    )


def range_quantizations(snapshot: PolicySnapshot) -> list[Quantization]:
    """Return the quantization of every range of `snapshot`, the head's last.

    Raises:
        PatchError: a range is empty or does not include zero.
    """
    return [activation_quantization(low, high) for low, high in (*snapshot.ranges.tolist(), snapshot.head_range)]


def normalizer_shapes(spec: NetworkSpec, *, normalized: bool) -> dict[str, tuple[int, ...]]:
    """Return the shape of offset and scale by observation key."""
    return {spec.observations[0].key: spec.normalizer_shape} if normalized else {}
