from __future__ import annotations

import io
import queue
import subprocess
import sys
import threading
import time

import pytest
from export_factory import make_spec, random_snapshot

from quarl_export import audit as module
from quarl_export.audit import AuditChild, AuditResult, audit, encode_job, serve

SPEC = make_spec(hidden=(5,))
SNAPSHOT = random_snapshot(SPEC, seed=1)
_ECHO = """
import json, struct, sys
while len(lengths := sys.stdin.buffer.read(8)) == 8:
    header, payload = struct.unpack("<II", lengths)
    version = json.loads(sys.stdin.buffer.read(header))["version"]
    sys.stdin.buffer.read(payload)
    print(json.dumps(dict(version=version, identical=True, seconds=0.5)), flush=True)
"""


def results_of(child, count, deadline_s=60.0):
    results, end = [], time.monotonic() + deadline_s
    while len(results) < count and time.monotonic() < end:
        results += child.poll()
        time.sleep(0.01)
    return results


@pytest.fixture
def child_of():
    children = []

    def make(code):
        children.append(AuditChild(SPEC, command=(sys.executable, "-c", code)))
        return children[-1]

    yield make
    for child in children:
        child.close()


def test_audit_confirms_a_right_file_and_finds_a_wrong_weight(patcher, spec):
    snapshot = random_snapshot(spec, seed=1)
    patched = patcher.patch(snapshot)
    good = audit(spec, snapshot, patched, version=3)
    assert (good.version, good.identical, good.failed, good.detail) == (3, True, False, "")
    bad = audit(spec, random_snapshot(spec, seed=2), patched)
    assert not bad.identical
    assert not bad.failed
    assert bad.detail


def test_audit_that_cannot_convert_is_no_verdict(spec):
    result = audit(spec, random_snapshot(make_spec(hidden=(3,)), seed=1), b"")
    assert result.failed
    assert not result.identical


def test_jobs_survive_the_pipe(monkeypatch):
    seen, answers = [], []

    def fake(spec, snapshot, patched, *, version):
        seen.append((spec, snapshot.kernels[0].tobytes(), patched))
        return AuditResult(version=version, identical=True, seconds=0.0)

    monkeypatch.setattr(module, "audit", fake)
    jobs = b"".join(encode_job(version, SPEC, SNAPSHOT, b"file" * version) for version in (1, 2))
    serve(io.BytesIO(jobs), answers.append)
    assert [a.version for a in answers] == [1, 2]
    assert seen[1] == (SPEC, SNAPSHOT.kernels[0].tobytes(), b"filefile")


@pytest.mark.parametrize("cut", [1, 9, 100])
def test_job_cut_off_ends_the_service(monkeypatch, cut):
    monkeypatch.setattr(module, "audit", lambda *a, **k: pytest.fail("audited half a job"))
    serve(io.BytesIO(encode_job(1, SPEC, SNAPSHOT, b"file")[:-cut]), pytest.fail)
    serve(io.BytesIO(b"\xff" * 64), pytest.fail)


def test_child_answers_and_ends(child_of):
    child = child_of(_ECHO)
    assert child.submit(1, SNAPSHOT, b"x")
    assert child.submit(2, SNAPSHOT, b"x")
    results = results_of(child, 2)
    assert [r.version for r in results] == [1, 2]
    assert all(r.identical for r in results)
    child.close()
    assert not child.submit(3, SNAPSHOT, b"x")


def test_submitting_to_a_busy_child_does_not_wait(child_of):
    child = child_of("import time; time.sleep(60)")
    start = time.monotonic()
    taken = [child.submit(version, SNAPSHOT, bytes(1_000_000)) for version in range(5)]
    assert time.monotonic() - start < 2.0
    assert taken[0]
    assert not taken[-1]
    start = time.monotonic()
    child.close(timeout_s=0.2)
    assert time.monotonic() - start < 5.0


