"""tf_keras models, from memory, `.h5` and SavedModel: read without running them, folded, equal to the original."""

import io
import json
import sys
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import (
    ModelFileError,
    NonFiniteError,
    SourceMismatch,
    UnsafeSource,
    UnsupportedModel,
)
from quarl_export.importers import ImportOptions, hdf5, import_policy
from quarl_export.importers.keras_config import parse_model
from quarl_export.importers.keras_declared import check_declared
from quarl_export.importers.tf_keras_models import import_keras_model
from quarl_export.ir import run_reference
from quarl_export.keras2 import keras, tf

layers = keras.layers


@pytest.fixture(autouse=True)
def _seeded():
    keras.utils.set_random_seed(7)


def model_of(*middle, shape=(4,), actions=2):
    return keras.Sequential([layers.Input(shape), *middle, layers.Dense(actions, name="q_values")])


def randomize(model, seed=0):
    """Weights of which none is zero, one, or equal to another; variances stay positive."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        shape = tuple(weight.shape)
        if "variance" in weight.name:
            weight.assign(rng.uniform(0.3, 3, shape))
        elif weight.dtype == tf.float32:
            weight.assign(rng.normal(0, 1 / np.sqrt(max(1, np.prod(shape[:-1]))), shape))
    for layer in model._flatten_layers(include_self=False):
        layer.finalize_state()
    return model


def save(model, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras advises against h5 at every save
        model.save(path, **({} if path.suffix else {"save_format": "tf"}))
    return path


def imported(model, **options):
    """The policy, and proof beyond the import's own that it equals the model on other observations."""
    policy = import_keras_model(randomize(model), options=ImportOptions(**options))
    assert policy.provenance["largest_difference"] <= 1e-4
    return policy


def kinds(policy):
    return [layer.kind for layer in policy.graph.layers]


# Layers


def test_a_dense_model_from_memory():
    model = model_of(layers.Dense(8, activation="relu", name="hidden"), layers.Dropout(0.5))
    policy = imported(model)
    rows = np.random.default_rng(3).normal(size=(9, 4)).astype(np.float32)
    np.testing.assert_allclose(
        run_reference(policy, {"observation": rows})["q_values"], model(rows).numpy(), rtol=1e-5, atol=1e-5
    )
    assert [layer.name for layer in policy.graph.layers] == ["hidden", "hidden_relu", "q_values"]
    assert policy.contract.head.kind == "q_values"
    assert policy.contract.action.n == 2
    assert [(spec.key, spec.shape) for spec in policy.contract.observations] == [("observation", (4,))]


def test_every_layer_of_an_image_network():
    model = model_of(
        layers.Rescaling(1 / 127.5, offset=-1.0),
        layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
        layers.BatchNormalization(),
        layers.SeparableConv2D(6, 3, depth_multiplier=2, use_bias=False),
        layers.ReLU(max_value=6),
        layers.AveragePooling2D(2, strides=1, padding="same"),
        layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", activation="tanh"),
        layers.MaxPooling2D(2),
        layers.Dense(5, activation="sigmoid"),
        layers.Flatten(),
        layers.Reshape((-1,)),
        shape=(14, 14, 3),
    )
    policy = imported(model)
    assert policy.contract.normalizer.scale == {"observation": (pytest.approx(1 / 127.5),)}
    assert "batch_norm" not in " ".join(kinds(policy))


def test_global_pooling_merges_and_all_activations():
    image = layers.Input((6, 6, 2))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(image))
    parts = [layers.Dense(4, activation=name)(x) for name in ("relu", "tanh", "sigmoid", "softmax")]
    parts.append(layers.Activation("relu6")(layers.Dense(4)(x)))
    total = layers.Add()(parts)
    product = layers.Multiply()([total, layers.Subtract()([parts[0], parts[1]])])
    outputs = layers.Dense(3)(layers.Concatenate()([product, x]))
    policy = imported(keras.Model(image, outputs))
    assert {"add", "multiply", "subtract", "concatenate", "global_average_pool2d", "softmax"} <= set(kinds(policy))


