"""The stand-in for libedgetpu, built once per test process, and a file compiled for it."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

DATA = Path(__file__).parents[1] / "data"
_FOLDER = tempfile.TemporaryDirectory(prefix="quarl-stub-")


@functools.cache
def stub_library() -> str:
    """Build the library; returns its path."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is missing: sudo apt-get install gcc"
    library = Path(_FOLDER.name) / "libstub.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(library)]
    done = subprocess.run(
        [*words, str(DATA / "stub_delegate.c")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return str(library)


@functools.cache
def compiled_cartpole() -> bytes:
    """CartPole's file as `edgetpu_compiler` would leave it: one custom operator between QUANTIZE and DEQUANTIZE."""
    model: Any = schema.ModelT.InitFromPackedBuf((DATA / "cartpole.tflite").read_bytes(), 0)
    [graph] = model.subgraphs
    code = schema.OperatorCodeT()
    code.builtinCode, code.deprecatedBuiltinCode, code.customCode, code.version = 32, 32, "edgetpu-custom-op", 1
    model.operatorCodes = [*model.operatorCodes, code]
    quantize, dense, last, dequantize = graph.operators
    middle = schema.OperatorT()
    middle.opcodeIndex = len(model.operatorCodes) - 1
    middle.inputs, middle.outputs = np.array(dense.inputs[:1], np.int32), np.array(last.outputs, np.int32)
    graph.operators = [quantize, middle, dequantize]
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())
