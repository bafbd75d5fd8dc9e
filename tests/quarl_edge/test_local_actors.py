"""Actor processes are watched: restarted within limits, ended in order. Real processes stand in for actors."""

import sys
import time

import pytest

from quarl_device.errors import ActorFailed
from quarl_edge.local import actors as module
from quarl_edge.local.actors import ActorCommand, ActorProcesses


@pytest.fixture
def as_python(monkeypatch):
    """Run `python -c CODE` in place of `python -m quarl_device.cli run ARGUMENTS`."""
    real = module.subprocess.Popen

    def start(command, **options):
        return real([sys.executable, "-c", command[4]], **options)

    monkeypatch.setattr(module.subprocess, "Popen", start)


def processes(tmp_path, code):
    return ActorProcesses([ActorCommand(name="actor-0", arguments=[code])], log_dir=tmp_path)


def check_for_seconds(group, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        group.check()
        time.sleep(0.02)


def test_a_running_actor_is_alive_until_stopped(tmp_path, as_python):
    group = processes(tmp_path, "import time; time.sleep(60)")
    group.start()
    group.check()
    assert group.alive == 1
    started = time.monotonic()
    group.stop(timeout_s=10)
    assert group.alive == 0
    assert time.monotonic() - started < 5


def test_an_actor_that_ignores_sigterm_is_killed_at_the_deadline(tmp_path, as_python):
    code = "import signal, time, sys; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    group = processes(tmp_path, code)
    group.start()
    deadline = time.monotonic() + 10
    while "up" not in (tmp_path / "actor-0.log").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    group.stop(timeout_s=0.3)
    assert group.alive == 0


def test_an_actor_that_keeps_ending_is_given_up_with_its_last_words(tmp_path, as_python):
    group = processes(tmp_path, "import sys; sys.exit('no environment here')")
    group.start()
    with pytest.raises(ActorFailed, match="no environment here") as caught:
        check_for_seconds(group, 20)
    assert group.restarts == 3
    assert "actor-0.log" in caught.value.hint
    group.stop()


def test_a_secret_goes_by_environment_and_never_by_argument(tmp_path, monkeypatch):
    seen = {}

    class FakeProcess:
        def __init__(self, command, *, env, **_):
            seen.update(command=command, env=env)

        def poll(self):
            return 0

    monkeypatch.setattr(module.subprocess, "Popen", FakeProcess)
    command = ActorCommand(name="a", arguments=["--id", "a"], environment={"QUARL_MQTT_PASSWORD": "s3cret"})
    ActorProcesses([command], log_dir=tmp_path).start()
    assert "s3cret" not in " ".join(seen["command"])
    assert seen["env"]["QUARL_MQTT_PASSWORD"] == "s3cret"


def test_an_actor_that_ends_well_comes_back_and_is_never_given_up(tmp_path, as_python, monkeypatch):
    monkeypatch.setattr(module, "_RETURN_S", 0.01)
    monkeypatch.setattr(module, "_LONGEST_RETURN_S", 0.05)
    group = processes(tmp_path, "pass")
    group.start()
    deadline = time.monotonic() + 30
    while group.restarts < 5 and time.monotonic() < deadline:
        group.check()
        time.sleep(0.01)
    assert group.restarts >= 5
    group.stop()


def test_what_the_system_refuses_to_start_is_a_clear_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(module.subprocess, "Popen", refuse)
    with pytest.raises(ActorFailed, match=r"actor-0 cannot be started.*memory"):
        processes(tmp_path, "pass").start()


def test_one_that_always_ends_at_once_comes_back_later_and_later(tmp_path, as_python, monkeypatch):
    monkeypatch.setattr(module, "_RETURN_S", 0.1)
    group = processes(tmp_path, "pass")
    group.start()
    began = time.monotonic()
    while group.restarts < 3 and time.monotonic() - began < 30:
        group.check()
        time.sleep(0.01)
    assert time.monotonic() - began > 0.2 + 0.4 + 0.8
    group.stop()
