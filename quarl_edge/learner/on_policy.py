"""The update that PPO and A2C share: advantages of a whole round, then epochs of minibatches, fused.

The log probability of an action is that which the actor sent: of the int8 file's own outputs. The ratio to it corrects
for what quantization changes between the network in training and the file that acted.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from numpy.typing import NDArray

from quarl_device.wire.push import Exploration
from quarl_edge.config import RolloutConfig
from quarl_edge.learner import losses, variables
from quarl_edge.learner.algorithm import Learned
from quarl_edge.learner.fused import graph_of, in_turn
from quarl_edge.learner.networks import FloatNetwork, compiles_well
from quarl_edge.replay.rollouts import Rollout
from quarl_export.qat import QatPolicy

Tensor = Any
_VALUE_SEED = 1_000_003


class OnPolicyActorCritic(ABC):
    """An `Algorithm` of a stochastic policy; subclasses give the policy's loss.

    Args:
        config: hyperparameters.
        policy: with the head "logits" or "gaussian", which acts and is exported.
        log_std: a gaussian's first logarithm of the standard deviation.
    """

    def __init__(self, config: RolloutConfig, policy: QatPolicy, *, log_std: float = 0.0) -> None:
        self._config = config
        self.policy = policy
        self._log_std = policy.log_std
        if self._log_std is not None:
            self._log_std.assign(tf.fill(self._log_std.shape, float(log_std)))
        self._value = FloatNetwork(
            policy.spec.input_shape,
            convolutions=policy.spec.convolutions,
            hidden=config.value_hidden,
            outputs=1,
            seed=config.seed + _VALUE_SEED,
        )
        self._policy_optimizer = _adam(config.learning_rate, config, policy.trainable_variables)
        self._value_optimizer = _adam(config.value_learning_rate, config, self._value.trainable_variables)
        self._rng = np.random.Generator(np.random.PCG64(config.seed))
        self._advantages = graph_of(self._examine, xla=compiles_well(policy.spec))
        self._fused = graph_of(self._run, xla=compiles_well(policy.spec))

    @abstractmethod
    def policy_loss(self, log_prob: Tensor, acted_log_prob: Tensor, advantage: Tensor) -> Tensor:
        """Return the loss of each step, float32[B], to be minimised."""

    # -- the seam ------------------------------------------------------------------------------------------------------

    def compile(self) -> None:
        """Trace and compile the update on a round of zeros, leaving every variable as it was.

        A round of devices with another number of environments is compiled when it comes.
        """
        before, config, spec = self.arrays(), self._config, self.policy.spec
        lead = (config.round_steps, (config.round_actors or config.actors) * config.envs_per_actor)
        action = spec.action
        observation, zeros, never = (
            np.zeros((*lead, *spec.input_shape), spec.observations[0].dtype),
            np.zeros(lead, np.float32),
            np.zeros(lead, bool),
        )
        extra = {"log_prob": zeros} | (
            {"sample": np.zeros((*lead, *action.shape), np.float32)} if self._log_std is not None else {}
        )
        self.update(
            Rollout(
                observation=observation,
                action=np.zeros((*lead, *action.shape), action.dtype),
                reward=zeros,
                next_observation=observation,
                terminated=never,
                ended=never,
                valid=~never,
                extra=extra,
            )
        )
        self.restore(before)

    def update(self, rollout: Rollout) -> Learned:
        """Learn from one round: `epochs` passes of `minibatches` fused gradient steps each."""
        flat = {name: _flat(getattr(rollout, name)) for name in ("observation", "action")}
        advantage, returns = self._advantages(
            rollout.observation,
            rollout.next_observation,
            rollout.reward,
            rollout.terminated,
            rollout.ended,
        )
        order = self._order(np.flatnonzero(rollout.valid), rollout.valid.size)
        acted = flat["action"] if self._log_std is None else _flat(rollout.extra["sample"])
        found = self._fused(flat["observation"], acted, _flat(rollout.extra["log_prob"]), advantage, returns, order)
        names = ("policy_loss", "value_loss", "entropy", "ratio_error")
        metrics = {name: float(value) for name, value in zip(names, found, strict=True)}
        return Learned(steps=len(order), metrics=metrics)

    def _order(self, usable: NDArray[np.int64], rows: int) -> NDArray[np.int32]:
        """Return which rows each gradient step sees, int32[steps, rows a step].

        The shape is that of a round without dummy rows, whatever their number: XLA compiles once. Where there are
        some, a pass begins again with the rows that it began with.
        """
        config = self._config
        size = max(1, rows // config.minibatches)
        passes = [np.resize(self._rng.permutation(usable), size * config.minibatches) for _ in range(config.epochs)]
        return np.concatenate(passes).reshape(-1, size).astype(np.int32)

    def exploration(self, env_steps: int) -> Exploration:
        """Return how actors sample; see `Algorithm.exploration`."""
        values = () if self._log_std is None else tuple(float(v) for v in self._log_std.numpy())
        return Exploration(kind="sample", values=values)

    def set_normalizer(self, offset: NDArray[np.float32], scale: NDArray[np.float32]) -> None:
        """Set the constants of both networks at once; see `Algorithm.set_normalizer`."""
        self.policy.set_normalizer(offset, scale)
        self._value.set_normalizer(offset, scale)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return every variable by a stable name; see `Algorithm.arrays`."""
        state = json.dumps(self._rng.bit_generator.state).encode()
        return {**variables.read(self._named()), "random": np.frombuffer(state, np.uint8)}

    def restore(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """Set every variable from `arrays`; see `Algorithm.restore`."""
        rest = {name: array for name, array in arrays.items() if name != "random"}
        variables.restore(self._named(), rest)
        self._rng.bit_generator.state = json.loads(bytes(arrays["random"].tolist()))

    def _named(self) -> dict[str, Any]:
        groups = {
            "policy": self.policy.variables,
            "value": self._value.variables,
            "optimizer": self._policy_optimizer.variables,
            "value_optimizer": self._value_optimizer.variables,
        }
        return variables.named(groups)

    # -- one round -----------------------------------------------------------------------------------------------------

    def _examine(
        self, observation: Tensor, after: Tensor, reward: Tensor, terminated: Tensor, ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        config = self._config
        value, next_value = (self._value_of(seen, reward) for seen in (observation, after))
        gamma = config.discount * (1.0 - tf.cast(terminated, tf.float32))
        carry = config.discount * config.gae_lambda * (1.0 - tf.cast(ended, tf.float32))
        advantage = losses.generalized_advantages(reward * config.reward_scale, value, next_value, carry, gamma)
        return tf.reshape(advantage, (-1,)), tf.reshape(advantage + value, (-1,))

    def _value_of(self, observation: Tensor, like: Tensor) -> Tensor:
        flat = tf.reshape(tf.cast(observation, tf.float32), (-1, *self.policy.spec.input_shape))
        return tf.reshape(self._value(flat)[:, 0], tf.shape(like))

    def _run(
        self, observation: Tensor, action: Tensor, acted: Tensor, advantage: Tensor, returns: Tensor, order: Tensor
    ) -> Tensor:
        arrays = (observation, action, acted, advantage, returns)
        totals = in_turn(lambda rows: self._step(*(tf.gather(array, rows) for array in arrays)), (order,), outputs=4)
        return [tf.reduce_mean(total) for total in totals]

    def _step(
        self, observation: Tensor, action: Tensor, acted: Tensor, advantage: Tensor, returns: Tensor
    ) -> tuple[Tensor, ...]:
        observation = tf.cast(observation, tf.float32)
        if self._config.standardize_advantages:
            advantage = losses.standardize(advantage)
        weights = self.policy.trainable_variables
        with tf.GradientTape() as tape:
            log_prob, entropy = self._distribution(self.policy.model(observation, training=True), action)
            policy_loss = tf.reduce_mean(self.policy_loss(log_prob, acted, advantage))
            loss = policy_loss - self._config.entropy_cost * tf.reduce_mean(entropy)
        self._apply(self._policy_optimizer, tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            value_loss = 0.5 * tf.reduce_mean(tf.square(returns - self._value(observation)[:, 0]))
        weights = self._value.trainable_variables
        self._apply(self._value_optimizer, tape.gradient(value_loss, weights), weights)
        drift = tf.reduce_mean(tf.abs(tf.exp(log_prob - acted) - 1.0))
        return policy_loss, value_loss, tf.reduce_mean(entropy), drift

    def _distribution(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        if self._log_std is not None:
            sample = tf.reshape(action, tf.shape(outputs))
            entropy = losses.gaussian_entropy(self._log_std)
            return losses.gaussian_log_prob(outputs, self._log_std, sample), entropy
        return losses.categorical_log_prob(outputs, action), losses.categorical_entropy(outputs)

    def _apply(self, optimizer: Any, gradients: list[Tensor], weights: list[Any]) -> None:
        if self._config.max_grad_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._config.max_grad_norm)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def _adam(rate: float, config: RolloutConfig, weights: list[Any]) -> Any:
    optimizer = tf_keras.optimizers.Adam(rate, epsilon=config.adam_epsilon)
    optimizer.build(weights)
    return optimizer
