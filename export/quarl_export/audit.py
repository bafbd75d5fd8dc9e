"""Audits of live pushes: is a patched file still what a real conversion gives?

A conversion takes a second and holds Python's lock, so a learner leaves it to a child process of the lowest priority:
``python -m quarl_export.audit`` reads jobs on stdin and answers on stdout until stdin ends.

A job is two u32-LE lengths, then that many bytes of JSON header {version, network, arrays_bytes} and of payload: the
snapshot as npz, followed by the patched file. An answer is one line of JSON, the fields of `AuditResult`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from quarl_device.errors import QuarlError
from quarl_export.checkpoint import MAX_ARRAYS_BYTES, pack_arrays, unpack_arrays
from quarl_export.compare import difference
from quarl_export.networks import NetworkSpec
from quarl_export.snapshot import PolicySnapshot, for_export

_LENGTHS = struct.Struct("<II")
_MAX_HEADER_BYTES = 1 << 20
_MAX_PAYLOAD_BYTES = 2 * MAX_ARRAYS_BYTES
_MAX_WAITING_JOBS = 2
_ANSWER_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """Outcome of one audit.

    Attributes:
        version: of the push.
        identical: every operator and tensor equals the conversion's.
        seconds: what the audit took.
        detail: the first difference, or why there was no audit.
        failed: there was no verdict: the conversion or the child failed. Then `identical` is false.
    """

    version: int
    identical: bool
    seconds: float
    detail: str = ""
    failed: bool = False


def audit(spec: NetworkSpec, snapshot: PolicySnapshot, patched: bytes, *, version: int = 0) -> AuditResult:
    """Convert `snapshot` for real and compare, in this process; takes about a second, and never raises QuarlError."""
    from quarl_export.converter import convert_snapshot

    start = time.monotonic()
    try:
        detail = difference(patched, convert_snapshot(spec, for_export(spec, snapshot)))
        identical, failed = not detail, False
    except QuarlError as error:
        detail, identical, failed = str(error), False, True
    return AuditResult(
        version=version, identical=identical, seconds=time.monotonic() - start, detail=detail, failed=failed
    )


class AuditChild:
    """Runs audits in a child process, started with the first job.

    Args:
        spec: of all snapshots to come.
        command: the child; for tests.
        answer_timeout_s: longest time that one audit may take before the child is killed.
    """

    def __init__(
        self, spec: NetworkSpec, *, command: tuple[str, ...] = (), answer_timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> None:
        self._spec = spec
        self._answer_timeout_s = answer_timeout_s
        self._command = command or (sys.executable, "-m", "quarl_export.audit")
        self._jobs: queue.Queue[tuple[int, bytes] | None] = queue.Queue(maxsize=_MAX_WAITING_JOBS)
        self._results: queue.Queue[AuditResult] = queue.Queue()
        self._child: subprocess.Popen[bytes] | None = None
        self._worker: threading.Thread | None = None
        self._closed = False
        # A child is started and ended under it, so none is started once `close` has ended what there was.
        self._starting = threading.Lock()

    def submit(self, version: int, snapshot: PolicySnapshot, patched: bytes) -> bool:
        """Hand over one push without waiting; false if the child is still busy with earlier ones or closed."""
        if self._closed or self._jobs.full():
            return False
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="audit", daemon=True)
            self._worker.start()
        try:
            self._jobs.put_nowait((version, encode_job(version, self._spec, snapshot, patched)))
        except queue.Full:
            return False
        return True

    def poll(self) -> list[AuditResult]:
        """Return the results that have arrived since the last call."""
        return _drained(self._results)

    def close(self, *, timeout_s: float = 2.0) -> None:
        """End the child; one still converting is killed after `timeout_s`. Never raises, whenever the child goes."""
        self._closed = True
        # The worker takes jobs meanwhile, so a queue that was not empty may be by the time it is asked.
        _drained(self._jobs)
        # Only this thread puts jobs, and none after `_closed`: there is room.
        self._jobs.put_nowait(None)
        if self._worker is None:
            return
        self._worker.join(timeout_s)
        with self._starting:
            # The worker forgets its child when it is done with it: it is read once, and ended as read.
            child = self._child
            if child is not None and child.poll() is None:
                child.kill()
                _await(child, timeout_s)
        self._worker.join(timeout_s)

    def _work(self) -> None:
        """Send jobs and read answers one by one, on a thread of its own: both block."""
        while (job := self._jobs.get()) is not None:
            version, frame = job
            start = time.monotonic()
            try:
                self._results.put(self._ask(frame))
            except (OSError, ValueError, TypeError) as error:
                detail = f"the audit process ended or answered nonsense: {error}"
                seconds = time.monotonic() - start
                self._results.put(
                    AuditResult(version=version, identical=False, seconds=seconds, detail=detail, failed=True)
                )
                self._stop_child(kill=True)
        self._stop_child(kill=False)

    def _ask(self, frame: bytes) -> AuditResult:
        child = self._started_child()
        if child.stdin is None or child.stdout is None:
            raise OSError("no pipes")
        # A pipe has no deadline of its own; the end of a killed child does end the read.
        watchdog = threading.Timer(self._answer_timeout_s, child.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            child.stdin.write(frame)
            child.stdin.flush()
            return AuditResult(**json.loads(child.stdout.readline()))
        finally:
            watchdog.cancel()

    def _started_child(self) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._closed:
                raise OSError("closed")
            if self._child is None:
                self._child = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
            return self._child

    def _stop_child(self, *, kill: bool) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if kill:
            child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # unsent bytes to a dead child
                    continue
        if not _await(child, 5.0):
            child.kill()
            _await(child, 5.0)


def _await(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the end of a child; false if it has not come in time.

    On a busy machine one that was killed may take longer to go. Then the system ends it, and nobody's run ends by it.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout_s)
    return child.returncode is not None


def _drained(waiting: queue.Queue[Any]) -> list[Any]:
    """Return what `waiting` holds at the moment; asking first whether it is empty would promise nothing."""
    found = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(waiting.get_nowait())
    return found


def encode_job(version: int, spec: NetworkSpec, snapshot: PolicySnapshot, patched: bytes) -> bytes:
    """Return one job as the child reads it."""
    arrays = pack_arrays(snapshot.arrays())
    header = json.dumps({"version": version, "network": spec.to_json(), "arrays_bytes": len(arrays)}).encode()
    return b"".join((_LENGTHS.pack(len(header), len(arrays) + len(patched)), header, arrays, patched))


def serve(jobs: IO[bytes], answer: Callable[[AuditResult], None]) -> None:
    """Answer jobs until `jobs` ends."""
    while (job := _read_job(jobs)) is not None:
        header, payload = job
        spec, split = NetworkSpec.from_json(header["network"]), int(header["arrays_bytes"])
        snapshot = PolicySnapshot.from_arrays(spec, unpack_arrays(payload[:split]))
        answer(audit(spec, snapshot, payload[split:], version=int(header["version"])))


def _read_job(jobs: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    lengths = jobs.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    header_bytes, payload_bytes = _LENGTHS.unpack(lengths)
    if header_bytes > _MAX_HEADER_BYTES or payload_bytes > _MAX_PAYLOAD_BYTES:
        return None
    header, payload = jobs.read(header_bytes), jobs.read(payload_bytes)
    return None if len(payload) < payload_bytes else (json.loads(header), payload)


def main() -> None:
    """Serve stdin to stdout at the lowest priority."""
    os.nice(19)
    # TensorFlow may print; the answers' channel is for answers alone.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from quarl_export.keras2 import tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    def answer(result: AuditResult) -> None:
        answers.write(json.dumps(dataclasses.asdict(result)) + "\n")
        answers.flush()

    serve(sys.stdin.buffer, answer)


if __name__ == "__main__":
    main()
