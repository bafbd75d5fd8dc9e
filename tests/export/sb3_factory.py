"""Stable-Baselines3 archives made by hand: a pickle assembler, torch's tensor format, and whole agents around them."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import pickle
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SB3 = Path(__file__).parent.parent / "data" / "sb3"
POLICIES = "stable_baselines3.common.policies"
STORAGES = {
    "float32": "FloatStorage", "float64": "DoubleStorage", "float16": "HalfStorage", "int64": "LongStorage",
    "uint16": "BFloat16Storage",
}  # fmt: skip


@dataclass(frozen=True)
class Name:
    module: str
    name: str


@dataclass(frozen=True)
class Call:
    target: Any
    arguments: tuple


@dataclass(frozen=True)
class Built:
    target: Any
    state: Any


@dataclass(frozen=True)
class Persistent:
    identity: tuple


@dataclass(frozen=True)
class Raw:
    opcodes: bytes


def doubled(times: int = 60) -> bytes:
    """Return opcodes of a tuple that holds another one twice, and so on: its `str` would have 2**60 parts."""
    return b"(" + b")q\x000" + b"".join(b"h%ch%c\x86q%c0" % (n, n, n + 1) for n in range(times)) + b"1h%c" % times


def assemble(value: Any) -> bytes:
    """Return the opcodes that push `value`, without an end."""
    if isinstance(value, Raw):
        return value.opcodes
    if isinstance(value, Name):
        return b"c" + f"{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return assemble(value.target) + assemble(value.arguments) + b"R"
    if isinstance(value, Built):
        return assemble(value.target) + assemble(value.state) + b"b"
    if isinstance(value, Persistent):
        return assemble(value.identity) + b"Q"
    if isinstance(value, dict):
        return b"}(" + b"".join(assemble(part) for pair in value.items() for part in pair) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(assemble, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(assemble, value)) + b"t"
    if isinstance(value, bytes):
        return b"B" + struct.pack("<I", len(value)) + value
    # What is left is a plain value: a frameless pickle of it without head and end.
    return pickle.dumps(value, 2)[2:-1].split(b"q\x00")[0]


def pickled(value: Any) -> bytes:
    return b"\x80\x02" + assemble(value) + b"."


def array(values: Any, dtype: str = "f4") -> Built:
    """Return numpy's reconstruction of an array as a pickle has it."""
    found = np.asarray(values, dtype)
    kind = Built(Call(Name("numpy", "dtype"), (dtype, False, True)), (3, "<", None, None, None, -1, -1, 0))
    empty = Call(Name("numpy._core.multiarray", "_reconstruct"), (Name("numpy", "ndarray"), (0,), b"b"))
    return Built(empty, (1, found.shape, kind, False, found.tobytes()))


def box(low: Any, high: Any, dtype: str = "f4") -> Built:
    shape = np.shape(low)
    state = {"dtype": Name("numpy", np.dtype(dtype).name), "_shape": shape, "low": array(low, dtype)}
    return Built(Call(Name("gymnasium.spaces.box", "Box"), ()), {**state, "high": array(high, dtype)})


def image(shape: tuple) -> Built:
    return box(np.zeros(shape), np.full(shape, 255), "u1")


def discrete(n: int, start: int = 0) -> Built:
    return Built(Call(Name("gymnasium.spaces.discrete", "Discrete"), ()), {"n": n, "start": start})


def dict_space(**parts: Any) -> Built:
    return Built(Call(Name("gymnasium.spaces.dict", "Dict"), ()), {"spaces": parts})