def test_a_dueling_head_of_tensor_arithmetic():
    x = layers.Input((4,))
    body = layers.Dense(6, activation="relu")(x)
    advantage, value = layers.Dense(3)(body), layers.Dense(1)(body)
    q = value + (advantage - tf.reduce_mean(advantage, axis=1, keepdims=True))
    policy = imported(keras.Model(x, q))
    assert kinds(policy)[-3:] == ["mean", "subtract", "add"]


def test_arithmetic_with_constants_on_both_sides():
    x = layers.Input((3,))
    scaled = (1.0 - x / tf.constant([2.0, 4.0, 8.0])) * 3.0
    policy = imported(keras.Model(x, layers.Dense(2)(0.5 + scaled)))
    assert kinds(policy) == ["dense"]
    np.testing.assert_allclose(policy.contract.normalizer.scale["observation"], [-1.5, -0.75, -0.375], rtol=1e-6)


def test_a_layer_that_is_called_twice_becomes_two():
    shared = layers.Dense(4, activation="tanh", name="shared")
    x = layers.Input((4,))
    policy = imported(keras.Model(x, layers.Dense(2, name="q")(shared(shared(x)))))
    assert [layer.name for layer in policy.graph.layers][:3:2] == ["shared", "shared_1"]
    np.testing.assert_array_equal(policy.weights["shared/kernel"], policy.weights["shared_1/kernel"])


def test_a_file_with_a_layer_that_is_called_often(tmp_path):
    shared = layers.Dense(40, activation="tanh", name="shared")
    x = y = layers.Input((40,))
    for _ in range(5):
        y = shared(y)
    policy = import_policy(save(randomize(keras.Model(x, layers.Dense(2)(y))), tmp_path / "model.h5"))
    assert kinds(policy).count("dense") == 6


def test_a_nested_model_that_is_called_twice_becomes_two():
    inner_in = layers.Input((4,))
    inner = keras.Model(inner_in, layers.Dense(4, activation="relu", name="d")(inner_in), name="inner")
    x = layers.Input((4,))
    policy = imported(keras.Model(x, layers.Dense(2)(layers.Add()([inner(inner(x)), inner(x)]))))
    assert kinds(policy).count("dense") == 4


def test_an_observation_is_reshaped_before_anything_reads_it():
    model = model_of(layers.Reshape((5, 5, 1)), layers.Conv2D(2, 3), layers.Flatten(), shape=(25,))
    policy = imported(model)
    assert policy.graph.inputs[0].shape == (5, 5, 1)


def test_adapted_normalisation_along_any_axes():
    data = np.random.default_rng(0).normal(5, 3, (50, 3, 3, 2)).astype(np.float32)
    for axis in ((1, 2, 3), None):
        normalization = layers.Normalization(axis=axis)
        normalization.adapt(data)
        model = keras.Sequential([layers.Input((3, 3, 2)), normalization, layers.Flatten(), layers.Dense(2)])
        policy = import_keras_model(model)
        assert len(policy.contract.normalizer.scale["observation"]) in (1, 18)


@pytest.mark.parametrize("kind", ["h5", "saved"])
def test_statistics_that_were_given_are_in_the_configuration(tmp_path, kind):
    """They are no weights of the file, which then holds fewer numbers than one whose layer saw data."""
    mean, variance = np.array([1, 2, 3], np.float32), np.array([4, 9, 16], np.float32)
    model = keras.Sequential([layers.Input((3,)), layers.Normalization(mean=mean, variance=variance), layers.Dense(2)])
    policy = import_policy(save(model, tmp_path / ("model.h5" if kind == "h5" else "model")))
    assert policy.contract.normalizer.offset["observation"] == (1.0, 2.0, 3.0)
    np.testing.assert_allclose(policy.contract.normalizer.scale["observation"], (1 / 2, 1 / 3, 1 / 4))


