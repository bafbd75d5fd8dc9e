"""One policy file compiled for the Edge TPU, held against the file that it was compiled from.

A learner has no Edge TPU, so it cannot say what one answers. The golden vectors are therefore those of the int8 file
that was compiled: the compiler changes where a file is computed and not what. An Edge TPU rounds in its own way, as
every runtime does, and no such device was at hand to measure how: it is allowed `TPU_TOLERANCE` times the steps that
kernels of CPUs are. A wrong weight or range shows as far more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from quarl_device.delegate_spec import EDGE_TPU_OPERATOR
from quarl_device.errors import ConversionError, ModelFileError
from quarl_device.files import read_capped
from quarl_device.flatbuffer import read_graph
from quarl_device.lint import check_runnable, is_compiled
from quarl_device.policy_file import MAX_TOLERANCE_LSB, METADATA_NAME, PolicyFile, encode_metadata, read_policy
from quarl_device.wire.limits import MAX_POLICY_BYTES
from quarl_export.edgetpu import COMPILER, compile_for_edgetpu
from quarl_export.graph import repack

TPU_TOLERANCE = 2
COMPILE_DEADLINE_S = 60.0


def tpu_tolerance(tolerance_lsb: int) -> int:
    """Return how many steps of its output an Edge TPU may be off, from how many a CPU may."""
    return min(TPU_TOLERANCE * tolerance_lsb, MAX_TOLERANCE_LSB)


def compile_policy(
    policy: bytes, *, deadline_s: float = COMPILE_DEADLINE_S, cancelled: Callable[[], bool] = lambda: False
) -> bytes:
    """Return a policy file compiled, in a child process of the lowest priority, with contract and golden vectors.

    Args:
        policy: an int8 policy file.
        deadline_s: the compiler is killed after so many seconds.
        cancelled: looked at while it runs; true kills it.

    Raises:
        MissingExtra: the compiler is not on the PATH.
        ConversionError: it refuses the policy, fails, does not end in time, or what it wrote is no such file.
        ModelFileError, ContractError: `policy` is no policy file, or what was written does not hold.
    """
    source = read_policy(policy)
    with tempfile.TemporaryDirectory(prefix="quarl-push-") as folder:
        given, made = Path(folder) / "policy.tflite", Path(folder) / "compiled.tflite"
        given.write_bytes(policy)
        report = compile_for_edgetpu(given, out=made, deadline_s=deadline_s, background=True, cancelled=cancelled)
        if not report.compiled:
            raise ConversionError(f"{COMPILER} does not take the policy: {report.failure}")
        compiled = read_capped(made, cap_bytes=MAX_POLICY_BYTES, error=ModelFileError, what="compiled policy")
    return checked(source, compiled)


def checked(source: PolicyFile, compiled: bytes) -> bytes:
    """Return `compiled` if it is `source`, compiled; metadata that the compiler left out is written into it again.

    Raises:
        ConversionError: nothing in it runs on an Edge TPU, or its contract or golden observations are others.
        ModelFileError, ContractError: it is no such file at all.
    """
    graph = read_graph(compiled)
    if not is_compiled(graph):
        raise ConversionError(f"{COMPILER} left everything on the CPU: no {EDGE_TPU_OPERATOR} in what it wrote")
    if METADATA_NAME not in graph.metadata:
        content = encode_metadata(source.contract, source.golden, source.provenance)
        compiled = repack(compiled, metadata={METADATA_NAME: content})
    file = read_policy(compiled)
    check_runnable(file.graph, edge_tpu=True)
    if file.contract != source.contract:
        raise ConversionError(f"{COMPILER} wrote a file with another contract")
    kept, golden = file.golden.observations, source.golden.observations
    if set(kept) != set(golden) or not all(np.array_equal(kept[key], golden[key]) for key in golden):
        raise ConversionError(f"{COMPILER} wrote a file with other golden observations")
    return compiled
