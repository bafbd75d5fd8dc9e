"""The converter gets a function, not Keras layers: the file is the same, byte for byte."""

import warnings

import numpy as np
import pytest
from export_factory import make_spec

from quarl_device.errors import ConversionError
from quarl_export import converter
from quarl_export.converter import ConverterSettings, convert, convert_with
from quarl_export.graph import with_fixed_batch
from quarl_export.keras2 import keras, tf
from quarl_export.qat import QatPolicy
from quarl_export.silence import without_tensorflow_noise


def keras_way(model, *, optimize):
    with warnings.catch_warnings(), without_tensorflow_noise():
        warnings.filterwarnings("ignore", message="Statistics for quantized inputs")
        theirs = tf.lite.TFLiteConverter.from_keras_model(model)
        theirs.exclude_conversion_metadata = True
        if optimize:
            theirs.optimizations = [tf.lite.Optimize.DEFAULT]
        return with_fixed_batch(bytes(theirs.convert()))


def make_policy():
    rows = np.random.default_rng(0).uniform(-1, 1, (64, 4)).astype(np.float32)
    policy = QatPolicy(make_spec(inputs=4, hidden=(8, 8)), normalize=True)
    policy.calibrate(rows)
    return policy


def two_ends():
    left, right = keras.Input((3,), name="left"), keras.Input((2,), name="right")
    hidden = keras.layers.Dense(5, activation="relu", name="hidden")(keras.layers.Concatenate()([left, right]))
    return keras.Model([left, right], [keras.layers.Dense(2, name="mean")(hidden), hidden], name="policy")


def test_a_network_in_training_makes_the_file_that_keras_would_save():
    policy = make_policy()
    assert convert(policy) == keras_way(policy.export_model, optimize=True)


def test_several_inputs_and_outputs_keep_their_names_and_order():
    model = two_ends()
    assert convert_with(model, ConverterSettings(weights="float32")) == keras_way(model, optimize=False)


def test_outputs_in_a_dict_are_named_as_keras_names_them():
    model = two_ends()
    named = keras.Model(dict(zip("ab", model.inputs, strict=True)), dict(zip("yx", model.outputs, strict=True)))
    assert convert_with(named, ConverterSettings(weights="float32")) == keras_way(named, optimize=False)


def test_what_cannot_be_saved_is_one_error(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(ConversionError, match=r"could not convert the policy: .*No space left"):
        convert(make_policy())


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(converter.tempfile, "tempdir", str(tmp_path))
    convert(make_policy())
    assert not list(tmp_path.iterdir())
    assert np.frombuffer(convert(make_policy()), np.uint8).size > 1_000
