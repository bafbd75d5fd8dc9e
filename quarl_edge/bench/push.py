"""How long a push takes from the learner's variables to the first action of actors in processes of their own.

The learner's side is the one that trains (`PolicyPublisher`, `BlobServer`), the actors' is the one that acts (`Inbox`,
`Fetcher`); only the environments are left out. All processes share one machine and so one clock.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quarl_device.contract import Head, PolicyContract
from quarl_device.link import BrokerURL, PahoLink, read_password
from quarl_device.runtime import find_runtime
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.push import Exploration
from quarl_device.wire.topics import Topics
from quarl_edge.bench.children import Children
from quarl_edge.bench.push_actor import ACTION, ENV_ID, EPOCH, OBSERVATION
from quarl_edge.learner.blobs import BlobServer
from quarl_edge.learner.publisher import PolicyPublisher, Pushed
from quarl_export.networks import NetworkSpec
from quarl_export.qat import QatPolicy
from quarl_export.qat_template import QatTemplate

_START_S, _PUSH_S = 60.0, 60.0
_PAUSE_S = 0.02
_WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class PushLatency:
    """What `push_end_to_end` measured; its fields are the keys of `--format json`.

    Attributes:
        hidden: sizes of the hidden layers.
        bytes: size of the file.
        actors: processes that each push reached.
        pushes: how many were timed, after a few that were not.
        first_action_ms_p50: variables read to the first action of the *last* actor, median over the pushes.
        first_action_ms_p99: likewise, 99th percentile.
        any_actor_ms_p50: the same of every actor, median over actors and pushes.
        prepare_ms_p50: variables read to signed bytes, median.
        stages_ms_p50: medians of what it consists of, one after the other: the learner's "read" (variables), "patch",
            "examine" (golden outputs, digests) and "seal" (encode, sign); "travel" until the *last* actor has the whole
            file; "start": verify, load, self-test, act.
        chunks: that the file travels in; 0 for one message.
        chunks_sent: per push, mean: more than `chunks` were lost or came too early for an actor.
        broker: what was between them.
        runtime: name and version.
    """

    hidden: tuple[int, ...]
    bytes: int
    actors: int
    pushes: int
    first_action_ms_p50: float
    first_action_ms_p99: float
    any_actor_ms_p50: float
    prepare_ms_p50: float
    stages_ms_p50: Mapping[str, float]
    chunks: int
    chunks_sent: float
    broker: str
    runtime: str


def push_end_to_end(
    hidden: Sequence[int],
    *,
    actors: int,
    pushes: int,
    broker: str = "",
    progress: Callable[[int], None] = lambda _done: None,
    tell: Callable[[str], None] = lambda _text: None,
) -> PushLatency:
    """Time pushes through a broker.

    Args:
        hidden: sizes of the hidden layers.
        actors: actor processes.
        pushes: pushes to time, one after the other.
        broker: URL; "" starts a Mosquitto on the loopback.
        progress: called with how many are done.
        tell: called with what begins.

    Raises:
        ActorFailed: an actor ended, or did not act in time.
        BrokerStartFailed, BrokerUnreachable, BrokerRefused: no broker.
        LinkLost: a push was not taken.
    """
    policy = QatPolicy(NetworkSpec(observations=(OBSERVATION,), action=ACTION, hidden=tuple(hidden)), normalize=True)
    tell("converting the network into a template")
    with _scene(policy, actors=actors, broker=broker, tell=tell) as scene:
        tell(f"timing {pushes:,} pushes")
        timed = []
        for version in range(1, pushes + _WARM_UP + 1):
            timed.append(_time_one(policy, version, scene))
            progress(max(0, version - _WARM_UP))
            time.sleep(_PAUSE_S)
        chunks_sent = scene.blobs.counters.fanned_out + scene.blobs.counters.repaired
    runtime = find_runtime()
    first, every = timed[0].pushed, timed[_WARM_UP:]
    last_ms = [one.last["ms"] for one in every]
    return PushLatency(
        hidden=tuple(hidden),
        bytes=len(first.policy),
        actors=actors,
        pushes=pushes,
        first_action_ms_p50=float(np.percentile(last_ms, 50)),
        first_action_ms_p99=float(np.percentile(last_ms, 99)),
        any_actor_ms_p50=float(np.percentile([said["ms"] for one in every for said in one.said], 50)),
        prepare_ms_p50=float(np.median([one.pushed.prepare_ms for one in every])),
        stages_ms_p50=_medians([one.stages_ms for one in every]),
        chunks=0 if first.manifest is None else first.manifest.count,
        chunks_sent=chunks_sent / len(timed),
        broker=broker or "mosquitto",
        runtime=f"{runtime.name} {runtime.version}",
    )


@dataclass(frozen=True, kw_only=True)
class _Scene:
    """A learner's side that is ready to push, and the actors that listen."""

    publisher: PolicyPublisher
    blobs: BlobServer
    company: Children


