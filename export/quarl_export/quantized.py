"""A policy graph with fake quants where int8 has ranges, and its conversion.

Post-training quantization and quantization-aware training take the same way: explicit ranges, never the converter's own
calibration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ConversionError
from quarl_export.converter import convert_model
from quarl_export.graph import repack, signature
from quarl_export.ir.layers import WEIGHTED, Layer
from quarl_export.ir.policy_graph import FIXED_RANGES, ImportedPolicy, PolicyGraph
from quarl_export.keras2 import keras, tf
from quarl_export.kernels import is_convertible, layer_scales
from quarl_export.layer_scopes import layer_scope
from quarl_export.patch.values import PolicyValues, clip_bound, is_tied, normalizer_arrays
from quarl_export.range_plan import QuantizationOptions, Range, RangePlan, plan_ranges
from quarl_export.wide import widened

Float32 = NDArray[np.float32]


def build_planned(plan: RangePlan, values: PolicyValues) -> Any:
    """Return a tf_keras model that computes what the int8 file of these values computes, bias rounding aside.

    Inputs are named ``input_<n>`` in the order of the graph's inputs, outputs ``output_<n>`` in the order of its
    outputs: Keras would not take every observation key for a name. Weights become constants of the model.

    Args:
        plan: of the network.
        values: its weights, at least one range per site of `RangePlan.sites`, and the prologue's constants.

    Raises:
        UsageError: a range is missing.
        NonFiniteError: a range is NaN or Inf.
        PatchError: a weight is beyond what can be quantized.
    """
    network = _Network(plan, values, plan.effective(values.ranges))
    inputs = [keras.Input(item.shape, name=f"input_{place}") for place, item in enumerate(plan.graph.inputs)]
    # Signatures name an output after the layer that gives it.
    outputs = {
        f"output_{place}": keras.layers.Activation("linear", name=f"output_{place}")(tensor)
        for place, tensor in enumerate(network(inputs))
    }
    return keras.Model(inputs, outputs, name="policy")


def convert_quantized(
    policy: ImportedPolicy, ranges: Mapping[str, Range], *, options: QuantizationOptions | None = None
) -> bytes:
    """Return `policy` as an int8 file; inputs are named by key, outputs by role.

    TensorFlow's converter makes it, except where that cannot: it scales kernels per channel to 8 bits and no fewer, and
    merges layers that have the same kernel. Those values are patched into a conversion of others
    (`quarl_export.template`).

    Args:
        policy: network, weights and normaliser.
        ranges: at least one per site of `RangePlan.sites`.
        options: default: float32 ends, one scale per dense layer.

    Raises:
        ConversionError: TensorFlow could not convert it.
        UsageError: a range is missing, or `options` does not fit the graph.
        NonFiniteError: a range is NaN or Inf.
        PatchError: a weight is beyond what can be quantized, or the network cannot be patched and would have to be.
    """
    plan = plan_ranges(policy.graph, options or QuantizationOptions(), normalizer=policy.contract.normalizer)
    values = policy_values(policy, plan, ranges)
    if is_convertible(plan) and not is_tied(values, plan):
        return convert_planned(plan, values)
    from quarl_export.patch.builder import build_writer  # which builds on this module

    shapes = {key: scale.shape for key, (_, scale) in values.normalizer.items()}
    return build_writer(plan, shapes, verify=True).write(values)


def policy_values(policy: ImportedPolicy, plan: RangePlan, ranges: Mapping[str, Range]) -> PolicyValues:
    """Return what a file of `policy` holds: its normaliser goes in where the file's ends are float32."""
    in_file = plan.options.io == "float32"
    normalizer = normalizer_arrays(policy.contract.normalizer, plan) if in_file else {}
    return PolicyValues(weights=policy.weights, ranges=ranges, normalizer=normalizer)


def convert_planned(plan: RangePlan, values: PolicyValues) -> bytes:
    """Return `convert_quantized` of a plan that is made already."""
    model = convert_narrow(plan, values)
    return widened(model) if plan.options.wide_outputs else model


def convert_narrow(plan: RangePlan, values: PolicyValues) -> bytes:
    """Return the converter's own file, in which operators with int16 outputs still read int8."""
    model = convert_model(build_planned(plan, values), io=plan.options.io)
    return repack(model, names=end_names(model, plan.graph))


