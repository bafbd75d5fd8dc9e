"""A convolution in quantization-aware training, with one scale per filter as int8 files have it."""

from __future__ import annotations

from typing import Any

from quarl_export.keras2 import keras, tf
from quarl_export.quantizers import RangeQuantizer, WeightQuantizer


class QuantizedConvolution(keras.layers.Layer):  # type: ignore[misc]
    """ReLU of a square convolution without padding, float32 ``[batch, rows, columns, channels]``.

    Args:
        filters: channels of the output.
        size: rows and columns of the kernel.
        stride: in both directions.
        activation: range of the output.
        bits: of the kernel, per filter.

    Attributes:
        kernel, bias: ``[size, size, channels, filters]`` and ``[filters]``.
    """

    def __init__(
        self, filters: int, size: int, stride: int, *, activation: RangeQuantizer, bits: int, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.filters, self.size, self.stride = filters, size, stride
        self.activation = activation
        self.weights_quantizer = WeightQuantizer(bits=bits, per_channel=True)

    def build(self, input_shape: Any) -> None:
        """Make the variables; values come with a snapshot."""
        shape = (self.size, self.size, int(input_shape[-1]), self.filters)
        self.kernel = self.add_weight("kernel", shape=shape, initializer="zeros")
        self.bias = self.add_weight("bias", shape=(self.filters,), initializer="zeros")
        self._range = self.activation.build(None, "range", self)
        super().build(input_shape)

    def call(self, inputs: Any, training: Any = False) -> Any:
        """Return the output on its int8 grid; the range moves only if `training`."""
        kernel = self.weights_quantizer(self.kernel, bool(training), {})
        output = tf.nn.relu(tf.nn.conv2d(inputs, kernel, self.stride, "VALID") + self.bias)
        return self.activation(output, bool(training), self._range)
