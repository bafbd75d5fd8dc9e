"""What a board says of itself, what it means, and what its births mean: pure, and with an answer that lies."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from deploy_world import AFTER, BEFORE

from quarl_device.errors import PayloadRefused
from quarl_device.wire.messages import DeviceState
from quarl_edge.deploy import board_probe
from quarl_edge.deploy.birth import Expected, judge_birth
from quarl_edge.deploy.facts import BoardFacts, read_facts
from quarl_edge.deploy.verdicts import judge

NOW = 1_800_000_000.0
GIB = 1024.0**3
PI = BoardFacts(
    machine="aarch64",
    bits=64,
    system="Linux",
    os_name="Debian GNU/Linux 12 (bookworm)",
    model="Raspberry Pi 4 Model B Rev 1.4",
    glibc=(2, 36),
    python=(3, 11, 2),
    implementation="cpython",
    pip="23.0.1",
    ensurepip=True,
    free_bytes=20 * GIB,
    home_free_bytes=20 * GIB,
    home="/home/pi",
    uid=1000,
    sudo=True,
    systemd=True,
    unix_s=NOW,
    clock_ahead_s=0.4,
    temperature_c=52.0,
    throttled=0,
)


def level(check, **changed):
    return next(verdict for verdict in judge(replace(PI, **changed)) if verdict.check == check)


def test_a_good_board_has_nothing_against_it():
    assert {verdict.level for verdict in judge(PI)} == {"ok"}
    assert [v.check for v in judge(PI)] == [
        "architecture", "system", "python", "disk", "clock", "temperature", "throttling",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "changed", "expected"),
    [
        ("architecture", {"machine": "armv7l", "bits": 32}, "ok"),
        ("architecture", {"machine": "x86_64"}, "ok"),
        ("architecture", {"bits": 32}, "problem"),
        ("architecture", {"machine": "armv6l", "bits": 32}, "problem"),
        ("architecture", {"machine": "riscv64"}, "problem"),
        ("architecture", {"system": "Darwin"}, "problem"),
        ("system", {"glibc": None}, "problem"),
        ("system", {"glibc": (2, 27)}, "problem"),
        ("system", {"glibc": (2, 28)}, "ok"),
        ("python", {"python": (3, 10, 12)}, "problem"),
        ("python", {"python": (3, 11, 0)}, "ok"),
        ("python", {"python": (3, 13, 9)}, "ok"),
        ("python", {"python": (3, 14, 0)}, "warning"),
        ("python", {"implementation": "pypy"}, "problem"),
        ("python", {"machine": "armv7l", "bits": 32, "python": (3, 12, 0)}, "problem"),
        ("disk", {"free_bytes": 0.5 * GIB}, "problem"),
        ("disk", {"home_free_bytes": 0.1 * GIB}, "problem"),
        ("disk", {"free_bytes": 1.0 * GIB}, "warning"),
        ("clock", {"clock_ahead_s": -119.0}, "ok"),
        ("clock", {"clock_ahead_s": 600.0}, "warning"),
        ("clock", {"clock_ahead_s": -NOW, "unix_s": 30.0}, "problem"),
        ("clock", {"clock_ahead_s": 3.2e8, "unix_s": NOW + 3.2e8}, "problem"),
        ("clock", {"clock_ahead_s": 1e12, "unix_s": 1e12}, "problem"),
        ("temperature", {"temperature_c": None}, "ok"),
        ("temperature", {"temperature_c": 85.0}, "warning"),
        ("throttling", {"throttled": None}, "ok"),
        ("throttling", {"throttled": 0x50005}, "warning"),
        ("throttling", {"throttled": 0x50000}, "warning"),
    ],
)
def test_verdicts(check, changed, expected):
    verdict = level(check, **changed)
    assert verdict.level == expected
    assert bool(verdict.mend) == (expected != "ok")
    assert (verdict.found + verdict.mend).isprintable()


def test_a_clock_at_1970_is_told_as_a_person_reads_it():
    assert "1970-01-01 00:00Z, 57 years behind" in level("clock", clock_ahead_s=-NOW, unix_s=30.0).found


def test_throttling_names_its_causes():
    assert "voltage is too low; it is throttled" in level("throttling", throttled=0x5).found
    assert "since its start: under-voltage" in level("throttling", throttled=0x10000).found


def answer(**changed):
    return json.dumps({**board_probe.probe(), **changed}).encode()


def test_this_machine_answers_as_a_board_does():
    said = subprocess.run([sys.executable, "-I", board_probe.__file__], check=True, capture_output=True, timeout=60)
    facts = read_facts(said.stdout, now_unix_s=NOW)
    assert facts.python == sys.version_info[:3]
    assert facts.free_bytes > 0
    assert facts.clock_ahead_s == facts.unix_s - NOW
    assert facts.root in ("", "sudo -n ")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        answer(schema=2),
        answer(machine="a\nb"),
        answer(machine="\x1b[2J"),
        answer(machine="x" * 300),
        answer(machine=None),
        answer(python=[3, 11]),
        answer(python=[3, 11, "x"]),
        answer(python=[3, 11, 10**30]),
        answer(glibc="2"),
        answer(glibc="2.x"),
        answer(glibc="2.99999999"),
        answer(glibc="²." + "1"),
        answer(unix_s="now"),
        answer(unix_s=1e300),
        answer(uid=-1),
        answer(uid=True),
        answer(bits=8),
        answer(free_bytes=-1),
        answer(temperature_c="hot"),
        answer(home="/home/\u202epi"),
    ],
)
def test_an_answer_that_does_not_hold_is_refused(payload):
    with pytest.raises(PayloadRefused):
        read_facts(payload, now_unix_s=NOW)


@pytest.mark.parametrize("name", ["board_probe", "board_staging"])
def test_what_the_board_runs_is_of_an_old_python(name):
    """Python 3.6's grammar, so that an older board is told what it lacks instead of a syntax error."""
    import ast

    path = Path(board_probe.__file__).with_name(f"{name}.py")
    ast.parse(path.read_text(), feature_version=(3, 6))
    assert "from __future__ import annotations" not in path.read_text()


