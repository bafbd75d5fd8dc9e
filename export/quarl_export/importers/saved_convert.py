"""A stranger's SavedModel converted in a child process that has a cap on its memory and a deadline.

A few bytes can name a constant of any size (a fill, a tile, an outer product), and TensorFlow computes what is constant
while it converts. How much that takes shows only when it is computed, so the system holds the cap: what is over it
ends the child and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from quarl_device.errors import ConversionError, ModelFileError
from quarl_device.files import read_capped
from quarl_device.wire.limits import MAX_POLICY_BYTES

DEADLINE_S = 120.0
BASE_BYTES = 5 << 28
"""Memory of a conversion without its weights: TensorFlow itself takes half of it."""
COPIES = 8
"""How often a conversion holds the weights, at most."""
_HINT = "a policy's constants are its weights; save the acting part without constants that are computed"
_RESULT = "converted.tflite"
_OUT_OF_MEMORY = ("MemoryError", "ResourceExhaustedError", "bad_alloc", "Cannot allocate memory", "OOM when allocating")


def convert_saved_model(
    folder: Path, signature: str, *, weight_bytes: int, what: str, deadline_s: float = DEADLINE_S
) -> bytes:
    """Return the float TFLite file of one signature.

    Args:
        folder: of a SavedModel that was checked; the result is written beside it.
        signature: its name.
        weight_bytes: size of its variables and its graph.
        what: names it in errors.
        deadline_s: after so many seconds the child is killed.

    Raises:
        ConversionError: TensorFlow cannot convert it, or not within the memory or the time.
    """
    cap = BASE_BYTES + COPIES * weight_bytes
    words = [sys.executable, "-c", f"from {__name__} import main; main()", str(folder), signature, str(cap)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(words, capture_output=True, timeout=deadline_s, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise ConversionError(
            f"{what}: its conversion took more than {deadline_s:g} s; those of policies take seconds", hint=_HINT
        ) from None
    except OSError as error:
        raise ConversionError(f"{what}: no process to convert it in: {error.strerror or error}") from error
    result = folder / _RESULT
    if done.returncode == 0 and result.is_file():
        return read_capped(result, cap_bytes=MAX_POLICY_BYTES, error=ModelFileError, what=f"{what}, converted,")
    raise _failure(done, signature, cap, what)


def _failure(done: subprocess.CompletedProcess[bytes], signature: str, cap: int, what: str) -> ConversionError:
    told = done.stdout.decode("utf-8", "replace").strip().splitlines()
    try:
        said = str(json.loads(told[-1])["error"])[:200]
    except (IndexError, ValueError, KeyError, TypeError):
        said = ""
    logged = done.stderr[-100_000:].decode("utf-8", "replace")
    if any(sign in said or sign in logged for sign in _OUT_OF_MEMORY):
        return ConversionError(
            f"{what}: converting it takes more than {cap:,} bytes of memory: its constants unfold to far more than "
            "the file holds",
            hint=_HINT,
        )
    said = said or f"its process ended with {done.returncode}"
    return ConversionError(f"{what}: TensorFlow cannot convert the signature {signature!r}: {said}")


def main() -> None:
    """Be the child: convert, write the file, and say on stdout what went wrong."""
    folder, signature, cap = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    _limit(cap)
    try:
        import tensorflow as tf

        data = tf.lite.TFLiteConverter.from_saved_model(str(folder), signature_keys=[signature]).convert()
        (folder / _RESULT).write_bytes(data)
    # The loader and the converter raise what they like.
    except BaseException as error:
        lines = str(error).strip().splitlines()
        sys.stdout.write("\n" + json.dumps({"error": f"{type(error).__name__}: {lines[0] if lines else ''}"}) + "\n")
        sys.stdout.flush()
        os._exit(1)


def _limit(cap_bytes: int) -> None:
    """Cap what this process may write to, addresses that it merely reserves left out, and leave no core file.

    On two processors, since every thread's stack counts and TensorFlow starts some for each.
    """
    import resource

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = cap_bytes if hard == resource.RLIM_INFINITY else min(cap_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
