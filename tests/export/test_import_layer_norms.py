"""LayerNormalizations that a source holds as single operators are read as layers, in whatever order these come."""

from types import SimpleNamespace

import keras as keras3
import numpy as np
import pytest

from quarl_device.errors import ConversionError, UnsupportedModel
from quarl_export.calibration import CalibrationData
from quarl_export.describe import layer_rows
from quarl_export.importers import import_policy
from quarl_export.importers.layer_norms import find_layer_norms
from quarl_export.ir import run_reference
from quarl_export.keras2 import keras, tf
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.schemes import SchemeOptions
from quarl_export.silence import without_tensorflow_noise

# Keras 3's own way with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
ROWS = np.random.default_rng(3).normal(0, 1, (6, 4)).astype(np.float32)


def randomized(model):
    rng = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(rng.normal(0.3, 0.6, weight.shape).astype(np.float32))
    return model


def network(kind):
    """Norms behind a ReLU, without gamma and beta, with another epsilon before a tanh."""
    layers = kind.layers
    return randomized(kind.Sequential([
        kind.Input((4,)), layers.Dense(8), layers.LayerNormalization(name="norm_a"), layers.ReLU(),
        layers.Dense(6), layers.LayerNormalization(name="norm_b", center=False, scale=False),
        layers.Dense(6), layers.LayerNormalization(name="norm_c", center=False, epsilon=0.1),
        layers.Activation("tanh"), layers.Dense(2),
    ]))  # fmt: skip


def pixels(kind):
    """A norm of an image's channels, and one of the image as a vector."""
    layers = kind.layers
    return randomized(kind.Sequential([
        kind.Input((6, 6, 2)), layers.Conv2D(3, 3), layers.LayerNormalization(name="norm_a"), layers.ReLU(),
        layers.Flatten(), layers.LayerNormalization(name="norm_b"), layers.Dense(2),
    ]))  # fmt: skip


def as_tflite(model, path, *, halves=False):
    with without_tensorflow_noise():
        converter = tf.lite.TFLiteConverter.from_keras_model(model)
        if halves:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        path.write_bytes(converter.convert())
    return path


def norms_of(policy):
    return [layer.name for layer in policy.graph.layers if layer.kind == "layer_norm"]


def kinds_of(policy):
    return [layer.kind for layer in policy.graph.layers]