def test_dict_inputs_and_outputs_have_their_keys_for_names(tmp_path):
    x, y = layers.Input((4,), name="layer_of_b"), layers.Input((3,), name="layer_of_a")
    joint = layers.Concatenate()([x, y])
    outputs = {"mean": layers.Dense(2)(joint), "log_std": layers.Dense(2)(joint)}
    model = randomize(keras.Model({"b": x, "a": y}, outputs))
    for policy in (import_keras_model(model), import_policy(save(model, tmp_path / "model.h5"))):
        assert sorted(item.key for item in policy.graph.inputs) == ["a", "b"]
        assert policy.contract.head.kind == "gaussian"
        rows = {"a": np.ones((1, 3), np.float32), "b": np.full((1, 4), 2, np.float32)}
        expected = model(rows)["mean"].numpy()
        np.testing.assert_allclose(run_reference(policy, rows)["mean"], expected, rtol=1e-5, atol=1e-5)


def test_float_only_layers_are_taken_into_the_graph():
    policy = imported(model_of(layers.Dense(6, activation="elu"), layers.LayerNormalization(), layers.ELU()))
    assert kinds(policy) == ["dense", "elu", "layer_norm", "elu", "dense"]


def test_a_critic_in_the_same_model_stays_behind():
    x, action = layers.Input((4,), name="observation"), layers.Input((2,), name="taken")
    policy = imported(
        keras.Model([x, action], [
            layers.Dense(2, activation="tanh", name="action")(x),
            layers.Dense(1, name="critic")(layers.Concatenate()([x, action])),
        ])
    )  # fmt: skip
    assert [item.key for item in policy.graph.inputs] == ["observation"]
    assert kinds(policy) == ["dense", "tanh"]


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_convolutional_network_is_read(data):
    middle, size = [], 9
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["conv", "depthwise", "separable", "norm", "pool", "activation"]))
        window = data.draw(st.integers(1, min(3, size)))
        options = {"strides": data.draw(st.integers(1, 2)), "padding": data.draw(st.sampled_from(["same", "valid"]))}
        middle.append({
            "conv": lambda w=window, o=options: layers.Conv2D(2, w, activation="relu", **o),
            "depthwise": lambda w=window, o=options: layers.DepthwiseConv2D(w, use_bias=False, **o),
            "separable": lambda w=window, o=options: layers.SeparableConv2D(3, w, depth_multiplier=2, **o),
            "norm": layers.BatchNormalization,
            "pool": lambda w=window, o=options: layers.MaxPooling2D(w, **o),
            "activation": lambda: layers.Activation("tanh"),
        }[kind]())  # fmt: skip
        if kind not in ("norm", "activation"):
            stride = options["strides"]
            size = -(-size // stride) if options["padding"] == "same" else (size - window) // stride + 1
    imported(model_of(*middle, layers.Flatten(), shape=(9, 9, 2)))


# Files


@pytest.fixture(scope="module")
def mixed():
    """Nested, batch norm, two inputs of different kinds, two outputs."""
    keras.utils.set_random_seed(1)
    image, vector = layers.Input((8, 8, 1), name="image"), layers.Input((3,), name="vector")
    body = keras.Sequential(
        [layers.Input((8, 8, 1)), layers.Conv2D(3, 3), layers.BatchNormalization(), layers.ReLU(), layers.Flatten()],
        name="body",
    )
    normalization = layers.Normalization(name="scales")
    normalization.adapt(np.random.default_rng(0).normal([1, 100, -7], [1, 30, 0.1], (99, 3)))
    x = layers.Concatenate()([body(layers.Rescaling(1 / 255)(image)), normalization(vector)])
    x = layers.Dense(6, activation="relu", name="joint")(x)
    mean, log_std = layers.Dense(2, name="mean")(x), layers.Dense(2, name="log_std")(x)
    return randomize_but_normalization(keras.Model([image, vector], [mean, log_std]))


def randomize_but_normalization(model):
    kept = [weight.numpy() for weight in model.get_layer("scales").weights]
    randomize(model)
    model.get_layer("scales").set_weights(kept)
    model.get_layer("scales").finalize_state()
    return model


@pytest.mark.parametrize("name", ["model.h5", "model.anything", "saved_model"])
def test_files_of_a_mixed_model_are_read_alike(mixed, tmp_path, name):
    path = save(mixed, tmp_path / name) if name != "model.anything" else tmp_path / name
    if name == "model.anything":
        save(mixed, tmp_path / "model.h5").rename(path)
    policy = import_policy(path)
    rng = np.random.default_rng(5)
    rows = {"image": rng.uniform(0, 255, (4, 8, 8, 1)), "vector": rng.normal([1, 100, -7], [1, 30, 0.1], (4, 3))}
    rows = {key: values.astype(np.float32) for key, values in rows.items()}
    found = run_reference(policy, rows)
    for output, role in zip(mixed([rows["image"], rows["vector"]], training=False), ("mean", "log_std"), strict=True):
        np.testing.assert_allclose(found[role], output.numpy(), rtol=1e-4, atol=1e-4)
    assert policy.contract.head.kind == "gaussian"
    json.dumps(policy.provenance)


def test_row_16_what_is_exported_acts_as_the_model_acts(mixed, tmp_path):
    """Reports of exported nets that choose other actions than the agent: the import compares them itself."""
    policy = import_policy(save(mixed, tmp_path / "model.h5"))
    assert 0 <= policy.provenance["largest_difference"] <= policy.provenance["tolerance"]


def test_row_17_dict_observations_have_named_inputs_and_a_normaliser_each(mixed):
    policy = import_keras_model(mixed)
    assert [spec.key for spec in policy.contract.observations] == ["image", "vector"]
    normalizer = policy.contract.normalizer
    assert normalizer.scale["image"] == (pytest.approx(1 / 255),)
    np.testing.assert_allclose(normalizer.offset["vector"], [1, 100, -7], atol=9)


def test_row_20_mixed_vector_and_image_behind_one_normalisation():
    image, vector = layers.Input((3, 3, 1), name="image"), layers.Input((2,), name="vector")
    joined = layers.Concatenate()([layers.Flatten()(image), vector])
    data = np.random.default_rng(0).normal(4, 2, (60, 11)).astype(np.float32)
    normalization = layers.Normalization()
    normalization.adapt(data)
    policy = import_keras_model(keras.Model([image, vector], layers.Dense(2)(normalization(joined))))
    assert {key: len(values) for key, values in policy.contract.normalizer.offset.items()} == {"image": 9, "vector": 2}
    assert kinds(policy) == ["flatten", "concatenate", "dense"]


def test_h5_with_weights_alone_is_refused(tmp_path):
    path = tmp_path / "weights.h5"
    model_of().save_weights(path)
    with pytest.raises(ModelFileError, match="weights alone"):
        import_policy(path)


def test_h5_whose_weights_do_not_fit_is_refused(tmp_path):
    path = save(model_of(layers.Dense(8, name="hidden")), tmp_path / "model.h5")
    with h5py.File(path, "r+") as file:
        del file["model_weights/hidden/hidden/kernel:0"]
        file["model_weights/hidden/hidden/kernel:0"] = np.zeros((4, 9), np.float32)
    with pytest.raises(ModelFileError, match="do not fit"):
        import_policy(path)


@pytest.mark.parametrize("units", [10**6, 2**40])
def test_a_model_that_says_more_than_its_file_holds_is_refused_before_it_is_built(tmp_path, units):
    path = save(model_of(layers.Dense(8, name="hidden")), tmp_path / "model.h5")
    edit(path, lambda config: config["config"]["layers"][1]["config"].update(units=units))
    with pytest.raises(ModelFileError, match=r"file holds at most|reads 1,"):
        import_policy(path)


def test_h5_whose_weights_are_in_another_order_is_refused(tmp_path):
    """Both layers have one shape, so Keras itself would load them the wrong way round without a word."""
    path = save(model_of(layers.Dense(2, name="a"), layers.Dense(2, name="b"), shape=(2,)), tmp_path / "model.h5")
    with h5py.File(path, "r+") as file:
        names = list(file["model_weights"].attrs["layer_names"])
        file["model_weights"].attrs["layer_names"] = [names[1], names[0], *names[2:]]
    with pytest.raises(ModelFileError, match=r"\['b', 'a'"):
        import_policy(path)


def test_a_sequential_of_an_early_keras_2_is_read(tmp_path):
    path = save(randomize(model_of(layers.Dense(3, name="hidden"))), tmp_path / "model.h5")

    def age(config):
        first, *others = config["config"]["layers"]
        others[0]["config"]["batch_input_shape"] = first["config"]["batch_input_shape"]
        config["config"] = [{"class_name": layer["class_name"], "config": layer["config"]} for layer in others]

    edit(path, age)
    assert kinds(import_policy(path)) == ["dense", "dense"]


def test_a_saved_model_without_its_variables_is_refused(tmp_path):
    path = save(model_of(), tmp_path / "saved")
    for file in (path / "variables").iterdir():
        file.unlink()
    with pytest.raises(ModelFileError, match="file holds at most 0"):
        import_policy(path)


def test_nan_weights_are_refused_by_name(tmp_path):
    model = model_of(layers.Dense(3, name="hidden"))
    model.get_layer("hidden").bias.assign([0, np.nan, 0])
    with pytest.raises(NonFiniteError, match="hidden/bias"):
        import_policy(save(model, tmp_path / "model.h5"))


@pytest.mark.parametrize("keep", [0, 1, 100, 3000])
def test_a_truncated_h5_is_refused(tmp_path, keep):
    path = save(model_of(), tmp_path / "model.h5")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelFileError):
        import_policy(path)


