from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quarl_device.errors import PatchError
from quarl_export.arithmetic import (
    activation_quantization,
    quantize_bias,
    quantize_kernel,
    snap_bias,
    weight_limit,
    weight_scale,
)
from quarl_export.keras2 import tf

KERNELS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(-3, 3, width=32, allow_subnormal=False),
)


@given(kernel=KERNELS)
@settings(deadline=None, max_examples=60)
def test_kernel_steps_are_tensorflows_fake_quant(kernel):
    """TF's own op is the oracle: what it gives, divided by the scale, is what the converter stores."""
    limit = weight_limit(kernel, floor=1e-4)
    steps = quantize_kernel(kernel, limit, np.empty_like(kernel))
    fake = tf.quantization.fake_quant_with_min_max_vars(kernel, -limit, limit, num_bits=8, narrow_range=True).numpy()
    assert np.array_equal(steps, np.rint(fake.astype(np.float64) / weight_scale(limit)))
    assert np.abs(steps).max() <= 127


@given(kernel=KERNELS)
def test_kernel_steps_are_within_half_a_step(kernel):
    limit = weight_limit(kernel, floor=1e-4)
    steps = quantize_kernel(kernel, limit, np.empty_like(kernel))
    assert np.abs(steps * weight_scale(limit) - kernel).max() <= weight_scale(limit) * 0.5001


def test_zero_kernel_has_a_floor():
    kernel = np.zeros((3, 2), np.float32)
    limit = weight_limit(kernel, floor=1e-4)
    assert limit == np.float32(1e-4)
    assert not quantize_kernel(kernel, limit, np.empty_like(kernel)).any()


@given(low=st.floats(-100, 0, width=32), width=st.floats(0.001953125, 1000, width=32))
def test_activation_range_maps_zero_and_both_ends(low, width):
    high = float(np.float32(max(low + width, 0.0)))
    quantization = activation_quantization(low, high)
    scale, zero = quantization.scale, quantization.zero_point
    assert -128 <= zero <= 127
    assert abs((-128 - zero) * scale - low) <= scale
    assert abs((127 - zero) * scale - high) <= scale


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.0), (0.5, 1.0), (-2.0, -1.0), (1.0, -1.0), (np.nan, 1.0), (0.0, np.nan)]
)
def test_activation_ranges_that_are_none_are_refused(low, high):
    with pytest.raises(PatchError, match="range"):
        activation_quantization(low, high)


def test_bias_that_does_not_fit_int32_is_refused():
    bias = np.array([1.0, -20.0], np.float32)
    assert quantize_bias(bias, 1e-8).tolist() == [1e8, -2e9]
    with pytest.raises(PatchError, match="int32"):
        quantize_bias(bias, 1e-9)


@given(bias=st.floats(-10, 10, width=32), scale=st.floats(1e-6, 1e-2))
def test_snapping_a_bias_is_idempotent(bias, scale):
    once = snap_bias(np.array([bias], np.float32), scale)
    assert np.array_equal(snap_bias(once, scale), once)
    assert abs(float(once[0]) - bias) <= scale * 0.5 + 1e-6
