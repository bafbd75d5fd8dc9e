"""Make the small golden policies beside this file. Run by hand: python tests/data/make_policies.py (needs TensorFlow).

Both are converted by plain post-training quantization, float32 in and out, and carry `quarl.policy.v1`:

* cartpole.tflite: hand-made weights that balance the pole for all 500 steps.
* acrobot.tflite: random weights, six inputs, three actions; for shapes, not for returns.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import flatbuffers
import gymnasium
import numpy as np
import tensorflow as tf
import tf_keras
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from quarl_device.contract import Head, PolicyContract
from quarl_device.environments import spaces_to_specs
from quarl_device.policy_file import METADATA_NAME, GoldenVectors, encode_metadata

HERE = Path(__file__).parent
# Push towards where the pole falls; small terms bring the cart back to the middle.
BALANCE = np.array([0.15, 0.35, 1.6, 1.2], np.float32)


def cartpole_weights() -> list[np.ndarray]:
    """Return kernels and biases of 4-16-2 whose q-values differ by BALANCE @ observation."""
    rng = np.random.default_rng(7)
    hidden = np.zeros((4, 16), np.float32)
    hidden[:, 0], hidden[:, 1] = BALANCE, -BALANCE
    hidden[:, 2:] = rng.normal(0, 0.3, (4, 14))
    out = np.zeros((16, 2), np.float32)
    out[0], out[1] = (-1, 1), (1, -1)
    out[2:] = rng.normal(0, 0.02, (14, 1))  # the same for both actions: they cancel
    return [hidden, np.full(16, 0.01, np.float32), out, np.array([0.5, 0.5], np.float32)]


def convert(weights: list[np.ndarray], samples: np.ndarray) -> bytes:
    """Return an int8 model with float32 input [1, n] and output [1, actions]."""
    width, hidden, actions = weights[0].shape[0], weights[0].shape[1], weights[2].shape[1]
    model = tf_keras.Sequential(
        [
            tf_keras.layers.InputLayer((width,), name="observation"),
            tf_keras.layers.Dense(hidden, activation="relu", name="hidden"),
            tf_keras.layers.Dense(actions, name="q_values"),
        ]
    )
    model.set_weights(weights)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([row[None]] for row in samples)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    return bytes(converter.convert())


def with_metadata(data: bytes, name: str, content: bytes) -> bytes:
    """Return the model with one more metadata entry."""
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(content, np.uint8)
    entry = schema.MetadataT()
    entry.name, entry.buffer = name, len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    builder = flatbuffers.Builder(len(data) + len(content) + 1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def make(env_id: str, weights: list[np.ndarray], samples: np.ndarray) -> bytes:
    """Return a whole policy file."""
    plain = convert(weights, samples)
    interpreter = Interpreter(model_content=plain)
    interpreter.allocate_tensors()
    [source], [sink] = interpreter.get_input_details(), interpreter.get_output_details()
    env = gymnasium.make(env_id)
    observations, action = spaces_to_specs(env.observation_space, env.action_space)
    fields: dict[str, Any] = {f: getattr(observations[0], f) for f in ("key", "shape", "dtype", "low", "high")}
    contract = PolicyContract(
        env_id=env_id,
        algorithm="handmade",
        scheme="int8",
        observations=(type(observations[0])(**fields, tensor=source["name"]),),
        head=Head(kind="q_values", outputs={"q_values": sink["name"]}),
        action=action,
    )
    golden = samples[:4]
    outputs = []
    for row in golden:
        interpreter.set_tensor(source["index"], row[None])
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(sink["index"])[0])
    [last] = [
        t for t in interpreter.get_tensor_details() if t["name"].startswith(sink["name"]) and t["dtype"] is np.int8
    ]
    vectors = GoldenVectors(
        observations={"observation": golden},
        outputs={"q_values": np.stack(outputs)},
        lsb={"q_values": float(last["quantization"][0])},
        tolerance_lsb=2,
    )
    provenance = {"made_by": "tests/data/make_policies.py"}
    return with_metadata(plain, METADATA_NAME, encode_metadata(contract, vectors, provenance))


def main() -> None:
    """Write both files."""
    rng = np.random.default_rng(3)
    samples = (rng.uniform(-1, 1, (256, 4)) * [2.4, 2.5, 0.21, 2.5]).astype(np.float32)
    small = (rng.uniform(-1, 1, (256, 6)) * [1, 1, 1, 1, 12.6, 28.3]).astype(np.float32)
    acrobot = [rng.normal(0, 0.4, s).astype(np.float32) for s in ((6, 8), (8,), (8, 3), (3,))]
    for name, env_id, weights, rows in (
        ("cartpole", "CartPole-v1", cartpole_weights(), samples),
        ("acrobot", "Acrobot-v1", acrobot, small),
    ):
        data = make(env_id, weights, rows)
        (HERE / f"{name}.tflite").write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        print(f"{name}.tflite: {len(data)} bytes, sha256 {sha256}")  # noqa: T201


if __name__ == "__main__":
    main()