def test_an_h5_with_an_address_beyond_any_file_is_refused(tmp_path):
    """h5py seeks there and raises OverflowError."""
    path = save(model_of(), tmp_path / "model.h5")
    data = bytearray(path.read_bytes())
    data[48:56] = (2**63 - 1).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="cannot be read"):
        import_policy(path)


@pytest.mark.parametrize("error", [OverflowError, AttributeError, IndexError, MemoryError])
def test_whatever_h5py_raises_is_a_damaged_file(error):
    with h5py.File(stored := io.BytesIO(), "w"):
        pass
    with (
        pytest.raises(ModelFileError, match="weights cannot be read"),
        hdf5.open_hdf5(stored.getvalue(), what="weights"),
    ):
        raise error


def test_h5_that_links_out_of_itself_is_refused(tmp_path):
    path = save(model_of(), tmp_path / "model.h5")
    with h5py.File(path, "r+") as file:
        file["stolen"] = h5py.ExternalLink("/etc/passwd", "/")
    with pytest.raises(UnsafeSource, match="stolen"):
        import_policy(path)


def test_h5_whose_data_lie_elsewhere_is_refused(tmp_path):
    path = save(model_of(), tmp_path / "model.h5")
    with h5py.File(path, "r+") as file:
        file.create_dataset("stolen", (10,), "u1", external=[("/etc/hostname", 0, 10)])
    with pytest.raises(UnsafeSource, match="stolen"):
        import_policy(path)