def tensor(values: np.ndarray, key: str, **changes: Any) -> Call:
    """Return torch's reconstruction of a tensor whose storage is `key`."""
    settings = {
        "storage": STORAGES[values.dtype.name], "elements": values.size, "offset": 0, "shape": values.shape,
        "strides": tuple(step // values.itemsize for step in values.strides), **changes,
    }  # fmt: skip
    storage = ("storage", Name("torch", settings["storage"]), key, "cpu", settings["elements"])
    hooks = Call(Name("collections", "OrderedDict"), ())
    where = (Persistent(storage), settings["offset"], settings["shape"], settings["strides"], False, hooks)
    return Call(Name("torch._utils", "_rebuild_tensor_v2"), where)


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def torch_archive(tensors: dict[str, np.ndarray], **replaced: Any) -> bytes:
    """Return what `torch.save` of a state dict gives; `replaced` are members by their last name, `None` for none."""
    state = {name: tensor(values, str(key)) for key, (name, values) in enumerate(tensors.items())}
    members = {"data.pkl": pickled(state), "byteorder": b"little", "version": b"3\n"}
    members |= {f"data/{key}": values.tobytes() for key, values in enumerate(tensors.values())}
    members |= {name.replace("__", "/"): data for name, data in replaced.items()}
    return zipped({f"archive/{name}": data for name, data in members.items() if data is not None})


def field(value: Any) -> dict[str, str]:
    return {":type:": "", ":serialized:": base64.b64encode(pickled(value)).decode()}


def linear(inputs: int, outputs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed + 100 * inputs + outputs)
    return rng.normal(size=(outputs, inputs)).astype(np.float32), rng.normal(size=outputs).astype(np.float32)


def perceptron(prefix: str, *widths: int) -> dict[str, np.ndarray]:
    """Return the tensors of a Sequential of Linear layers at even places."""
    tensors = {}
    for place, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        weight, bias = linear(inputs, outputs, place)
        tensors |= {f"{prefix}{2 * place}.weight": weight, f"{prefix}{2 * place}.bias": bias}
    return tensors


def nature(prefix: str, shape: tuple[int, int, int], features: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return tensors like NatureCNN's, of few channels, for an image [channels, rows, columns]."""
    rng = np.random.default_rng(seed)
    tensors = {}
    channels, rows, columns = shape
    for place, filters, kernel, stride in ((0, 3, 8, 4), (2, 4, 4, 2), (4, 5, 3, 1)):
        weight = rng.normal(size=(filters, channels, kernel, kernel)) / math.sqrt(channels * kernel * kernel)
        tensors[f"{prefix}cnn.{place}.weight"] = weight.astype(np.float32)
        tensors[f"{prefix}cnn.{place}.bias"] = rng.normal(size=filters).astype(np.float32)
        channels, rows, columns = filters, (rows - kernel) // stride + 1, (columns - kernel) // stride + 1
    weight, bias = linear(channels * rows * columns, features, seed)
    return tensors | {f"{prefix}linear.0.weight": weight, f"{prefix}linear.0.bias": bias}


def dqn_tensors() -> dict[str, np.ndarray]:
    return perceptron("q_net.q_net.", 4, 6, 2) | perceptron("q_net_target.q_net.", 4, 6, 2)


def dqn_settings(**changed: Any) -> dict[str, Any]:
    """Return the `data` of a DQN on four numbers and two actions; `None` removes an entry."""
    settings = {
        "policy_class": field(Name("stable_baselines3.dqn.policies", "DQNPolicy")),
        "policy_kwargs": {"net_arch": [6]},
        "observation_space": field(box([-1] * 4, [1] * 4)),
        "action_space": field(discrete(2)),
        **changed,
    }
    return {name: value for name, value in settings.items() if value is not None}


def write_agent(path: Path, *, tensors: Any = None, settings: Any = None, **members: bytes | None) -> Path:
    """Write a DQN `.zip`; `tensors` and `settings` replace its own, `members` those of the archive, `None` for none."""
    parts = {
        "data": json.dumps(settings or dqn_settings()).encode(),
        "policy.pth": torch_archive(dqn_tensors() if tensors is None else tensors),
        "_stable_baselines3_version": b"2.9.2",
    }
    parts |= {name.replace("__", "."): data for name, data in members.items()}
    path.write_bytes(zipped({name: data for name, data in parts.items() if data is not None}))
    return path
