"""What exploring costs beside the greedy action: noise drawn, an action chosen by it, its log probability recorded."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from quarl_device.actor.acting import ActingPolicy
from quarl_device.actor.choosing import choose_one
from quarl_device.actor.recorder import Recorder
from quarl_device.actor.stepping import LoopConfig, noise_of
from quarl_device.errors import UsageError
from quarl_device.policy import Policy
from quarl_device.wire.block import BlockSpec
from quarl_device.wire.block_spec import extras_for, extras_of
from quarl_device.wire.exploration import Exploration

ROWS = 256
"""Actions of a block, for which the noise is drawn at once."""


@dataclass(frozen=True, kw_only=True)
class ChoiceSpeed:
    """What `choice_speed` measured: CPU time, medians of blocks in alternation.

    Attributes:
        exploration: its kind.
        greedy_us_p50: raw observation in, greedy action out.
        explored_us_p50: raw observation in, explored action out, with the row's share of drawing the noise.
        ratio: `explored_us_p50 / greedy_us_p50`.
    """

    exploration: str
    greedy_us_p50: float
    explored_us_p50: float
    ratio: float


def choice_speed(policy: Policy, exploration: Exploration, *, calls: int = 20_000) -> ChoiceSpeed:
    """Time the actor's own choice of an action beside the policy's greedy one, a block of each in turn.

    Args:
        policy: of one unstacked observation key, at batch size 1.
        exploration: one that chooses by the policy: not "epsilon", which decides before the policy is asked.
        calls: of each kind, rounded to whole blocks.

    Raises:
        UsageError: fewer calls than a block has, or "epsilon".
        UnsupportedSpace: an exploration that does not go with the policy's head, or an observation of several keys.
    """
    if calls < ROWS or exploration.kind == "epsilon":
        raise UsageError(f"cannot time {calls} choices of {exploration.kind}: expected {ROWS} or more, not of epsilon")
    contract = policy.contract
    extras = extras_for(extras_of(contract.head.kind), contract.action) if exploration.kind == "sample" else ()
    spec = BlockSpec(observations=contract.observations, action=contract.action, extras=extras)
    noise = noise_of(LoopConfig(env_id=contract.env_id, spec=spec, num_envs=1, max_rows=ROWS, seed=0))
    recorder = Recorder(spec, num_envs=1, max_rows=ROWS)
    acting = ActingPolicy(policy=policy, epoch=1, version=1, exploration=exploration)
    [seen] = contract.observations
    observation, greedy = np.zeros(seen.shape, seen.dtype), policy.act_index
    # CPU time: a block is long enough to be interrupted by others on a busy machine.
    clock, took = time.thread_time_ns, np.empty((2, calls // ROWS + 1))
    for block in took.T:
        began = clock()
        for _ in range(ROWS):
            greedy(observation)
        between = clock()
        noise.begin_block(ROWS, exploration)
        choose = choose_one(acting, noise, recorder, 0, contract.action)
        for _ in range(ROWS):
            choose(observation)
        block[:] = between - began, clock() - between
    # The first block meets cold caches.
    greedy_us, explored_us = (np.median(took[:, 1:], axis=1) / ROWS / 1e3).tolist()
    return ChoiceSpeed(
        exploration=exploration.kind,
        greedy_us_p50=round(greedy_us, 3),
        explored_us_p50=round(explored_us, 3),
        ratio=round(explored_us / greedy_us, 3),
    )
