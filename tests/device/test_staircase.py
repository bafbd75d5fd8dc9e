"""Few numbers are quantized by bisection: the same integers as by the rule, on every edge and beside it."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device import fillers
from quarl_device.contract import ObservationSpec
from quarl_device.fillers import Filler
from quarl_device.preprocess import MIN_SCALE, InputBinding, to_tensor
from quarl_device.staircase import MOST_NUMBERS, edges, stair_encoder


def bound(shape=(4,), dtype="float32", stored="int8", scale=0.02, zero_point=3, **fields):
    spec = ObservationSpec(key="observation", shape=shape, dtype=dtype)
    return InputBinding(
        spec=spec, shape=shape, dtype=np.dtype(stored), scale=scale, zero_point=zero_point,
        **{name: np.asarray(part, np.float32) if name != "clip" else part for name, part in fields.items()},
    )  # fmt: skip


SCALES = st.sampled_from([1 / 255, 0.02, 1.0, 7.3, 1e-30, 1e30, 1.2e-38, float(np.finfo(np.float32).max)])
NORMALIZERS = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "offset": st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4),
            "factor": st.lists(st.floats(2.0**-20, 2.0**20, width=32), min_size=4, max_size=4),
        },
        optional={"clip": st.floats(0.01, 20.0)},
    ),
)


def beside(values):
    """Values in float32 with their neighbours on both sides."""
    values = np.asarray(values, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return _beside(values)


def _beside(values):
    return np.concatenate([values, *(np.nextafter(values, np.float32(side)) for side in (-np.inf, np.inf))])


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([("int8", -128), ("int8", 0), ("int8", 127), ("uint8", 0), ("uint8", 77)]), SCALES, NORMALIZERS)
def test_on_every_edge_and_beside_it_the_stairs_are_the_rule(store, scale, normalizer):
    binding = bound(stored=store[0], scale=scale, zero_point=store[1], **normalizer)
    into = np.zeros((4,), binding.dtype)
    encode = stair_encoder(binding, into)
    largest = np.finfo(np.float32).max
    for column, stairs in enumerate(edges(binding)):
        values = beside([*stairs, 0.0, 1.0, -300.0, 1e-42])
        values = np.concatenate([values, np.float32([-0.0, largest, -largest, np.inf, -np.inf])])
        rows = np.zeros((len(values), 4), np.float32)
        rows[:, column] = values
        with np.errstate(over="ignore", under="ignore"):
            wanted = to_tensor(binding, rows)
        found = []
        for row in rows:
            encode(row)
            found.append(into.copy())
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8", "bool"])
def test_observations_of_other_types_are_brought_to_float32_first(dtype):
    """0.3 lies above float32's 0.3, so the type decides on which side of an edge there it falls."""
    binding = bound(dtype=dtype, scale=float(np.float32(0.6)), zero_point=0)
    filler = Filler(binding)
    for values in ([0.3, 0.9, -0.3, 100], [1, 0, 200, 7]):
        observation = np.asarray(values).astype(dtype)
        filler.fill(observation)
        assert filler.buffer.tolist() == to_tensor(binding, observation[None]).tolist()


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (MOST_NUMBERS,)])
def test_every_shape_of_few_numbers(shape):
    binding = bound(shape=shape, offset=1.0, factor=2.0, clip=1.5)
    binding = InputBinding(**{**vars(binding), "shape": shape or (1,)})
    observation = np.random.default_rng(0).normal(1, 1, shape).astype(np.float32)
    filler = Filler(binding)
    filler.fill(observation)
    assert filler.buffer.tolist() == to_tensor(binding, observation[None]).tolist()


@pytest.mark.parametrize("store", ["int8", "uint8"])
@pytest.mark.parametrize("normalizer", [{}, {"offset": [1.0] * 4, "factor": [2.0] * 4, "clip": 0.5}])
def test_nan_is_what_the_rule_makes_of_it_and_so_is_what_lies_beside_it(store, normalizer):
    """Infinities of both signs add up to NaN as well, and are numbers all the same."""
    nan, inf = np.nan, np.inf
    for zero_point in (0, 100):
        binding = bound(stored=store, zero_point=zero_point, **normalizer)
        filler = Filler(binding)
        for row in (
            [nan] * 4,
            [nan, 1.0, -1.0, 0.3],
            [0.2, 0.1, 0.0, nan],
            [inf, -inf, 0.1, 3.0],
            [0.1, 0.2, 0.3, 0.4],
        ):
            observation = np.float32([row])
            with np.errstate(invalid="ignore"):
                wanted = to_tensor(binding, observation)
            filler.fill(observation[0])
            assert filler.buffer.tolist() == wanted.tolist()


def test_an_integer_behind_the_clip_has_no_edge():
    """±1 of ±128 steps of 0.1: 20 edges from -10 to 10, though 255 are in the type."""
    [stairs] = edges(bound(shape=(1,), scale=0.1, zero_point=0, offset=0.0, factor=1.0, clip=1.0))
    assert len([edge for edge in stairs if np.isfinite(edge)]) == 20


@pytest.mark.parametrize(
    "binding",
    [
        bound(shape=(MOST_NUMBERS + 1,)),
        bound(stored="int16"),
        bound(scale=MIN_SCALE),
        bound(offset=[0.0] * 4, factor=[1.0, -1.0, 1.0, 1.0]),
        bound(offset=[0.0] * 4, factor=[1.0, 0.0, 1.0, 1.0]),
        bound(offset=[0.0] * 4, factor=[1.0, float("nan"), 1.0, 1.0]),
    ],
)
def test_what_is_many_or_no_staircase_goes_another_way(binding):
    into = np.zeros(binding.shape, binding.dtype)
    assert stair_encoder(binding, into) is None


def test_a_view_with_gaps_goes_another_way():
    assert stair_encoder(bound(), np.zeros((8,), np.int8)[::2]) is None


def test_a_small_batch_is_filled_by_the_same_stairs(monkeypatch):
    monkeypatch.setattr(fillers, "_integer_encoder", lambda binding, into: pytest.fail("not by bisection"))
    binding = bound(offset=[0.0, 1.0, 2.0, 3.0], factor=[1.0, 2.0, 3.0, 4.0])
    rows = np.random.default_rng(1).normal(1, 1, (2, 4)).astype(np.float32)
    filler = Filler(binding, batch_size=2)
    filler.fill(rows)
    assert filler.buffer.tolist() == to_tensor(binding, rows).tolist()


def test_what_no_float32_holds_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        edges(bound(scale=1e-38, offset=[3e38] * 4, factor=[1e30] * 4))
