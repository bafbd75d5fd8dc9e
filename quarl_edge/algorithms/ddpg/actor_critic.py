"""The update that DDPG and D4PG share: a quantized deterministic policy, a float critic, a target of each.

Policy and target policy are quantized alike, so a target is what the exported file would do. K gradient steps of both
networks run in one XLA-compiled loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import tensorflow as tf
import tf_keras
from numpy.typing import NDArray

from quarl_device.wire.exploration import Exploration, ExplorationKind
from quarl_edge.algorithms.ddpg import DeterministicConfig
from quarl_edge.learner import losses, variables
from quarl_edge.learner.algorithm import Learned
from quarl_edge.learner.fused import at_once, graph_of, in_turn
from quarl_edge.learner.networks import FloatNetwork, blend_policy
from quarl_edge.replay.buffer import Batch
from quarl_export.qat import QatPolicy

Tensor = Any
_CRITIC_SEED = 1_000_003


class DeterministicActorCritic(ABC):
    """An `Algorithm` of a deterministic policy; subclasses say what the critic predicts.

    Args:
        config: hyperparameters.
        policy: with the head "action", which acts and is exported.
        outputs: units of the critic's last layer.
    """

    def __init__(self, config: DeterministicConfig, policy: QatPolicy, *, outputs: int) -> None:
        self._config = config
        self.policy = policy
        self._target = policy.clone()
        action = policy.spec.action
        low, high = (np.asarray(bound, np.float32) for bound in (action.low, action.high))
        self._middle, self._half = tf.constant((high + low) / 2), tf.constant((high - low) / 2)
        self._critic, self._target_critic = (
            FloatNetwork(
                policy.spec.input_shape,
                action_size=len(action.low),
                hidden=config.critic_hidden,
                outputs=outputs,
                layer_norm=config.critic_layer_norm,
                seed=config.seed + _CRITIC_SEED,
            )
            for _ in range(2)
        )
        self._target_critic.assign_from(self._critic)
        self._policy_optimizer = _adam(config.learning_rate, config, policy.trainable_variables)
        self._critic_optimizer = _adam(config.critic_learning_rate, config, self._critic.trainable_variables)
        self._updates = tf.Variable(tf.zeros((), tf.int64), trainable=False, name="updates")
        self._fused = graph_of(self._run, xla=True)
        self._copy = graph_of(self._copy_targets, xla=False)

    # -- what the critic predicts --------------------------------------------------------------------------------------

    @abstractmethod
    def value(self, output: Tensor) -> Tensor:
        """Return the expected return, float32[B], of the critic's outputs float32[B, outputs]."""

    @abstractmethod
    def critic_loss(
        self, output: Tensor, reward: Tensor, discount: Tensor, next_output: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return loss and error of each transition, float32[B] each; `next_output` is the target critic's."""

    # -- the seam ------------------------------------------------------------------------------------------------------

    def compile(self) -> None:
        """Trace and compile the update on an all-zero batch, leaving every variable as it was."""
        before = self.arrays()
        seen = self.policy.spec
        lead = (self._config.updates_per_call, self._config.batch_size)
        observation = np.zeros((*lead, *seen.input_shape), seen.observations[0].dtype)
        zeros = np.zeros(lead, np.float32)
        action = np.zeros((*lead, *self.policy.spec.action.shape), np.float32)
        self._fused(observation, action, zeros, zeros, observation, zeros)
        self._copy()
        self.restore(before)

    def update(self, batch: Batch) -> Learned:
        """Run K fused gradient steps; see `Algorithm.update`."""
        steps = batch.reward.shape[0]
        critic_loss, value, slope, errors = self._fused(
            batch.observation, batch.action, batch.reward, batch.discount, batch.next_observation, batch.weight
        )
        period = self._config.target_period_updates
        if period and int(self._updates) % period < steps:
            self._copy()
        metrics = {"critic_loss": float(critic_loss), "q_mean": float(value), "action_gradient": float(slope)}
        return Learned(steps=steps, metrics=metrics, errors=errors.numpy())

    def exploration(self, env_steps: int) -> Exploration:
        """Return the noise's sigma for the actors; see `Algorithm.exploration`."""
        return Exploration(kind=cast(ExplorationKind, self._config.noise), values=(self._config.sigma(env_steps),))

    def set_normalizer(self, offset: NDArray[np.float32], scale: NDArray[np.float32]) -> None:
        """Set the constants of all four networks at once; see `Algorithm.set_normalizer`."""
        for policy in (self.policy, self._target):
            policy.set_normalizer(offset, scale)
        for critic in (self._critic, self._target_critic):
            critic.set_normalizer(offset, scale)

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
            "critic": self._critic.variables,
            "target_critic": self._target_critic.variables,
            "optimizer": self._policy_optimizer.variables,
            "critic_optimizer": self._critic_optimizer.variables,
        }
        return variables.named(groups, updates=self._updates)

    # -- one call ------------------------------------------------------------------------------------------------------

    def _run(
        self, observation: Tensor, action: Tensor, reward: Tensor, discount: Tensor, after: Tensor, weight: Tensor
    ) -> Tensor:
        still = not self._config.target_tau
        # Targets that stand still for the whole call see all of its batches at once.
        ahead = at_once(self._next_output, after) if still else after

        def step(*batch: Tensor) -> tuple[Tensor, ...]:
            *parts, ahead = batch
            return self._step(*parts, next_output=ahead if still else self._next_output(ahead))

        *totals, errors = in_turn(step, (observation, action, reward, discount, weight, ahead), outputs=4)
        self._updates.assign_add(tf.shape(reward, tf.int64)[0])
        return [*(tf.reduce_mean(total) for total in totals), errors]

    def _next_output(self, after: Tensor) -> Tensor:
        after = tf.cast(after, tf.float32)
        return self._target_critic(after, self._target.model(after, training=False))

    def _step(
        self,
        observation: Tensor,
        action: Tensor,
        reward: Tensor,
        discount: Tensor,
        weight: Tensor,
        *,
        next_output: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        observation = tf.cast(observation, tf.float32)
        done = (tf.reshape(action, (-1, self._half.shape[0])) - self._middle) / self._half
        reward = reward * self._config.reward_scale
        loss, error = self._step_critic(observation, done, reward, discount, weight, next_output)
        value, slope = self._step_policy(observation)
        if self._config.target_tau:
            self._blend_targets(self._config.target_tau)
        return loss, value, slope, error

    def _step_critic(
        self, observation: Tensor, action: Tensor, reward: Tensor, discount: Tensor, weight: Tensor, next_output: Tensor
    ) -> tuple[Tensor, Tensor]:
        weights = self._critic.trainable_variables
        with tf.GradientTape() as tape:
            each, error = self.critic_loss(self._critic(observation, action), reward, discount, next_output)
            loss = tf.reduce_mean(weight * each)
        self._apply(self._critic_optimizer, tape.gradient(loss, weights), weights)
        return loss, error

    def _step_policy(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.policy.trainable_variables
        with tf.GradientTape() as tape:
            linear = self.policy.linear_model(observation, training=True)
            action = tf.tanh(linear)
            value, dq_da = self._slope(observation, tf.stop_gradient(action))
            loss = losses.deterministic_policy_gradient(action, dq_da, max_norm=self._config.action_gradient_norm)
            loss = tf.reduce_mean(loss + self._config.saturation_weight * losses.saturation(linear))
        self._apply(self._policy_optimizer, tape.gradient(loss, weights), weights)
        return tf.reduce_mean(value), tf.reduce_mean(tf.norm(dq_da, axis=-1))

    def _slope(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critic's values and their gradient by the action."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(action)
            value = self.value(self._critic(observation, action))
            total = tf.reduce_sum(value)
        return value, tf.stop_gradient(tape.gradient(total, action))

    def _apply(self, optimizer: Any, gradients: list[Tensor], weights: list[Any]) -> None:
        if self._config.max_grad_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._config.max_grad_norm)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    def _blend_targets(self, tau: float) -> None:
        blend_policy(self._target, self.policy, tau)
        self._target_critic.blend_from(self._critic, tau)

    def _copy_targets(self) -> None:
        self._target.assign_from(self.policy)
        self._target_critic.assign_from(self._critic)


def _adam(rate: float, config: DeterministicConfig, weights: list[Any]) -> Any:
    optimizer = tf_keras.optimizers.Adam(rate, epsilon=config.adam_epsilon)
    optimizer.build(weights)
    return optimizer
