"""The rounding rules against the plainest way to say them; `test_template` holds them against the converter."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from graph_factory import snapped
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import NonFiniteError, PatchError
from quarl_export.arithmetic import BIAS_LIMIT, activation_quantization, channel_scales, quantize_channels, widened_low
from quarl_export.ir import Layer
from quarl_export.kernels import as_channels, as_rows, file_shape, layer_scales, write_kernel
from quarl_export.range_plan import QuantizationOptions

DENSE = Layer(name="d", kind="dense", inputs=("x",))
CONV = Layer(name="c", kind="conv2d", inputs=("x",))
DEPTHWISE = Layer(name="w", kind="depthwise_conv2d", inputs=("x",))


def random_kernel(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def written(layer, kernel, scales):
    target = np.zeros(file_shape(layer, kernel.shape), np.int8)
    write_kernel(layer, kernel, scales, as_channels(layer, target), scratch={})
    return target


def half_away(value: Fraction) -> int:
    return int(math.copysign(math.floor(abs(value) + Fraction(1, 2)), value))


@given(seed=st.integers(0, 2**20), magnitude=st.integers(-6, 20), steps=st.booleans())
def test_channels_are_rounded_half_away_from_zero(seed, magnitude, steps):
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(20, 3)).astype(np.float32) * np.float32(10.0**magnitude)
    if steps:  # many exact halves
        kernel = (rng.integers(-254, 255, (20, 3)) / 2).astype(np.float32)
        kernel[0] = 127.0
    scales, _ = channel_scales(np.abs(kernel).max(axis=0), None, 0.01)
    found = quantize_channels(kernel, scales, np.empty_like(kernel), np.empty_like(kernel))
    for row, channel in np.ndindex(kernel.shape):
        quotient = Fraction(float(kernel[row, channel]) / float(scales[channel]))
        assert found[row, channel] == half_away(quotient)


@given(kernel=st.floats(0, 1e6, width=32), bias=st.floats(-1e6, 1e6, width=32), source=st.floats(1e-6, 1e3))
def test_a_bias_always_fits_its_channel(kernel, bias, source):
    limits, biases = np.array([kernel], np.float32), np.array([bias], np.float32)
    scales, bias_scales = channel_scales(limits, biases, source)
    assert abs(bias) / bias_scales[0] <= BIAS_LIMIT * (1 + 1e-12)
    assert scales[0] >= float(limits[0]) / 127 * (1 - 1e-12)


def test_a_bias_opens_the_weights_of_a_layer_or_is_refused():
    kernel, bias = np.full((2, 2), 1e-6, np.float32), np.array([0.0, 9.0], np.float32)
    scales = layer_scales(DENSE, kernel, bias, 1e-3, options=QuantizationOptions())
    assert abs(9.0 / scales.bias[0]) <= BIAS_LIMIT + 1
    fixed = QuantizationOptions(bias_opens_weights=False)
    with pytest.raises(PatchError, match="int32"):
        snapped(DENSE, kernel, bias, 1e-5, options=fixed)


@pytest.mark.parametrize(
    ("layer", "shape", "permutation"),
    [
        (DENSE, (5, 7), (1, 0)),
        (CONV, (3, 2, 4, 6), (3, 0, 1, 2)),
        (CONV, (1, 1, 1, 1), (3, 0, 1, 2)),
    ],
)
@pytest.mark.parametrize("per_channel", [False, True])
def test_kernels_are_laid_out_as_tflite_lays_them_out(layer, shape, permutation, per_channel):
    kernel = random_kernel(*shape)
    scales = layer_scales(layer, kernel, None, 0.1, options=QuantizationOptions(per_channel=per_channel))
    real = written(layer, kernel, scales) * scales.kernel.reshape(-1, *([1] * (len(shape) - 1)))
    np.testing.assert_allclose(real, kernel.transpose(permutation), atol=scales.kernel.max() / 2 * 1.001)


def test_depthwise_channels_are_input_times_multiplier():
    kernel = random_kernel(3, 2, 4, 2)
    scales = layer_scales(DEPTHWISE, kernel, None, 0.1, options=QuantizationOptions())
    data = written(DEPTHWISE, kernel, scales)
    assert data.shape == (1, 3, 2, 8)
    np.testing.assert_allclose(data[0] * scales.kernel, kernel.reshape(3, 2, 8), atol=scales.kernel.max() / 2 * 1.001)


@pytest.mark.parametrize("per_channel", [False, True])
def test_blocks_change_nothing(monkeypatch, per_channel):
    kernel = random_kernel(37, 53)
    scales = layer_scales(DENSE, kernel, None, 0.1, options=QuantizationOptions(per_channel=per_channel))
    whole = written(DENSE, kernel, scales)
    monkeypatch.setattr("quarl_export.kernels._BLOCK_WEIGHTS", 37 * 10)
    np.testing.assert_array_equal(written(DENSE, kernel, scales), whole)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_bits_bound_the_steps_and_reach_them(bits, per_channel):
    options = QuantizationOptions(weight_bits=bits, per_channel=per_channel)
    kernel = random_kernel(30, 4)
    scales = layer_scales(DENSE, kernel, None, 0.1, options=options)
    assert np.abs(written(DENSE, kernel, scales).astype(int)).max() == 2 ** (bits - 1) - 1


@pytest.mark.parametrize("bits", [2, 4, 7])
def test_a_relu_has_exactly_its_levels(bits):
    found = activation_quantization(widened_low(3.0, bits), 3.0)
    assert 127 - found.zero_point + 1 == 2**bits
    assert (127 - found.zero_point) * found.scale == pytest.approx(3.0)


@pytest.mark.parametrize("layer", [DENSE, CONV, DEPTHWISE])
@pytest.mark.parametrize("per_channel", [False, True])
def test_snapping_twice_is_snapping_once(layer, per_channel):
    kernel = random_kernel(6, 5) if layer is DENSE else random_kernel(2, 2, 3, 4)
    bias = random_kernel(as_rows(layer, kernel).shape[1], seed=1)
    options = QuantizationOptions(per_channel=per_channel)
    once = snapped(layer, kernel, bias, 0.02, options=options)
    twice = snapped(layer, once[0], once[1], 0.02, options=options)
    np.testing.assert_allclose(twice[0], once[0], rtol=1e-6)
    np.testing.assert_allclose(once[1], bias, atol=1e-3)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_are_named(per_channel, bad):
    options = QuantizationOptions(per_channel=per_channel)
    kernel, bias = random_kernel(4, 3), random_kernel(3)
    broken = kernel.copy()
    broken[2, 1] = bad
    with pytest.raises(NonFiniteError, match="d/kernel"):
        layer_scales(DENSE, broken, bias, 0.1, options=options)
    bias[1] = bad
    with pytest.raises(NonFiniteError, match="d/bias"):
        layer_scales(DENSE, kernel, bias, 0.1, options=options)


@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_beyond_float32_arithmetic_are_refused(per_channel):
    options = QuantizationOptions(per_channel=per_channel)
    with pytest.raises(PatchError, match="weights"):
        layer_scales(DENSE, random_kernel(4, 3) * np.float32(1e35), None, 0.1, options=options)