def test_arrays_that_are_declared_and_not_stored_are_refused(tmp_path):
    path = save(model_of(), tmp_path / "model.h5")
    with h5py.File(path, "r+") as file:
        file.create_dataset("hollow", (1 << 20,), "f4", chunks=(1 << 10,))
    with pytest.raises(ModelFileError, match="'hollow' declares 1,048,576 elements and stores none"):
        import_policy(path)


def test_only_what_is_stored_counts_as_stored(tmp_path):
    path = save(model_of(), tmp_path / "model.h5")
    with h5py.File(path, "r+") as file:
        # One chunk of a thousand.
        file.create_dataset("hollow", (1 << 20,), "f4", chunks=(1 << 10,))[0] = 1
    edit(path, lambda config: config["config"]["layers"][-1]["config"].update(units=50_000))
    with pytest.raises(ModelFileError, match="declares 250,000 parameters, its file holds at most 4,106"):
        import_policy(path)


def test_all_arrays_together_have_a_cap(tmp_path, monkeypatch):
    path = save(model_of(), tmp_path / "model.h5")
    with h5py.File(path, "r+") as file:
        for name in ("a", "b"):
            file[name] = np.zeros(15_000, np.int8)
    import_policy(path)
    monkeypatch.setattr(hdf5, "MAX_FILE_BYTES", 100_000)
    with pytest.raises(ModelFileError, match="over its cap in memory"):
        import_policy(path)


