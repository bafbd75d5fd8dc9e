"""`quarl-edge bench stream`: its senders send what they say, its witness sees what is wrong, its figures add up."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import ActorFailed, LinkLost, UnsupportedSpace, UsageError
from quarl_device.wire.block import BlockCodec
from quarl_edge.bench.stream import measure
from quarl_edge.bench.stream.sender import Order
from quarl_edge.bench.stream.witness import Seen, same
from quarl_edge.bench.stream.workload import DISCOUNT, NUMBERS, Stream, Workload, checked
from quarl_edge.cli import main
from quarl_edge.machine import anonymous_bytes, resident_bytes
from quarl_edge.replay.nstep import NStepAssembler

SMALL = Workload(observation="3:float32", envs=2, block_steps=150)


def blocks(workload, count, index=0):
    """The first payloads of a stream, and the stream."""
    stream, codec = Stream(workload, index), BlockCodec(workload.spec)
    payloads = []
    for sequence in range(count):
        stream.fill()
        payloads.append(codec.encode(stream.recorder.block(boot_id="0" * 16, sequence=sequence, base=0)))
    return payloads, stream


def transitions(workload, payloads):
    codec, assembler = BlockCodec(workload.spec), NStepAssembler(1, DISCOUNT)
    return [assembler.push("pi", codec.decode(payload)) for payload in payloads]


@pytest.mark.parametrize("text", ["CartPole", "cartpole", "8", "5:float32", "84x84x4:uint8", "2x3:int16"])
@pytest.mark.parametrize("envs", [1, 3])
def test_what_the_learner_makes_of_a_stream_has_the_senders_checksum(text, envs):
    workload = Workload(observation=text, envs=envs, block_steps=120)
    payloads, stream = blocks(workload, 4)
    seen = Seen()
    for made in transitions(workload, payloads):
        seen.note(made)
    assert (seen.transitions, seen.duplicates, seen.lost) == (stream.transitions, 0, 0)
    assert seen.checksum == stream.checksum


def test_episodes_end_in_it():
    payloads, _ = blocks(SMALL, 3)
    ended = [int(BlockCodec(SMALL.spec).decode(payload).terminated.sum()) for payload in payloads]
    assert sum(ended) == 4


def test_senders_differ():
    assert blocks(SMALL, 1, index=0)[1].checksum != blocks(SMALL, 1, index=1)[1].checksum


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(4)), st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)))
def test_the_witness_sees_every_loss_repetition_and_disorder(order, left_out, twice):
    payloads, stream = blocks(SMALL, 4)
    made = transitions(SMALL, payloads)
    came = [number for number in order if number not in left_out for _ in range(1 + (number in twice))]
    seen = Seen()
    for number in came:
        seen.note(made[number])
    right = came == [0, 1, 2, 3]
    whole = seen.transitions == stream.transitions and not seen.duplicates and not seen.lost
    assert (seen.checksum == stream.checksum and whole) is right
    if sorted(came) == came:
        each = SMALL.block_transitions
        assert seen.duplicates == each * (len(came) - len(set(came)))
        missing_before_the_last = sum(number not in came for number in range(max(came, default=-1) + 1))
        assert seen.lost == each * missing_before_the_last


def test_the_witness_sees_a_value_that_changed():
    payloads, stream = blocks(SMALL, 1)
    [made] = transitions(SMALL, payloads)
    observation = made.observation.copy()
    observation[7, 1] += np.float32(1e-6)
    assert checked(0, made) == stream.checksum
    assert checked(0, replace(made, observation=observation)) != stream.checksum
    assert not same(made, replace(made, observation=observation))


def test_numbers_wrap_where_float32_would_lose_them():
    _, stream = blocks(SMALL, 1)
    stream.transitions = NUMBERS - 100
    seen = Seen(_next=NUMBERS - 100)
    codec = BlockCodec(SMALL.spec)
    for sequence in range(2):
        stream.fill()
        payload = codec.encode(stream.recorder.block(boot_id="0" * 16, sequence=sequence, base=0))
        seen.note(transitions(SMALL, [payload])[0])
    assert (seen.lost, seen.duplicates) == (0, 0)


@pytest.mark.parametrize("text", ["", "x", "4x", "4:bool8", "0", "99999x99999", "4:float32:1", "CartPole-v1"])
def test_what_is_no_observation_is_refused(text):
    with pytest.raises(UsageError):
        Workload(observation=text).block_transitions  # noqa: B018


def test_what_fits_no_block_is_refused():
    with pytest.raises(UnsupportedSpace):
        Workload(observation="84x84x4", envs=64).rows  # noqa: B018


def test_an_order_comes_back_as_it_was():
    order = Order(url="mqtt://localhost", fleet="f", index=3, workload=SMALL)
    assert Order.decode(order.encode()) == order


GROWS = """
import sys
print("ready", flush=True)
sys.stdin.readline()
held = bytearray(b"x") * (8 * 1024 * 1024)
print("grown", flush=True)
sys.stdin.readline()
"""


def test_memory_of_a_process_is_told():
    """Of one that does nothing else: this one frees and takes memory as its other tests please."""
    words = [sys.executable, "-c", GROWS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        anonymous, resident = anonymous_bytes(child.pid), resident_bytes(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"grown\n"
        assert 8_000_000 <= anonymous_bytes(child.pid) - anonymous < 10_000_000
        assert resident_bytes(child.pid) > resident
        child.stdin.close()
    assert resident_bytes() > 1_000_000
    assert resident_bytes(2**22 + 1) == anonymous_bytes(2**22 + 1) == 0


@pytest.mark.e2e
def test_a_short_stream_from_two_senders_adds_up(tmp_path, capsys):
    out = tmp_path / "stream.json"
    words = ["bench", "stream", "--actors", "2", "--seconds", "1", "--block-steps", "64", "--envs", "2"]
    assert main([*words, "--out", str(out), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(out.read_text())
    assert said["verified"] is True
    assert said["sent"] == said["stored"] > 0
    assert (said["lost"], said["duplicates"]) == (0, 0)
    assert (said["actors"], said["envs"], said["block_transitions"], said["broker"]) == (2, 2, 128, "mosquitto")
    assert 0 < said["latency_ms_p50"] <= said["latency_ms_p99"]
    assert 0 < said["transitions_per_s"] * said["seconds"] <= said["stored"]
    assert 25 < said["bytes_per_transition"] < 100
    for name in (
        "learner_rss_start_bytes",
        "learner_rss_end_bytes",
        "senders_rss_start_bytes",
        "senders_rss_end_bytes",
    ):
        assert said[name] > 10_000_000
    samples = said["memory"]
    assert said["learner_rss_start_bytes"] == samples[0]["learner_bytes"]
    assert said["senders_rss_end_bytes"] == samples[-1]["senders_bytes"]
    assert 5 < len(samples) <= measure.SAMPLES + 2
    assert [one["at_s"] for one in samples] == sorted(one["at_s"] for one in samples)
    assert said["machine"]


def test_memory_counts_from_a_full_replay_on():
    class Ring:
        capacity, held = 4, 0

        def __len__(self):
            return self.held

    ring = Ring()
    samples = measure._Samples(SimpleNamespace(replay=ring), SimpleNamespace(resident_bytes=lambda: 7), every_s=0.0)
    samples.look()
    assert len(samples._taken) == 2
    ring.held = 4
    samples.look()
    samples.look()
    taken = samples.ended()
    assert len(taken) == 3
    assert {one.senders_bytes for one in taken} == {7}
    assert taken[0].learner_bytes > 1_000_000


@pytest.mark.e2e
def test_what_is_not_as_sent_is_an_error(capsys, monkeypatch):
    # The witness is made blind to one block: the command must not say that all is well.
    real = Seen.note

    def note(self, made):
        if self.transitions or len(made) < 2:
            return real(self, made)
        return real(self, replace(made, reward=made.reward[::-1].copy()))

    monkeypatch.setattr(Seen, "note", note)
    assert main(["bench", "stream", "--seconds", "0.2", "--block-steps", "32", "--format", "json"]) == 76
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[0])["verified"] is False
    assert json.loads(lines[-1])["error"]["kind"] == "StreamFault"


@pytest.mark.e2e
def test_a_sender_that_dies_ends_it(monkeypatch):
    real = measure._learn

    def learn(ingest, senders, seconds, progress):
        senders._processes[0].kill()
        real(ingest, senders, seconds, progress)

    monkeypatch.setattr(measure, "_learn", learn)
    with pytest.raises(ActorFailed, match="sender 0 ended"):
        measure.stream_speed(SMALL, seconds=30)


@pytest.mark.e2e
def test_its_own_broker_that_dies_ends_it_at_once(monkeypatch):
    real, killed_s = measure._learn, []

    class Mosquitto(measure.Mosquitto):
        def __init__(self, **options):
            super().__init__(**options)
            started.append(self)

    def learn(ingest, senders, seconds, progress):
        started[0]._process.kill()
        killed_s.append(time.monotonic())
        real(ingest, senders, seconds, progress)

    started = []
    monkeypatch.setattr(measure, "Mosquitto", Mosquitto)
    monkeypatch.setattr(measure, "_learn", learn)
    with pytest.raises(LinkLost, match="Mosquitto, process"):
        measure.stream_speed(SMALL, seconds=300)
    assert time.monotonic() - killed_s[0] < 20


def children(parent):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent_of = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent_of) == parent and state != "Z":
                found.append(path.parent)
    return found


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_measurement(number):
    words = [sys.executable, "-m", "quarl_edge", "bench", "stream", "--seconds", "300", "--actors", "2"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline_s = time.monotonic() + 60
        while len(began := children(process.pid)) < 3 and time.monotonic() < deadline_s:
            time.sleep(0.2)
        time.sleep(4.0)  # into the measurement, where the senders stream
        process.send_signal(number)
        process.wait(30)
    deadline_s = time.monotonic() + 15
    while any(path.exists() for path in began) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert len(began) == 3
    assert not [path for path in began if path.exists()]


def test_the_command_says_at_once_what_cannot_be(capsys, tmp_path):
    assert main(["bench", "stream", "--observation", "lots"]) == 2
    assert main(["bench", "stream", "--out", str(tmp_path / "nowhere" / "x.json")]) == 2
    assert main(["bench", "stream", "--broker", "http://x"]) == 2


def test_stages_say_where_the_time_of_a_block_goes(capsys):
    words = ["bench", "stream", "--stages", "--block-steps", "32", "--observation", "8:float32", "--format", "json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    costs = said["cpu_us_per_block"]
    assert (said["observation"], said["block_transitions"]) == ("8:float32", 32)
    assert set(costs) == {
        "encode", "decode", "sessions", "journal", "assemble", "insert", "read_back", "offer", "ack"
    }  # fmt: skip
    assert all(cost_us > 0 for cost_us in costs.values())
    assert costs["offer"] > costs["decode"]
