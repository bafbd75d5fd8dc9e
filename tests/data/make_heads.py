"""Make the small policies of every head, input type and scheme. Run by hand: python tests/data/make_heads.py.

Needs TensorFlow. Weights are random and seeded, the files for shapes, types and repeatable answers.

* pendulum.tflite: `action` head through tanh, float32 in and out, int8 inside.
* pendulum_gaussian.tflite: `gaussian` head of two outputs, int8 in and out, normaliser and tanh on the device.
* dict_logits.tflite: image and vector by key, uint8 in and out, `logits`.
* frames.tflite: four stacked frames of 6x6, batch 1 written into its RESHAPE, `q_values`.
* ops_<scheme>.tflite: each operator that exported policies use, in float32, float16, dynamic, int8 and int16x8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from make_policies import with_metadata

from quarl_device.contract import ActionSpec, Head, Normalizer, ObservationSpec, PolicyContract
from quarl_device.flatbuffer import Graph, read_graph
from quarl_device.heads import bind_outputs, real_output
from quarl_device.policy_file import METADATA_NAME, GoldenVectors, encode_metadata
from quarl_device.preprocess import bind_inputs, to_tensor
from quarl_device.runtime import find_runtime

HERE = Path(__file__).parent
keras = tf_keras.layers
Samples = Mapping[str, np.ndarray]
SCHEMES = ("float32", "float16", "dynamic", "int8", "int16x8")
TORQUE = ActionSpec(kind="box", shape=(1,), low=(-2.0,), high=(2.0,), scale=(2.0 * 128 / 127,), offset=(0.0,))


def randomize(model: Any, seed: int) -> Any:
    """Give every weight a random value, biases too: zero biases and equal constants are dropped or merged."""
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(0, 0.5, w.shape).astype(np.float32) for w in model.get_weights()])
    return model


def convert(model: Any, samples: Samples | None, *, scheme: str = "int8", io: Any = tf.float32) -> bytes:
    """Return the model under one scheme; `samples` hold what goes into each input, by the input's name."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if scheme != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if scheme == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if scheme in ("int8", "int16x8"):
        names = [tensor.name for tensor in model.inputs]
        rows = len(next(iter(samples.values())))
        converter.representative_dataset = lambda: (
            [samples[name][n : n + 1].astype(np.float32) for name in names] for n in range(rows)
        )
        eights = tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        opset = tf.lite.OpsSet.TFLITE_BUILTINS_INT8 if scheme == "int8" else eights
        converter.target_spec.supported_ops = [opset]
        converter.inference_input_type = converter.inference_output_type = io
    return bytes(converter.convert())


def input_named(graph: Graph, name: str) -> str:
    """Return the name of the input tensor that the converter made of a Keras input."""
    [found] = [t for n in graph.inputs if name in (t := graph.tensors[n].name)]
    return found


def output_of_width(graph: Graph, width: int, after: int = 0) -> str:
    """Return the name of an output of so many elements; `after` skips some, in the signature's order."""
    names = [graph.tensors[n].name for n in graph.outputs if graph.tensors[n].shape[-1] == width]
    return sorted(names)[after]


def finish(data: bytes, contract: PolicyContract, golden: Samples) -> bytes:
    """Return the file with its contract and with golden vectors that the runtime gives here."""
    graph = read_graph(data)
    outputs = bind_outputs(contract, graph)
    inputs = {b.spec.tensor: to_tensor(b, golden[b.spec.key]) for b in bind_inputs(contract, graph)}
    model = find_runtime().load(data, inputs=list(inputs), outputs=[b.tensor for b in outputs])
    rows = len(next(iter(inputs.values())))
    results = [model.run({name: array[n : n + 1] for name, array in inputs.items()}) for n in range(rows)]
    answers = {b.role: np.concatenate([real_output(b, r[b.tensor]) for r in results]) for b in outputs}
    vectors = GoldenVectors(
        observations=dict(golden),
        outputs=answers,
        lsb={b.role: b.scale or 0.01 for b in outputs},
        tolerance_lsb=3,
    )
    provenance = {"made_by": "tests/data/make_heads.py"}
    return with_metadata(data, METADATA_NAME, encode_metadata(contract, vectors, provenance))


def pendulum_samples() -> np.ndarray:
    """Return observations of Pendulum-v1 that fill its space."""
    rng = np.random.default_rng(1)
    angle = rng.uniform(-np.pi, np.pi, 128)
    return np.stack([np.cos(angle), np.sin(angle), rng.uniform(-8, 8, 128)], 1).astype(np.float32)