@pytest.mark.parametrize("code", ["", "import sys; sys.exit(3)", "print('nonsense', flush=True); input()"])
def test_child_that_dies_or_babbles_is_a_failed_audit_and_is_replaced(child_of, code):
    child = child_of(code)
    for version in (1, 2):
        assert child.submit(version, SNAPSHOT, b"x")
        (result,) = results_of(child, 1)
        assert (result.version, result.failed, result.identical) == (version, True, False)


def test_child_without_jobs_is_never_started():
    child = AuditChild(SPEC, command=("/no/such/program",))
    assert child.poll() == []
    child.close()


def test_missing_program_is_a_failed_audit():
    child = AuditChild(SPEC, command=("/no/such/program",))
    child.submit(1, SNAPSHOT, b"x")
    assert results_of(child, 1)[0].failed
    child.close()


def test_real_child_process(patcher, spec):
    child = AuditChild(spec)
    snapshot = random_snapshot(spec, seed=4)
    patched = patcher.patch(snapshot)
    child.submit(7, snapshot, patched)
    # It imports TensorFlow at the lowest priority, which takes its time on a busy machine.
    (result,) = results_of(child, 1, deadline_s=240.0)
    child.close()
    assert (result.version, result.identical, result.failed) == (7, True, False)
    assert result.seconds > 0


def test_child_that_never_answers_is_killed_at_the_deadline():
    child = AuditChild(SPEC, command=(sys.executable, "-c", "import time; time.sleep(600)"), answer_timeout_s=0.3)
    assert child.submit(7, SNAPSHOT, b"x")
    (result,) = results_of(child, 1)
    assert (result.version, result.failed) == (7, True)
    child.close()


class _Emptied(queue.Queue):
    """A queue that its worker empties between two questions."""

    def empty(self):
        return False


def test_closing_while_the_worker_takes_the_last_job():
    child = AuditChild(SPEC, command=("/no/such/program",))
    child._jobs = _Emptied()
    child._results = _Emptied()
    assert child.poll() == []
    child.close()


def test_closing_while_the_worker_lets_its_child_go(child_of):
    """The child is gone the second time that it is looked at."""

    class Forgetful(AuditChild):
        looked = 0

        @property
        def _child(self):
            self.looked += 1
            return self.process if self.looked == 1 else None

        @_child.setter
        def _child(self, process):
            self.process = process

    child = Forgetful(SPEC)
    child._worker = threading.Thread(target=lambda: None)
    child._worker.start()
    child.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child.close(timeout_s=5.0)
    assert child.process.returncode is not None


def test_no_child_is_started_after_closing(tmp_path):
    """A job that the worker took just before would otherwise start one that nobody ends."""
    trace = tmp_path / "started"
    child = AuditChild(SPEC, command=("touch", str(trace)))
    taken, go_on = threading.Event(), threading.Event()
    ask = child._ask

    def slow(frame):
        taken.set()
        go_on.wait(10.0)
        return ask(frame)

    child._ask = slow
    child.submit(1, SNAPSHOT, b"x")
    assert taken.wait(10.0)
    child.close(timeout_s=0.1)
    go_on.set()
    (result,) = results_of(child, 1)
    assert (result.failed, trace.exists()) == (True, False)


def test_closing_never_raises_where_a_killed_child_takes_its_time_to_go():
    """A busy machine takes longer to end one than a person who pressed Ctrl-C waits."""

    class Lingering:
        returncode = stdin = stdout = None
        killed = 0

        def poll(self):
            return None

        def kill(self):
            self.killed += 1

        def wait(self, timeout):
            raise subprocess.TimeoutExpired("child", timeout)

    child, lingering = AuditChild(SPEC, command=("/no/such/program",)), Lingering()
    child._worker = threading.Thread(target=lambda: None)
    child._worker.start()
    child._child = lingering
    child.close(timeout_s=0.05)
    child._stop_child(kill=False)
    assert lingering.killed == 2