def end_names(model: bytes, graph: PolicyGraph) -> dict[int, str]:
    """Return key and role by tensor index, of the inputs and outputs of a conversion.

    Raises:
        ConversionError: a tensor is both an input and an output, or two outputs.
    """
    inputs, outputs = signature(model)
    names = {inputs[f"input_{place}"]: item.key for place, item in enumerate(graph.inputs)}
    for place, role in enumerate(graph.outputs):
        index = outputs[f"output_{place}"]
        if index in names:
            raise ConversionError(f"output {role!r} is one tensor with {names[index]!r}: it cannot have two names")
        names[index] = role
    return names


class _Network(keras.layers.Layer):  # type: ignore[misc]
    """Runs a policy graph with constants for weights; what needs a range is fake-quantized."""

    def __init__(self, plan: RangePlan, values: PolicyValues, ranges: Mapping[str, Range]) -> None:
        super().__init__(name="network")
        self._plan = plan
        # Variables, not constants: those would be copied with every function that TensorFlow makes of this.
        names = list(plan.graph.weight_shapes)
        self._arrays_of_graph = [
            self.add_weight(
                f"array_{place}",
                shape=values.weights[name].shape,
                initializer=lambda shape, dtype=None, array=values.weights[name]: tf.constant(array),
                trainable=False,
            )
            for place, name in enumerate(names)
        ]
        # In tuples, where Keras does not look: it would wrap mappings.
        self._names = (names,)
        self._policy = (values, ranges, _limits(plan, values.weights, ranges))

    def call(self, inputs: Any) -> list[Any]:
        """Return the outputs for ``float32[batch, *shape]`` inputs, both as lists in the graph's order."""
        outputs: list[Any] = self._outputs(inputs)
        return outputs

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _outputs(self, inputs: Any) -> list[Any]:
        graph, floats = self._plan.graph, self._plan.floats
        exact: dict[str, Any] = {}
        """What float layers read."""
        gridded: dict[str, Any] = {}
        """What int8 layers read."""
        for item, tensor in zip(graph.inputs, inputs, strict=True):
            if item.key in self._plan.live:
                self._store(item.key, self._normalized(item.key, tensor), exact, gridded)
        for place, layer in enumerate(graph.layers):
            if layer.name not in self._plan.live:
                continue
            operands = [(exact if layer.name in floats else gridded)[name] for name in layer.inputs]
            if layer.name in floats and self._plan.is_drawn_to_int8(layer):
                operands = [_opaque(operand) for operand in operands]
            with tf.name_scope(layer_scope(place)):
                result = _RUN[layer.kind](layer, operands, self._arrays(layer))
                self._store(layer.name, result, exact, gridded)
        return [exact[name] for name in graph.outputs.values()]

    def _store(self, name: str, tensor: Any, exact: dict[str, Any], gridded: dict[str, Any]) -> None:
        carrier, entry = self._plan.carrier(name), self._plan.entry(name)
        exact[name] = tensor if carrier is None else self._on_grid(tensor, carrier)
        gridded[name] = exact[name] if entry is None else self._on_grid(tensor, entry)

    def _on_grid(self, tensor: Any, site: str) -> Any:
        plan, (_, ranges, _) = self._plan, self._policy
        low, high = FIXED_RANGES[plan.graph.layer(site).kind] if plan.is_fixed(site) else ranges[site]
        return tf.quantization.fake_quant_with_min_max_vars(
            tensor,
            tf.constant(low, tf.float32),
            tf.constant(high, tf.float32),
            num_bits=16 if plan.bits(site) == 16 else 8,
        )

    def _normalized(self, key: str, tensor: Any) -> Any:
        normalizer = self._policy[0].normalizer
        if key not in normalizer:
            return tensor
        offset, scale = normalizer[key]
        tensor = tensor - offset
        if self._plan.clips_in_float(key):
            bound = clip_bound(scale, self._plan.clip)
            tensor = tf.maximum(tf.minimum(tensor, bound), -bound)
        tensor = tensor * scale
        # A float layer would take the constants into its weights, where a push cannot find them.
        return _opaque(tensor) if self._plan.carrier(key) is None else tensor

    def _arrays(self, layer: Layer) -> list[Any]:
        (names,), (_, _, limits) = self._names, self._policy
        arrays = [self._arrays_of_graph[names.index(name)] for name in layer.weight_names()]
        if layer.name in limits:
            limit = limits[layer.name]
            arrays[0] = tf.quantization.fake_quant_with_min_max_vars(
                arrays[0], tf.constant(-limit), tf.constant(limit), num_bits=8, narrow_range=True
            )
        return arrays


