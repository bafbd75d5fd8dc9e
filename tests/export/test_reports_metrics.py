"""Named measures against their textbook definitions, and counting over a grid."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quarl_export.reports.metrics import ErrorMeter, GridMeter

FLOATS = st.floats(-1e3, 1e3, allow_nan=False, width=32)


def measured(*pairs):
    meter = ErrorMeter()
    for a, b in pairs:
        meter.add(np.asarray(a, np.float64), np.asarray(b, np.float64))
    return meter.result()


def test_by_hand():
    errors = measured(([3.0, 4.0], [3.0, 2.0]))
    assert errors.max_abs_error == 2.0
    assert errors.mean_abs_error == 1.0
    assert errors.mse == 2.0
    assert errors.snr_db == pytest.approx(10 * math.log10(25 / 4))
    assert errors.cosine == pytest.approx(17 / (5 * math.sqrt(13)))


def test_equal_arrays_have_an_infinite_snr():
    errors = measured(([1.0, -2.0], [1.0, -2.0]))
    assert errors.snr_db == math.inf
    assert errors.cosine == pytest.approx(1.0)


def test_zeros():
    assert measured(([0.0], [0.0])).cosine == 1.0
    against = measured(([0.0], [1.0]))
    assert against.snr_db == -math.inf
    assert against.cosine == 0.0


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.just(4)), elements=FLOATS), st.integers(0, 2**32 - 1))
def test_rows_one_by_one_are_the_same_as_all_at_once(rows, seed):
    other = rows + np.random.default_rng(seed).normal(size=rows.shape)
    single, whole = measured(*zip(rows, other, strict=True)), measured((rows, other))
    for name in ("max_abs_error", "mean_abs_error", "mse", "snr_db", "cosine"):
        assert getattr(single, name) == pytest.approx(getattr(whole, name), rel=1e-9, abs=1e-12)


def grid(**changes):
    return GridMeter(**{"dtype": "int8", "scale": 0.5, "zero_point": 0, **changes})


def test_clipped_counts_what_rounding_cannot_bring_back():
    meter = grid()
    # The grid ends at 63.5 and -64; half a step more still rounds onto it.
    wanted = np.array([63.5, 63.74, 63.8, -64.2, -64.3, 0.0])
    meter.add(np.array([127, 127, 127, -128, -128, 0], np.int8), wanted)
    assert (meter.above, meter.below) == (1, 1)
    assert meter.clipped == pytest.approx(2 / 6)
    assert meter.at_limit == pytest.approx(5 / 6)


def test_a_relu_at_zero_is_not_at_a_limit():
    meter = grid(zero_point=-128)
    meter.add(np.array([-128, -128, 127], np.int8), np.array([0.0, 0.0, 127.5]))
    assert meter.at_limit == pytest.approx(1 / 3)
    assert meter.clipped == 0.0


def test_histograms_hold_every_value_once():
    meter = grid()
    stored = np.arange(-128, 128).astype(np.int8)
    meter.add(stored, stored * 0.5)
    assert meter.stored.tolist() == [1] * 256
    assert meter.wanted.tolist() == [1] * 256


def test_16_bits_are_counted_in_256_bins():
    meter = grid(dtype="int16")
    stored = np.array([-32768, -32768 + 255, 32767], np.int16)
    meter.add(stored, stored * 0.5)
    assert meter.stored[0] == 2
    assert meter.stored[255] == 1


def test_used_is_the_share_of_the_range_that_values_span():
    meter = grid(zero_point=-128, scale=1.0)
    meter.add(np.array([-128, -64], np.int8), np.array([0.0, 63.75]))
    assert meter.used == pytest.approx(0.25)
    assert grid().used == 0.0
