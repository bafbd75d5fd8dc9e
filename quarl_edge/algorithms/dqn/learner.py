"""DQN (Mnih et al. 2015) with quantization-aware training and fused updates.

Online and target network are quantized alike: a float target under a quantized online network does not learn.
The Q output itself is not fake-quantized in training; its int8 range comes from recent observations at each push.
K gradient steps run in one loop, compiled by XLA where that is faster: the call overhead of TensorFlow costs more than
a small network's arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from numpy.typing import NDArray

from quarl_device.wire.push import Exploration
from quarl_edge.algorithms.dqn import DqnConfig
from quarl_edge.learner import losses, variables
from quarl_edge.learner.algorithm import Learned
from quarl_edge.learner.fused import at_once, graph_of, in_turn
from quarl_edge.learner.networks import blend_policy, compiles_well
from quarl_edge.replay.buffer import Batch
from quarl_export.qat import QatPolicy

Tensor = Any


class Dqn:
    """Double or plain DQN on n-step transitions.

    Args:
        config: hyperparameters; nothing is restated here.
        policy: the online network, which acts and is exported.
    """

    def __init__(self, config: DqnConfig, policy: QatPolicy) -> None:
        self._config = config
        self.policy = policy
        self._target = policy.clone()
        self._target.assign_from(policy)
        self._optimizer = tf_keras.optimizers.Adam(config.learning_rate, epsilon=config.adam_epsilon)
        self._optimizer.build(policy.trainable_variables)
        self._updates = tf.Variable(tf.zeros((), tf.int64), trainable=False, name="updates")
        self._fused = graph_of(self._run, xla=compiles_well(policy.spec))
        self._copy = graph_of(self._copy_target, xla=False)

    def compile(self) -> None:
        """Trace and compile the update on an all-zero batch, leaving every variable as it was."""
        before = self.arrays()
        spec = self.policy.spec.observations[0]
        steps, size = self._config.updates_per_call, self._config.batch_size
        observation = np.zeros((steps, size, *self.policy.spec.input_shape), spec.dtype)
        zeros = np.zeros((steps, size), np.float32)
        action = np.zeros((steps, size), self.policy.spec.action.dtype)
        self._fused(observation, action, zeros, zeros, observation, zeros)
        self._copy()
        self.restore(before)

    def update(self, batch: Batch) -> Learned:
        """Run K fused gradient steps; see `Algorithm.update`."""
        steps = batch.reward.shape[0]
        loss, q_mean, errors = self._fused(
            batch.observation, batch.action, batch.reward, batch.discount, batch.next_observation, batch.weight
        )
        period = self._config.target_period_updates
        if period and int(self._updates) % period < steps:
            self._copy()
        sizes = errors.numpy()
        metrics = {"loss": float(loss), "q_mean": float(q_mean), "td_error": float(np.abs(sizes).mean())}
        return Learned(steps=steps, metrics=metrics, errors=sizes)

    def _run(
        self, observation: Tensor, action: Tensor, reward: Tensor, discount: Tensor, after: Tensor, weight: Tensor
    ) -> Tensor:
        # A target that stands still for the whole call sees all of its batches at once. Not of images, which in float
        # would need K times the memory of a batch, for products that are large already.
        still = not self._config.target_tau and not self.policy.spec.sees_images
        ahead = at_once(self._next_q, after) if still else after

        def step(*batch: Tensor) -> tuple[Tensor, ...]:
            *parts, ahead = batch
            return self._step(*parts, next_q=ahead if still else self._next_q(ahead))

        arrays = (observation, action, reward, discount, after, weight, ahead)
        loss, q_mean, errors = in_turn(step, arrays, outputs=3)
        self._updates.assign_add(tf.shape(reward, tf.int64)[0])
        return tf.reduce_mean(loss), tf.reduce_mean(q_mean), errors

    def _step(
        self,
        observation: Tensor,
        action: Tensor,
        reward: Tensor,
        discount: Tensor,
        after: Tensor,
        weight: Tensor,
        *,
        next_q: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = self._config
        observation, after = tf.cast(observation, tf.float32), tf.cast(after, tf.float32)
        reward = reward * config.reward_scale
        if config.double_q:
            next_online = self.policy.model(after, training=False)
            target = losses.double_q_learning_target(reward, discount, next_q, next_online)
        else:
            target = losses.q_learning_target(reward, discount, next_q)
        weights = self.policy.trainable_variables
        with tf.GradientTape() as tape:
            q_values = self.policy.model(observation, training=True)
            error = target - losses.select(q_values, action)
            loss = tf.reduce_mean(weight * losses.huber(error, config.huber_delta))
        gradients = tape.gradient(loss, weights)
        if config.max_grad_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, config.max_grad_norm)
        self._optimizer.apply_gradients(zip(gradients, weights, strict=True))
        if config.target_tau:
            blend_policy(self._target, self.policy, config.target_tau)
        return loss, tf.reduce_mean(q_values), error

    def _next_q(self, after: Tensor) -> Tensor:
        return self._target.model(tf.cast(after, tf.float32), training=False)

    def _copy_target(self) -> None:
        self._target.assign_from(self.policy)

    def set_normalizer(self, offset: NDArray[np.float32], scale: NDArray[np.float32]) -> None:
        """Set the constants of online and target network at once; see `Algorithm.set_normalizer`."""
        for network in (self.policy, self._target):
            network.set_normalizer(offset, scale)

    def exploration(self, env_steps: int) -> Exploration:
        """Return epsilon for the actors; see `Algorithm.exploration`."""
        return Exploration(kind="epsilon", values=(self._config.epsilon(env_steps),))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return every variable by a stable name; see `Algorithm.arrays`."""
        return variables.read(self._named())

    def restore(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Set every variable from `arrays`; see `Algorithm.restore`."""
        variables.restore(self._named(), arrays)

    def _named(self) -> dict[str, Any]:
        groups = {
            "online": self.policy.variables,
            "target": self._target.variables,
            "optimizer": self._optimizer.variables,
        }
        return variables.named(groups, updates=self._updates)