def _opaque(tensor: Any) -> Any:
    """Return `tensor`, but for one bit of its negative values, so that the converter cannot see through it.

    What reads a leaky ReLU that leaks everything does not read int8, and stays in float; true identities are optimized
    away.
    """
    return tf.nn.leaky_relu(tensor, alpha=float(np.nextafter(np.float32(1), np.float32(0))))


def _limits(plan: RangePlan, weights: Mapping[str, Float32], ranges: Mapping[str, Range]) -> dict[str, np.float32]:
    """Return the end of the 8-bit range of every kernel that has one scale, by layer."""
    quantizations, limits = plan.quantizations(ranges), {}
    for layer in plan.graph.layers:
        if layer.kind in WEIGHTED and layer.name in plan.live and layer.name not in plan.floats:
            site = plan.read_as(layer.inputs[0])
            bias = weights.get(f"{layer.name}/bias")
            scales = layer_scales(
                layer, weights[f"{layer.name}/kernel"], bias, quantizations[str(site)].scale, options=plan.options
            )
            if scales.limit is not None:
                limits[layer.name] = scales.limit
    return limits


def _windows(layer: Layer) -> dict[str, Any]:
    return {"strides": layer.strides, "padding": layer.padding.upper()}


def _conv2d(layer: Layer, operands: Sequence[Any], arrays: list[Any]) -> Any:
    return _with_bias(tf.nn.conv2d(operands[0], arrays[0], **_windows(layer)), arrays)


def _depthwise(layer: Layer, operands: Sequence[Any], arrays: list[Any]) -> Any:
    strides = (1, *layer.strides, 1)
    result = tf.nn.depthwise_conv2d(operands[0], arrays[0], strides=strides, padding=layer.padding.upper())
    return _with_bias(result, arrays)


def _with_bias(tensor: Any, arrays: list[Any]) -> Any:
    return tensor + arrays[1] if len(arrays) > 1 else tensor


def _layer_norm(layer: Layer, operands: Sequence[Any], arrays: list[Any]) -> Any:
    (x,) = operands
    # A sum, since the converter would compute a mean of int8 values in int8, on their own scale.
    centred = x - tf.reduce_sum(x, axis=-1, keepdims=True) * np.float32(1.0 / x.shape[-1])
    # Products and RSQRT alone: square, sqrt and division would be three operators more for a device to allow.
    variance = tf.reduce_mean(centred * centred, axis=-1, keepdims=True)
    inverse = tf.math.rsqrt(variance + np.float32(layer.settings.get("epsilon", 1e-3)))
    return centred * inverse * arrays[0] + arrays[1]


def _single(function: Callable[[Any], Any]) -> Callable[[Layer, Sequence[Any], list[Any]], Any]:
    return lambda _layer, operands, _arrays: function(operands[0])


_RUN: Mapping[str, Callable[[Layer, Sequence[Any], list[Any]], Any]] = {
    "dense": lambda _layer, operands, arrays: _with_bias(tf.matmul(operands[0], arrays[0]), arrays),
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise,
    "max_pool2d": lambda layer, operands, _: tf.nn.max_pool2d(operands[0], layer.pool_size, **_windows(layer)),
    "average_pool2d": lambda layer, operands, _: tf.nn.avg_pool2d(operands[0], layer.pool_size, **_windows(layer)),
    "global_average_pool2d": _single(lambda x: tf.reduce_mean(x, axis=[1, 2])),
    "flatten": _single(lambda x: tf.reshape(x, [-1, math.prod(x.shape[1:])])),
    "mean": _single(lambda x: tf.reduce_mean(x, axis=-1, keepdims=True)),
    "add": lambda _layer, operands, _arrays: operands[0] + operands[1],
    "subtract": lambda _layer, operands, _arrays: operands[0] - operands[1],
    "multiply": lambda _layer, operands, _arrays: operands[0] * operands[1],
    "concatenate": lambda _layer, operands, _arrays: tf.concat(operands, axis=-1),
    "relu": _single(tf.nn.relu),
    "relu6": _single(tf.nn.relu6),
    "tanh": _single(tf.tanh),
    "sigmoid": _single(tf.sigmoid),
    "softmax": _single(lambda x: tf.nn.softmax(x, axis=-1)),
    "elu": _single(tf.nn.elu),
    "layer_norm": _layer_norm,
}
