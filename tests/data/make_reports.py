"""Make the small models in reports/, by hand: python tests/data/make_reports.py (needs TensorFlow).

Pairs `<name>_float.tflite` and `<name>_int8.tflite` are the same network with its contract, for `compare`:

* cartpole: the float twin of cartpole.tflite.
* dueling: twin branches of equal shape, MEAN and SUB, several QUANTIZE.
* pixels: uint8 images, convolutions; the float file normalises in the graph, the int8 file on the device (int8 ends).
* arm: two box actions behind tanh, a hidden tanh, int8 ends.
* qat: quantization-aware, ranges by its own fake quants, normaliser in both graphs.

The others have no contract, for `inspect`: dynamic, float16, int16x8, elu.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from ai_edge_litert.interpreter import Interpreter

from quarl_device.contract import ActionSpec, Head, Normalizer, ObservationSpec, PolicyContract
from quarl_device.policy_file import GoldenVectors, read_policy_path
from quarl_export.converter import convert_float, convert_snapshot
from quarl_export.metadata import attach
from quarl_export.networks import NetworkSpec
from quarl_export.qat import QatPolicy

HERE = Path(__file__).parent
OUT = HERE / "reports"
layers = tf_keras.layers


def convert(model: Any, *, samples: np.ndarray | None = None, io: str = "float32", **flags: Any) -> bytes:
    """Return a model in int8 if `samples` (rows as they enter the graph) are given, else by `flags` alone."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.exclude_conversion_metadata = True
    if samples is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([row[None].astype(np.float32)] for row in samples)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = getattr(tf, io)
    for name, value in flags.items():
        setattr(converter, name, value)
    return bytes(converter.convert())


def with_contract(
    data: bytes, spec: ObservationSpec, head: str, action: ActionSpec, golden: np.ndarray, fed: np.ndarray, **more: Any
) -> bytes:
    """Return `data` with a contract and golden vectors; `fed` is what enters the graph for `golden`, in float."""
    interpreter = Interpreter(model_content=data)
    interpreter.allocate_tensors()
    [source], [sink] = interpreter.get_input_details(), interpreter.get_output_details()
    outputs = []
    for row in fed:
        scale, zero = source["quantization"]
        value = np.clip(np.round(row / scale + zero), -128, 127) if scale else row
        interpreter.set_tensor(source["index"], value[None].astype(source["dtype"]))
        interpreter.invoke()
        scale, zero = sink["quantization"]
        result = interpreter.get_tensor(sink["index"])[0].astype(np.float32)
        outputs.append((result - zero) * scale if scale else result)
    contract = PolicyContract(
        env_id=more.pop("env_id", ""),
        algorithm="handmade",
        scheme="int8" if more.pop("int8") else "float32",
        observations=(ObservationSpec(**{**vars(spec), "tensor": source["name"]}),),
        head=Head(kind=head, outputs={head: sink["name"]}),  # type: ignore[arg-type]
        action=action,
        **more,
    )
    vectors = GoldenVectors(
        observations={spec.key: golden},
        outputs={head: np.stack(outputs).astype(np.float32)},
        lsb={head: float(sink["quantization"][0]) or 0.02},
        tolerance_lsb=3,
    )
    return attach(data, contract, vectors, {"made_by": "tests/data/make_reports.py"})


def randomize(model: Any, seed: int) -> Any:
    """Give every layer weights that a person can tell apart, biases included."""
    rng = np.random.default_rng(seed)
    model.set_weights(
        [
            rng.normal(0, 0.2 if w.ndim == 1 else 1.4 / np.sqrt(np.prod(w.shape[:-1])), w.shape)
            for w in model.get_weights()
        ]
    )
    return model


def save(name: str, data: bytes) -> None:
    """Write one file."""
    (OUT / f"{name}.tflite").write_bytes(data)
    print(f"{name}.tflite: {len(data)} bytes")  # noqa: T201


def cartpole() -> None:
    """Write the float twin of cartpole.tflite."""
    import make_policies

    weights = make_policies.cartpole_weights()
    model = tf_keras.Sequential(
        [
            layers.InputLayer((4,), name="observation"),
            layers.Dense(16, activation="relu", name="hidden"),
            layers.Dense(2, name="q_values"),
        ]
    )
    model.set_weights(weights)
    file = read_policy_path(HERE / "cartpole.tflite")
    golden = file.golden.observations["observation"]
    [spec] = file.contract.observations
    data = convert(model)
    save("cartpole_float", with_contract(
        data, spec, "q_values", file.contract.action, golden, golden, int8=False, env_id="CartPole-v1"))  # fmt: skip


def dueling() -> None:
    """Write a dueling pair."""
    entry = tf_keras.Input((6,), name="observation")
    trunk = layers.Dense(16, activation="relu", name="trunk")(entry)
    value = layers.Dense(1, name="value")(layers.Dense(8, activation="relu", name="value_hidden")(trunk))
    advantage = layers.Dense(4, name="advantage")(layers.Dense(8, activation="relu", name="advantage_hidden")(trunk))
    centred = advantage - tf.reduce_mean(advantage, axis=-1, keepdims=True)
    model = randomize(tf_keras.Model(entry, value + centred), 11)
    rng = np.random.default_rng(1)
    rows = rng.uniform(-1, 1, (200, 6)).astype(np.float32)
    spec = ObservationSpec(key="observation", shape=(6,), low=(-1.0,), high=(1.0,))
    action = ActionSpec(kind="discrete", n=4)
    for kind, data in (("float", convert(model)), ("int8", convert(model, samples=rows))):
        save(f"dueling_{kind}", with_contract(
            data, spec, "q_values", action, rows[:4], rows[:4], int8=kind == "int8"))  # fmt: skip


