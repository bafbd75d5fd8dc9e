"""`QatPolicy`: a policy network in quantization-aware training, as the learner holds it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quarl_device.errors import NonFiniteError, PatchError, UsageError
from quarl_export.convolution import QuantizedConvolution
from quarl_export.dueling import DuelingHead, unfolded
from quarl_export.ir.policy_graph import FIXED_RANGES
from quarl_export.keras2 import keras, tf, tfmot
from quarl_export.networks import NetworkSpec
from quarl_export.quantizers import (
    MIN_ACTIVATION_RANGE,
    DenseQuantizeConfig,
    FixedRangeLayer,
    NormalizeLayer,
    RangeLayer,
    RangeQuantizer,
    WeightQuantizer,
)
from quarl_export.snapshot import PolicySnapshot, initial_snapshot

_DUELING_ARRAYS = 4
_Wrapper = tfmot.quantization.keras.QuantizeWrapperV2


class QatPolicy:
    """A ReLU network that computes in training what its file will compute on a device.

    ``policy.model(observation, training=...)`` maps float32 ``[batch, *input_shape]`` to what the head gives, float32
    ``[batch, head_units]``: Q values, logits, actions within -1 and 1, or a gaussian's means. It may be called inside
    ``tf.function(jit_compile=True)`` and inside loops; ranges move only where ``training=True``. `training` must be a
    Python bool.

    Args:
        spec: what to build.
        seed: of the initial weights.
        normalize: give the network a normaliser (identity until `set_normalizer`; of images a division by 255); without
            one the graph and the file hold no trace of it.

    Attributes:
        spec: as given.
        normalized: whether there is a normaliser.
        model: the trainable Keras model; its output is not fake-quantized, and a tanh at its end is one in float.
        linear_model: the same without that tanh; the same object where there is none.
        export_model: what the file computes: the same layers, with the head on its int8 grids if it has some.
        log_std: trainable, float32 ``[head_units]``, of a gaussian head; `None` for any other.
        trainable_variables: kernels and biases, in layer order, then log_std; a dueling head has a pair of the value
            and one of the advantages.
        variables: all that a policy has learned, in the same order for every policy of one spec. A snapshot holds
            the same, a dueling head as the dense layer that it is in the file.
    """

    def __init__(self, spec: NetworkSpec, *, seed: int = 0, normalize: bool = False) -> None:
        self.spec = spec
        self.normalized = normalize
        self._last = self._last_layer()
        decay, bits = spec.quantization.range_decay, spec.quantization.activation_bits
        # Of pixels the range is known, and on its grid are exactly they.
        rule = "nothing" if spec.sees_images else spec.quantization.input_range
        self._ranges = [RangeQuantizer(decay=decay, follow=rule)]
        self._ranges += [RangeQuantizer(bits=bits, decay=decay) for _ in range(spec.body_layers)]
        self._head = RangeQuantizer(bits=16 if spec.quantization.head_output == "int16" else 8)
        self._normalizer = NormalizeLayer(spec.normalizer_shape, name="normalize") if normalize else None
        self._build()
        gaussian = spec.head == "gaussian"
        self.log_std = tf.Variable(tf.zeros(spec.head_units), name="log_std") if gaussian else None
        self.trainable_variables: list[Any] = list(self.model.trainable_variables)
        if self.log_std is not None:
            self.trainable_variables.append(self.log_std)
        self.variables: list[Any] = self._arrays() + self._scalars()
        batch = tf.TensorSpec((None, *spec.input_shape), tf.float32)
        self._extremes = tf.function(
            tf.autograph.experimental.do_not_convert(self.head_extremes), input_signature=[batch], autograph=False
        )
        self.restore(initial_snapshot(spec, seed=seed, normalized=normalize))

    def _last_layer(self) -> Any:
        """Return the layer that ends the linear model, with its kernel on the int8 grid unless the head is in float."""
        spec, quantization = self.spec, self.spec.quantization
        in_float, bits = quantization.head_output == "float32", quantization.weight_bits
        if spec.dueling:
            quantizer = None if in_float else WeightQuantizer(bits=bits)
            return DuelingHead(spec.head_units, value_units=spec.value_units, quantizer=quantizer, name=spec.head_layer)
        dense = keras.layers.Dense(spec.head_units, name=spec.head_layer)
        return dense if in_float else _Wrapper(dense, DenseQuantizeConfig(None, bits=bits))

    # AutoGraph would rewrite every layer's Python, which takes most of a second.
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _build(self) -> None:
        observation = keras.Input(self.spec.input_shape, name="observation")
        tensor = observation if self._normalizer is None else self._normalizer(observation)
        tensor = RangeLayer(self._ranges[0], name="input")(tensor)
        quantization = self.spec.quantization
        for layer in self._body():
            tensor = layer(tensor)
        in_float, tensor = quantization.head_output == "float32", self._last(tensor)
        self.linear_model = self.model = keras.Model(observation, tensor, name="policy")
        gridded = RangeLayer(self._head, name="head")(tensor)
        exported = tensor if in_float else gridded
        if self.spec.head == "action":
            tanh = keras.layers.Activation("tanh", name=self.spec.role)
            self.model = keras.Model(observation, tanh(tensor), name="policy")
            exported = tanh(exported)
            if not in_float:
                exported = FixedRangeLayer(*FIXED_RANGES["tanh"], name="kernel_range")(exported)
        self.export_model = keras.Model(observation, exported, name="policy_export")

    def _body(self) -> Iterator[Any]:
        """Yield the layers between input and head."""
        spec, bits, ranges = self.spec, self.spec.quantization.weight_bits, iter(self._ranges[1:])
        for index, (filters, size, stride) in enumerate(spec.convolutions):
            name = f"convolution_{index}"
            yield QuantizedConvolution(filters, size, stride, activation=next(ranges), bits=bits, name=name)
        if spec.convolutions:
            yield keras.layers.Flatten(name="flatten")
        for index, units in enumerate(spec.hidden):
            dense = keras.layers.Dense(units, activation="relu", name=f"hidden_{index}")
            yield _Wrapper(dense, DenseQuantizeConfig(next(ranges), bits=bits))

    def _arrays(self) -> list[Any]:
        arrays = list(self.trainable_variables)
        if self._normalizer is not None:
            arrays += [self._normalizer.offset, self._normalizer.scale]
        return arrays

    def _scalars(self) -> list[Any]:
        scalars = [variable for site in self._ranges for variable in (site.minimum, site.maximum, site.updates)]
        return [*scalars, self._head.minimum, self._head.maximum]

    def snapshot(self) -> PolicySnapshot:
        """Return the current state in numpy, in well under a millisecond, without copies.

        The arrays are TensorFlow's own memory, which nobody can write to: a variable that somebody still reads gets
        other memory at its next update.
        """
        # Variable by variable in this thread: a graph's executor would wait for threads of its own, on a busy machine
        # for longer than the rest of a push.
        arrays = self._arrays()
        if self.spec.dueling:
            last = len(self.model.trainable_variables)
            arrays[last - _DUELING_ARRAYS : last] = self._last.folded()
        values = [_in_numpy(array) for array in arrays]
        layers = len(self.spec.kernel_shapes)
        numbers = np.array([_in_numpy(variable) for variable in self._scalars()], np.float32)
        sites = numbers[:-2].reshape(-1, 3)
        return PolicySnapshot(
            kernels=tuple(values[0 : 2 * layers : 2]),
            biases=tuple(values[1 : 2 * layers : 2]),
            ranges=sites[:, :2],
            range_updates=sites[:, 2],
            head_range=numbers[-2:],
            log_std=values[2 * layers] if self.log_std is not None else None,
            offset=values[-2] if self.normalized else None,
            scale=values[-1] if self.normalized else None,
        )

    def restore(self, snapshot: PolicySnapshot) -> None:
        """Take over everything from `snapshot`; a dueling head to within rounding, since its snapshot is folded.

        Raises:
            PatchError: `snapshot` is of another architecture.
        """
        if snapshot.normalized != self.normalized:
            raise PatchError("snapshot and policy differ: one has a normaliser, the other none")
        values: list[Any] = [value for pair in zip(snapshot.kernels, snapshot.biases, strict=True) for value in pair]
        if self.spec.dueling:
            values[-2:] = unfolded(*values[-2:], value_units=self.spec.value_units)
        if snapshot.log_std is not None:
            values.append(snapshot.log_std)
        if snapshot.offset is not None:
            values += [snapshot.offset, snapshot.scale]
        for (low, high), updates in zip(snapshot.ranges, snapshot.range_updates, strict=True):
            values += [low, high, updates]
        values += list(snapshot.head_range)
        if [tuple(variable.shape) for variable in self.variables] != [np.shape(value) for value in values]:
            raise PatchError("snapshot and policy differ in architecture")
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def clone(self) -> QatPolicy:
        """Return a copy with variables of its own: the target network, quantized like the online one."""
        copy = QatPolicy(self.spec, normalize=self.normalized)
        copy.assign_from(self)
        return copy

    def assign_from(self, other: QatPolicy) -> None:
        """Copy all of `other`'s variables, weights and ranges alike; may be traced into a ``tf.function``."""
        for mine, theirs in zip(self.variables, other.variables, strict=True):
            mine.assign(theirs)

    def set_normalizer(self, offset: ArrayLike, scale: ArrayLike) -> None:
        """Normalise observations as ``(observation - offset) * scale``, float32 ``[inputs]`` each, ``[1]`` of images.

        Raises:
            UsageError: the policy was built without a normaliser, or a shape is wrong.
            NonFiniteError: NaN or Inf in either.
        """
        if self._normalizer is None:
            raise UsageError("this policy has no normaliser: build it with normalize=True")
        for variable, values in ((self._normalizer.offset, offset), (self._normalizer.scale, scale)):
            array = np.asarray(values, np.float32)
            if array.shape != tuple(variable.shape):
                raise UsageError(f"normaliser of shape {array.shape}: expected {tuple(variable.shape)}")
            if not np.isfinite(array).all():
                raise NonFiniteError("normaliser holds NaN or Inf")
            variable.assign(array)

    def calibrate(self, observations: NDArray[Any]) -> None:
        """Warm-start all ranges from `observations`, ``[batch, *input_shape]``, without training."""
        seen = _as_floats(observations)
        self.model(seen, training=True)
        self.update_head_range(seen)

    @property
    def head_range(self) -> tuple[float, float]:
        """Range (low, high) of the last dense layer in the file: of the output, or of what goes into its tanh."""
        return float(self._head.minimum.numpy()), float(self._head.maximum.numpy())

    def set_head_range(self, low: float, high: float) -> None:
        """Set the head's range; it is opened to include zero and to a minimal width, and cut where a tanh saturates.

        Raises:
            NonFiniteError: NaN or Inf.
        """
        if not (np.isfinite(low) and np.isfinite(high)):
            raise NonFiniteError(f"head range ({low}, {high}) is not finite")
        limit = self.spec.head_limit
        low = max(min(float(low), 0.0), -limit)
        high = min(max(float(high), 0.0, low + MIN_ACTIVATION_RANGE), limit)
        # TensorFlow remembers every number of Python's that it is given, for ever; numpy's it does not.
        self._head.minimum.assign(np.float32(low))
        self._head.maximum.assign(np.float32(high))

    def head_range_from(self, observations: NDArray[Any]) -> tuple[float, float]:
        """Set the head's range from recent `observations`, with its margin, and return it.

        Args:
            observations: ``[any, *input_shape]``, best the same number each time.

        Raises:
            NonFiniteError: the network's outputs are NaN or Inf.
        """
        low, high = self._extremes(_as_floats(observations))
        self.set_head_range(float(low.numpy()), float(high.numpy()))
        return self.head_range

    def update_head_range(self, observations: Any) -> None:
        """Set the head's range from `observations`; may be traced into the learner's own ``tf.function``."""
        low, high = self.head_extremes(observations)
        self._head.minimum.assign(low)
        self._head.maximum.assign(high)

    def head_extremes(self, observations: Any) -> tuple[Any, Any]:
        """Return the ends of the head's range over `observations` as scalar tensors: `head_range`, not yet set.

        They are the extremes of the last dense layer, widened by the margin, zero inside. Before a tanh they are cut
        where that saturates: the steps go where it still moves.
        """
        values = self.linear_model(observations, training=False)
        if self.spec.quantization.center_q:
            values -= tf.reduce_mean(values, axis=1, keepdims=True)
        low = tf.minimum(tf.reduce_min(values), 0.0)
        high = tf.maximum(tf.reduce_max(values), 0.0)
        margin = self.spec.quantization.head_margin * (high - low)
        low = tf.where(low < 0.0, low - margin, low)
        high = tf.where(high > 0.0, high + margin, high)
        limit = self.spec.head_limit
        if math.isfinite(limit):
            low, high = tf.maximum(low, -limit), tf.minimum(high, limit)
        return low, tf.maximum(high, low + MIN_ACTIVATION_RANGE)


def _as_floats(observations: NDArray[Any]) -> Any:
    return tf.constant(np.asarray(observations, np.float32))


def _in_numpy(array: Any) -> NDArray[np.float32]:
    """Return a variable, or a tensor, as numpy without a copy."""
    return np.asarray(memoryview(array.value() if isinstance(array, tf.Variable) else array))
