"""The measurement: senders in processes of their own, a broker, and the learner's own way from the link into replay.

Nothing is left out of the learner's side: `PahoLink`, `Receiver`, `Ingest` with decoding, checks, sessions, journal,
n-step assembly, replay and acks, and a checkpoint's trim of the journal every few seconds. What is added is the
`Witness`, whose cost is part of the figures. When all is over, replay is rebuilt from the journal and compared.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quarl_device.errors import UsageError
from quarl_device.link import BrokerURL, PahoLink, read_password
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.wire.topics import Topics
from quarl_edge.bench.children import Children, Said
from quarl_edge.bench.stream.sender import EPOCH, Order
from quarl_edge.bench.stream.witness import Witness, same
from quarl_edge.bench.stream.workload import ACTION, DISCOUNT, Workload
from quarl_edge.ingest.sessions import SessionTable
from quarl_edge.learner.receiver import Receiver
from quarl_edge.machine import resident_bytes
from quarl_edge.replay.buffer import ReplayBuffer
from quarl_edge.replay.experience import ReplayExperience
from quarl_edge.replay.journal import Journal
from quarl_edge.replay.limiter import SampleToInsertRatio
from quarl_edge.replay.nstep import NStepAssembler

MAX_ACTORS = 64
MAX_SECONDS = 86_400.0
_WARM_UP_S = 1.0
_READY_S, _DRAINED_S = 60.0, 90.0
_CHECKPOINT_S = 5.0
_REPLAY_BYTES = 256 * 1024 * 1024
_ENDLESS = 2**62
SAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What both ends held at one moment.

    Attributes:
        at_s: since the measurement began.
        learner_bytes: resident, of the learner's process.
        senders_bytes: of all senders together.
    """

    at_s: float
    learner_bytes: int
    senders_bytes: int


@dataclass(frozen=True, kw_only=True)
class StreamSpeed:
    """What `stream_speed` measured; its fields are the keys of `--format json`.

    Attributes:
        transitions_per_s: that entered replay, over `seconds`.
        bytes_per_transition: of the blocks that were sent.
        sent: transitions that the senders made, from start to end.
        stored: transitions in replay, each counted as often as it is there.
        duplicates: of these, how many were there before.
        lost: transitions that were sent and are not in replay.
        verified: every stored transition is the one that was sent, and replay rebuilt from the journal equals replay.
        resent_blocks: sent more than once; recognised, not stored twice.
        latency_ms_p50: from a block that is made to the durable ack for it, at full load, over all senders.
        latency_ms_p99: likewise.
        actors: sender processes.
        envs: environments per sender.
        observation: of one transition.
        block_transitions: transitions per block.
        seconds: measured, after a warm-up.
        learner_cpu_us_per_block: CPU time of the learner's process.
        sender_cpu_us_per_block: CPU time of the senders' processes.
        learner_rss_start_bytes: of the learner's process, resident, when replay was full, or after the warm-up where
            it never was.
        learner_rss_end_bytes: the same at the end of `seconds`.
        senders_rss_start_bytes: of all senders together, at the same moments.
        senders_rss_end_bytes: likewise.
        memory: both between those moments, some `SAMPLES` times.
        broker: what was between them.
    """

    transitions_per_s: float
    bytes_per_transition: float
    sent: int
    stored: int
    duplicates: int
    lost: int
    verified: bool
    resent_blocks: int
    latency_ms_p50: float
    latency_ms_p99: float
    actors: int
    envs: int
    observation: str
    block_transitions: int
    seconds: float
    learner_cpu_us_per_block: float
    sender_cpu_us_per_block: float
    learner_rss_start_bytes: int
    learner_rss_end_bytes: int
    senders_rss_start_bytes: int
    senders_rss_end_bytes: int
    memory: tuple[Memory, ...]
    broker: str


