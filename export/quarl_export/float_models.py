"""A policy graph as a float tf_keras model, which float32, float16, dynamic and int16x8 files are converted from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import Normalizer
from quarl_export.ir import Layer, PolicyGraph
from quarl_export.ir.layers import Shape
from quarl_export.keras2 import keras, tf

Float32 = NDArray[np.float32]
_Build = Callable[[Layer, list[Any], list[Float32], Shape], Any]


def build_float(
    graph: PolicyGraph, weights: Mapping[str, Float32], *, normalizer: Normalizer | None = None
) -> keras.Model:
    """Return a functional model of `graph`, its inputs and outputs in the graph's order.

    Its ends are called `input_name(0)`, ..., `output_name(0)`, ...: a key and a role may be the same word, which Keras
    cannot have. Weights are constants in it: it is made to be converted, not trained. The batch stays free, also behind
    a flatten.

    Args:
        graph: the network.
        weights: its arrays.
        normalizer: its constants become a SUB/MUL prologue (and MAXIMUM/MINIMUM for its clip) of the inputs they
            name, wherever it says that it is done.
    """
    # Keras counts operations over all models of a process, and the count gets into the file as a name.
    keras.backend.reset_uids()
    inputs = [keras.Input(item.shape, name=input_name(place)) for place, item in enumerate(graph.inputs)]
    tensors: dict[str, Any] = {}
    for item, tensor in zip(graph.inputs, inputs, strict=True):
        tensors[item.key] = _normalized(tensor, item.key, item.shape, normalizer)
    for layer in graph.layers:
        arrays = [weights[name] for name in layer.weight_names()]
        operands = [tensors[name] for name in layer.inputs]
        tensors[layer.name] = _BUILD[layer.kind](layer, operands, arrays, graph.shapes[layer.name])
    outputs = [
        keras.layers.Activation("linear", name=output_name(place))(tensors[name])
        for place, name in enumerate(graph.outputs.values())
    ]
    return keras.Model(inputs, outputs, name="policy_float")


def input_name(place: int) -> str:
    """Return what the model calls its input number `place`."""
    return f"input_{place}"


def output_name(place: int) -> str:
    """Return what the model calls its output number `place`."""
    return f"output_{place}"


def prologue_constants(normalizer: Normalizer, key: str, shape: Shape) -> tuple[Float32, Float32] | None:
    """Return offset and scale of `key`, float32 of `shape` or ``[1]`` where all elements are alike; `None` if none."""
    if key not in normalizer.offset:
        return None

    def constant(values: tuple[float, ...]) -> Float32:
        array = np.asarray(values, np.float32).ravel()
        alike = bool((array == array[0]).all())
        result: Float32 = array[:1].copy() if alike else np.broadcast_to(array, (int(np.prod(shape)),)).reshape(shape)
        return result

    return constant(normalizer.offset[key]), constant(normalizer.scale[key])


def _normalized(tensor: Any, key: str, shape: Shape, normalizer: Normalizer | None) -> Any:
    constants = None if normalizer is None else prologue_constants(normalizer, key, shape)
    if normalizer is None or constants is None:
        return tensor
    offset, scale = constants
    tensor = (tensor - offset) * scale
    if normalizer.clip:
        tensor = tf.minimum(tf.maximum(tensor, -normalizer.clip), normalizer.clip)
    return tensor


def _dense(_: Layer, operands: list[Any], arrays: list[Float32], __: Shape) -> Any:
    return _biased(tf.matmul(operands[0], arrays[0]), arrays)


def _conv2d(layer: Layer, operands: list[Any], arrays: list[Float32], _: Shape) -> Any:
    return _biased(tf.nn.conv2d(operands[0], arrays[0], layer.strides, layer.padding.upper()), arrays)


def _depthwise(layer: Layer, operands: list[Any], arrays: list[Float32], _: Shape) -> Any:
    strides = (1, *layer.strides, 1)
    return _biased(tf.nn.depthwise_conv2d(operands[0], arrays[0], strides, layer.padding.upper()), arrays)


def _biased(tensor: Any, arrays: list[Float32]) -> Any:
    return tf.nn.bias_add(tensor, arrays[1]) if len(arrays) > 1 else tensor


def _max_pool(layer: Layer, operands: list[Any], _: list[Float32], __: Shape) -> Any:
    return tf.nn.max_pool2d(operands[0], layer.pool_size, layer.strides, layer.padding.upper())


def _average_pool(layer: Layer, operands: list[Any], _: list[Float32], __: Shape) -> Any:
    return tf.nn.avg_pool2d(operands[0], layer.pool_size, layer.strides, layer.padding.upper())


def _flatten(_: Layer, operands: list[Any], __: list[Float32], shape: Shape) -> Any:
    # A constant -1 keeps the batch free; keras.layers.Flatten would compute it with three operators more.
    return tf.reshape(operands[0], (-1, *shape))


def _layer_norm(layer: Layer, operands: list[Any], arrays: list[Float32], _: Shape) -> Any:
    (x,) = operands
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(centred * centred, axis=-1, keepdims=True)
    return centred * tf.math.rsqrt(variance + float(layer.settings.get("epsilon", 1e-3))) * arrays[0] + arrays[1]


def _single(function: Callable[[Any], Any]) -> _Build:
    return lambda _layer, operands, _arrays, _shape: function(operands[0])


_BUILD: Mapping[str, _Build] = {
    "dense": _dense,
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise,
    "max_pool2d": _max_pool,
    "average_pool2d": _average_pool,
    "global_average_pool2d": _single(lambda x: tf.reduce_mean(x, axis=(1, 2))),
    "flatten": _flatten,
    "mean": _single(lambda x: tf.reduce_mean(x, axis=-1, keepdims=True)),
    "add": lambda _layer, operands, _arrays, _shape: operands[0] + operands[1],
    "subtract": lambda _layer, operands, _arrays, _shape: operands[0] - operands[1],
    "multiply": lambda _layer, operands, _arrays, _shape: operands[0] * operands[1],
    "concatenate": lambda _layer, operands, _arrays, _shape: tf.concat(operands, axis=-1),
    "relu": _single(tf.nn.relu),
    "relu6": _single(tf.nn.relu6),
    "tanh": _single(tf.tanh),
    "sigmoid": _single(tf.sigmoid),
    "softmax": _single(tf.nn.softmax),
    "elu": _single(tf.nn.elu),
    "layer_norm": _layer_norm,
}
