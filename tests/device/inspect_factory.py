"""Small graphs as data, and real files changed in one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl_device.flatbuffer import Graph, Operator, Quantization, Tensor

DATA = Path(__file__).parents[1] / "data"
REPORTS = DATA / "reports"


def quantization(scale: float = 0.1, zero_point: int = 0, channels: int = 1, axis: int = 0) -> Quantization:
    return Quantization(
        scales=np.full(channels, scale, np.float32), zero_points=np.full(channels, zero_point, np.int64), axis=axis
    )


def tensor(index: int, shape: tuple[int, ...], dtype: str = "int8", *, size: int = 0, **more: Any) -> Tensor:
    defaults: dict[str, Any] = {
        "name": f"t{index}",
        "shape_signature": shape,
        "quantization": quantization() if dtype in ("int8", "uint8", "int16") else None,
        "buffer": index + 1,
        "start": 0,
        "plain": True,
    }
    return Tensor(index=index, shape=shape, dtype=dtype, size=size, **{**defaults, **more})


def operator(
    index: int, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *options: Any, version: int = 1
) -> Operator:
    return Operator(
        index=index,
        code=0,
        name=name,
        version=version,
        inputs=inputs,
        outputs=outputs,
        options_type=0,
        options=options,
        plain=True,
    )


def deadly_runtime(folder: Path) -> str:
    """Install a tflite-runtime whose interpreter is killed by a segmentation fault; returns what to put on the path."""
    package, metadata = folder / "tflite_runtime", folder / "tflite_runtime-2.14.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tflite-runtime\nVersion: 2.14.0\n")
    (package / "__init__.py").write_text("")
    (package / "interpreter.py").write_text(
        "import os, signal\n\nclass Interpreter:\n    def __init__(self, **_):\n"
        "        os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    # With numpy 2 the real one is not even tried.
    (folder / "numpy.py").write_text("__version__ = '1.26.4'\n")
    return str(folder)


def graph(
    tensors: list[Tensor],
    operators: list[Operator],
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    data: bytes = b"",
) -> Graph:
    return Graph(
        data=data,
        tensors=tuple(tensors),
        operators=tuple(operators),
        inputs=inputs,
        outputs=outputs,
        metadata={},
        description="",
    )


def single(name: str, shape: tuple[int, ...], result: tuple[int, ...], *options: Any, constants: bytes = b"") -> Graph:
    """One operator, int8 in and out; `constants` become an int32 second input."""
    tensors = [tensor(0, shape), tensor(1, result)]
    inputs: tuple[int, ...] = (0,)
    if constants:
        tensors.append(tensor(2, (len(constants) // 4,), "int32", size=len(constants)))
        inputs = (0, 2)
    return graph(tensors, [operator(0, name, inputs, (1,), *options)], (0,), (1,), constants)


def ints(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def changed(path: Path, change: Callable[[Any], None]) -> bytes:
    """A file with its object tree changed, packed again."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(bytearray(path.read_bytes()), 0))
    change(model)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def without_weights(model: Any) -> None:
    """A dense operator without weights: LiteRT 2.3 refuses it, or dies of it, as its memory happens to be."""
    model.subgraphs[0].operators[1].inputs = np.array([5, -1, 3], np.int32)