def pendulum() -> bytes:
    """Return the policy with an `action` head."""
    given = tf_keras.Input((3,), name="observation")
    hidden = keras.Dense(16, activation="relu")(given)
    model = randomize(tf_keras.Model(given, keras.Dense(1, activation="tanh", name="action")(hidden)), 2)
    samples = pendulum_samples()
    data = convert(model, {"observation": samples})
    graph = read_graph(data)
    spec = ObservationSpec(key="observation", shape=(3,), tensor=input_named(graph, "observation"))
    contract = PolicyContract(
        env_id="Pendulum-v1",
        algorithm="handmade",
        scheme="int8",
        observations=(spec,),
        head=Head(kind="action", outputs={"action": output_of_width(graph, 1)}),
        action=TORQUE,
    )
    return finish(data, contract, {"observation": samples[:4]})


def pendulum_gaussian() -> bytes:
    """Return the policy with a `gaussian` head, int8 in and out."""
    given = tf_keras.Input((3,), name="observation")
    hidden = keras.Dense(16, activation="relu")(given)
    mean, log_std = keras.Dense(1, name="a_mean")(hidden), keras.Dense(1, activation="tanh", name="b_log_std")(hidden)
    model = randomize(tf_keras.Model(given, [mean, log_std]), 3)
    samples = pendulum_samples()
    offset, scale = (0.1, -0.1, 0.5), (1.4, 1.5, 0.25)
    inner = np.clip((samples - np.float32(offset)) * np.float32(scale), -2, 2)
    data = convert(model, {"observation": inner}, io=tf.int8)
    graph = read_graph(data)
    # tanh gives 1/128: that output is the log_std.
    [narrow] = [t.name for n in graph.outputs if (t := graph.tensors[n]).quantization.scales[0] == 1 / 128]
    [wide] = [graph.tensors[n].name for n in graph.outputs if graph.tensors[n].name != narrow]
    contract = PolicyContract(
        env_id="Pendulum-v1",
        algorithm="handmade",
        scheme="int8",
        observations=(ObservationSpec(key="observation", shape=(3,), tensor=input_named(graph, "observation")),),
        normalizer=Normalizer(where="device", offset={"observation": offset}, scale={"observation": scale}, clip=2.0),
        head=Head(kind="gaussian", outputs={"log_std": narrow, "mean": wide}, squash="tanh"),
        action=ActionSpec(kind="box", shape=(1,), low=(-2.0,), high=(2.0,), scale=(2.0,), offset=(0.0,)),
    )
    return finish(data, contract, {"observation": samples[:4]})


def dict_logits() -> bytes:
    """Return the policy of an image and a vector."""
    # Named so that the interpreter's order is not the contract's.
    vector, image = tf_keras.Input((3,), name="z_vector"), tf_keras.Input((6, 6, 3), name="a_image")
    seen = keras.Conv2D(4, 3, strides=2, activation="relu")(image)
    joined = keras.Concatenate()([keras.Flatten()(seen), keras.Dense(4, activation="relu")(vector)])
    model = randomize(tf_keras.Model([vector, image], keras.Dense(3, name="logits")(joined)), 47)
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (64, 6, 6, 3), np.uint8)
    vectors = rng.normal(0, 2, (64, 3)).astype(np.float32)
    samples = {"a_image": images / 255, "z_vector": np.clip(vectors, -3, 3)}
    data = convert(model, samples, io=tf.uint8)
    graph = read_graph(data)
    contract = PolicyContract(
        env_id="",
        algorithm="handmade",
        scheme="int8",
        observations=(
            ObservationSpec(key="image", shape=(6, 6, 3), dtype="uint8", tensor=input_named(graph, "a_image")),
            ObservationSpec(key="vector", shape=(3,), dtype="float64", tensor=input_named(graph, "z_vector")),
        ),
        normalizer=Normalizer(
            where="device",
            offset={"image": (0.0,), "vector": (0.0, 0.0, 0.0)},
            scale={"image": (1 / 255,), "vector": (1.0, 1.0, 1.0)},
            clip=3.0,
        ),
        head=Head(kind="logits", outputs={"logits": output_of_width(graph, 3)}),
        action=ActionSpec(kind="discrete", n=3, start=1),
    )
    return finish(data, contract, {"image": images[:4], "vector": vectors[:4].astype(np.float64)})


