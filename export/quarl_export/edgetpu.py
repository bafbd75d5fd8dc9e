"""Compiles a file for the Edge TPU, where Coral's `edgetpu_compiler` is on the PATH, and reads what it says.

The compiler is a closed x86-64 binary of Debian packages; it is neither part of this project nor of its tests. Its
command line and log are the documented ones (coral.ai, "Edge TPU Compiler"; logs of version 16).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl_device.errors import ConversionError, MissingExtra, ModelFileError
from quarl_device.files import read_capped, write_atomic

COMPILER = "edgetpu_compiler"
DEADLINE_S = 300.0
MAX_COMPILED_BYTES = 512 * 1024 * 1024
_MAX_LOG_BYTES = 4 * 1024 * 1024
_POLL_S = 0.05
_MAPPED = "Mapped to Edge TPU"
_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_INSTALL = "coral.ai/docs/edgetpu/compiler; the static check needs nothing: quarl-edge inspect MODEL"

_SIZES = {
    "Input size": "input_bytes",
    "Output size": "output_bytes",
    "On-chip memory used for caching model parameters": "on_chip_bytes",
    "On-chip memory remaining for caching model parameters": "on_chip_left_bytes",
    "Off-chip memory used for streaming uncached model parameters": "off_chip_bytes",
}
_COUNTS = {
    "Number of Edge TPU subgraphs": "subgraphs",
    "Total number of operations": "operations",
    "Number of operations that will run on Edge TPU": "on_tpu",
    "Number of operations that will run on CPU": "on_cpu",
}
_ROW = re.compile(r"^(?P<op>[A-Za-z][\w-]*)\s+(?P<count>\d+)\s+(?P<status>\S.*)$")
_VERSION = re.compile(r"Edge TPU Compiler version ([\w.]+)")
_FAILED = re.compile(r"^(?:Compilation failed: |Internal compiler error|ERROR: |Model not quantized)")


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """One row of the compiler's table: so many operators of a kind share a fate.

    Attributes:
        op: operator name.
        count: how many.
        status: the compiler's words; "Mapped to Edge TPU" for those that run there.
    """

    op: str
    count: int
    status: str

    @property
    def mapped(self) -> bool:
        """Whether they run on the Edge TPU."""
        return self.status == _MAPPED


@dataclass(frozen=True, kw_only=True)
class EdgeTpuReport:
    """What the compiler said.

    Attributes:
        version: of the compiler, "" where it does not say.
        compiled: whether there is a compiled file.
        failure: its reason, "" where it compiled.
        model: the compiled file, `None` where there is none or only a log was parsed.
        operators: its table.
        input_bytes: size of the given file; sizes are rounded by the compiler's own print.
        output_bytes: size of the compiled file.
        on_chip_bytes: parameters that stay on the chip.
        on_chip_left_bytes: room for more.
        off_chip_bytes: parameters that are sent at every call.
        subgraphs: pieces on the Edge TPU.
        operations: operators in all.
        on_tpu: operators on the Edge TPU.
        on_cpu: operators on the CPU.
    """

    version: str = ""
    compiled: bool = False
    failure: str = ""
    model: Path | None = None
    operators: tuple[OperatorRow, ...] = ()
    input_bytes: int = 0
    output_bytes: int = 0
    on_chip_bytes: int = 0
    on_chip_left_bytes: int = 0
    off_chip_bytes: int = 0
    subgraphs: int = 0
    operations: int = 0
    on_tpu: int = 0
    on_cpu: int = 0
    log: str = field(default="", repr=False)

    @property
    def unmapped(self) -> tuple[OperatorRow, ...]:
        """The operators that stay on the CPU, with the compiler's reasons."""
        return tuple(row for row in self.operators if not row.mapped)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the log as JSON values."""
        fields = {name: getattr(self, name) for name in (*_SIZES.values(), *_COUNTS.values())}
        return {
            "version": self.version,
            "compiled": self.compiled,
            "failure": self.failure,
            "model": None if self.model is None else str(self.model),
            **fields,
            "operators": [{"op": row.op, "count": row.count, "status": row.status} for row in self.operators],
        }


def find_compiler() -> str | None:
    """Return the compiler's path, `None` where it is not on the PATH."""
    return shutil.which(COMPILER)


def require_compiler() -> str:
    """Return the compiler's path.

    Raises:
        MissingExtra: it is not on the PATH.
    """
    compiler = find_compiler()
    if compiler is None:
        raise MissingExtra(f"{COMPILER} is not on the PATH", hint=_INSTALL)
    return compiler


