"""Rounds of rollouts: every actor's rows made by one policy version, used once.

A round is open for one version. Rows of an older one are late: they are counted and left out, since a stochastic policy
is learned from what it did itself. A round is whole when so many streams have all of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quarl_device.wire.block import Block, BlockSpec
from quarl_edge.replay.nstep import true_next
from quarl_edge.replay.stacking import restacked
from quarl_edge.replay.transitions import Array, single_observation


@dataclass(frozen=True, eq=False, slots=True)
class Rollout:
    """One whole round, by time and environment.

    Attributes:
        observation: [T, N, *shape], dtype as on the wire; stacked as the policy saw it.
        action: [T, N, ...], dtype as on the wire.
        reward: float32[T, N].
        next_observation: [T, N, *shape], what truly followed, an episode's last observation included.
        terminated: bool[T, N].
        ended: bool[T, N], terminated or truncated, or what followed is unknown.
        valid: bool[T, N], false for rows that were no step.
        extra: [T, N, ...] by name, such as the log probability of the action when it was taken.
    """

    observation: Array
    action: Array
    reward: Array
    next_observation: Array
    terminated: Array
    ended: Array
    valid: Array
    extra: Mapping[str, Array]

    @property
    def steps(self) -> int:
        """Environment steps in it."""
        return int(np.count_nonzero(self.valid))


class RolloutStore:
    """Collects one round at a time. Not thread-safe: the ingest's lock guards it.

    Args:
        spec: of the blocks.
        round_steps: T, rows of every stream.
        streams: that make a round.

    Attributes:
        version: of the policy whose round is open; 0 before the first.
        inserted: rows times environments taken into rounds so far, dummy rows left out.
        late: those of older versions, left out.
    """

    def __init__(self, spec: BlockSpec, *, round_steps: int, streams: int) -> None:
        self._seen = single_observation(spec.observations)
        self._extras = tuple(extra.name for extra in spec.extras)
        self._round_steps = round_steps
        self._streams = streams
        self._parts: dict[str, list[Rollout]] = {}
        self._life: dict[str, tuple[str, int]] = {}
        self._epoch = 0
        self.version = 0
        self.inserted = 0
        self.late = 0

    def begin(self, epoch: int, version: int) -> None:
        """Open the round of a policy version; what came for an older one is forgotten and counted as late."""
        self.late += sum(part.steps for parts in self._parts.values() for part in parts)
        self._parts.clear()
        self._life.clear()
        self._epoch, self.version = epoch, version

    def push(self, stream: str, block: Block) -> int:
        """Take the rows of a block that belong to the open round; returns how many steps were taken."""
        rows = np.flatnonzero((block.policy_version == self.version) & (block.policy_epoch == self._epoch))
        room = self._round_steps - self._rows(stream)
        taken = rows[: max(0, room)]
        if not self._continues(stream, block):
            # Rows of a life that ended, or before a gap: the round of this stream begins anew.
            self.late += sum(part.steps for part in self._parts.pop(stream, []))
            taken = rows[: self._round_steps]
        self._life[stream] = (block.boot_id, block.sequence)
        self.late += int(block.valid.sum()) - int(block.valid[taken].sum())
        if not taken.size:
            return 0
        part = self._part(block, taken)
        self._parts.setdefault(stream, []).append(part)
        self.inserted += part.steps
        return part.steps

    @property
    def whole(self) -> bool:
        """Whether the open round has all of its rows."""
        return len(self._complete()) >= self._streams

    def why_blocked(self) -> str:
        """Say what the round waits for, "" where it is whole."""
        done = len(self._complete())
        return "" if done >= self._streams else f"{done} of {self._streams} rollouts of version {self.version} are here"

    def take(self) -> Rollout:
        """Return the whole round, streams in order of name, and close it.

        Raises:
            ValueError: it is not whole.
        """
        names = self._complete()[: self._streams]
        if len(names) < self._streams:
            raise ValueError(f"take() of a round that is not whole: {self.why_blocked()}")
        streams = [_joined(self._parts[name], axis=0) for name in names]
        self._parts.clear()
        return _joined(streams, axis=1)

    def _complete(self) -> list[str]:
        return sorted(name for name in self._parts if self._rows(name) == self._round_steps)

    def _rows(self, stream: str) -> int:
        return sum(len(part.reward) for part in self._parts.get(stream, ()))

    def _continues(self, stream: str, block: Block) -> bool:
        known = self._life.get(stream)
        return known is None or known == (block.boot_id, block.sequence - 1)

    def _part(self, block: Block, rows: Array) -> Rollout:
        block, key = restacked(block, self._seen), self._seen.key
        ended = block.terminated | block.truncated
        # What follows a row without being its continuation is unknown: no advantage flows over that border.
        ended[:-1] |= block.start[1:] | ~block.valid[1:]
        return Rollout(
            observation=block.observation[key][:-1][rows].copy(),
            action=block.action[rows].copy(),
            reward=block.reward[rows].copy(),
            next_observation=true_next(block, key)[rows].copy(),
            terminated=block.terminated[rows].copy(),
            ended=ended[rows],
            valid=block.valid[rows].copy(),
            extra={name: block.extra[name][rows].copy() for name in self._extras},
        )


def _joined(parts: list[Rollout], *, axis: int) -> Rollout:
    if len(parts) == 1:
        return parts[0]
    names = ("observation", "action", "reward", "next_observation", "terminated", "ended", "valid")
    arrays = {name: np.concatenate([getattr(part, name) for part in parts], axis) for name in names}
    extras = {name: np.concatenate([part.extra[name] for part in parts], axis) for name in parts[0].extra}
    return Rollout(**arrays, extra=extras)
