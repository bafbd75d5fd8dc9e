"""How a run stands: running while its process holds the file, ended as it said, unknown after a kill."""

import contextlib
import fcntl
import json
import signal
import subprocess
import sys
import threading

import pytest

from quarl_device.errors import BrokerUnreachable, RunInUse
from quarl_edge.session_log import RunState, check_idle, noted_session, read_sessions


def test_a_run_without_sessions_is_unknown(tmp_path):
    assert read_sessions(tmp_path / "none").state is RunState.UNKNOWN


def test_it_runs_until_it_ends_and_says_how(tmp_path):
    path = tmp_path / "sessions.jsonl"
    with noted_session(path) as session:
        assert read_sessions(path).state is RunState.RUNNING
        session.ended("solved", env_steps=70, train_s=1.5)
    found = read_sessions(path)
    assert (found.state, found.reason, found.env_steps, found.count) == (RunState.ENDED, "solved", 70, 1)
    with noted_session(path) as session:
        # What it says of the session before is over.
        assert read_sessions(path).reason == ""
        session.ended("budget", env_steps=90, train_s=1.0)
    found = read_sessions(path)
    assert (found.reason, found.count, found.train_s) == ("budget", 2, 2.5)


def test_an_error_is_how_it_ended(tmp_path):
    path = tmp_path / "sessions.jsonl"
    with pytest.raises(BrokerUnreachable), noted_session(path):
        raise BrokerUnreachable("nobody there")
    assert read_sessions(path).reason == "error 30: BrokerUnreachable"
    with pytest.raises(ZeroDivisionError), noted_session(path):
        raise ZeroDivisionError
    assert read_sessions(path).reason == "error: ZeroDivisionError"


@contextlib.contextmanager
def session_elsewhere(path):
    """Hold a session in a process of its own, and yield the process."""
    code = (
        "import pathlib, sys, time\nfrom quarl_edge.session_log import noted_session\n"
        "with noted_session(pathlib.Path(sys.argv[1])):\n    print('in', flush=True)\n    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"in\n"
        yield child
    finally:
        child.kill()
        child.wait(10)
        child.stdout.close()


def test_a_killed_session_is_unknown(tmp_path):
    path = tmp_path / "sessions.jsonl"
    with session_elsewhere(path) as child:
        assert read_sessions(path).state is RunState.RUNNING
        child.send_signal(signal.SIGKILL)
        child.wait(10)
    found = read_sessions(path)
    assert (found.state, found.count) == (RunState.UNKNOWN, 1)


def test_two_sessions_of_one_run_are_refused_until_the_first_is_gone_however_it_went(tmp_path):
    path = tmp_path / "my run" / "sessions.jsonl"
    path.parent.mkdir()
    check_idle(path)
    with session_elsewhere(path) as child:
        with pytest.raises(RunInUse, match=rf"process {child.pid} on ") as refused, noted_session(path):
            pytest.fail("two learners in one run")
        assert f"kill -INT {child.pid}" in refused.value.hint
        assert f"quarl-edge runs show '{path.parent}'" in refused.value.hint
        with pytest.raises(RunInUse):
            check_idle(path)
        assert read_sessions(path).count == 1, "the second one has noted nothing"
    check_idle(path)
    with noted_session(path) as session:
        session.ended("budget", env_steps=1, train_s=1.0)
    assert read_sessions(path).count == 2


def test_one_that_runs_on_another_machine_is_not_to_be_killed_here(tmp_path):
    path = tmp_path / "sessions.jsonl"
    path.write_text(json.dumps({"event": "begin", "pid": 1, "host": "other"}) + "\n")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunInUse, match="process 1 on other") as refused:
            check_idle(path)
        assert "kill" not in refused.value.hint
        path.write_text("torn")
        with pytest.raises(RunInUse, match="another process"):
            check_idle(path)


def test_whoever_lists_runs_holds_up_no_session(tmp_path):
    path = tmp_path / "sessions.jsonl"
    path.touch()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with noted_session(path):
            assert read_sessions(path).state is RunState.RUNNING


def test_a_place_that_cannot_be_written_costs_the_note_alone(tmp_path, caplog):
    with noted_session(tmp_path / "gone" / "sessions.jsonl") as session:
        session.ended("budget", env_steps=1, train_s=1.0)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("line", ['{"event": "end", "env_steps": "x", "train_s": -1, "reason": 3}', "[]", "{", "\x00"])
def test_a_damaged_file_is_read_as_far_as_it_holds(tmp_path, line):
    path = tmp_path / "sessions.jsonl"
    path.write_text(line + "\n")
    found = read_sessions(path)
    assert (found.env_steps, found.train_s) == (0, 0.0)
