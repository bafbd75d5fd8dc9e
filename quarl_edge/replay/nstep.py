"""n-step transitions from a stream of blocks: vectorised over time and environments.

Rules:

* A window starts at every valid row and takes n rows, or fewer when an episode ends within it.
* A window that ends in a termination does not bootstrap: its discount is 0.
* A window that ends in a truncation, or is n rows long, bootstraps from its true next observation with gamma^m.
* No window crosses a dummy row (`valid` false), a `start` without an end before it, a gap in the sequence or a new
  boot id: what would have come next is unknown, so the rows whose windows are unfinished there are dropped and counted.
* Rows whose windows are unfinished at a block's border wait for the device's next block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quarl_device.wire.block import Block
from quarl_edge.replay.transitions import Array, Transitions


@dataclass(frozen=True, eq=False, slots=True)
class _Tail:
    """The last rows of a stream whose windows may be unfinished.

    Attributes:
        boot_id: of the block that they came in.
        sequence: of that block.
        observation: [P, N, *shape].
        action: [P, N, ...].
        reward: float32[P, N].
        open: bool[P, N]: the row still waits. The open rows of an environment are the last ones of the P, so
            nothing that breaks a window lies between two of them.
    """

    boot_id: str
    sequence: int
    observation: Array
    action: Array
    reward: Array
    open: Array


@dataclass(frozen=True, eq=False, slots=True)
class _Rows:
    """A block's rows behind those of the tail before it, [L, N, ...].

    Attributes:
        before: rows that come from the tail.
        observation: [L, N, *shape].
        action: [L, N, ...].
        reward: float32[L, N].
        ends: bool[L, N]: an episode ends here.
        breaks: bool[L, N]: nothing continues into this row.
        live: bool[L, N]: a window starts here and has not been finished before.
        after: [L - before, N, *shape]: what truly followed each row of the block.
    """

    before: int
    observation: Array
    action: Array
    reward: Array
    ends: Array
    breaks: Array
    live: Array
    after: Array

    @classmethod
    def of(cls, block: Block, key: str, tail: _Tail | None) -> _Rows:
        observation, after = block.observation[key][:-1], true_next(block, key)
        ends, breaks = block.terminated | block.truncated, block.start | ~block.valid
        if tail is None:
            return cls(0, observation, block.action, block.reward, ends, breaks, block.valid, after)
        quiet = np.zeros(tail.open.shape, np.bool_)
        return cls(
            before=len(tail.reward),
            observation=np.concatenate((tail.observation, observation)),
            action=np.concatenate((tail.action, block.action)),
            reward=np.concatenate((tail.reward, block.reward)),
            ends=np.concatenate((quiet, ends)),
            breaks=np.concatenate((quiet, breaks)),
            live=np.concatenate((tail.open, block.valid)),
            after=after,
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Windows:
    """What became of the window of each row, [L, N].

    Attributes:
        total: float32, discounted sum of the rewards.
        steps: rows in it.
        done: it is finished.
        waiting: it needs rows of the next block.
    """

    total: Array
    steps: Array
    done: Array
    waiting: Array


class NStepAssembler:
    """Turns each device's blocks into n-step transitions.

    Args:
        n: steps of a full window, at least 1.
        discount: gamma per step, in [0, 1].
        key: observation key to take.
        max_streams: streams remembered; the one that was quiet for longest goes first.

    Attributes:
        dropped: rows that never became a transition, because what followed is unknown.
    """

    def __init__(self, n: int, discount: float, *, key: str = "observation", max_streams: int = 4_096) -> None:
        if n < 1:
            raise ValueError(f"n = {n}: expected at least 1")
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"discount = {discount}: expected 0..1")
        self._n = n
        self._key = key
        self._max_streams = max_streams
        self._powers = [np.float32(discount**i) for i in range(n + 1)]
        self._power_table = np.array(self._powers, np.float32)
        self._tails: dict[str, _Tail] = {}
        self.dropped = 0

    def push(self, stream: str, block: Block) -> Transitions:
        """Take the next block of `stream` and return every transition that it completes.

        Blocks must hold (`BlockCodec.decode` checks them) and come in the order in which they were accepted. The
        result may alias the block.
        """
        if self._n == 1:
            return self._one_step(block)
        rows = _Rows.of(block, self._key, self._continued(stream, block))
        windows = self._windows(rows)
        self.dropped += int(rows.live.sum()) - int(windows.done.sum()) - int(windows.waiting.sum())
        self._keep(stream, block, rows, windows.waiting)
        return self._gather(block, rows, windows)

    def _one_step(self, block: Block) -> Transitions:
        """Return the windows of one row: none waits for the next block, and most blocks lose no row."""
        seen = block.observation[self._key]
        after = true_next(block, self._key)
        reward, discount = block.reward.reshape(-1), self._powers[1] * ~block.terminated.reshape(-1)
        made = Transitions(_flat(seen[:-1]), _flat(block.action), reward, discount, _flat(after))
        # What follows a row that ends no episode must be its continuation.
        cut = (block.start[1:] | ~block.valid[1:]) & ~(block.terminated | block.truncated)[:-1]
        if not cut.any() and block.valid.all():
            return made
        done = block.valid.copy()
        done[:-1] &= ~cut
        self.dropped += int(block.valid.sum()) - int(done.sum())
        return made.picked(np.flatnonzero(done))

    def close(self, stream: str) -> None:
        """Drop the unfinished rows of `stream`: nothing continues it."""
        tail = self._tails.pop(stream, None)
        if tail is not None:
            self.dropped += int(tail.open.sum())

    def _continued(self, stream: str, block: Block) -> _Tail | None:
        tail = self._tails.get(stream)
        if tail is None:
            return None
        same_life = tail.boot_id == block.boot_id and tail.sequence + 1 == block.sequence
        if not same_life or tail.reward.shape[1] != block.num_envs:
            self.close(stream)
            return None
        return tail

    def _windows(self, rows: _Rows) -> _Windows:
        """Follow the windows of all rows at once, one step at a time."""
        n, length = self._n, len(rows.reward)
        open_ = rows.live & ~rows.ends
        done = rows.live & rows.ends
        total = rows.reward.copy()
        steps = np.ones(total.shape, np.intp)
        for i in range(1, min(n, length)):
            goes_on = open_[:-i] & ~rows.breaks[i:]
            total[:-i] += self._powers[i] * rows.reward[i:] * goes_on
            ended = goes_on & rows.ends[i:]
            done[:-i] |= ended
            open_[:-i] = goes_on & ~ended
            steps[:-i] += goes_on
        if length >= n:
            full = open_[: length - n + 1].copy()
            # The row after the window must follow it, or the window's next observation belongs to another episode.
            full[:-1] &= ~rows.breaks[n:]
            done[: length - n + 1] |= full
            open_[: length - n + 1] = False
        return _Windows(total=total, steps=steps, done=done, waiting=open_)

    def _keep(self, stream: str, block: Block, rows: _Rows, waiting: Array) -> None:
        """Remember the rows that wait for the next block."""
        self._tails.pop(stream, None)
        if not waiting.any():
            return
        first = max(0, len(waiting) - (self._n - 1))
        self._tails[stream] = _Tail(
            boot_id=block.boot_id,
            sequence=block.sequence,
            observation=rows.observation[first:].copy(),
            action=rows.action[first:].copy(),
            reward=rows.reward[first:].copy(),
            open=waiting[first:].copy(),
        )
        if len(self._tails) > self._max_streams:
            self.close(next(iter(self._tails)))

    def _gather(self, block: Block, rows: _Rows, windows: _Windows) -> Transitions:
        """Take the finished rows out of [L, N], in order of time, then of environment."""
        observation, action = _flat(rows.observation), _flat(rows.action)
        reward, after, terminated = windows.total.reshape(-1), _flat(rows.after), block.terminated.reshape(-1)
        if windows.done.all():
            steps = windows.steps.reshape(-1)
            last = np.arange(steps.size)
        else:
            last = np.flatnonzero(windows.done)
            observation, action, reward = observation[last], action[last], reward[last]
            steps = windows.steps.reshape(-1)[last]
        # Every window that finishes now has its last row in this block, not in the tail before it.
        last = last + (steps - 1 - rows.before) * block.num_envs
        discount = self._power_table[steps]
        discount[terminated[last]] = 0
        return Transitions(observation, action, reward, discount, after[last])


def true_next(block: Block, key: str) -> Array:
    """Return what truly followed each row, [T, N, *shape]."""
    after = block.observation[key][1:]
    if len(block.final_index):
        after = after.copy()
        after[block.final_index[:, 0], block.final_index[:, 1]] = block.final_observation[key]
    return after


def _flat(array: Array) -> Array:
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