def pixels() -> None:
    """Write a convolutional pair on uint8 images."""
    entry = tf_keras.Input((10, 10, 2), name="image")

    def body(x: Any) -> Any:
        x = layers.Conv2D(4, 3, strides=2, activation="relu", name="conv_0")(x)
        x = layers.DepthwiseConv2D(2, activation="relu", name="conv_1")(x)
        return layers.Dense(3, name="logits")(layers.Dense(12, activation="relu", name="dense")(layers.Flatten()(x)))

    plain = randomize(tf_keras.Model(entry, body(entry)), 12)
    prologue = tf_keras.Model(entry, body((entry - 0.0) * np.float32(1 / 255)))
    prologue.set_weights(plain.get_weights())
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (100, 10, 10, 2), dtype=np.uint8)
    spec = ObservationSpec(key="image", shape=(10, 10, 2), dtype="uint8", low=(0.0,), high=(255.0,))
    action = ActionSpec(kind="discrete", n=3)
    raw = images[:4].astype(np.float32)
    save("pixels_float", with_contract(
        convert(prologue), spec, "logits", action, images[:4], raw, int8=False,
        normalizer=Normalizer(where="graph")))  # fmt: skip
    device = Normalizer(where="device", offset={"image": (0.0,)}, scale={"image": (1 / 255,)})
    save("pixels_int8", with_contract(
        convert(plain, samples=images / 255, io="int8"), spec, "logits", action, images[:4], raw / 255, int8=True,
        normalizer=device))  # fmt: skip


def arm() -> None:
    """Write a pair with a continuous action."""
    entry = tf_keras.Input((5,), name="state")
    x = layers.Dense(12, activation="tanh", name="first")(entry)
    x = layers.Dense(12, activation="relu", name="second")(x)
    model = randomize(tf_keras.Model(entry, layers.Dense(2, activation="tanh", name="action")(x)), 13)
    rng = np.random.default_rng(3)
    rows = rng.uniform(-2, 2, (200, 5)).astype(np.float32)
    spec = ObservationSpec(key="state", shape=(5,), low=(-2.0,), high=(2.0,))
    action = ActionSpec(kind="box", shape=(2,), low=(-2.0, 0.0), high=(2.0, 1.0), scale=(2.0, 0.5), offset=(0.0, 0.5))
    for kind, data in (("float", convert(model)), ("int8", convert(model, samples=rows, io="int8"))):
        save(f"arm_{kind}", with_contract(data, spec, "action", action, rows[:4], rows[:4], int8=kind == "int8"))


def qat() -> None:
    """Write a quantization-aware pair with a normaliser in both graphs."""
    observation = ObservationSpec(key="observation", shape=(4,), low=(-4.8, -3.4e38, -0.42, -3.4e38),
                                  high=(4.8, 3.4e38, 0.42, 3.4e38))  # fmt: skip
    spec = NetworkSpec(observations=(observation,), action=ActionSpec(kind="discrete", n=2), hidden=(16, 12))
    policy = QatPolicy(spec, seed=5, normalize=True)
    policy.set_normalizer(np.array([0.1, -0.2, 0.0, 0.3]), np.array([0.5, 0.7, 6.0, 0.6]))
    rows = (np.random.default_rng(4).normal(size=(64, 4)) * [2, 1.5, 0.15, 1.5]).astype(np.float32)
    policy.calibrate(rows)
    snapshot = policy.snapshot()
    normalizer = Normalizer(where="graph")
    for kind, data in (("float", convert_float(spec, snapshot)), ("int8", convert_snapshot(spec, snapshot))):
        save(f"qat_{kind}", with_contract(
            data, observation, "q_values", spec.action, rows[:4], rows[:4], int8=kind == "int8",
            normalizer=normalizer, env_id="CartPole-v1"))  # fmt: skip


def foreign() -> None:
    """Write files as other people have them."""
    model = randomize(
        tf_keras.Sequential([layers.InputLayer((32,)), layers.Dense(64, activation="relu"), layers.Dense(3)]), 14
    )
    optimize = [tf.lite.Optimize.DEFAULT]
    rows = np.random.default_rng(5).normal(size=(20, 32)).astype(np.float32)
    save("dynamic", convert(model, optimizations=optimize))
    half = tf.lite.TFLiteConverter.from_keras_model(model)
    half.optimizations, half.target_spec.supported_types = optimize, [tf.float16]
    save("float16", bytes(half.convert()))
    wide = tf.lite.TFLiteConverter.from_keras_model(model)
    wide.optimizations, wide.representative_dataset = optimize, lambda: ([row[None]] for row in rows)
    wide.target_spec.supported_ops = [tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8]
    save("int16x8", bytes(wide.convert()))
    elu = randomize(
        tf_keras.Sequential([layers.InputLayer((4,)), layers.Dense(8, activation="elu"), layers.Dense(2)]), 15
    )
    save("elu", convert(elu, samples=rows[:, :4]))


def main() -> None:
    """Write everything."""
    OUT.mkdir(exist_ok=True)
    for make in (cartpole, dueling, pixels, arm, qat, foreign):
        make()


if __name__ == "__main__":
    main()
