"""The stand-in for libedgetpu, built once per test process, files compiled for it, and a stand-in for the compiler."""

from __future__ import annotations

import functools
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

DATA = Path(__file__).parent / "data"
_FOLDER = tempfile.TemporaryDirectory(prefix="quarl-stub-")


@functools.cache
def stub_library() -> str:
    """Build the library; returns its path."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is missing: sudo apt-get install gcc"
    library = Path(_FOLDER.name) / "libstub.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(library)]
    done = subprocess.run(
        [*words, str(DATA / "stub_delegate.c"), "-lm"], capture_output=True, text=True, timeout=60, check=False
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


def compiled(model: bytes, *, metadata: bool = True) -> bytes:
    """A file whose dense layers are one operator of the stub, which computes them as TFLite does, to a rounding."""
    tree: Any = schema.ModelT.InitFromPackedBuf(model, 0)
    [graph] = tree.subgraphs
    dense = [n for n, op in enumerate(graph.operators) if tree.operatorCodes[op.opcodeIndex].builtinCode == 9]
    assert dense, "no FULLY_CONNECTED"
    assert dense == list(range(dense[0], dense[-1] + 1)), "not in a row"
    run = [graph.operators[n] for n in dense]
    code = schema.OperatorCodeT()
    code.builtinCode, code.deprecatedBuiltinCode, code.customCode, code.version = 32, 32, "edgetpu-custom-op", 1
    tree.operatorCodes = [*tree.operatorCodes, code]
    middle = schema.OperatorT()
    middle.opcodeIndex = len(tree.operatorCodes) - 1
    middle.inputs, middle.outputs = np.array(run[0].inputs[:1], np.int32), np.array(run[-1].outputs, np.int32)
    options = b"STUB" + struct.pack("<i", len(run)) + b"".join(_layer(tree, graph, operator) for operator in run)
    middle.customOptions = np.frombuffer(options, np.uint8)
    graph.operators = [*graph.operators[: dense[0]], middle, *graph.operators[dense[-1] + 1 :]]
    if not metadata:
        tree.metadata = []
    builder = flatbuffers.Builder(4096)
    builder.Finish(tree.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _layer(tree: Any, graph: Any, operator: Any) -> bytes:
    """One dense layer as `dense` in stub_delegate.c reads it."""
    source, kernel, bias = (graph.tensors[n] if n >= 0 else None for n in [*operator.inputs, -1][:3])
    sink = graph.tensors[operator.outputs[0]]
    outputs, inputs = kernel.shape
    (in_scale, in_zero), (out_scale, out_zero) = (
        (t.quantization.scale[0], int(t.quantization.zeroPoint[0])) for t in (source, sink)
    )
    scales = np.broadcast_to(np.asarray(kernel.quantization.scale, np.float64), (outputs,))
    biases = np.zeros(outputs, "<i4")
    if bias is not None:
        biases = np.frombuffer(bytes(tree.buffers[bias.buffer].data), "<i4")
    relu = operator.builtinOptions is not None and operator.builtinOptions.fusedActivationFunction == 1
    head = struct.pack("<6i", inputs, outputs, in_zero, out_zero, max(-128, out_zero) if relu else -128, 127)
    multipliers = (scales * float(in_scale) / float(out_scale)).astype("<f8")
    return head + multipliers.tobytes() + biases.tobytes() + bytes(tree.buffers[kernel.buffer].data)


COMPILER = """\
#!{python}
import os, sys, time
sys.path[:0] = {path!r}
words = sys.argv[1:]
out, model = words[words.index("-o") + 1], words[-1]
where = {compiled!r}.format(out=out, name=os.path.basename(model)[: -len(".tflite")])
print("Edge TPU Compiler version 16.0.384591198")
{body}
"""
COMPILES = """
import stub_delegate
open(where, "wb").write(stub_delegate.compiled(open(model, "rb").read()))
print("Model compiled successfully in 1 ms!")
"""


def install_compiler(folder: Path, body: str = COMPILES) -> Path:
    """Write an `edgetpu_compiler` that runs the Python `body` into `folder`, which then goes on the PATH."""
    script = folder / "edgetpu_compiler"
    script.write_text(
        COMPILER.format(
            python=sys.executable,
            path=[str(Path(__file__).parent)],
            compiled="{out}/{name}_edgetpu.tflite",
            body=body,
        )
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script
