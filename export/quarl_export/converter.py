"""The only module that calls TensorFlow's TFLite converter.

The converter may leave TensorFlow one day; then this file changes and nothing else.
"""

from __future__ import annotations

import warnings
from typing import Any

from quarl_device.errors import ConversionError
from quarl_export.keras2 import keras, tf
from quarl_export.networks import NetworkSpec
from quarl_export.qat import QatPolicy
from quarl_export.silence import without_tensorflow_noise
from quarl_export.snapshot import PolicySnapshot


def convert(policy: QatPolicy) -> bytes:
    """Convert `policy` as it is: int8 inside by its own ranges, float32 at both ends.

    Neither biases that are all zero nor equal constants are safe here; `template` knows how to avoid them.

    Raises:
        ConversionError: TensorFlow could not convert it.
    """
    return _run(policy.export_model, optimizations=[tf.lite.Optimize.DEFAULT])


def convert_model(model: Any, *, io: str = "float32") -> bytes:
    """Convert a tf_keras model that has fake quants where it is to be int8.

    Args:
        model: the model.
        io: "float32", "int8" or "uint8", type of the file's inputs and outputs.

    Raises:
        ConversionError: TensorFlow could not convert it.
    """
    return _run(model, optimizations=[tf.lite.Optimize.DEFAULT], io=io)


def convert_snapshot(spec: NetworkSpec, snapshot: PolicySnapshot) -> bytes:
    """Convert `snapshot` through a policy of its own; `snapshot` is taken as it is, not centred.

    Raises:
        ConversionError: TensorFlow could not convert it.
        PatchError: `snapshot` is not of `spec`.
    """
    policy = QatPolicy(spec, normalize=snapshot.normalized)
    policy.restore(snapshot)
    return convert(policy)


def convert_float(spec: NetworkSpec, snapshot: PolicySnapshot) -> bytes:
    """Convert the learned weights to a float32 file that quantizes nothing; the normaliser is in the graph too.

    Raises:
        ConversionError: TensorFlow could not convert it.
    """
    observation = keras.Input((spec.observation_size,), name="observation")
    tensor = observation
    if snapshot.offset is not None and snapshot.scale is not None:
        tensor = (tensor - snapshot.offset) * snapshot.scale
    last = len(snapshot.kernels) - 1
    for index, (kernel, bias) in enumerate(zip(snapshot.kernels, snapshot.biases, strict=True)):
        dense = keras.layers.Dense(
            kernel.shape[1],
            activation=None if index == last else "relu",
            kernel_initializer=keras.initializers.Constant(kernel),
            bias_initializer=keras.initializers.Constant(bias),
            name="q_values" if index == last else f"hidden_{index}",
        )
        tensor = dense(tensor)
    return _run(keras.Model(observation, tensor, name="policy_float"), optimizations=[])


def _run(model: Any, *, optimizations: list[Any], io: str = "float32") -> bytes:
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.inference_input_type = converter.inference_output_type = getattr(tf, io)
    converter.optimizations = optimizations
    # Its record of converter flags differs between versions and says nothing that a device needs.
    converter.exclude_conversion_metadata = True
    try:
        with warnings.catch_warnings(), without_tensorflow_noise():
            # The fake quants say all that these statistics could.
            warnings.filterwarnings("ignore", message="Statistics for quantized inputs")
            return bytes(converter.convert())
    except Exception as cause:  # the converter raises its own, ValueError, RuntimeError and more
        first_line = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise ConversionError(f"TensorFlow could not convert the policy: {first_line[:300]}") from cause
