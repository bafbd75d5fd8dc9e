"""LiteRT (`ai-edge-litert`) and its predecessor `tflite-runtime`, which share one interpreter API."""

from __future__ import annotations

import importlib
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import IO, Any

import numpy as np

from quarl_device.delegate_spec import DelegateSpec
from quarl_device.errors import ModelFileError
from quarl_device.runtime.protocol import Array, Infer

MAX_BATCH_SIZE = 4096
_GREETING = b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU."


class InterpreterModel:
    """A TFLite interpreter whose tensors are bound by name.

    `infer` goes through `set_tensor`, `invoke` and `get_tensor`: for small observations that is faster than views of
    the tensors (each view is a new array), and it never keeps a reference into the interpreter's memory.
    """

    def __init__(self, interpreter: Any, *, inputs: Sequence[str], outputs: Sequence[str], batch_size: int) -> None:
        self._interpreter = interpreter
        self.batch_size = batch_size
        self._inputs = _pick(interpreter.get_input_details(), inputs, "input", complete=True)
        self._outputs = _pick(interpreter.get_output_details(), outputs, "output", complete=False)
        if batch_size != 1:
            for detail in self._inputs.values():
                interpreter.resize_tensor_input(detail["index"], [batch_size, *detail["shape"][1:].tolist()])
        interpreter.allocate_tensors()
        # Resizing replaces the shapes that the details told before.
        self._inputs = _pick(interpreter.get_input_details(), inputs, "input", complete=True)
        self._outputs = _pick(interpreter.get_output_details(), outputs, "output", complete=False)
        for name, detail in self._outputs.items():
            if detail["shape"][0] != batch_size:
                raise ValueError(f"output {name!r} has shape {detail['shape'].tolist()} at batch size {batch_size}")
        self.infer: Infer = self._specialise()

    def _specialise(self) -> Infer:
        set_tensor, invoke, get_tensor = (
            self._interpreter.set_tensor,
            self._interpreter.invoke,
            self._interpreter.get_tensor,
        )
        sources = [detail["index"] for detail in self._inputs.values()]
        sinks = [detail["index"] for detail in self._outputs.values()]
        if len(sources) == len(sinks) == 1:
            [source], [sink] = sources, sinks

            def infer_one(observation: Array) -> Array:
                set_tensor(source, observation)
                invoke()
                result: Array = get_tensor(sink)
                return result

            return infer_one

        def infer_many(*observations: Array) -> Any:
            for index, observation in zip(sources, observations, strict=True):
                set_tensor(index, observation)
            invoke()
            results = tuple(get_tensor(index) for index in sinks)
            return results[0] if len(results) == 1 else results

        return infer_many

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run by tensor name. See `quarl_device.runtime.LoadedModel`."""
        if set(inputs) != set(self._inputs):
            raise ModelFileError(f"the model has inputs {sorted(self._inputs)}, given were {sorted(inputs)}")
        for name, detail in self._inputs.items():
            array, shape = np.asarray(inputs[name]), tuple(detail["shape"].tolist())
            if array.shape != shape or array.dtype != np.dtype(detail["dtype"]):
                wanted = np.dtype(detail["dtype"]).name
                raise ModelFileError(f"input {name!r} is {array.dtype} {array.shape}, expected {wanted} {shape}")
        try:
            results = self.infer(*(np.asarray(inputs[name]) for name in self._inputs))
        except (ValueError, RuntimeError) as error:
            raise ModelFileError(f"the runtime cannot run the model: {_first_line(error)}") from error
        return dict(zip(self._outputs, results if len(self._outputs) > 1 else (results,), strict=True))


class InterpreterRuntime:
    """Load models through one distribution's `interpreter` module."""

    name: str
    _module: str

    def __init__(self) -> None:
        self._library = importlib.import_module(self._module)
        self._interpreter = self._library.Interpreter
        self.version = version(self.name)

    def load(
        self,
        model: bytes,
        *,
        inputs: Sequence[str],
        outputs: Sequence[str],
        batch_size: int = 1,
        num_threads: int = 1,
        delegate: DelegateSpec | None = None,
    ) -> InterpreterModel:
        """Load a model. See `quarl_device.runtime.PolicyRuntime`.

        Args:
            model: see there, as all but the last.
            inputs: likewise.
            outputs: likewise.
            batch_size: likewise.
            num_threads: likewise.
            delegate: loaded anew for this model, as Coral's own library does, and kept as long; one that hangs or dies
                takes this process along (`delegated` probes it first).
        """
        if not 1 <= batch_size <= MAX_BATCH_SIZE:
            raise ModelFileError(f"batch size {batch_size} is not in 1..{MAX_BATCH_SIZE}")
        # The constructor's own "model_content or model_path" reads empty bytes as "neither".
        if not model:
            raise ModelFileError("the model is empty")
        try:
            with _without_greeting():
                delegates = None if delegate is None else [self._loaded(delegate)]
                interpreter = self._interpreter(
                    model_content=model, num_threads=num_threads, experimental_delegates=delegates
                )
                return InterpreterModel(interpreter, inputs=inputs, outputs=outputs, batch_size=batch_size)
        except (ValueError, RuntimeError, SystemError, OSError) as error:
            raise ModelFileError(f"{self.name} {self.version} refuses the model: {_first_line(error)}") from error

    def _loaded(self, delegate: DelegateSpec) -> Any:
        return self._library.load_delegate(delegate.library, delegate.options)


