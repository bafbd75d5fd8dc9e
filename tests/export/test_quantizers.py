from __future__ import annotations

import numpy as np
import pytest

from quarl_export.keras2 import tf
from quarl_export.quantizers import MIN_ACTIVATION_RANGE, MIN_WEIGHT_RANGE, RangeLayer, RangeQuantizer, WeightQuantizer


def range_layer(**options):
    layer = RangeLayer(RangeQuantizer(**options))
    layer.build((None, 3))
    return layer


def bounds(layer):
    return float(layer.quantizer.minimum), float(layer.quantizer.maximum)


def test_first_batch_is_taken_as_it_is():
    layer = range_layer()
    layer(tf.constant([[-0.1, 0.2, 0.7]]), training=True)
    assert bounds(layer) == (np.float32(-0.1), np.float32(0.7))


def test_average_is_a_debiased_moving_average():
    layer, decay = range_layer(decay=0.9), 0.9
    highs = [1.0, 3.0, 2.0, 5.0]
    average, weight = 0.0, 0.0
    for high in highs:
        layer(tf.constant([[0.0, 0.0, high]]), training=True)
        average, weight = decay * average + (1 - decay) * high, decay * weight + (1 - decay)
        assert bounds(layer)[1] == pytest.approx(average / weight, rel=1e-5)


def test_peak_opens_at_once_and_closes_slowly():
    layer = range_layer(decay=0.9, follow="peak")
    for high in (1.0, 10.0):
        layer(tf.constant([[0.0, 0.0, high]]), training=True)
    assert bounds(layer)[1] == 10.0
    layer(tf.constant([[0.0, 0.0, 1.0]]), training=True)
    assert 5.0 < bounds(layer)[1] < 10.0


@pytest.mark.parametrize("data", [[[2.0, 3.0, 4.0]], [[-4.0, -3.0, -2.0]], [[0.0, 0.0, 0.0]]])
def test_zero_is_inside_and_the_range_is_not_empty(data):
    layer = range_layer()
    for _ in range(3):
        layer(tf.constant(data), training=True)
    low, high = bounds(layer)
    assert low <= 0.0 <= high
    assert high - low >= np.float32(MIN_ACTIVATION_RANGE)


def test_ranges_rest_outside_of_training():
    layer = range_layer()
    before = bounds(layer)
    layer(tf.constant([[5.0, 6.0, 7.0]]), training=False)
    layer(tf.constant([[5.0, 6.0, 7.0]]))
    assert bounds(layer) == before


def test_weights_use_their_current_range():
    kernel = tf.constant([[1.0, -0.5], [0.25, 0.1]])
    for factor in (1.0, 0.1, 7.0):
        quantized = WeightQuantizer()(kernel * factor, False, {})
        step = factor / 127
        assert np.abs(quantized - kernel * factor).max() <= step * 0.5001
        assert float(quantized[0, 0]) == pytest.approx(factor)


def test_training_and_inference_quantize_weights_alike():
    kernel = tf.constant(np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32))
    np.testing.assert_allclose(WeightQuantizer()(kernel, True, {}), WeightQuantizer()(kernel, False, {}), atol=1e-6)


def test_every_weight_keeps_its_gradient():
    kernel = tf.Variable(np.random.default_rng(3).normal(size=(16, 8)).astype(np.float32))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(WeightQuantizer()(kernel, True, {}) * 2.0)
    assert np.array_equal(tape.gradient(loss, kernel), np.full((16, 8), 2.0))


def test_zero_weights_stay_zero():
    quantized = WeightQuantizer()(tf.zeros((3, 2)), False, {})
    assert not quantized.numpy().any()
    assert MIN_WEIGHT_RANGE > 0


def test_configs_say_how_to_build_them_again():
    quantizer = RangeQuantizer(bits=5, decay=0.5, follow="peak")
    assert RangeQuantizer(**quantizer.get_config()).get_config() == quantizer.get_config()
    assert WeightQuantizer(**WeightQuantizer(bits=3).get_config()).bits == 3
