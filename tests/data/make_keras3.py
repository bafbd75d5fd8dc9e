"""Make the small Keras 3 archives in `keras3/` and, in `keras3/expected.npz`, what Keras 3 answers with them.

Run by hand, in a process of its own: KERAS_BACKEND=tensorflow TF_USE_LEGACY_KERAS=0 python tests/data/make_keras3.py

* mlp: a Sequential for CartPole-v1, with dropout.
* dueling: adapted normalisation, a nested model with batch norm, a layer used twice, a dueling head of operations.
* pixels: a dict of image and vector; convolutions of three kinds, pools, batch norm; a gaussian head.
* lambda, recurrent, subclass, layer_norm, elu, swish: refused, or kept in float.

All weights are random, batch norm's moving statistics too.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")

import keras
import numpy as np
from keras import layers, ops

HERE = Path(__file__).parent / "keras3"
RNG = np.random.default_rng(3)


def randomize(model: keras.Model) -> None:
    """Give every weight a random value of a size that keeps signals alive; variances stay positive."""
    for weight in model.weights:
        shape = tuple(weight.shape)
        if "variance" in weight.path:
            weight.assign(RNG.uniform(0.3, 3.0, shape))
        elif weight.dtype != "float32":
            continue
        elif "gamma" in weight.path:
            weight.assign(RNG.uniform(0.5, 1.5, shape))
        else:
            fan_in = max(1, int(np.prod(shape[:-1])))
            weight.assign(RNG.normal(0, 1 / np.sqrt(fan_in), shape))


def compress(path: Path) -> None:
    """Write an archive's members again, deflated: HDF5 is mostly zeros."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def mlp() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(16, activation="relu", name="hidden"),
            layers.Dropout(0.1),
            layers.Dense(2, name="q_values"),
        ]
    )


def dueling() -> keras.Model:
    observation = keras.Input((6,), name="observation")
    normalization = layers.Normalization(name="normalization")
    normalization.adapt(RNG.normal(3, [0.1, 1, 10, 2, 5, 0.5], (200, 6)))
    body = keras.Sequential(
        [layers.Dense(12, name="first"), layers.BatchNormalization(name="norm"), layers.ReLU(name="relu")], name="body"
    )
    twice = layers.Dense(12, activation="tanh", name="twice")
    x = twice(twice(body(normalization(observation))))
    value = layers.Dense(1, name="value")(x)
    advantage = layers.Dense(3, name="advantage")(x)
    centred = advantage - ops.mean(advantage, axis=-1, keepdims=True)
    return keras.Model(observation, (value + centred) * 2.0)


def pixels() -> keras.Model:
    image = keras.Input((16, 16, 3), name="image", dtype="uint8")
    vector = keras.Input((2,), name="vector")
    x = layers.Rescaling(1 / 255)(image)
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.BatchNormalization()(x)
    x = layers.SeparableConv2D(6, 3, depth_multiplier=2, activation="relu6")(x)
    x = layers.AveragePooling2D(2, padding="same")(x)
    x = layers.DepthwiseConv2D(2, activation="relu")(x)
    x = layers.MaxPooling2D(2)(x)
    y = layers.Normalization(mean=[1.0, -2.0], variance=[4.0, 0.25])(vector)
    y = layers.Dense(4, activation="sigmoid")(y)
    x = layers.Concatenate()([layers.Flatten()(x), y])
    x = layers.Dense(8, activation="relu")(x)
    mean = layers.Dense(2, activation="tanh", name="mu")(x)
    log_std = layers.Dense(2, name="sigma")(x)
    return keras.Model({"image": image, "vector": vector}, {"mean": mean, "log_std": log_std})


def single(*middle: keras.Layer, shape: tuple[int, ...] = (4,)) -> keras.Model:
    return keras.Sequential([keras.Input(shape), *middle, layers.Dense(2, name="q_values")])


@keras.saving.register_keras_serializable("mine")
class Subclass(keras.Model):
    """A policy without a functional form."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.dense = layers.Dense(2)

    def call(self, inputs: object) -> object:
        return self.dense(inputs)


def main() -> None:
    HERE.mkdir(exist_ok=True)
    subclass = Subclass()
    subclass(np.zeros((1, 4), np.float32))
    models = {
        "mlp": mlp(),
        "dueling": dueling(),
        "pixels": pixels(),
        "lambda": single(layers.Lambda(lambda x: x * 2, name="double")),
        "recurrent": single(layers.LSTM(4, name="memory"), shape=(5, 3)),
        "subclass": subclass,
        "layer_norm": single(layers.Dense(8), layers.LayerNormalization(name="norm")),
        "elu": single(layers.Dense(8, activation="elu", name="hidden")),
        "swish": single(layers.Dense(8, activation="swish", name="hidden")),
    }
    rows = {
        "mlp": {"observation": RNG.normal(size=(8, 4)).astype(np.float32)},
        "dueling": {"observation": RNG.normal(3, 2, (8, 6)).astype(np.float32)},
        "pixels": {
            "image": RNG.integers(0, 256, (8, 16, 16, 3)).astype(np.uint8),
            "vector": RNG.normal(size=(8, 2)).astype(np.float32),
        },
        "layer_norm": {"observation": RNG.normal(size=(8, 4)).astype(np.float32)},
        "elu": {"observation": RNG.normal(size=(8, 4)).astype(np.float32)},
    }
    expected = {}
    for name, model in models.items():
        randomize(model)
        model.save(HERE / f"{name}.keras")
        compress(HERE / f"{name}.keras")
        if name not in rows:
            continue
        given = rows[name] if len(rows[name]) > 1 else rows[name]["observation"]
        # Loaded again: what anybody else gets of the file.
        outputs = keras.models.load_model(HERE / f"{name}.keras")(given, training=False)
        outputs = outputs if isinstance(outputs, dict) else {"q_values": outputs}
        expected.update({f"{name}/in/{key}": value for key, value in rows[name].items()})
        expected.update({f"{name}/out/{key}": np.asarray(value) for key, value in outputs.items()})
    np.savez_compressed(HERE / "expected.npz", **expected)


if __name__ == "__main__":
    main()
