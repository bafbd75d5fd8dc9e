"""An agent that is started again where no systemd does that."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quarl_device.errors import MissingTool
from quarl_device.supervise.rules import LIMIT_S, LIMIT_STARTS, Restarts
from quarl_device.supervise.supervisor import Supervisor


def waits(lives, *, code=55):
    """Return what is waited after each of some lives, of so many seconds."""
    restarts, now_s, said = Restarts(), 0.0, []
    for life_s in lives:
        restarts.begins(now_s)
        now_s += life_s
        wait_s = restarts.ended(code, now_s)
        said.append(wait_s)
        if wait_s is None:
            break
        now_s += wait_s
    return said


def test_each_wait_is_longer_up_to_a_bound_and_a_long_life_begins_anew():
    assert waits([0.1] * 7) == [1, 2, 4, 8, 16, 30, 30]
    assert waits([0.1, 0.1, 60.0, 0.1]) == [1, 2, 1, 2]


def test_too_many_starts_are_the_last_ones():
    assert waits([0.1] * 100) == [1, 2, 4, 8, 16, *[30.0] * (LIMIT_STARTS - 6), None]


def test_rare_ends_never_add_up():
    assert None not in waits([LIMIT_S / LIMIT_STARTS + 1] * 200)


def test_wrong_usage_is_not_tried_again():
    assert waits([0.1], code=2) == [None]


class NoWaits(Restarts):
    def ended(self, code, now_s):
        wait_s = super().ended(code, now_s)
        return None if wait_s is None else 0.0


def test_it_gives_up_with_the_agents_code(tmp_path):
    log = tmp_path / "log"
    words = [sys.executable, "-S", "-c", f"open({str(log)!r}, 'a').write('x'); raise SystemExit(31)"]
    ended = Supervisor(words, restarts=NoWaits()).run()
    assert (ended.code, ended.starts, ended.reason) == (31, LIMIT_STARTS, "too often")
    assert log.read_text() == "x" * LIMIT_STARTS


def test_usage_and_a_program_that_is_not_there():
    ended = Supervisor([sys.executable, "-S", "-c", "raise SystemExit(2)"]).run()
    assert (ended.code, ended.starts, ended.reason) == (2, 1, "usage")
    with pytest.raises(MissingTool):
        Supervisor(["no-such-agent"]).run()


AGENT = """
import os, signal, sys, time
def end(number, _):
    print("asked", number, flush=True)
    sys.exit(0)
signal.signal({0}, end)
print("acts", os.getpid(), flush=True)
time.sleep(60)
"""
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("acts", os.getpid(), flush=True)
time.sleep(60)
"""
SUPERVISE = """
import signal, sys
from quarl_device.supervise.supervisor import Supervisor
supervisor = Supervisor([sys.executable, "-c", sys.argv[1]], stop_s=float(sys.argv[2]))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: supervisor.ask(number))
ended = supervisor.run()
print(ended.code, ended.reason, flush=True)
"""


def supervised(agent, *, stop_s=30.0):
    words = [sys.executable, "-c", SUPERVISE, agent, str(stop_s)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("sent", "met"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM)],
)
def test_a_signal_is_for_the_agent_and_ends_both(sent, met):
    with supervised(AGENT.format(int(met))) as process:
        assert process.stdout.readline().startswith("acts")
        process.send_signal(sent)
        said = process.communicate(timeout=30)[0]
    assert said.splitlines() == [f"asked {int(met)}", "0 asked"]


def test_an_agent_that_does_not_end_is_killed():
    with supervised(STUBBORN, stop_s=0.2) as process:
        assert process.stdout.readline().startswith("acts")
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30)[0] == "137 asked\n"


def test_an_agent_that_was_killed_is_started_again():
    with supervised(AGENT.format(15)) as process:
        pids = []
        for _ in range(2):
            pids.append(int(process.stdout.readline().split()[1]))
            if len(pids) == 1:
                os.kill(pids[0], signal.SIGKILL)
        assert len(set(pids)) == 2
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def test_a_signal_between_two_lives_ends_the_wait():
    with supervised("print('acts', flush=True); raise SystemExit(1)") as process:
        for _ in range(2):
            process.stdout.readline()
        began_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=30)[0]
        assert said.splitlines()[-1] in ("0 asked", "1 asked", "143 asked")
        assert time.monotonic() - began_s < 20


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_agent_ends_with_its_supervisor():
    with supervised(AGENT.format(15)) as process:
        pid = int(process.stdout.readline().split()[1])
        process.kill()
        # The pipe is closed when the last one that holds it is gone.
        assert process.stdout.read() == ""
    # It has closed its files by then, and may still be about to die.
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_lies_where_it_is_typed_is_not_run(tmp_path):
    (tmp_path / "tomllib.py").write_text("raise SystemExit('somebody else')")
    (tmp_path / "device.toml").write_text("nonsense = 1")
    words = [Path(sys.executable).parent / "quarl-device", "supervise", "--config", "device.toml"]
    if not words[0].exists():
        words[:1] = [sys.executable, "-P", "-m", "quarl_device.cli"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "somebody else" not in done.stderr
    assert "unknown key 'nonsense'" in done.stderr
    assert done.returncode == 2


def test_the_command(tmp_path):
    words = [sys.executable, "-m", "quarl_device.cli", "supervise", "--format", "json", "--config"]
    done = subprocess.run([*words, str(tmp_path / "none")], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "UsageError"