def stream_speed(
    workload: Workload,
    *,
    actors: int = 1,
    seconds: float = 10.0,
    broker: str = "",
    progress: Callable[[float], None] = lambda _share: None,
) -> StreamSpeed:
    """Stream for a while, wait until everything is stored, and check all of it.

    Args:
        workload: what each sender streams.
        actors: sender processes.
        seconds: to measure, after a second of warm-up.
        broker: URL; "" starts a Mosquitto on the loopback.
        progress: called with the share of `seconds` that is over.

    Raises:
        UsageError: out of range.
        ActorFailed: a sender ended.
        LinkLost: a sender did not begin or end in time, or our own broker ended.
        BrokerStartFailed, BrokerUnreachable, BrokerRefused: no broker.
        JournalError: the disk refuses.
    """
    if not 1 <= actors <= MAX_ACTORS or not 0.1 <= seconds <= MAX_SECONDS:
        raise UsageError(f"cannot stream from {actors} actors for {seconds} s: 1..{MAX_ACTORS}, 0.1..{MAX_SECONDS:.0f}")
    topics = Topics(f"bench-{secrets.token_hex(4)}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quarl-stream-")))
        own = None if broker else stack.enter_context(Mosquitto(tied=True))
        url = broker if own is None else own.url
        ingest = open_ingest(workload, folder)
        stack.callback(ingest.close)
        receiver = stack.enter_context(_receiving(url, topics, ingest))
        orders = [Order(url=url, fleet=topics.fleet, index=index, workload=workload) for index in range(actors)]
        senders = stack.enter_context(_senders(orders, check=(lambda: None) if own is None else own.check))
        window = _run(senders, ingest, receiver, seconds=seconds, progress=progress)
        stored = ingest.replay.newest(ingest.replay.capacity)
        ingest.close()
        rebuilt = open_ingest(workload, folder)
        stack.callback(rebuilt.close)
        rebuilt.rebuild()
        survived = (
            same(stored, rebuilt.replay.newest(len(stored))) and ingest.replay.inserted == rebuilt.replay.inserted
        )
    return _speed(workload, window, ingest, survived=survived, broker=broker or "mosquitto")


