"""`QatPolicy`'s twin without quantization: what an algorithm is timed beside. It is never exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from numpy.typing import ArrayLike

from quarl_export.networks import NetworkSpec
from quarl_export.snapshot import PIXEL_SCALE


class FloatPolicy:
    """A ReLU network with the same layers, normaliser and head, in float32 throughout.

    Args:
        spec: what to build; its quantization is not read, and a dueling head is built as the file has it.

    Attributes:
        spec: as given.
        model: maps float32 ``[batch, *input_shape]`` to what the head gives, as `QatPolicy.model` does.
        linear_model: the same without a tanh at its end.
        log_std: trainable, of a gaussian head; `None` for any other.
        trainable_variables: kernels and biases, in layer order, then log_std.
        variables: those and the normaliser's constants.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        self.spec = spec
        scale = PIXEL_SCALE if spec.sees_images else 1.0
        self._offset = tf.Variable(tf.zeros(spec.normalizer_shape), trainable=False, name="offset")
        self._scale = tf.Variable(tf.fill(spec.normalizer_shape, scale), trainable=False, name="scale")
        hidden = [
            tf_keras.layers.Conv2D(filters, kernel, stride, activation="relu")
            for filters, kernel, stride in spec.convolutions
        ]
        hidden += [tf_keras.layers.Flatten()] * spec.sees_images
        hidden += [tf_keras.layers.Dense(units, activation="relu") for units in spec.hidden]
        last = tf_keras.layers.Dense(spec.head_units)
        self._layers = tf_keras.Sequential([tf_keras.Input(spec.input_shape), *hidden, last])
        self.log_std = tf.Variable(tf.zeros(spec.head_units), name="log_std") if spec.head == "gaussian" else None
        spread = [] if self.log_std is None else [self.log_std]
        self.trainable_variables: list[Any] = [*self._layers.trainable_variables, *spread]
        self.variables: list[Any] = [*self.trainable_variables, self._offset, self._scale]

    def model(self, observations: Any, *, training: bool = False) -> Any:
        """Return what the head gives; training changes nothing here."""
        linear = self.linear_model(observations, training=training)
        return tf.tanh(linear) if self.spec.head == "action" else linear

    def linear_model(self, observations: Any, *, training: bool = False) -> Any:
        """Return what the last dense layer gives."""
        return self._layers((observations - self._offset) * self._scale, training=training)

    def clone(self) -> FloatPolicy:
        """Return a copy with variables of its own."""
        copy = FloatPolicy(self.spec)
        copy.assign_from(self)
        return copy

    def assign_from(self, other: FloatPolicy) -> None:
        """Copy all of `other`'s variables; may be traced into a ``tf.function``."""
        for mine, theirs in zip(self.variables, other.variables, strict=True):
            mine.assign(theirs)

    def set_normalizer(self, offset: ArrayLike, scale: ArrayLike) -> None:
        """Normalise observations as ``(observation - offset) * scale``, float32 ``[inputs]`` each."""
        self._offset.assign(np.asarray(offset, np.float32))
        self._scale.assign(np.asarray(scale, np.float32))