def frames() -> bytes:
    """Return the policy of four stacked frames, with batch 1 written into its RESHAPE."""
    given = tf_keras.Input(batch_shape=(1, 6, 6, 4), name="observation")
    seen = keras.Conv2D(3, 3, strides=2, activation="relu")(given)
    flat = keras.Lambda(lambda images: tf.reshape(images, [1, 12]))(seen)
    model = randomize(tf_keras.Model(given, keras.Dense(2, name="q_values")(flat)), 56)
    rng = np.random.default_rng(7)
    stacks = rng.integers(0, 256, (64, 4, 6, 6), np.uint8)
    data = convert(model, {"observation": np.moveaxis(stacks, 1, -1)})
    graph = read_graph(data)
    spec = ObservationSpec(
        key="observation", shape=(6, 6), dtype="uint8", stack=4, tensor=input_named(graph, "observation")
    )
    contract = PolicyContract(
        env_id="",
        algorithm="handmade",
        scheme="int8",
        observations=(spec,),
        head=Head(kind="q_values", outputs={"q_values": output_of_width(graph, 2)}),
        action=ActionSpec(kind="discrete", n=2),
    )
    return finish(data, contract, {"observation": stacks[:4]})


def every_operator(*, elu: bool = True) -> Any:
    """Return a Keras network with each operator that exported policies use; int16x8 knows no ELU."""
    image, vector = tf_keras.Input((8, 8, 2), name="a_image"), tf_keras.Input((4,), name="b_vector")
    seen = keras.Conv2D(4, 3, padding="same", activation="relu")(image)
    seen = keras.DepthwiseConv2D(3, padding="same", activation="relu6")(seen)
    seen = keras.MaxPooling2D(2)(seen)
    seen = keras.AveragePooling2D(2)(seen)
    mean = keras.GlobalAveragePooling2D()(seen)
    flat = keras.Dense(4, activation="elu" if elu else "relu")(keras.Flatten()(seen))
    told = keras.Dense(4, activation="tanh")(vector)
    gate = keras.Dense(4, activation="sigmoid")(vector)
    joined = keras.Multiply()([keras.Add()([mean, flat]), gate])
    joined = keras.Subtract()([joined, told])
    joined = keras.Maximum()([keras.Minimum()([joined, told]), gate])
    both = keras.ReLU()(keras.Concatenate()([joined, keras.Dense(60)(told)]))
    # 1,024 weights at least, since the converter leaves fewer in float under "dynamic".
    both = keras.Dense(16, activation="relu")(both)
    return randomize(tf_keras.Model([image, vector], keras.Dense(3, activation="softmax")(both)), 8)


def operator_samples() -> dict[str, np.ndarray]:
    """Return what goes into `every_operator`."""
    rng = np.random.default_rng(9)
    images, vectors = rng.uniform(-1, 1, (64, 8, 8, 2)), rng.uniform(-2, 2, (64, 4))
    return {"a_image": images.astype(np.float32), "b_vector": vectors.astype(np.float32)}


def operators(scheme: str) -> bytes:
    """Return `every_operator` under one scheme, as a policy of two keys."""
    samples = operator_samples()
    data = convert(every_operator(elu=scheme != "int16x8"), samples, scheme=scheme)
    graph = read_graph(data)
    contract = PolicyContract(
        env_id="",
        algorithm="handmade",
        scheme=scheme,
        observations=(
            ObservationSpec(key="image", shape=(8, 8, 2), tensor=input_named(graph, "a_image")),
            ObservationSpec(key="vector", shape=(4,), tensor=input_named(graph, "b_vector")),
        ),
        head=Head(kind="logits", outputs={"logits": output_of_width(graph, 3)}),
        action=ActionSpec(kind="discrete", n=3),
    )
    return finish(data, contract, {"image": samples["a_image"][:4], "vector": samples["b_vector"][:4]})


MAKERS: Mapping[str, Callable[[], bytes]] = {
    "pendulum": pendulum,
    "pendulum_gaussian": pendulum_gaussian,
    "dict_logits": dict_logits,
    "frames": frames,
    **{f"ops_{scheme}": (lambda scheme=scheme: operators(scheme)) for scheme in SCHEMES},
}


def main() -> None:
    """Write all files."""
    for name, maker in MAKERS.items():
        # Layers without a name are counted, and their names are in the file.
        tf_keras.backend.clear_session()
        data = maker()
        (HERE / f"{name}.tflite").write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        print(f"{name}.tflite: {len(data)} bytes, sha256 {sha256}")  # noqa: T201


if __name__ == "__main__":
    main()
