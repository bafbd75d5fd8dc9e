"""Which frames of a block make which stack: the learner's side of frames that travel once.

A block carries T+stack frames of each environment: those that the policy saw before the first row's, then one a row,
then the one after. `stack_places` says by place which of them the policy saw at every row, so that whoever keeps frames
decides where: beside each other for once (`restacked`), or in a ring (`quarl_edge.replay.frames`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec
from quarl_device.frame_stack import input_shape
from quarl_device.wire.block import Block

Array = NDArray[Any]
Places = NDArray[np.int64]


def frames_of(block: Block, key: str) -> tuple[Array, Array]:
    """Return the frames of a block, [(T + stack) * N, *shape] by row, then environment; final ones [K, *shape]."""
    frames = block.observation[key]
    return frames.reshape(-1, *frames.shape[2:]), block.final_observation[key]


def laid_out(block: Block, key: str) -> Array:
    """Return them laid end to end."""
    return np.concatenate(frames_of(block, key))


def stack_places(block: Block, seen: ObservationSpec) -> tuple[Places, Places]:
    """Return the places in `laid_out` of the frames of every stack, oldest first.

    From an episode's start on, its first frame stands for those before it (`quarl_device.frame_stack`).

    Args:
        block: with frames of the key as they travel.
        seen: the key.

    Returns:
        int64[T + 1, N, stack] of the rows and what lies after them, int64[K, stack] of the final observations.
    """
    depth, (steps, envs) = seen.stack, block.start.shape
    # Frame t + depth - 1 is that of row t.
    row = np.arange(steps + 1)
    begun = np.where(block.start, row[:-1, None] + depth - 1, 0)
    begun = np.maximum.accumulate(np.concatenate((begun, np.zeros((1, envs), np.int64))), axis=0)
    frame = np.maximum(row[:, None, None] + np.arange(depth), begun[..., None])
    places = frame * envs + np.arange(envs)[:, None]
    last = (steps + depth) * envs + np.arange(len(block.final_index))
    before = places[block.final_index[:, 0], block.final_index[:, 1], 1:]
    return places, np.concatenate((before, last[:, None]), axis=1)


def by_frame(stacks: Array, seen: ObservationSpec) -> Array:
    """Return a view [stack, *lead, *shape] of the frames in stacks as a network sees them, [*lead, *`input_shape`]."""
    lead = stacks.shape[: stacks.ndim - len(input_shape(seen))]
    if len(input_shape(seen)) > len(seen.shape):  # an image without channels: frames become them
        return np.moveaxis(stacks, -1, 0)
    return np.moveaxis(stacks.reshape(*lead, *seen.shape[:-1], seen.stack, seen.shape[-1]), -2, 0)


def fill_stacks(stacks: Array, frames: Array, places: Places, seen: ObservationSpec) -> None:
    """Write the frames [count, *shape] at `places` [*lead, stack] into `stacks` [*lead, *`input_shape`].

    Frame by frame: they lie element beside element in a stack, and numpy's inner loops would be as short as that.
    """
    for depth, target in enumerate(by_frame(stacks, seen)):
        target[...] = frames[places[..., depth]]


def as_seen(observations: Array, seen: ObservationSpec) -> Array:
    """Return observations [count, *shape], or stacks [count, stack, *shape], as a network sees them."""
    if not is_restacked(seen):
        return observations
    frames = observations.reshape(len(observations), seen.stack, *seen.shape)
    stacks = np.empty((len(frames), *input_shape(seen)), frames.dtype)
    by_frame(stacks, seen)[...] = np.moveaxis(frames, 1, 0)
    return stacks


def is_restacked(seen: ObservationSpec) -> bool:
    """Whether a network sees an observation otherwise than it travels."""
    return input_shape(seen) != seen.shape


def with_places(block: Block, seen: ObservationSpec, *, base: int = 0) -> Block:
    """Return `block` with the places of their frames, `base` added, instead of observations."""
    rows, finals = stack_places(block, seen)
    return dataclasses.replace(block, observation={seen.key: rows + base}, final_observation={seen.key: finals + base})


def restacked(block: Block, seen: ObservationSpec) -> Block:
    """Return `block` with observations [T + 1, N, ...] and final ones [K, ...] as a network sees them."""
    if not is_restacked(seen):
        return block
    frames, found = laid_out(block, seen.key), []
    for places in stack_places(block, seen):
        stacks = np.empty((*places.shape[:-1], *input_shape(seen)), frames.dtype)
        fill_stacks(stacks, frames, places, seen)
        found.append(stacks)
    rows, finals = found
    return dataclasses.replace(block, observation={seen.key: rows}, final_observation={seen.key: finals})