class LiteRTRuntime(InterpreterRuntime):
    """`ai-edge-litert`: 64-bit boards and hosts; int8 through XNNPACK."""

    name = "ai-edge-litert"
    _module = "ai_edge_litert.interpreter"


class TFLiteRuntime(InterpreterRuntime):
    """`tflite-runtime`: 32-bit ARM up to Python 3.11, with numpy 1."""

    name = "tflite-runtime"
    _module = "tflite_runtime.interpreter"

    def __init__(self) -> None:
        super().__init__()
        # With numpy 2 the import succeeds and the first interpreter dies with a SystemError.
        if int(np.__version__.split(".")[0]) >= 2:
            raise ImportError(f"tflite-runtime needs numpy<2, found numpy {np.__version__}")


class _Greeting:
    """Whether the runtime has greeted; it does once per process, with the first interpreter that has a delegate."""

    lock = threading.Lock()
    over = False


@contextmanager
def _without_greeting() -> Iterator[None]:
    """Keep the first interpreter's greeting off stderr; everything else that is written meanwhile comes after it.

    The library writes to file descriptor 2 itself, so the descriptor is redirected around this one creation.
    """
    if _Greeting.over:
        yield
        return
    with _Greeting.lock:
        found = _set_aside()
        if found is None:
            # Nothing worth failing for, nor worth trying again with every push.
            _Greeting.over = True
            yield
            return
        held, stderr = found
        with held:
            os.dup2(held.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
                held.seek(0)
                lines = held.read().splitlines(keepends=True)
                rest = b"".join(line for line in lines if not line.startswith(_GREETING))
                _Greeting.over = _Greeting.over or len(b"".join(lines)) > len(rest)
                with suppress(OSError):
                    os.write(2, rest)


def _set_aside() -> tuple[IO[bytes], int] | None:
    """Return an open file and a copy of stderr's descriptor, or `None` where there is no room or no stderr."""
    try:
        held = tempfile.TemporaryFile()  # noqa: SIM115  returned
    except OSError:
        return None
    try:
        return held, os.dup(2)
    except OSError:
        held.close()
        return None


def _pick(
    details: list[dict[str, Any]], names: Sequence[str], what: str, *, complete: bool
) -> dict[str, dict[str, Any]]:
    found = {str(detail["name"]): detail for detail in details}
    missing = [name for name in names if name not in found]
    if missing or not names or (complete and len(set(names)) != len(details)):
        raise ModelFileError(f"the model has {what}s {sorted(found)}, asked for were {list(names)}")
    return {name: found[name] for name in names}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
