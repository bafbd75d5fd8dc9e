"""Float networks that only the learner needs: critics and value networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from numpy.typing import NDArray

from quarl_export.networks import Convolution, NetworkSpec
from quarl_export.qat import QatPolicy
from quarl_export.snapshot import PIXEL_SCALE

Tensor = Any
_CONVOLUTION_SEED = 1_000


def blend_policy(target: QatPolicy, online: QatPolicy, tau: float) -> None:
    """Polyak-average `online`'s weights into `target`; may be traced.

    Ranges are copied: an average of two ranges fits neither network.
    """
    weights = {variable.ref() for variable in online.trainable_variables}
    for mine, theirs in zip(target.variables, online.variables, strict=True):
        mine.assign(mine + tau * (theirs - mine) if theirs.ref() in weights else theirs)


def compiles_well(spec: NetworkSpec) -> bool:
    """Return whether XLA makes the updates of a network faster.

    On a processor its gradients of convolutions are several times as slow as TensorFlow's own.
    """
    return not spec.convolutions


class FloatNetwork:
    """A ReLU network behind an observation normaliser, which may see an action beside a vector.

    Args:
        shape: of one observation; of images their pixels are divided by 255.
        convolutions: of images, in front of `hidden`.
        action_size: elements of an action that enters beside the observation; 0: none does.
        hidden: units of each hidden layer.
        outputs: units of the last layer.
        layer_norm: layer normalisation and tanh after the first layer instead of ReLU (Acme's LayerNormMLP).
        seed: of the initial weights.

    Attributes:
        trainable_variables: kernels and biases.
        variables: those and the normaliser's constants.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        convolutions: Sequence[Convolution] = (),
        action_size: int = 0,
        hidden: Sequence[int],
        outputs: int,
        layer_norm: bool = False,
        seed: int = 0,
    ) -> None:
        constants, scale = ((1,), PIXEL_SCALE) if convolutions else (shape, 1.0)
        self._offset = tf.Variable(np.zeros(constants, np.float32), trainable=False, name="offset")
        self._scale = tf.Variable(np.full(constants, scale, np.float32), trainable=False, name="scale")
        layers = []
        for index, (filters, kernel, stride) in enumerate(convolutions):
            drawn = self._drawn(seed + _CONVOLUTION_SEED + index)
            layers.append(tf_keras.layers.Conv2D(filters, kernel, stride, activation="relu", kernel_initializer=drawn))
        if convolutions:
            layers.append(tf_keras.layers.Flatten())
        for index, units in enumerate(hidden):
            first = layer_norm and index == 0
            layers.append(self._dense(units, seed + index, None if first else "relu"))
            if first:
                layers += [tf_keras.layers.LayerNormalization(), tf_keras.layers.Activation("tanh")]
        last = tf_keras.initializers.RandomUniform(-3e-3, 3e-3, seed=seed + len(hidden))
        layers.append(tf_keras.layers.Dense(outputs, kernel_initializer=last))
        self._model = tf_keras.Sequential([tf_keras.Input((*shape[:-1], shape[-1] + action_size)), *layers])
        self.trainable_variables: list[Any] = list(self._model.trainable_variables)
        self.variables: list[Any] = [*self.trainable_variables, self._offset, self._scale]

    def __call__(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        """Return float32[B, outputs] of observations float32[B, *shape] and actions float32[B, m]."""
        normalized = (observation - self._offset) * self._scale
        inputs = normalized if action is None else tf.concat((normalized, action), axis=-1)
        return self._model(inputs)

    def set_normalizer(self, offset: NDArray[np.float32], scale: NDArray[np.float32]) -> None:
        """Normalise observations as ``(observation - offset) * scale``, float32[n]."""
        self._offset.assign(offset)
        self._scale.assign(scale)

    def assign_from(self, other: FloatNetwork) -> None:
        """Copy all of `other`'s variables."""
        for mine, theirs in zip(self.variables, other.variables, strict=True):
            mine.assign(theirs)

    def blend_from(self, other: FloatNetwork, tau: float) -> None:
        """Polyak-average towards `other`'s variables."""
        for mine, theirs in zip(self.variables, other.variables, strict=True):
            mine.assign(mine + tau * (theirs - mine))

    @staticmethod
    def _dense(units: int, seed: int, activation: str | None) -> Any:
        return tf_keras.layers.Dense(units, activation=activation, kernel_initializer=FloatNetwork._drawn(seed))

    @staticmethod
    def _drawn(seed: int) -> Any:
        # Uniform by fan-in, as DDPG's paper; every layer with a seed of its own.
        return tf_keras.initializers.VarianceScaling(1.0 / 3.0, "fan_in", "uniform", seed=seed)