def compile_for_edgetpu(
    path: Path,
    *,
    out: Path | None = None,
    deadline_s: float = DEADLINE_S,
    background: bool = False,
    cancelled: Callable[[], bool] = lambda: False,
) -> EdgeTpuReport:
    """Compile a file and return what the compiler said; a model that it refuses is a report too, not an error.

    Args:
        path: an int8 `.tflite`.
        out: where the compiled file goes; by default beside `path`, as `<name>_edgetpu.tflite`.
        deadline_s: the compiler is killed after so many seconds, with all that it has started.
        background: at the lowest priority, and ended with this process.
        cancelled: looked at while it runs; true kills it.

    Raises:
        MissingExtra: the compiler is not on the PATH.
        ModelFileError: `path` cannot be read, or `out` not written.
        ConversionError: the compiler did not end in time, died, or said nothing that can be understood.
    """
    compiler = require_compiler()
    data = read_capped(path, cap_bytes=MAX_COMPILED_BYTES, error=ModelFileError, what="model file")
    target = out or path.with_name(f"{path.stem}_edgetpu.tflite")
    with tempfile.TemporaryDirectory(prefix="quarl-edgetpu-") as folder:
        source = Path(folder) / "model.tflite"
        source.write_bytes(data)
        words = [compiler, "-s", "-o", folder, str(source)]
        if background:
            words = [sys.executable, "-m", "quarl_export.background", str(os.getpid()), *words]
        log = _run(words, Path(folder), deadline_s, cancelled)
        made = Path(folder) / "model_edgetpu.tflite"
        report = parse_log(log)
        if not made.exists():
            return _refused(report)
        compiled = read_capped(made, cap_bytes=MAX_COMPILED_BYTES, error=ModelFileError, what="compiled model")
        write_atomic(target, compiled, error=ModelFileError, what="compiled model")
    return EdgeTpuReport(**{**vars(report), "compiled": True, "failure": "", "model": target})


def _environment() -> dict[str, str]:
    """Return this process's environment without the broker's password, which somebody else's program need not have."""
    return {name: value for name, value in os.environ.items() if not name.startswith("QUARL_")}


def _run(words: list[str], folder: Path, deadline_s: float, cancelled: Callable[[], bool]) -> str:
    """Run the compiler and return what it printed.

    Into a file: a pipe stays open as long as anything that the compiler has started, whatever becomes of itself.
    """
    said = folder / "log.txt"
    try:
        with said.open("wb") as log:
            # A session of its own, so that all of it can be ended.
            child = subprocess.Popen(
                words,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
    except OSError as error:
        raise ConversionError(f"{words[0]} cannot be run: {error.strerror}") from error
    try:
        code = _await(child, deadline_s, cancelled)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    with said.open("rb") as log:
        text = log.read(_MAX_LOG_BYTES).decode("utf-8", "replace")
    if code < 0:
        raise ConversionError(f"{COMPILER} died of signal {-code}")
    if not _VERSION.search(text) and not parse_log(text).operators:
        last = text.strip().splitlines()
        raise ConversionError(f"{COMPILER} ended with {code} and no report: {last[-1][:200] if last else 'silent'}")
    return text


def _await(child: subprocess.Popen[bytes], deadline_s: float, cancelled: Callable[[], bool]) -> int:
    until_s = time.monotonic() + deadline_s
    while not cancelled():
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise ConversionError(f"{COMPILER} gave no result in {deadline_s:g} s", hint="make the layers narrower")
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(min(left_s, _POLL_S))
    raise ConversionError(f"{COMPILER} was not waited for any more")


def _refused(report: EdgeTpuReport) -> EdgeTpuReport:
    failure = report.failure or "the compiler wrote no file"
    return EdgeTpuReport(**{**vars(report), "compiled": False, "failure": failure})


def parse_log(log: str) -> EdgeTpuReport:
    """Read what the compiler prints with `-s`; what is not in it stays zero or empty.

    The counts of operators on the Edge TPU and the CPU are printed only where some stay on the CPU; then and otherwise
    the table gives them.
    """
    version = _VERSION.search(log)
    failed = [line.strip() for line in log.splitlines() if _FAILED.match(line)]
    rows = tuple(_rows(log))
    fields: dict[str, Any] = {}
    for line in log.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _SIZES:
            fields[_SIZES[name.strip()]] = _bytes(value)
        elif name.strip() in _COUNTS and value.strip().isdigit():
            fields[_COUNTS[name.strip()]] = int(value)
    fields.setdefault("on_tpu", sum(row.count for row in rows if row.mapped))
    fields.setdefault("on_cpu", sum(row.count for row in rows if not row.mapped))
    return EdgeTpuReport(
        version=version.group(1) if version else "",
        compiled="Model compiled successfully" in log or "Model successfully compiled" in log,
        failure="" if "compiled successfully" in log else "; ".join(failed)[:500],
        operators=rows,
        log=log,
        **fields,
    )


def _rows(log: str) -> Iterator[OperatorRow]:
    inside = False
    for line in log.splitlines():
        if line.split() == ["Operator", "Count", "Status"]:
            inside = True
            continue
        found = _ROW.match(line.strip()) if inside else None
        if found:
            yield OperatorRow(op=found["op"], count=int(found["count"]), status=found["status"].strip())


def _bytes(text: str) -> int:
    """Return "1.92MiB" as bytes; 0 for what is no size."""
    found = re.fullmatch(r"([\d.]+)\s*([KMG]i)?B", text.strip())
    try:
        return round(float(found[1]) * _UNITS[f"{found[2] or ''}B"]) if found else 0
    except ValueError:
        return 0
