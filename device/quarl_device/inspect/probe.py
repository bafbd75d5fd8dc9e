"""Load a file for real, in a child process: a bad file, or a runtime that does not fit, may kill its interpreter.

So may a delegate's library, which can hang on its device besides; it is loaded there in the same way.

The parent sends the model on stdin; the child answers one JSON line. Whatever happens to the child (a signal, silence,
nonsense) becomes a plain answer.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from quarl_device.delegate_spec import DelegateSpec
from quarl_device.names import PASSWORD_VARIABLE
from quarl_device.parent import end_with_parent_or_now

MODULES: Mapping[str, str] = {
    "ai-edge-litert": "ai_edge_litert.interpreter",
    "tflite-runtime": "tflite_runtime.interpreter",
}
DEADLINE_S = 60.0
MAX_CHILD_BYTES = 8 * 1024**3
_KILLED_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What one installed runtime did with a file.

    Attributes:
        runtime: its distribution.
        version: installed version, "" where it is not installed.
        loads: it built an interpreter, allocated the tensors and ran once on zeros; `None` where it is not installed.
        detail: what went wrong, "" where nothing did.
    """

    runtime: str
    version: str
    loads: bool | None
    detail: str


def installed_version(runtime: str) -> str:
    """Return a distribution's installed version: "" where there is none, "unknown" where its metadata is damaged."""
    try:
        # Typed as a text, and `None` all the same where an installation was cut short.
        return version(runtime) or "unknown"
    except PackageNotFoundError:
        return ""
    # Torn metadata fails in as many ways as there are Pythons.
    except (OSError, ValueError, KeyError):
        return "unknown"


def probe(
    model: bytes,
    runtime: str,
    *,
    delegate: DelegateSpec | None = None,
    deadline_s: float = DEADLINE_S,
    command: Sequence[str] | None = None,
) -> Probe:
    """Load and run `model` once in a child process.

    Args:
        model: a TFLite file of any origin.
        runtime: a distribution of `MODULES`.
        delegate: to load first and run the file with, as far as it takes it.
        deadline_s: after so many seconds the child is killed.
        command: what to run instead of this module; for tests.
    """
    found = installed_version(runtime)
    if not found:
        return Probe(runtime=runtime, version="", loads=None, detail="not installed here")
    loaded = None if delegate is None else (delegate.library, delegate.options)
    tied = f"tie_to_parent({os.getpid()}, {math.ceil(deadline_s) + 1})"
    code = f"from {__name__} import main, tie_to_parent; {tied}; main({runtime!r}, {loaded!r})"
    try:
        done = _run(command or [sys.executable, "-c", code], model, deadline_s)
    except subprocess.TimeoutExpired:
        return Probe(runtime=runtime, version=found, loads=False, detail=f"gave no answer in {deadline_s:g} s")
    except OSError as error:
        return Probe(runtime=runtime, version=found, loads=None, detail=f"no child process: {error.strerror}")
    loads, detail = _answer(done)
    return Probe(runtime=runtime, version=found, loads=loads, detail=detail)


def _run(words: Sequence[str], model: bytes, deadline_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run a child to its end or its deadline; unlike `subprocess.run` it never waits for one that cannot be killed.

    Raises:
        TimeoutExpired: it was killed.
        OSError: it could not be started.
    """
    pipe = subprocess.PIPE
    # No `with`, which would wait without end for a child that hangs in a driver.
    child = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=_child_env())
    try:
        out, err = child.communicate(model, timeout=deadline_s)
    except BaseException:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_KILLED_S)
        for end in (child.stdin, child.stdout, child.stderr):
            with contextlib.suppress(OSError):
                if end is not None:
                    end.close()
        raise
    return subprocess.CompletedProcess(words, child.returncode, out, err)


def _child_env() -> dict[str, str]:
    # Native code of any origin is about to run there, and has no use for the broker's password.
    kept = {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}
    # The child must find the package where this process did, installed or not.
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _answer(done: subprocess.CompletedProcess[bytes]) -> tuple[bool, str]:
    if done.returncode < 0:
        return False, f"its interpreter died of {_signal_name(-done.returncode)}"
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    try:
        answer = json.loads(lines[-1])
        return bool(answer["loads"]), str(answer["detail"])[:300]
    except (IndexError, ValueError, KeyError, TypeError):
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return False, f"its process ended with {done.returncode}: {last[-1][:200] if last else 'silent'}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tie_to_parent(parent: int, alarm_s: int) -> None:
    """Have the kernel end this process with its parent, or after so many seconds: native code may hang for ever.

    Args:
        parent: process id of the one that asks.
        alarm_s: a little longer than the parent waits.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(alarm_s)
    end_with_parent_or_now(parent)


def main(runtime: str, delegate: tuple[str, Mapping[str, str]] | None = None) -> None:
    """Be the child: read a model from stdin, run it on zeros, write one JSON line.

    Args:
        runtime: see `probe`.
        delegate: library and options.
    """
    _limit()
    model = sys.stdin.buffer.read()
    try:
        detail = _run_once(MODULES[runtime], model, delegate)
    # Whatever a runtime raises is the answer that was asked for.
    except BaseException as error:
        # A delegate's own words are on the second line, behind the path of its library.
        detail = f"{type(error).__name__}: {': '.join(str(error).strip().splitlines()[:2])}"
    sys.stdout.write(json.dumps({"loads": not detail, "detail": detail}) + "\n")


def _limit() -> None:
    """No core file, and no more memory than any model of ours could ask for."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.maxsize < 2**32:  # all addresses together are fewer
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MAX_CHILD_BYTES if hard == resource.RLIM_INFINITY else min(MAX_CHILD_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _run_once(module: str, model: bytes, delegate: tuple[str, Mapping[str, str]] | None = None) -> str:
    import numpy as np

    if module.startswith("tflite_runtime") and int(np.__version__.split(".")[0]) >= 2:
        return f"tflite-runtime needs numpy<2, found numpy {np.__version__}"
    library: Any = importlib.import_module(module)
    delegates = None if delegate is None else [_load_delegate(library, *delegate)]
    interpreter: Any = library.Interpreter(model_content=model, num_threads=1, experimental_delegates=delegates)
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], np.zeros(detail["shape"], detail["dtype"]))
    interpreter.invoke()
    return ""


def _load_delegate(library: Any, path: str, options: Mapping[str, str]) -> Any:
    # Where the library cannot be opened at all, its finalizer fails once more, and would say so.
    sys.unraisablehook = lambda _: None
    return library.load_delegate(path, dict(options))
