"""`quarl-edge bench memory`: every process of a run is seen, by its name, and nothing of it is left."""

import json
import os
import subprocess
import sys
import time

import pytest

from quarl_device.errors import ActorFailed, UsageError
from quarl_edge.bench.memory import _name_of, _Run, descendants, watch_a_run
from quarl_edge.cli import main


def test_children_of_children_are_seen_and_nobody_elses(tmp_path):
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()', '--id', 'pi-1'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\ninput()\n"
    )
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other,
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one,
    ):
        grandchild = int(one.stdout.readline())
        assert descendants(one.pid) == [grandchild]
        assert {one.pid, grandchild, other.pid} <= set(descendants(os.getpid()))
        assert _name_of(grandchild) == "pi-1"
        assert _name_of(other.pid) == "helpers"
    assert _name_of(2**22 + 1) == "helpers"


@pytest.mark.parametrize("times", [{"seconds": 0.0, "warm_up_s": 1.0}, {"seconds": 1.0, "warm_up_s": -1.0}])
def test_times_that_cannot_be_are_refused_before_anything_is_started(times):
    with pytest.raises(UsageError, match="cannot watch for"):
        watch_a_run("CartPole-v1", **times)


def test_a_replay_that_is_no_number_is_refused_before_anything_is_started():
    with pytest.raises(UsageError, match="replay_capacity=lots"):
        watch_a_run("CartPole-v1", seconds=1.0, warm_up_s=0.0, settings=["replay_capacity=lots"])


def test_a_run_that_ends_by_itself_is_an_error_with_its_last_words(tmp_path):
    with _Run(tmp_path, "Nothing-v0", 1, {}) as run, pytest.raises(ActorFailed, match=r"ended with 20: .*Nothing-v0"):
        run.rest(60.0)


@pytest.mark.e2e
def test_learner_broker_and_actors_of_a_short_run(tmp_path, capsys):
    before = set(descendants(os.getpid()))
    out = tmp_path / "memory.json"
    words = ["bench", "memory", "--seconds", "2", "--warm-up", "0", "--actors", "1", "--set", "hidden=32"]
    words += ["--set", "replay_capacity=1000"]
    assert main([*words, "--format", "json", "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(out.read_text())
    held = {each["name"]: each for each in said["processes"]}
    assert {"learner", "actor-0", "broker", "helpers"} <= set(held)
    for each in held.values():
        assert len(each["samples"]) == len(each["anonymous"]) == len(said["at_s"]) > 5
        assert all(anonymous > 0 for anonymous in each["anonymous"]) or each["name"] == "helpers"
        assert (each["samples"][0], each["samples"][-1]) == (each["start_bytes"], each["end_bytes"])
    assert held["learner"]["start_bytes"] > held["actor-0"]["start_bytes"] > 10_000_000
    assert said["env_steps"] > 0 < said["updates"]
    deadline_s = time.monotonic() + 15
    while (left := set(descendants(os.getpid())) - before) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not left, "nothing outlives it"
