"""Runs a flattened Keras model layer by layer in TensorFlow: what a Keras 3 file is compared with.

Every layer is a tf_keras layer made of the settings that were read, with the weights of the file in it, so batch norm,
normalisation and nesting are computed as Keras computes them and not as they were folded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UnsupportedModel
from quarl_export.importers.functional import FlatModel, SourceNode
from quarl_export.importers.keras_classes import DROPPED
from quarl_export.importers.keras_config import OPERATION
from quarl_export.importers.source import Arrays
from quarl_export.keras2 import keras, tf
from quarl_export.silence import without_tensorflow_noise

# Layers that compute otherwise in training.
_TRAINED = frozenset({"BatchNormalization", *DROPPED}) - {"ActivityRegularization"}

_NOT_BUILT_WITH = ("rms_scaling", "batch_input_shape")


def run_layers(model: FlatModel, inputs: Arrays) -> dict[str, NDArray[np.float32]]:
    """Return every output by name.

    Args:
        model: flattened.
        inputs: ``[batch, *shape]`` by input name; one that no output depends on may be missing.

    Raises:
        UnsupportedModel: TensorFlow cannot run a layer with the settings and weights that were read.
    """
    tensors: dict[str, Any] = {
        name: tf.constant(inputs[name].reshape(-1, *shape), tf.float32)
        for name, shape in model.inputs.items()
        if name in inputs
    }
    with without_tensorflow_noise():
        for node in model.nodes:
            operands = [
                tensors[item] if isinstance(item, str) else tf.constant(item, tf.float32) for item in node.operands
            ]
            try:
                tensors[node.name] = _run(node, operands)
            # Whatever Keras raises over settings or weights that do not fit.
            except Exception as error:
                raise UnsupportedModel(
                    f"layer {node.name!r} ({node.class_name}) cannot be run: {type(error).__name__}: {str(error)[:200]}"
                ) from error
    return {name: np.asarray(tensors[node], np.float32) for name, node in model.outputs.items()}


def _run(node: SourceNode, operands: list[Any]) -> Any:
    if node.class_name.startswith(OPERATION):
        return _OPERATIONS[node.class_name.removeprefix(OPERATION)]({**node.config, **node.settings}, operands)
    given = operands[0] if len(operands) == 1 else operands
    config = {key: value for key, value in node.config.items() if key not in _NOT_BUILT_WITH}
    layer = getattr(keras.layers, node.class_name)(**config, dtype="float32")
    layer(given)  # builds it
    if node.weights and layer.weights:
        layer.set_weights(list(node.weights))
        layer.finalize_state()
    return layer(given, training=False) if node.class_name in _TRAINED else layer(given)


def _reshape(settings: Mapping[str, Any], operands: list[Any]) -> Any:
    shape = settings.get("newshape") or settings.get("shape") or np.asarray(operands[1]).ravel().tolist()
    sizes = [-1 if size is None else int(size) for size in shape]
    return tf.reshape(operands[0], [operands[0].shape[0], *sizes[1:]])


def _axis(settings: Mapping[str, Any]) -> Any:
    return settings.get("axis", -1)


_OPERATIONS: Mapping[str, Callable[[Mapping[str, Any], list[Any]], Any]] = {
    "add": lambda _, x: x[0] + x[1],
    "subtract": lambda _, x: x[0] - x[1],
    "multiply": lambda _, x: x[0] * x[1],
    "divide": lambda _, x: x[0] / x[1],
    "mean": lambda s, x: tf.reduce_mean(x[0], axis=s.get("axis"), keepdims=bool(s.get("keepdims"))),
    "relu": lambda _, x: tf.nn.relu(x[0]),
    "relu6": lambda _, x: tf.nn.relu6(x[0]),
    "tanh": lambda _, x: tf.tanh(x[0]),
    "sigmoid": lambda _, x: tf.sigmoid(x[0]),
    "softmax": lambda s, x: tf.nn.softmax(x[0], axis=_axis(s)),
    "concatenate": lambda s, x: tf.concat(x, axis=_axis(s)),
    "reshape": _reshape,
    "identity": lambda _, x: x[0],
}
