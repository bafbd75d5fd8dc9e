"""A dueling head: how Q values are learned as a value and advantages, and are one dense layer in the file.

``Q = V + A - mean(A)``, with V and A linear in halves of the last hidden layer, is linear itself: its kernel has the
value's weights in every column, above the advantages' weights less their mean over actions. So nothing after training
knows of it, and the kernel that is fake-quantized is the one that the file holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import PatchError
from quarl_export.keras2 import keras, tf
from quarl_export.quantizers import WeightQuantizer

Float32 = NDArray[np.float32]


class DuelingHead(keras.layers.Layer):  # type: ignore[misc]
    """Q values of what comes in, float32 ``[batch, inputs]``: its first `value_units` feed the value.

    Args:
        units: number of actions.
        value_units: fewer than the inputs.
        quantizer: of the folded kernel, `None` for a head in float.

    Attributes:
        value_kernel, value_bias: ``[value_units, 1]`` and ``[1]``.
        advantage_kernel, advantage_bias: ``[inputs - value_units, units]`` and ``[units]``.
    """

    def __init__(self, units: int, *, value_units: int, quantizer: WeightQuantizer | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.value_units, self.quantizer = units, value_units, quantizer

    def build(self, input_shape: Any) -> None:
        """Make the variables; values come with a snapshot."""
        rest = int(input_shape[-1]) - self.value_units
        self.value_kernel = self.add_weight("value_kernel", shape=(self.value_units, 1), initializer="zeros")
        self.value_bias = self.add_weight("value_bias", shape=(1,), initializer="zeros")
        self.advantage_kernel = self.add_weight("advantage_kernel", shape=(rest, self.units), initializer="zeros")
        self.advantage_bias = self.add_weight("advantage_bias", shape=(self.units,), initializer="zeros")
        super().build(input_shape)

    def folded(self) -> tuple[Any, Any]:
        """Return kernel and bias of the dense layer that computes the same, ``[inputs, units]`` and ``[units]``."""
        value = tf.tile(self.value_kernel, [1, self.units])
        advantage = self.advantage_kernel - tf.reduce_mean(self.advantage_kernel, axis=1, keepdims=True)
        bias = self.value_bias + self.advantage_bias - tf.reduce_mean(self.advantage_bias)
        return tf.concat([value, advantage], axis=0), bias

    def call(self, inputs: Any, training: Any = False) -> Any:
        """Return Q values, float32 ``[batch, units]``, by the kernel on its int8 grid if it has one."""
        kernel, bias = self.folded()
        if self.quantizer is not None:
            kernel = self.quantizer(kernel, bool(training), {})
        return tf.matmul(inputs, kernel) + bias


def unfolded(kernel: Float32, bias: Float32, *, value_units: int) -> list[Float32]:
    """Return the four arrays of a `DuelingHead`, in its order, of a folded one, to within rounding.

    Advantages come without a mean: it never counted.

    Raises:
        PatchError: no dueling head folds to it.
    """
    value, advantage = kernel[:value_units], kernel[value_units:]
    mean = advantage.mean(axis=1, keepdims=True)
    size = np.abs(kernel).max(initial=0.0)
    if not (np.ptp(value, axis=1).max(initial=0.0) <= 1e-5 * size and np.abs(mean).max(initial=0.0) <= 1e-5 * size):
        raise PatchError("snapshot and policy differ in architecture: its head is not a dueling one")
    return [value[:, :1], bias.mean(keepdims=True), advantage - mean, bias - bias.mean()]
