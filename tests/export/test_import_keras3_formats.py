"""One network in every format that Keras 3 writes: each is read, and acts as Keras 3 does."""

import functools
import json

import h5py
import keras as keras3
import numpy as np
import pytest
from keras import layers

from quarl_device.errors import ModelFileError, UnsafeSource, UnsupportedModel
from quarl_export.importers import import_policy
from quarl_export.ir import run_reference
from quarl_export.keras2 import tf
from quarl_export.silence import without_tensorflow_noise

# Keras 3's own way with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
FORMATS = ("keras", "h5", "savedmodel", "tflite")


def pixels():
    return keras3.Sequential([
        keras3.Input((12, 12, 2)),
        layers.Conv2D(4, 3, strides=2, use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(3),
    ])  # fmt: skip


def two_inputs():
    vector, image = keras3.Input((5,), name="vector"), keras3.Input((8, 8, 1), name="image")
    flat = layers.Flatten()(layers.MaxPooling2D(2)(layers.Conv2D(2, 3, activation="relu")(image)))
    joint = layers.Concatenate()([layers.Dense(6, activation="relu")(vector), flat])
    return keras3.Model([vector, image], layers.Dense(2, name="q_values")(joint))


def dueling():
    observation = keras3.Input((6,), name="observation")
    body = layers.Dense(12, activation="relu")(observation)
    value, advantage = layers.Dense(1)(body), layers.Dense(4)(body)
    centred = advantage - keras3.ops.mean(advantage, axis=1, keepdims=True)
    return keras3.Model(observation, (value + centred) * 2.0)


def nested():
    encoder = keras3.Sequential(
        [keras3.Input((8, 8, 1)), layers.Conv2D(2, 3), layers.BatchNormalization(), layers.Flatten()], name="encoder"
    )
    head = keras3.Sequential([keras3.Input((72,)), layers.Dense(5, activation="relu"), layers.Dense(2)], name="head")
    image = keras3.Input((8, 8, 1))
    return keras3.Model(image, head(encoder(image)))


def shared():
    observation, twice = keras3.Input((4,)), layers.Dense(4, activation="tanh")
    normalized = layers.Normalization(mean=1.0, variance=4.0)(observation)
    return keras3.Model(observation, layers.Dense(2)(twice(twice(normalized))))


NETWORKS = (pixels, two_inputs, dueling, nested, shared)


def randomized(model):
    rng = np.random.default_rng(7)
    for weight in model.weights:
        if "variance" in weight.path:
            weight.assign(rng.uniform(0.3, 2, weight.shape))
        elif weight.dtype == "float32":
            weight.assign(rng.normal(0, 0.4, weight.shape))
    return model


def write(model, kind, folder):
    path = folder / f"policy.{kind}"
    with without_tensorflow_noise():
        if kind in ("keras", "h5"):
            model.save(path)
        elif kind == "savedmodel":
            model.export(path, verbose=False)
        else:
            path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    return path


# Each SavedModel costs a process of its own: those two have the shape chains of a Flatten.
CASES = [(make, kind) for make in NETWORKS for kind in FORMATS if kind != "savedmodel" or make in (pixels, two_inputs)]


@functools.cache
def built(make):
    model = randomized(make())
    rng = np.random.default_rng(8)
    rows = [rng.normal(0, 1, (5, *tensor.shape[1:])).astype(np.float32) for tensor in model.inputs]
    return model, rows, np.asarray(model(rows if len(rows) > 1 else rows[0], training=False))


@pytest.mark.parametrize(("make", "kind"), CASES)
def test_every_format_acts_as_keras_3_does(make, kind, tmp_path):
    model, rows, expected = built(make)
    policy = import_policy(write(model, kind, tmp_path))
    named = dict(zip((tensor.name for tensor in model.inputs), rows, strict=True))
    given = {spec.key: named.get(spec.key, rows[0]) for spec in policy.contract.observations}
    assert len(given) == len(rows)
    (found,) = run_reference(policy, given).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def nested_h5(tmp_path):
    return write(randomized(nested()), "h5", tmp_path)


def test_an_h5_of_keras_3_says_who_saved_it(nested_h5):
    policy = import_policy(nested_h5)
    assert policy.provenance["source"] == "keras h5"
    assert policy.provenance["saved_by"] == f"Keras {keras3.__version__}"


def test_arrays_of_an_h5_that_cannot_be_told_apart_are_refused_with_the_way_out(nested_h5):
    with h5py.File(nested_h5, "r+") as file:
        group = file["model_weights/head"]
        names = [name.decode() if isinstance(name, bytes) else name for name in group.attrs["weight_names"]]
        twin = "other/" + names[0]
        group.create_dataset(twin, data=group[names[0]][()])
        group.attrs["weight_names"] = [*names, twin]
    with pytest.raises(ModelFileError, match=r"several layers have its name.*model\.save\('policy\.keras'\)"):
        import_policy(nested_h5)


def test_an_h5_of_keras_3_that_names_an_array_it_lacks_is_refused(nested_h5):
    with h5py.File(nested_h5, "r+") as file:
        group = file["model_weights/head"]
        name = group.attrs["weight_names"][0]
        del group[name]
    with pytest.raises(ModelFileError, match="no array of numbers"):
        import_policy(nested_h5)


def test_a_lambda_in_an_h5_of_keras_3_is_refused_before_anything_is_read(nested_h5):
    with h5py.File(nested_h5, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        config["config"]["layers"][1]["class_name"] = "Lambda"
        file.attrs["model_config"] = json.dumps(config)
    with pytest.raises(UnsafeSource, match="Lambda"):
        import_policy(nested_h5)


def test_a_slice_of_the_observation_is_no_shape_that_can_be_folded(tmp_path):
    observation = keras3.Input((6,))
    path = write(keras3.Model(observation, layers.Dense(2)(observation[:, :3])), "tflite", tmp_path)
    with pytest.raises(UnsupportedModel, match=r"STRIDED_SLICE.*key of its own"):
        import_policy(path)


def test_a_recurrent_saved_model_is_told_what_to_do_instead(tmp_path):
    model = keras3.Sequential([keras3.Input((5, 3)), layers.LSTM(4), layers.Dense(2)])
    with pytest.raises(UnsafeSource, match=r"TensorList.*stack frames"):
        import_policy(write(model, "savedmodel", tmp_path))