def test_a_layer_that_nothing_depends_on_is_counted_before_it_is_built(tmp_path):
    entry = layers.Input((4,), name="observation")
    outputs = [layers.Dense(2, name="q_values")(entry), layers.Dense(1, name="critic")(entry)]
    path = save(keras.Model(entry, outputs), tmp_path / "model.h5")

    def change(config):
        config["config"]["output_layers"] = config["config"]["output_layers"][:1]
        config["config"]["layers"][-1]["config"]["units"] = 10**10

    edit(path, change)
    with pytest.raises(ModelFileError, match="declares 50,000,000,010 parameters"):
        import_policy(path)


def test_scales_and_statistics_of_every_channel_are_counted(tmp_path):
    path = save(model_of(layers.Flatten(), layers.BatchNormalization()), tmp_path / "model.h5")
    with h5py.File(path) as file:
        parsed = parse_model(json.loads(file.attrs["model_config"]))
    check_declared(parsed, stored=26, what="it")
    with pytest.raises(ModelFileError, match="declares 26 parameters, its file holds at most 25"):
        check_declared(parsed, stored=25, what="it")


def test_a_damaged_saved_model_is_refused(tmp_path):
    path = save(model_of(), tmp_path / "saved")
    (path / "keras_metadata.pb").write_bytes(b"\xff" * 40)
    with pytest.raises(ModelFileError, match="damaged"):
        import_policy(path)


# Refusals


def test_row_1_a_keras_3_object_is_named_and_its_file_offered():
    base = type("Sequential", (), {"__module__": "keras.src.models.sequential"})  # its import would cost seconds
    with pytest.raises(UnsupportedModel, match=r"Keras 3.*\.keras"):
        import_keras_model(base())


def test_row_2_layer_norm_is_a_kind_that_stays_in_float():
    policy = imported(model_of(layers.Dense(4), layers.LayerNormalization(name="norm")))
    assert "norm" not in policy.graph.range_sites()[:1]
    assert "layer_norm" in kinds(policy)


@pytest.mark.parametrize("layer", [layers.LSTM(4, name="memory"), layers.GRU(4, name="memory")])
def test_row_3_recurrent_layers_are_refused_by_name_with_what_to_do(layer, tmp_path):
    path = save(model_of(layer, shape=(5, 3)), tmp_path / "model.h5")
    with pytest.raises(UnsupportedModel, match=r"'memory'.*stack frames"):
        import_policy(path)


def test_row_4_nested_models_are_opened():
    inner = keras.Sequential([layers.Input((4,)), layers.Dense(5, activation="relu", name="d")], name="inner")
    outer = keras.Sequential([layers.Input((4,)), inner, layers.Dense(3)], name="outer")
    policy = imported(model_of(outer))
    assert [layer.name for layer in policy.graph.layers][:2] == ["outer_inner_d", "outer_inner_d_relu"]


class Subclass(keras.Model):
    def __init__(self):
        super().__init__(name="mine")
        self.dense = layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


def test_row_4_a_subclass_is_refused_with_what_to_do(tmp_path):
    model = Subclass()
    model(np.zeros((1, 4), np.float32))
    with pytest.raises(UnsupportedModel, match=r"'mine' is a subclass.*keras\.Model"):
        import_keras_model(model)
    with pytest.raises(UnsupportedModel, match="subclass"):
        import_policy(save(model, tmp_path / "saved"))


def test_row_5_batch_norm_anywhere_is_folded():
    model = model_of(
        layers.BatchNormalization(),
        layers.Dense(6, activation="relu"),
        layers.BatchNormalization(scale=False),
        layers.Dense(6),
        layers.BatchNormalization(center=False),
        layers.Activation("tanh"),
    )
    policy = imported(model)
    assert kinds(policy) == ["dense", "relu", "dense", "tanh", "dense"]
    assert set(policy.contract.normalizer.scale) == {"observation"}


