"""Stacked frames: the rule, the ring that must equal it, and what a first frame has before it."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import ObservationSpec
from quarl_device.errors import ContractError
from quarl_device.frame_stack import FrameHistory, fill_frame, restack


def spec(shape=(2,), stack=3, **fields):
    return ObservationSpec(key="observation", shape=shape, stack=stack, **fields)


def frame(number, shape=(2,)):
    return np.full(shape, number, np.float32)


@pytest.mark.parametrize(("fill", "before"), [(None, 7.0), ((0.0,), 0.0), ((-2.5,), -2.5)])
def test_an_episode_begins_with_its_fill(fill, before):
    given_spec = spec(stack_fill=fill)
    first = restack(given_spec, None, frame(7))
    assert first[:, 0].tolist() == [before, before, 7]
    second = restack(given_spec, first, frame(8))
    assert second[:, 0].tolist() == [before, 7, 8]
    assert restack(given_spec, restack(given_spec, second, frame(9)), frame(10))[:, 1].tolist() == [8, 9, 10]


def test_a_fill_may_differ_from_element_to_element():
    made = fill_frame(spec((2, 2), stack_fill=(1.0, 2.0, 3.0, 4.0), dtype="uint8"))
    assert made.dtype == np.uint8
    assert made.tolist() == [[1, 2], [3, 4]]
    assert fill_frame(spec((), stack_fill=(5.0,))).shape == ()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", 0.5),
        ("uint8", -1.0),
        ("uint8", 256.0),
        ("int8", 128.0),
        ("bool", 2.0),
        ("int64", 2.0**63),
        ("float32", 1e39),
    ],
)
def test_a_fill_that_the_observation_does_not_hold(dtype, value):
    with pytest.raises(ContractError, match=f"{dtype} does not hold the stack_fill"):
        fill_frame(spec(dtype=dtype, stack_fill=(value,)))


@given(st.integers(2, 5), st.integers(1, 3), st.none() | st.just((-1.0,)), st.data())
def test_the_ring_is_the_rule(depth, envs, fill, data):
    """Whichever environments begin whenever."""
    given_spec = spec((2, 1), stack=depth, stack_fill=fill)
    history = FrameHistory(depth=depth, envs=envs, shape=(2, 1), dtype=np.dtype("float32"), fill=fill_frame(given_spec))
    stacks = [None] * envs
    for step in range(1, 12):
        starts = np.array(data.draw(st.lists(st.booleans(), min_size=envs, max_size=envs)))
        if step > 1 and starts.all() and data.draw(st.booleans()):
            history.begin()
        else:
            history.begin(starts)
        frames = np.arange(envs * 2, dtype=np.float32).reshape(envs, 2, 1) + 100 * step
        history.latest[...] = frames
        found = history.windows[history.push()]
        stacks = [restack(given_spec, None if start else before, f)
                  for before, start, f in zip(stacks, starts, frames, strict=True)]  # fmt: skip
        np.testing.assert_array_equal(found, np.stack(stacks, 1))


def test_a_start_that_is_said_twice_is_one():
    history = FrameHistory(depth=2, envs=2, shape=(), dtype=np.dtype("float32"), fill=None)
    history.begin(np.array([True, False]))
    history.begin(np.array([False, False]))
    history.latest[...] = [1, 2]
    assert history.windows[history.push()].tolist() == [[1, 2], [1, 2]]
    history.begin(np.array([False, True]))
    history.latest[...] = [3, 4]
    assert history.windows[history.push()].tolist() == [[1, 4], [3, 4]]


def test_frames_are_kept_in_the_same_memory():
    history = FrameHistory(depth=4, envs=8, shape=(84, 84, 1), dtype=np.dtype("uint8"), fill=None)
    history.push()
    tracemalloc.start()
    try:
        for _ in range(10):
            history.begin(np.arange(8) % 2 == 0)
            history.push()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4096


def test_a_stack_without_a_fill_is_what_it_was():
    assert dataclasses.replace(spec(), stack_fill=None) == spec()
    assert fill_frame(spec()) is None
