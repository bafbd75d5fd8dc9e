"""Processes of a measurement: what they say is heard in order, and one that ends or is silent is named."""

import contextlib
import subprocess
import sys
import time

import pytest

from quarl_device.errors import ActorFailed, LinkLost
from quarl_edge.bench.children import Children

SAYS = "import json, sys\nsay = lambda **said: print(json.dumps(said), flush=True)\n"
WAITS = SAYS + "say(ready=1)\nsys.stdin.readline()\nsay(version=1)\nsay(version=2)\nsys.stdin.read()\n"
DEAF = SAYS + "import time\nsay(ready=1)\ntime.sleep(600)\n"


def children(*codes, **kwargs):
    return Children([[sys.executable, "-c", code] for code in codes], name="child", **kwargs)


def said(key, value=1):
    return lambda line: line.get(key) == value


def test_each_says_its_lines_and_hears_the_words():
    with children(WAITS, WAITS.replace("version=2", "version=2, who='b'")) as both:
        assert both.collect(said("ready"), timeout_s=30, what="got ready") == [{"ready": 1}] * 2
        both.check()
        assert both.resident_bytes() > 2_000_000
        both.tell()
        assert both.collect(said("version", 2), timeout_s=30, what="came so far") == [
            {"version": 2},
            {"version": 2, "who": "b"},
        ]


def test_one_that_ends_early_is_named():
    with (
        pytest.raises(ActorFailed, match="child 1 ended, or said what is no JSON, before it said so"),
        children(WAITS, SAYS) as both,
    ):
        both.collect(said("version"), timeout_s=30, what="said so")


def test_one_that_ended_meanwhile_is_named():
    with children("raise SystemExit(3)") as one:
        one._processes[0].wait(30)
        with pytest.raises(ActorFailed, match="child 0 ended with status 3"):
            one.check()


def test_silence_has_a_deadline():
    with pytest.raises(LinkLost, match=r"0 of 1 childs said so within 0 s"), children(WAITS) as one:
        one.collect(said("never"), timeout_s=0.3, what="said so")


def test_what_ends_meanwhile_besides_them_ends_the_wait():
    def gone():
        raise LinkLost("the broker has ended")

    with pytest.raises(LinkLost, match="the broker has ended"), children(WAITS, check=gone) as one:
        one.collect(said("never"), timeout_s=30, what="said so")


def test_nothing_outlives_an_error(monkeypatch):
    monkeypatch.setattr("quarl_edge.bench.children._END_S", 30.0)
    began_s = time.monotonic()
    with contextlib.suppress(RuntimeError), children(DEAF) as one:
        one.collect(said("ready"), timeout_s=30, what="got ready")
        raise RuntimeError
    assert one._processes[0].poll() is not None
    assert time.monotonic() - began_s < 30


def test_one_that_hears_nothing_is_ended_all_the_same(monkeypatch):
    monkeypatch.setattr("quarl_edge.bench.children._END_S", 0.5)
    with children(DEAF) as one:
        one.collect(said("ready"), timeout_s=30, what="got ready")
        [process] = one._processes
    assert process.poll() is not None


def test_one_that_says_no_json_is_named():
    told = pytest.raises(ActorFailed, match="child 0 ended, or said what is no JSON, before it")
    with told, children("print('help!', flush=True); input()") as one:
        one.collect(said("ready"), timeout_s=30, what="got ready")


def test_one_that_never_stops_talking_has_a_deadline_too():
    talks = SAYS + "while True: say(still=1)\n"
    with pytest.raises(LinkLost, match="0 of 1"), children(talks) as one:
        one.collect(said("ready"), timeout_s=1, what="got ready")


def test_what_was_started_ends_where_the_next_cannot_be_started(monkeypatch):
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr("quarl_edge.bench.children.subprocess.Popen", Popen)
    with pytest.raises(FileNotFoundError):
        Children([[sys.executable, "-c", DEAF], ["/no/such/program"]], name="child")
    assert [process.poll() is not None for process in started] == [True]