@pytest.mark.parametrize(
    ("kind", "names"), [(keras, ["norm_a", "norm_b", "norm_c"]), (keras3, ["norm_a_1", "norm_b_1", "norm_c_1"])]
)
def test_the_norms_of_a_float_file_are_layers(kind, names, tmp_path):
    """tf_keras turns the vector for a kernel of images, Keras 3 scales before it subtracts; an import compares."""
    model = network(kind)
    policy = import_policy(as_tflite(model, tmp_path / "policy.tflite"))
    assert [name.removesuffix("_1") for name in norms_of(policy)] == [name.removesuffix("_1") for name in names]
    assert kinds_of(policy) == [
        "dense", "layer_norm", "relu", "dense", "layer_norm", "dense", "layer_norm", "tanh", "dense",
    ]  # fmt: skip
    [found] = run_reference(policy, {"observation": ROWS}).values()
    np.testing.assert_allclose(found, np.asarray(model(ROWS)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [keras, keras3])
def test_a_norm_of_channels_and_one_of_a_flattened_image(kind, tmp_path):
    policy = import_policy(as_tflite(pixels(kind), tmp_path / "policy.tflite", halves=True))
    assert kinds_of(policy) == ["conv2d", "layer_norm", "relu", "flatten", "layer_norm", "dense"]
    assert [policy.weights[f"{name}/gamma"].shape for name in norms_of(policy)] == [(3,), (48,)]


def test_a_saved_model_is_kept_in_float_where_it_is_asked_for(tmp_path):
    with without_tensorflow_noise():
        network(keras3).export(tmp_path / "policy", verbose=False)
    policy = import_policy(tmp_path / "policy")
    names = [row.name for row in layer_rows(policy) if row.needs_keep_float]
    assert names == norms_of(policy)
    data = CalibrationData.checked(policy.contract, {"observation": np.tile(ROWS, (20, 1))}, source="test")
    with pytest.raises(ConversionError, match=r"layer_norm, which has no int8 kernel"):
        build_file(policy, ExportOptions(), data=data)
    built = build_file(policy, ExportOptions(scheme=SchemeOptions(keep_float=frozenset(names))), data=data)
    assert {check.code for check in built.checks if not check.passed} == set()


class ByHand(tf.Module):
    """Norms as people write them."""

    def __init__(self, form):
        rng = np.random.default_rng(1)
        self.form = form
        for name, shape in {"kernel": (4, 8), "gamma": (8,), "beta": (8,), "out": (8, 2)}.items():
            setattr(self, name, tf.Variable(rng.normal(0.3, 0.6, shape).astype(np.float32)))

    @tf.function(input_signature=[tf.TensorSpec((1, 4), tf.float32)])
    def act(self, x):
        hidden = x @ self.kernel
        mean = tf.reduce_mean(hidden, -1, keepdims=True)
        if self.form == "square root":
            variance = tf.reduce_mean(tf.square(hidden - mean), -1, keepdims=True)
            normal = (hidden - mean) / tf.sqrt(variance + 1e-5) * self.gamma + self.beta
        elif self.form == "product":
            variance = tf.reduce_mean((hidden - mean) * (hidden - mean), -1, keepdims=True)
            normal = (hidden - mean) * tf.math.rsqrt(variance + 1e-5) * self.gamma + self.beta
        elif self.form == "moments":
            mean, variance = tf.nn.moments(hidden, -1, keepdims=True)
            normal = tf.nn.batch_normalization(hidden, mean, variance, self.beta, self.gamma, 1e-3)
        else:  # no norm: it takes the mean off twice
            variance = tf.reduce_mean(tf.square(hidden - mean), -1, keepdims=True)
            normal = (hidden - mean - mean) * tf.math.rsqrt(variance + 1e-5)
        return {"q_values": tf.nn.relu(normal) @ self.out}

    def written(self, path):
        with without_tensorflow_noise():
            function = self.act.get_concrete_function()
            path.write_bytes(tf.lite.TFLiteConverter.from_concrete_functions([function], self).convert())
        return path


@pytest.mark.parametrize("form", ["square root", "product", "moments"])
def test_a_norm_that_was_written_by_hand(form, tmp_path):
    module = ByHand(form)
    policy = import_policy(module.written(tmp_path / "policy.tflite"))
    assert kinds_of(policy) == ["dense", "layer_norm", "relu", "dense"]
    assert norms_of(policy)[0].startswith("layer_norm_")
    found = run_reference(policy, {policy.contract.observations[0].key: ROWS})["q_values"]
    wanted = [module.act(row[None])["q_values"][0] for row in ROWS]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_is_almost_a_norm_is_refused_with_what_to_do_instead(tmp_path):
    with pytest.raises(UnsupportedModel, match=r"is a LayerNormalization.*an order that is not read") as refused:
        import_policy(ByHand("twice").written(tmp_path / "policy.tflite"))
    assert "model.save('policy.keras')" in refused.value.hint


# ------------------------------------------------------------------ names


def operators_of(names):
    """A root of a variance with nothing behind it, whose tensors are called `names`."""
    tensors = {n: SimpleNamespace(name="", shape=(1, 4), size=0, dtype="float32") for n in range(20)}
    for index, name in zip((10, 11, 13), names, strict=True):
        tensors[index].name = name

    def operator(index, name, *inputs):
        return SimpleNamespace(index=index, name=name, inputs=inputs, outputs=(index + 10,), options=())

    parts = (
        operator(-1, "MEAN", 0, 2), operator(0, "SQUARED_DIFFERENCE", 0, 9), operator(1, "MEAN", 10, 2),
        operator(3, "RSQRT", 11),
    )  # fmt: skip
    return SimpleNamespace(tensors=tensors, operators=parts, outputs=(13,))


@pytest.mark.parametrize("names", [("", "", ""), ("/a", "b", "c"), ("a", "b", "c"), ("a\x1b[2J/x",) * 3])
def test_a_norm_without_a_name_is_told_by_its_place(names):
    with pytest.raises(UnsupportedModel) as refused:
        find_layer_norms(operators_of(names))
    assert "\x1b" not in refused.value.message
    assert ("'operator 3'" in refused.value.message) is (names[0] in ("", "/a", "a"))


def test_an_inverse_root_of_anything_else_is_no_norm():
    alone = SimpleNamespace(index=0, name="RSQRT", inputs=(0,), outputs=(1,))
    assert find_layer_norms(SimpleNamespace(tensors={}, operators=(alone,))) == ()
