"""Quantizers fit for reinforcement learning, on tfmot's interfaces.

tfmot's own start every range at ±6, follow the data with a decay of 0.999 without debiasing, and quantize weights with
the range of the step before: in RL, where data and weights move all the time, that costs bits and whole runs. These
take the first batch as it is, follow fast, and always use the current weights.
"""

from __future__ import annotations

from typing import Any, Literal

from quarl_export.arithmetic import MIN_CHANNEL_LIMIT, wide_low, widened_limit, widened_low
from quarl_export.keras2 import keras, tf, tfmot

# Below these a layer is constant for all that int8 can tell; without a floor scales underflow and biases overflow.
MIN_WEIGHT_RANGE = 1e-4
MIN_ACTIVATION_RANGE = 1e-3


class WeightQuantizer(tfmot.quantization.keras.quantizers.Quantizer):  # type: ignore[misc]
    """`bits` bits in int8, symmetric, over the range of the weights as they are now.

    In training the gradient passes straight through: the fake quant's own gradient would stop at the largest weight
    whenever the rounded range falls a hair short of it.

    Args:
        bits: 2-8.
        per_channel: a range for each filter, in the last axis, as files have convolutions; else one of all weights.
    """

    def __init__(self, *, bits: int = 8, per_channel: bool = False) -> None:
        self.bits = bits
        self.per_channel = per_channel

    def build(self, tensor_shape: Any, name: str, layer: Any) -> dict[str, Any]:
        """No variables: nothing can lag."""
        return {}

    def __call__(self, inputs: Any, training: bool, weights: Any, **kwargs: Any) -> Any:
        """Return `inputs`, a kernel of any shape, on the int8 grid of its own range."""
        quantized = self._per_channel(inputs) if self.per_channel else self._whole(inputs)
        # The converter must see the fake quant itself, so only training gets the detour.
        return inputs + tf.stop_gradient(quantized - inputs) if training else quantized

    def _whole(self, inputs: Any) -> Any:
        largest = tf.stop_gradient(tf.maximum(tf.reduce_max(tf.abs(inputs)), MIN_WEIGHT_RANGE))
        limit = widened_limit(largest, self.bits)
        return tf.quantization.fake_quant_with_min_max_vars(inputs, -limit, limit, num_bits=8, narrow_range=True)

    def _per_channel(self, inputs: Any) -> Any:
        largest = tf.reduce_max(tf.abs(inputs), axis=list(range(len(inputs.shape) - 1)))
        limit = widened_limit(tf.stop_gradient(tf.maximum(largest, MIN_CHANNEL_LIMIT)), self.bits)
        return tf.quantization.fake_quant_with_min_max_vars_per_channel(
            inputs, -limit, limit, num_bits=8, narrow_range=True
        )

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"bits": self.bits, "per_channel": self.per_channel}


class RangeQuantizer(tfmot.quantization.keras.quantizers.Quantizer):  # type: ignore[misc]
    """int8, asymmetric, over a range that follows the data in training; zero is always inside.

    Args:
        bits: 2-8 or 16; fewer than 8 are for a ReLU's output, which has no negative values.
        decay: of the debiased moving average; the first batch is taken as it is.
        follow: "average"; "peak": open at once to a new extreme, close by the average; or "nothing": it stays as it is.

    Attributes:
        minimum, maximum, updates: its variables, float32 scalars, after `build`.
    """

    def __init__(
        self, *, bits: int = 8, decay: float = 0.99, follow: Literal["average", "peak", "nothing"] = "average"
    ) -> None:
        self.bits = bits
        self.decay = decay
        self.follow = follow

    def build(self, tensor_shape: Any, name: str, layer: Any) -> dict[str, Any]:
        """Add the range's variables to `layer`."""

        def scalar(part: str, value: float) -> Any:
            initializer = keras.initializers.Constant(value)
            return layer.add_weight(f"{name}_{part}", shape=(), initializer=initializer, trainable=False)

        self.minimum, self.maximum, self.updates = scalar("min", 0.0), scalar("max", 1.0), scalar("updates", 0.0)
        return {"min_var": self.minimum, "max_var": self.maximum, "updates": self.updates}

    def __call__(self, inputs: Any, training: bool, weights: dict[str, Any], **kwargs: Any) -> Any:
        """Return `inputs`, float32 of any shape, on the int8 grid of the range, which moves first if `training`."""
        moves = training and self.follow != "nothing"
        low, high = self._follow(inputs, weights) if moves else (weights["min_var"], weights["max_var"])
        if self.bits == 16:
            high = tf.maximum(high, -low)
            low = wide_low(high)
        elif self.bits < 8:
            low = widened_low(high, self.bits)
        return tf.quantization.fake_quant_with_min_max_vars(inputs, low, high, num_bits=max(self.bits, 8))

    def _follow(self, inputs: Any, weights: dict[str, Any]) -> tuple[Any, Any]:
        updates = weights["updates"] + 1.0
        # Exactly 1 the first time: the batch itself, without a rounding that would leave zero outside the range.
        rate = tf.where(updates < 1.5, 1.0, (1.0 - self.decay) / (1.0 - tf.pow(self.decay, updates)))
        batch_low, batch_high = tf.reduce_min(inputs), tf.reduce_max(inputs)
        low = weights["min_var"] + rate * (batch_low - weights["min_var"])
        high = weights["max_var"] + rate * (batch_high - weights["max_var"])
        if self.follow == "peak":
            low, high = tf.minimum(low, batch_low), tf.maximum(high, batch_high)
        low = tf.stop_gradient(tf.minimum(low, 0.0))
        high = tf.stop_gradient(tf.maximum(tf.maximum(high, 0.0), low + MIN_ACTIVATION_RANGE))
        weights["min_var"].assign(low)
        weights["max_var"].assign(high)
        weights["updates"].assign(updates)
        return low, high

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"bits": self.bits, "decay": self.decay, "follow": self.follow}


