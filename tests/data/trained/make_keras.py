"""Makes the Keras, SavedModel and float TFLite sources of the table in docs/schemes.md, and a run of our own.

    .venv/bin/python tests/data/trained/make_keras.py DIRECTORY

CartPole is learned by `quarl-edge demo`; its weights are then written as each kind of file, the normaliser as a layer.
Catch is learned by imitation of a player that reads the frame, in a small convolutional network. Takes two minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
FRAMES = 12_000
KERAS3 = """
import sys, numpy as np, keras
from keras import layers
kind, arrays, target = sys.argv[1:]
values = np.load(arrays)
weights = [values[f"w{i}"] for i in range(len(values.files))]
if kind == "cartpole":
    sizes = [w.shape[1] for w in weights[2::2]]
    inputs = keras.Input((4,), name="observation")
    x = layers.Normalization(mean=weights[0], variance=weights[1], name="normalize")(inputs)
    for i, units in enumerate(sizes):
        x = layers.Dense(units, activation=None if i + 1 == len(sizes) else "relu", name=f"dense_{i}")(x)
    model = keras.Model(inputs, x)
    model.set_weights(weights[2:])
else:
    model = keras.Sequential([
        keras.Input((36, 36, 1), name="observation"), layers.Rescaling(1 / 255, name="to_unit"),
        layers.Conv2D(16, 4, 4, activation="relu", name="conv_0"),
        layers.Conv2D(32, 3, 2, activation="relu", name="conv_1"), layers.Flatten(name="flatten"),
        layers.Dense(64, activation="relu", name="dense"), layers.Dense(3, name="logits"),
    ])
    model.set_weights(weights)
model.save(target)
"""


def cartpole(out: Path) -> None:
    """Learn CartPole and write its network as each kind."""
    from quarl_export.checkpoint import load_policy
    from quarl_export.keras2 import keras

    command = [sys.executable, "-m", "quarl_edge", "demo", "--seed", "3", "--runs", str(out / "runs")]
    done = subprocess.run(
        [*command, "--out", str(out / "cartpole.tflite"), "--format", "json"],
        check=True,
        capture_output=True,
        text=True,
    )
    run = Path(json.loads(done.stdout.splitlines()[-1])["run"])
    (out / "cartpole_run").symlink_to(run.resolve())
    kept = load_policy(run / "policy").snapshot
    if kept.scale is None or kept.offset is None:
        raise SystemExit("the run has no normaliser")
    arrays = [kept.offset, 1 / np.square(kept.scale)]
    for kernel, bias in zip(kept.kernels, kept.biases, strict=True):
        arrays += [kernel, bias]
    inputs = keras.Input((4,), name="observation")
    x = keras.layers.Normalization(mean=arrays[0], variance=arrays[1], name="normalize")(inputs)
    for index, (kernel, _) in enumerate(zip(kept.kernels, kept.biases, strict=True)):
        activation = None if index + 1 == len(kept.kernels) else "relu"
        x = keras.layers.Dense(kernel.shape[1], activation=activation, name=f"dense_{index}")(x)
    model = keras.Model(inputs, x)
    for index, pair in enumerate(zip(kept.kernels, kept.biases, strict=True)):
        model.get_layer(f"dense_{index}").set_weights(list(pair))
    write(model, out, "cartpole", arrays)


def catch(out: Path) -> None:
    """Learn Catch by imitation and write its network as each kind."""
    from quarl_export.keras2 import keras

    frames, actions = played(FRAMES)
    layers = keras.layers
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((36, 36, 1), name="observation"),
            layers.Rescaling(1 / 255, name="to_unit"),
            layers.Conv2D(16, 4, 4, activation="relu", name="conv_0"),
            layers.Conv2D(32, 3, 2, activation="relu", name="conv_1"),
            layers.Flatten(name="flatten"),
            layers.Dense(64, activation="relu", name="dense"),
            layers.Dense(3, name="logits"),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(frames, actions, batch_size=128, epochs=12, verbose=0)
    write(model, out, "catch", model.get_weights())


def played(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return frames and what the frame reader does on each, on states that a half random player visits."""
    sys.path.insert(0, str(HERE.parent.parent / "device"))
    from test_catch import by_the_frame

    from quarl_device.catch import Catch

    env, rng = Catch(), np.random.default_rng(0)
    frame, _ = env.reset(seed=0)
    frames, actions = [], []
    while len(frames) < count:
        frames.append(frame)
        actions.append(by_the_frame(frame))
        chosen = actions[-1] if rng.random() < 0.7 else int(rng.integers(3))
        frame, _, done, _, _ = env.step(chosen)
        if done:
            frame, _ = env.reset()
    return np.asarray(frames), np.asarray(actions)


def write(model, out: Path, name: str, arrays: list[np.ndarray]) -> None:
    """Write `model` as h5, SavedModel and float TFLite, and the same weights as a Keras 3 file."""
    from quarl_export.keras2 import tf

    model.save(out / f"{name}.h5")
    model.export(out / f"{name}_saved") if hasattr(model, "export") else model.save(out / f"{name}_saved")
    (out / f"{name}_float.tflite").write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    np.savez(out / f"{name}.npz", **{f"w{i}": array for i, array in enumerate(arrays)})
    command = [sys.executable, "-c", KERAS3, name, str(out / f"{name}.npz"), str(out / f"{name}.keras")]
    subprocess.run(command, check=True, env={**os.environ, "KERAS_BACKEND": "tensorflow"})


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    cartpole(target)
    catch(target)
