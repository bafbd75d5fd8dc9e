"""Drawing actions from a policy's distribution with noise that is given, and how likely they were.

* ``logits``: a fraction in [0, 1) falls into one action's share of the softmax.
* ``gaussian``: ``mean + exp(log_std) * noise``, rounded to float32, is the sample; `heads` makes an action of it.

Everything is computed from the file's own outputs, so that a log probability is that of the int8 policy that acts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.errors import ModelFileError
from quarl_device.heads import FEW, MAX_LOG_STD, BoxHead, OutputBinding

Array = NDArray[Any]
Draw = Callable[[Any, Any], tuple[Any, Any, Any]]
"""From results and noise to the action, the sample that became it, and that sample's log probability."""
_LOG_2_PI = math.log(2.0 * math.pi)


class GaussianHead(BoxHead):
    """A gaussian head that is drawn from.

    Args:
        contract: with a gaussian head.
        outputs: see `BoxHead`.
        shape: see `BoxHead`.
        log_std: in place of the contract's constant one.

    Attributes:
        draw: see `Draw` and `_draw`; the fastest way there is for this head.
    """

    def __init__(
        self,
        contract: PolicyContract,
        outputs: tuple[OutputBinding, ...],
        *,
        shape: tuple[int, ...],
        log_std: tuple[float, ...] = (),
    ) -> None:
        super().__init__(contract, outputs, shape=shape)
        self._action_shape = contract.action.shape
        if log_std:
            self._log_std = np.array(log_std, np.float64)
        self.draw: Draw = self._draw
        alone = shape == contract.action.shape and outputs[0].flat
        if alone and not self._many and self._log_std.size == self._scale.size <= FEW:
            self.draw = self._few_draws()

    def _draw(self, results: Any, noise: Array) -> tuple[Array, Array, Array]:
        """Return an action drawn with given noise, and what it was drawn as.

        Args:
            results: of the runtime, B rows.
            noise: standard normal numbers, [B, size] or more axes of as many elements.

        Returns:
            The action, float32; the sample `mean + exp(log_std) * noise`, float32 [B, *action's shape]; the log of the
            gaussian's density at that sample, as rounded, float64 [B], or a number where B is 1.

        Raises:
            ModelFileError: the outputs are not finite.
        """
        mean, log_std = self._distribution(results)
        spread = np.exp(log_std)
        sample = (mean + spread * noise.reshape(mean.shape)).astype(np.float32)
        standard = (sample - mean) / spread
        log_prob: Array = -0.5 * (standard * standard + 2.0 * log_std + _LOG_2_PI).sum(axis=1)
        if not np.isfinite(log_prob).all():
            raise ModelFileError("its outputs are not finite")
        return self._finish(sample.astype(np.float64)), sample.reshape(-1, *self._action_shape), log_prob

    def _few_draws(self) -> Draw:
        """Return the same for the few numbers of one observation with a constant log_std, in Python's own floats."""
        log_std = np.clip(self._log_std, -MAX_LOG_STD, MAX_LOG_STD)
        constant = -float((log_std + 0.5 * _LOG_2_PI).sum())
        zero_point, step = float(self._outputs[0].zero_point), self._outputs[0].scale or 1.0
        spreads, numbers, squash = np.exp(log_std).tolist(), self._numbers(), math.tanh if self._squash else None
        empty, empty_sample = np.zeros(self._shape, np.float32), np.zeros((1, *self._action_shape), np.float32)

        def draw(results: Array, noise: Array) -> tuple[Array, Array, float]:
            means = [(value - zero_point) * step for value in results.tolist()[0]]
            sample, action = empty_sample.copy(), empty.copy()
            sample.reshape(-1)[...] = [
                m + s * n for m, s, n in zip(means, spreads, noise.ravel().tolist(), strict=True)
            ]
            rounded = sample.ravel().tolist()
            log_prob = constant
            for value, mean, spread in zip(rounded, means, spreads, strict=True):
                standard = (value - mean) / spread
                log_prob -= 0.5 * standard * standard
            if not math.isfinite(log_prob):
                raise ModelFileError("its outputs are not finite")
            values = []
            for value, (scale, offset, low, high) in zip(rounded, numbers, strict=True):
                number = (squash(value) if squash else value) * scale + offset
                values.append(low if number < low else high if number > high else number)
            action.reshape(-1)[...] = values
            return action, sample, log_prob

        return draw


def draw_index(output: OutputBinding) -> Draw:
    """Return what draws one observation's action from the softmax of its logits, with a fraction in [0, 1).

    The action counts from 0, and is the sample too. Few numbers, so in Python.
    """
    scale = output.scale or 1.0

    def draw(values: Array, fraction: float) -> tuple[int, int, float]:
        row = values.ravel().tolist()
        largest = max(row)
        weights = [math.exp((value - largest) * scale) for value in row]
        total = sum(weights)
        if not 0.0 < total < math.inf:
            raise ModelFileError("its logits are not finite")
        left, chosen = fraction * total - weights[0], 0
        # The last one, if rounding leaves something over.
        while left >= 0.0 and chosen < len(weights) - 1:
            chosen += 1
            left -= weights[chosen]
        return chosen, chosen, (row[chosen] - largest) * scale - math.log(total)

    return draw


def draw_indices(output: OutputBinding, batch_size: int, dtype: np.dtype[Any]) -> Draw:
    """Return the same for batch_size observations and fractions: actions of `dtype`, and float64 log probabilities."""
    scale = output.scale or 1.0

    def draw(values: Array, fractions: Array) -> tuple[Array, Array, Array]:
        logits = values.astype(np.float64).reshape(batch_size, -1)
        shifted = (logits - logits.max(axis=1, keepdims=True)) * scale
        shares = np.exp(shifted).cumsum(axis=1)
        total = shares[:, -1]
        if not np.isfinite(total).all():
            raise ModelFileError("its logits are not finite")
        chosen = np.minimum((shares <= (fractions * total)[:, None]).sum(axis=1), shares.shape[1] - 1)
        log_prob = shifted[np.arange(batch_size), chosen] - np.log(total)
        actions = chosen.astype(dtype)
        return actions, actions, log_prob

    return draw
