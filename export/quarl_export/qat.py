"""`QatPolicy`: a policy network in quantization-aware training, as the learner holds it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quarl_device.errors import NonFiniteError, PatchError, UsageError
from quarl_export.keras2 import keras, tf, tfmot
from quarl_export.networks import NetworkSpec
from quarl_export.quantizers import (
    MIN_ACTIVATION_RANGE,
    DenseQuantizeConfig,
    NormalizeLayer,
    RangeLayer,
    RangeQuantizer,
)
from quarl_export.snapshot import PolicySnapshot, initial_snapshot

_Wrapper = tfmot.quantization.keras.QuantizeWrapperV2


class QatPolicy:
    """A dense ReLU network that computes in training what its file will compute on a device.

    ``policy.model(observation, training=...)`` maps float32 ``[batch, inputs]`` to Q values float32
    ``[batch, actions]``. It may be called inside ``tf.function(jit_compile=True)`` and inside loops; ranges move only
    where ``training=True``. `training` must be a Python bool.

    Args:
        spec: what to build.
        seed: of the initial weights.
        normalize: give the network a normaliser (identity until `set_normalizer`); without one the graph and the
            file hold no trace of it.

    Attributes:
        spec: as given.
        normalized: whether there is a normaliser.
        model: the trainable Keras model, observation to Q values; its output is not fake-quantized.
        export_model: what the file computes: the same layers, with the output on the head's int8 grid if it has one.
        trainable_variables: kernels and biases, in layer order.
        variables: all variables that `snapshot` holds, in the same order for every policy of one spec.
    """

    def __init__(self, spec: NetworkSpec, *, seed: int = 0, normalize: bool = False) -> None:
        self.spec = spec
        self.normalized = normalize
        self._dense = [
            keras.layers.Dense(units, activation="relu", name=f"hidden_{index}")
            for index, units in enumerate(spec.hidden)
        ] + [keras.layers.Dense(spec.num_actions, name="q_values")]
        decay, rule = spec.quantization.range_decay, spec.quantization.input_range
        bits = spec.quantization.activation_bits
        self._ranges = [RangeQuantizer(decay=decay, follow=rule)]
        self._ranges += [RangeQuantizer(bits=bits, decay=decay) for _ in spec.hidden]
        self._head = RangeQuantizer(bits=16 if spec.quantization.head_output == "int16" else 8)
        self._normalizer = NormalizeLayer(name="normalize") if normalize else None
        self._build()
        self.trainable_variables: list[Any] = list(self.model.trainable_variables)
        self.variables: list[Any] = self._arrays() + self._scalars()
        batch = tf.TensorSpec((None, spec.observation_size), tf.float32)
        self._extremes = tf.function(self.head_extremes, input_signature=[batch])
        self.restore(initial_snapshot(spec, seed=seed, normalized=normalize))

    def _build(self) -> None:
        observation = keras.Input((self.spec.observation_size,), name="observation")
        tensor = observation if self._normalizer is None else self._normalizer(observation)
        tensor = RangeLayer(self._ranges[0], name="input")(tensor)
        quantization = self.spec.quantization
        for dense, activation in zip(self._dense[:-1], self._ranges[1:], strict=True):
            tensor = _Wrapper(dense, DenseQuantizeConfig(activation, bits=quantization.weight_bits))(tensor)
        in_float, head = quantization.head_output == "float32", self._dense[-1]
        quantized_head = DenseQuantizeConfig(None, bits=quantization.weight_bits)
        tensor = head(tensor) if in_float else _Wrapper(head, quantized_head)(tensor)
        self.model = keras.Model(observation, tensor, name="policy")
        gridded = RangeLayer(self._head, name="head")(tensor)
        self.export_model = keras.Model(observation, tensor if in_float else gridded, name="policy_export")

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
        values = [_in_numpy(variable) for variable in self._arrays()]
        layers = len(self._dense)
        numbers = np.array([_in_numpy(variable) for variable in self._scalars()], np.float32)
        sites = numbers[:-2].reshape(-1, 3)
        return PolicySnapshot(
            kernels=tuple(values[0 : 2 * layers : 2]),
            biases=tuple(values[1 : 2 * layers : 2]),
            ranges=sites[:, :2],
            range_updates=sites[:, 2],
            head_range=numbers[-2:],
            offset=values[-2] if self.normalized else None,
            scale=values[-1] if self.normalized else None,
        )

    def restore(self, snapshot: PolicySnapshot) -> None:
        """Take over everything from `snapshot`.

        Raises:
            PatchError: `snapshot` is of another architecture.
        """
        if snapshot.normalized != self.normalized:
            raise PatchError("snapshot and policy differ: one has a normaliser, the other none")
        values: list[Any] = [value for pair in zip(snapshot.kernels, snapshot.biases, strict=True) for value in pair]
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
        """Normalise observations as ``(observation - offset) * scale``, float32 ``[inputs]`` each.

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

    def calibrate(self, observations: NDArray[np.float32]) -> None:
        """Warm-start all ranges from `observations`, float32 ``[batch, inputs]``, without training."""
        self.model(tf.constant(observations, tf.float32), training=True)
        self.update_head_range(tf.constant(observations, tf.float32))

    @property
    def head_range(self) -> tuple[float, float]:
        """Range (low, high) of the exported output."""
        return float(self._head.minimum.numpy()), float(self._head.maximum.numpy())

    def set_head_range(self, low: float, high: float) -> None:
        """Set the exported output's range; it is opened to include zero and to a minimal width.

        Raises:
            NonFiniteError: NaN or Inf.
        """
        if not (np.isfinite(low) and np.isfinite(high)):
            raise NonFiniteError(f"head range ({low}, {high}) is not finite")
        low = min(float(low), 0.0)
        self._head.minimum.assign(low)
        self._head.maximum.assign(max(float(high), 0.0, low + MIN_ACTIVATION_RANGE))

    def head_range_from(self, observations: NDArray[np.float32]) -> tuple[float, float]:
        """Set the exported output's range from recent `observations`, with its margin, and return it.

        Args:
            observations: float32 ``[any, inputs]``, best the same number each time.

        Raises:
            NonFiniteError: the network's outputs are NaN or Inf.
        """
        low, high = self._extremes(tf.constant(observations, tf.float32))
        self.set_head_range(float(low.numpy()), float(high.numpy()))
        return self.head_range

    def update_head_range(self, observations: Any) -> None:
        """Set the head's range from `observations`; may be traced into the learner's own ``tf.function``."""
        low, high = self.head_extremes(observations)
        self._head.minimum.assign(low)
        self._head.maximum.assign(high)

    def head_extremes(self, observations: Any) -> tuple[Any, Any]:
        """Return the output's extremes over `observations` as scalar tensors, widened by the margin, zero inside."""
        q_values = self.model(observations, training=False)
        if self.spec.quantization.center_q:
            q_values -= tf.reduce_mean(q_values, axis=1, keepdims=True)
        low = tf.minimum(tf.reduce_min(q_values), 0.0)
        high = tf.maximum(tf.reduce_max(q_values), 0.0)
        margin = self.spec.quantization.head_margin * (high - low)
        low = tf.where(low < 0.0, low - margin, low)
        high = tf.where(high > 0.0, high + margin, high)
        return low, tf.maximum(high, low + MIN_ACTIVATION_RANGE)


def _in_numpy(variable: Any) -> NDArray[np.float32]:
    return np.asarray(memoryview(variable.value()))