class DenseQuantizeConfig(tfmot.quantization.keras.QuantizeConfig):  # type: ignore[misc]
    """Quantizes a dense layer's kernel, and its activation where a `RangeQuantizer` is given.

    The head's output gets none: Q values near 100 in int8 are coarser than the gaps between actions, and training
    through them loses runs. Its range is set from data when it is exported.
    """

    def __init__(self, activation: RangeQuantizer | None, *, bits: int = 8) -> None:
        self.activation = activation
        self.bits = bits

    def get_weights_and_quantizers(self, layer: Any) -> list[tuple[Any, Any]]:
        """Return the kernel with its quantizer."""
        return [(layer.kernel, WeightQuantizer(bits=self.bits))]

    def get_activations_and_quantizers(self, layer: Any) -> list[tuple[Any, Any]]:
        """Return the activation with its quantizer, if it has one."""
        return [] if self.activation is None else [(layer.activation, self.activation)]

    def set_quantize_weights(self, layer: Any, quantize_weights: Any) -> None:
        """Put the quantized kernel in place for one call."""
        layer.kernel = quantize_weights[0]

    def set_quantize_activations(self, layer: Any, quantize_activations: Any) -> None:
        """Put the quantized activation in place, if there is one."""
        if quantize_activations:
            layer.activation = quantize_activations[0]

    def get_output_quantizers(self, layer: Any) -> list[Any]:
        """Return none: a ReLU's range already is the output's."""
        return []

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"activation": self.activation, "bits": self.bits}


class RangeLayer(keras.layers.Layer):  # type: ignore[misc]
    """Fake-quantizes what passes through, with a `RangeQuantizer`: the network's input and its exported output."""

    def __init__(self, quantizer: RangeQuantizer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.quantizer = quantizer

    def build(self, input_shape: Any) -> None:
        """Make the range's variables."""
        self._range = self.quantizer.build(input_shape, "range", self)
        super().build(input_shape)

    def call(self, inputs: Any, training: Any = False) -> Any:
        """Return `inputs`, float32 of any shape, on the range's int8 grid; the range moves only if `training`."""
        return self.quantizer(inputs, bool(training), self._range)


class FixedRangeLayer(keras.layers.Layer):  # type: ignore[misc]
    """Fake-quantizes what passes through to the int8 grid that a kernel fixes its output to."""

    def __init__(self, low: float, high: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.low, self.high = low, high

    def call(self, inputs: Any) -> Any:
        """Return `inputs`, float32 of any shape, on the grid."""
        return tf.quantization.fake_quant_with_min_max_args(inputs, self.low, self.high)


class NormalizeLayer(keras.layers.Layer):  # type: ignore[misc]
    """``(x - offset) * scale`` in float, before the input is quantized; not trained.

    Args:
        shape: of offset and scale, which one observation is broadcast with.
    """

    def __init__(self, shape: tuple[int, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._constants_shape = shape

    def build(self, input_shape: Any) -> None:
        """Make offset and scale."""
        shape = self._constants_shape
        self.offset = self.add_weight("offset", shape=shape, initializer="zeros", trainable=False)
        self.scale = self.add_weight("scale", shape=shape, initializer="ones", trainable=False)
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """Return the normalised observations, float32 ``[batch, *shape]``."""
        return (inputs - self.offset) * self.scale