@pytest.mark.parametrize("class_name", ["QuantizeWrapperV2", "QuantizeLayer"])
def test_row_7_a_tfmot_model_is_refused_by_what_it_is(tmp_path, class_name):
    """Such files do not reload in tfmot itself; our own checkpoints do (test_import_run)."""
    path = save(model_of(layers.Dense(3, name="wrapped")), tmp_path / "model.h5")
    edit(path, lambda config: config["config"]["layers"][1].update(class_name=class_name, registered_name=class_name))
    with pytest.raises(UnsupportedModel, match="quantization-aware models do not reload"):
        import_policy(path)


def test_a_lambda_is_refused_before_anything_is_loaded(tmp_path):
    marker = str(tmp_path / "was_run")
    model = model_of(layers.Lambda(lambda x: (Path(marker).touch(), x)[1], name="code"))
    path = save(model, tmp_path / "model.h5")
    Path(marker).unlink()
    with pytest.raises(UnsafeSource, match="'code' is a Lambda"):
        import_policy(path)
    assert not Path(marker).exists()


def test_a_class_of_somebodys_own_is_refused(tmp_path):
    path = save(model_of(layers.Dense(3, name="odd")), tmp_path / "model.h5")
    edit(path, lambda config: config["config"]["layers"][1].update(registered_name="evil>Dense", module="evil"))
    with pytest.raises(UnsafeSource, match="evil>Dense"):
        import_policy(path)


def test_modules_that_a_file_names_are_never_imported(tmp_path):
    path = save(model_of(layers.Dense(3, name="odd")), tmp_path / "model.h5")
    evil = {"class_name": "function", "module": "this", "config": "relu", "registered_name": None}
    edit(path, lambda config: config["config"]["layers"][1]["config"].update(
        activation="relu", kernel_initializer={"class_name": "Zen", "module": "this", "config": {}},
        bias_constraint=evil,
    ))  # fmt: skip
    before = "this" in sys.modules
    assert kinds(import_policy(path)) == ["dense", "relu", "dense"]
    assert ("this" in sys.modules) == before


def edit(path, change):
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        change(config)
        file.attrs["model_config"] = json.dumps(config)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (layers.Dense(3, activation="swish", name="odd"), r"'odd.*swish.*relu"),
        (layers.Dense(3, activation="selu", name="odd"), r"'odd.*selu"),
        (layers.LeakyReLU(name="odd"), r"'odd' \(LeakyReLU\).*ReLU"),
        (layers.ReLU(negative_slope=0.1, name="odd"), "'odd'.*ReLU"),
        (layers.Reshape((2, 2), name="odd"), "'odd'.*reshapes"),
        (layers.PReLU(name="odd"), "'odd'.*ReLU"),
    ],
)
def test_layers_without_a_kernel_are_refused_by_name(layer, message):
    with pytest.raises(UnsupportedModel, match=message):
        import_keras_model(model_of(layers.Dense(4), layer))


def test_channels_first_is_refused(tmp_path):
    path = save(
        model_of(layers.Conv2D(2, 3, name="convolution"), layers.Flatten(), shape=(6, 6, 1)), tmp_path / "model.h5"
    )
    edit(path, lambda config: config["config"]["layers"][1]["config"].update(data_format="channels_first"))
    with pytest.raises(UnsupportedModel, match=r"'convolution' takes channels first|cannot rebuild"):
        import_policy(path)


def test_an_open_input_shape_is_refused():
    x = layers.Input((None, None, 3), name="image")
    model = keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling2D()(layers.Conv2D(2, 3)(x))))
    with pytest.raises(UnsupportedModel, match=r"'image' has the shape .*None"):
        import_keras_model(model)


def test_another_function_of_tensorflow_is_refused_by_name():
    x = layers.Input((4,))
    with pytest.raises(UnsupportedModel, match=r"tf\.math\.abs"):
        import_keras_model(keras.Model(x, layers.Dense(2)(tf.abs(x))))


def test_a_reading_that_computes_otherwise_is_not_handed_over(monkeypatch):
    from quarl_export.importers import keras_scalings

    monkeypatch.setattr(keras_scalings, "NORMALIZATION_EPSILON", 0.5)
    normalization = layers.Normalization(mean=[1.0] * 4, variance=[0.01] * 4)
    with pytest.raises(SourceMismatch, match="differs from the source"):
        import_keras_model(model_of(normalization))