def open_ingest(workload: Workload, folder: Path) -> Witness:
    """Build the learner's way into replay as `Ingest.open` does, with room for ever: nobody samples here."""
    spec = workload.spec
    [seen] = spec.observations
    row_bytes = 2 * int(np.prod(seen.shape)) * np.dtype(seen.dtype).itemsize + 16
    capacity = max(4 * workload.block_transitions, min(1_000_000, _REPLAY_BYTES // row_bytes))
    return Witness(
        spec,
        sessions=SessionTable(EPOCH),
        journal=Journal(folder),
        experience=ReplayExperience(
            ReplayBuffer(capacity, observation=seen, action=ACTION, seed=0),
            NStepAssembler(1, DISCOUNT, key=seen.key),
            SampleToInsertRatio(
                1.0, _ENDLESS, 2.0 * workload.block_transitions, insert_unit=workload.block_transitions
            ),
        ),
        block_transitions=workload.block_transitions,
    )


@contextlib.contextmanager
def _receiving(url: str, topics: Topics, ingest: Witness) -> Iterator[Receiver]:
    link = PahoLink(BrokerURL.parse(url), client_id=f"{topics.fleet}-l"[:23], password=read_password(None))
    receiver = Receiver(link, topics, ingest)
    receiver.listen()
    link.connect(timeout_s=10.0)
    try:
        yield receiver
    finally:
        link.close()


@dataclass(frozen=True, kw_only=True)
class _Window:
    """What was counted around the measured seconds, and what the senders said."""

    seconds: float
    transitions: int
    blocks: int
    cpu_s: float
    memory: tuple[Memory, ...]
    begun: Sequence[Said]
    ended: Sequence[Said]


def _run(
    senders: Children, ingest: Witness, receiver: Receiver, *, seconds: float, progress: Callable[[float], None]
) -> _Window:
    _said(senders, "ready", timeout_s=_READY_S)
    senders.tell()
    begun = _said(senders, "begun", timeout_s=_READY_S)
    _learn(ingest, senders, _WARM_UP_S, lambda _share: None)
    samples = _Samples(ingest, senders, every_s=seconds / SAMPLES)

    def watch(share: float) -> None:
        samples.look()
        progress(share)

    before = (time.monotonic(), ingest.replay.inserted, ingest.counters["blocks"], time.process_time())
    _learn(ingest, senders, seconds, watch)
    after = (time.monotonic(), ingest.replay.inserted, ingest.counters["blocks"], time.process_time())
    memory = samples.ended()
    senders.tell()
    ended = _said(senders, "checksum", timeout_s=_DRAINED_S)
    return _Window(
        seconds=after[0] - before[0],
        transitions=after[1] - before[1],
        blocks=after[2] - before[2],
        cpu_s=after[3] - before[3],
        memory=memory,
        begun=begun,
        ended=ended,
    )


def _senders(orders: Sequence[Order], *, check: Callable[[], None]) -> Children:
    return Children(
        [[sys.executable, "-m", "quarl_edge.bench.stream.sender", order.encode()] for order in orders],
        name="sender",
        environment={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        check=check,
    )


def _said(senders: Children, key: str, *, timeout_s: float) -> list[Said]:
    return senders.collect(lambda said: key in said, timeout_s=timeout_s, what=f"said {key!r}")


class _Samples:
    """Looks at the memory of both ends now and then, from when replay is full on.

    A ring takes its memory as it fills: what grows after that would go on growing.
    """

    def __init__(self, ingest: Witness, senders: Children, *, every_s: float) -> None:
        self._ingest = ingest
        self._senders = senders
        self._every_s = every_s
        self._began_s = time.monotonic()
        self._full = self._replay_is_full
        self._taken = [self._sample()]

    @property
    def _replay_is_full(self) -> bool:
        return len(self._ingest.replay) == self._ingest.replay.capacity

    def look(self) -> None:
        """Take a sample if one is due; the first of a full replay takes the place of all before it."""
        if not self._full and self._replay_is_full:
            self._full, self._taken = True, [self._sample()]
        elif time.monotonic() - self._began_s >= self._taken[-1].at_s + self._every_s:
            self._taken.append(self._sample())

    def ended(self) -> tuple[Memory, ...]:
        """Return all, with a last one of now."""
        return (*self._taken, self._sample())

    def _sample(self) -> Memory:
        return Memory(
            at_s=time.monotonic() - self._began_s,
            learner_bytes=resident_bytes(),
            senders_bytes=self._senders.resident_bytes(),
        )


def _learn(ingest: Witness, senders: Children, seconds: float, progress: Callable[[float], None]) -> None:
    """Do what a learner does to the ingest while it trains: checkpoints."""
    began_s = time.monotonic()
    checkpoint_s = began_s + _CHECKPOINT_S
    while (spent_s := time.monotonic() - began_s) < seconds:
        senders.check()
        progress(spent_s / seconds)
        if time.monotonic() >= checkpoint_s:
            checkpoint_s += _CHECKPOINT_S
            with ingest.paused() as cut:
                pass
            ingest.checkpointed(cut)
        time.sleep(min(0.1, seconds - spent_s))


def _speed(workload: Workload, window: _Window, ingest: Witness, *, survived: bool, broker: str) -> StreamSpeed:
    ended, seen = window.ended, [ingest.seen.get(f"actor-{index}") for index in range(len(window.ended))]
    sent, stored = sum(end["transitions"] for end in ended), sum(one.transitions for one in seen if one is not None)
    duplicates = sum(one.duplicates for one in seen if one is not None)
    as_sent = all(one is not None and one.checksum == end["checksum"] for one, end in zip(seen, ended, strict=True))
    latencies_ms = [latency_ms for end in ended for latency_ms in end["latencies_ms"]] or [0.0]
    blocks = sum(end["blocks"] for end in ended)
    return StreamSpeed(
        transitions_per_s=window.transitions / window.seconds,
        bytes_per_transition=sum(end["bytes"] for end in ended) / max(1, sent),
        sent=sent,
        stored=stored,
        duplicates=duplicates,
        lost=sent - (stored - duplicates),
        verified=as_sent and survived,
        resent_blocks=sum(end["resends"] for end in ended),
        latency_ms_p50=float(np.percentile(latencies_ms, 50)),
        latency_ms_p99=float(np.percentile(latencies_ms, 99)),
        actors=len(ended),
        envs=workload.envs,
        observation=workload.observation,
        block_transitions=workload.block_transitions,
        seconds=window.seconds,
        learner_cpu_us_per_block=1e6 * window.cpu_s / max(1, window.blocks),
        sender_cpu_us_per_block=1e6
        * sum(end["cpu_s"] - begin["cpu_s"] for begin, end in zip(window.begun, ended, strict=True))
        / max(1, blocks),
        learner_rss_start_bytes=window.memory[0].learner_bytes,
        learner_rss_end_bytes=window.memory[-1].learner_bytes,
        senders_rss_start_bytes=window.memory[0].senders_bytes,
        senders_rss_end_bytes=window.memory[-1].senders_bytes,
        memory=window.memory,
        broker=broker,
    )