@dataclass(frozen=True, kw_only=True)
class _Timed:
    """One push, and what each actor said of it: ms since the variables were read, "whole" and at the first action."""

    pushed: Pushed
    said: Sequence[Mapping[str, float]]

    @property
    def last(self) -> Mapping[str, float]:
        """What the last actor said."""
        return max(self.said, key=lambda said: said["ms"])

    @property
    def stages_ms(self) -> dict[str, float]:
        """See `PushLatency.stages_ms_p50`."""
        times = self.pushed.times
        assert times is not None  # noqa: S101  the publisher made it
        return {
            "read": times.read_ms,
            "patch": times.patch_ms,
            "examine": times.examine_ms,
            "seal": times.seal_ms,
            "travel": self.last["whole_ms"] - self.pushed.prepare_ms,
            "start": self.last["ms"] - self.last["whole_ms"],
        }


@contextlib.contextmanager
def _scene(policy: QatPolicy, *, actors: int, broker: str, tell: Callable[[str], None]) -> Iterator[_Scene]:
    """Convert, connect, start the actors, and wait until they listen; leave nothing behind."""
    key, topics = LearnerKey.generate(), Topics(f"bench-{secrets.token_hex(4)}")
    observed = np.random.default_rng(0).uniform(-1, 1, (64, *OBSERVATION.shape)).astype(np.float32)
    policy.calibrate(observed)
    template = QatTemplate.from_model(policy, _contract(), observed[:8])
    with contextlib.ExitStack() as stack:
        tell(f"starting {actors} actor processes" + ("" if broker else " and a Mosquitto"))
        url = broker or stack.enter_context(Mosquitto()).url
        link = stack.enter_context(_connected(url))
        company = stack.enter_context(_company(actors, url=url, topics=topics, key=key))
        blobs = BlobServer(link, topics, audience=lambda: actors)
        stack.callback(blobs.close)
        blobs.start()
        publisher = PolicyPublisher(template, link=link, topics=topics, key=key, epoch=EPOCH, blobs=blobs)
        stack.callback(link.flush, timeout_s=2.0)
        stack.callback(link.publish, topics.policy, b"", retain=True)
        company.collect(lambda said: "ready" in said, timeout_s=_START_S, what="connected")
        yield _Scene(publisher=publisher, blobs=blobs, company=company)


def _company(count: int, *, url: str, topics: Topics, key: LearnerKey) -> Children:
    words = [sys.executable, "-m", "quarl_edge.bench.push_actor", url, topics.fleet, key.public.hex]
    return Children([[*words, f"actor-{index}"] for index in range(count)], name="actor")


def _time_one(policy: QatPolicy, version: int, scene: _Scene) -> _Timed:
    _learn(policy, version)
    exploration = Exploration(values=(0.0,))
    pushed = scene.publisher.prepare(policy.snapshot, version=version, env_steps=0, exploration=exploration)
    scene.publisher.publish(pushed)
    scene.publisher.retry()
    said = scene.company.collect(
        lambda said: said.get("version") == version, timeout_s=_PUSH_S, what=f"acted on {version}"
    )
    return _Timed(pushed=pushed, said=said)


def _medians(stages_ms: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.median([one[name] for one in stages_ms])) for name in stages_ms[0]}


def _learn(policy: QatPolicy, seed: int) -> None:
    """Change every weight a little, as gradient steps would."""
    rng = np.random.default_rng(seed)
    for variable in policy.trainable_variables:
        variable.assign(variable * np.float32(rng.uniform(0.99, 1.01)))


def _contract() -> PolicyContract:
    return PolicyContract(
        env_id=ENV_ID,
        algorithm="bench",
        scheme="int8",
        observations=(OBSERVATION,),
        head=Head(kind="q_values", outputs={"q_values": ""}),
        action=ACTION,
    )


@contextlib.contextmanager
def _connected(url: str) -> Iterator[PahoLink]:
    link = PahoLink(BrokerURL.parse(url), client_id=f"bench-{secrets.token_hex(6)}", password=read_password())
    link.connect(timeout_s=10.0)
    try:
        yield link
    finally:
        link.close()