def born(state, *, learner=False, **expected):
    told = DeviceState(**{"status": "online", "device": "pi-1", "boot_id": AFTER, **state})
    return judge_birth(told, Expected(before=BEFORE, **expected), learner_there=learner)


@pytest.mark.parametrize(
    ("state", "expected", "learner", "is_born", "said"),
    [
        ({"blocked": "no learner"}, {}, False, True, "waits for a learner"),
        ({"blocked": "learner left"}, {}, False, True, "waits for a learner"),
        ({}, {}, False, True, "waits for a learner"),
        ({"blocked": "no learner"}, {}, True, False, "no policy yet, blocked: no learner"),
        ({"blocked": "spool cannot be written"}, {}, False, False, "blocked: spool cannot be written"),
        ({"digest": "a" * 64, "policy_version": 3}, {}, True, True, "trains, acts with policy version 3"),
        ({"status": "gone"}, {}, False, False, "'gone'"),
        ({"boot_id": BEFORE}, {}, False, False, "life before"),
        ({"boot_id": BEFORE, "digest": "a" * 64}, {"restarted": False}, True, True, "trains"),
        ({"mode": "deploy", "digest": "a" * 64}, {"digest": "a" * 64}, False, True, "acts with"),
        ({"mode": "deploy", "digest": "b" * 64}, {"digest": "a" * 64}, False, False, "another policy"),
        ({"mode": "deploy"}, {"digest": "a" * 64}, False, False, "no policy yet"),
        ({"mode": "deploy"}, {}, False, True, "no policy yet"),
        ({"mode": "deploy", "digest": "b" * 64}, {}, False, True, "acts with"),
        ({"boot_id": BEFORE, "digest": "a" * 64}, {"digest": "a" * 64, "digest_before": "b" * 64}, False, True,
         "acts"),
        ({"boot_id": BEFORE, "digest": "a" * 64}, {"digest": "a" * 64, "digest_before": "a" * 64}, False, False,
         "before"),
    ],
)  # fmt: skip
def test_births(state, expected, learner, is_born, said):
    judged = born(state, learner=learner, **expected)
    assert judged.born == is_born
    assert said in judged.said


def test_before_any_birth():
    assert judge_birth(None, Expected(), learner_there=False).said == "no birth was heard"
