"""Turns pushes into policies off the stepping thread: those that came last wait, the latest is looked at first.

They are several since what came last need not be the newest: a broker may hand out two in the wrong order, and which
one is newer is known when its signature has been checked, not before. Whoever is overtaken costs that check alone.

A manifest is handed to a `Fetcher`, which hands the policy file back once it is whole; it has a slot of its own, so
that the manifests that came meanwhile do not throw away what took long to fetch.

An actor with an Edge TPU hears two streams, of which `two_streams` says what acts; what waits there waits in a slot.

A push may overtake the birth of its learner. It then waits for it, in a slot too: the task may be another one, and
whoever follows a birth drops the policies that came before. A learner that waits for experience pushes nothing again:
if that one were lost, both would wait for each other.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from quarl_device.actor.acting import ActingPolicy
from quarl_device.actor.fetcher import Fetcher
from quarl_device.actor.trusted import TrustedLearner
from quarl_device.actor.two_streams import TwoStreams, Verdict
from quarl_device.capped_log import CappedWarnings
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.delegate_spec import COMPILED_LAG_S, EDGE_TPU_OPERATOR
from quarl_device.errors import PayloadRefused
from quarl_device.lint import is_compiled
from quarl_device.policy import Policy
from quarl_device.policy_file import GoldenVectors, PolicyFile, read_policy
from quarl_device.runtime import PolicyRuntime, reaches_edge_tpu
from quarl_device.wire.exploration import check_exploration
from quarl_device.wire.keys import PublicKey
from quarl_device.wire.manifest import decode_manifest, is_manifest
from quarl_device.wire.push import PushHeader, decode_push, newer

_LOG = logging.getLogger(__name__)
_PUSHES_KEPT = 256
_WAIT_S = 1.0
_WAITING = 4

Signed = tuple[PushHeader, bytes]
Sealed = tuple[PushHeader, bytes, bytes | None]
"""Header, policy file, and the push as it came; of one that came in chunks there is no such thing."""


class Inbox:
    """Verifies, lints and self-tests each push, newest first, and hands on what holds.

    Args:
        runtime: that policies are loaded into.
        batch_size: observations per call of the loop.
        actor_index: picks this actor's exploration value.
        on_ready: takes each policy that holds, on the inbox's own thread.
        fetcher: fetches what a manifest describes; without one, manifests are refused.
        max_lag_s: of a runtime with an Edge TPU: see `two_streams`.
        keep: takes each push that holds and came in one message, with the learner's signature and its key, likewise.

    Attributes:
        accepted: policies handed on.
        refused: pushes that did not hold; the policy in use goes on.
        ignored: pushes that were not newer (W3), or compiled ones soon after one that failed.
        ready_ms: of recent pushes, from the learner's reading of its variables to a policy that is ready for the next
            step, in ms of the wall clock: right only where both ends share a clock.
    """

    def __init__(
        self,
        *,
        runtime: PolicyRuntime,
        batch_size: int,
        actor_index: int,
        on_ready: Callable[[ActingPolicy], None],
        fetcher: Fetcher | None = None,
        max_lag_s: float = COMPILED_LAG_S,
        keep: Callable[[PushHeader, bytes, PublicKey], None] = lambda *_: None,
    ) -> None:
        self._runtime = runtime
        self._on_edge_tpu = False
        self._streams = TwoStreams(edge_tpu=reaches_edge_tpu(runtime), max_lag_s=max_lag_s)
        self._batch_size = batch_size
        self._actor_index = actor_index
        self._on_ready = on_ready
        self._keep = keep
        self._changed = threading.Condition()
        self._payloads: deque[bytes] = deque(maxlen=_WAITING)
        self._compiled: deque[bytes] = deque(maxlen=_WAITING)  # apart, since plain ones come far more often
        self._later: tuple[tuple[int, int], bytes] | None = None  # the newest plain one that waits for a compiled one
        self._fetched: Signed | None = None
        self._early: Sealed | None = None  # of a learner whose birth has not come
        self._fetcher = fetcher
        self._learner: TrustedLearner | None = None
        self._closed = False
        self.accepted = 0
        self.refused = 0
        self._refusals = CappedWarnings(_LOG)
        self.ignored = 0
        self.ready_ms: deque[float] = deque(maxlen=_PUSHES_KEPT)
        if fetcher is not None:
            fetcher.deliver_to(self._take_fetched)
        self._thread = threading.Thread(target=self._work, name="inbox", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> tuple[int, int]:
        """(epoch, version) of the newest policy handed on."""
        return self._streams.latest

    def trust(
        self,
        key: PublicKey,
        observations: tuple[ObservationSpec, ...],
        action: ActionSpec,
        *,
        epoch: int,
        extras: tuple[str, ...] = (),
    ) -> None:
        """From now on take pushes that `key` signed, for these spaces; a push that waited for this is looked at.

        Args:
            key: of the learner.
            observations: from its birth.
            action: likewise.
            epoch: likewise; pushes of an older one are ignored (W3), such as the last learner's, and those of a later
                one wait for its birth.
            extras: likewise; exploration must give them.
        """
        with self._changed:
            self._learner = TrustedLearner(
                key=key, observations=observations, action=action, epoch=epoch, extras=extras
            )
            self._changed.notify_all()

    def offer(self, payload: bytes, *, compiled: bool = False) -> None:
        """Have a push looked at, before all that wait; the oldest of too many is forgotten.

        Args:
            payload: as it came.
            compiled: it came by `live/edgetpu`. What it is, its header says, which is signed.
        """
        with self._changed:
            (self._compiled if compiled else self._payloads).append(payload)
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=2.0)
        self._refusals.sum_up("refused pushes")
        if self._fetcher is not None:
            self._fetcher.close()

    def _take_fetched(self, header: PushHeader, data: bytes) -> None:
        with self._changed:
            self._fetched = (header, data)
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                job = self._next_job()
                if job is None:
                    self._changed.wait(timeout=self._wait_s())
                    job = self._next_job()
            # Whatever a hostile payload provokes, the thread that takes the next push must live (W5).
            try:
                if job is not None:
                    job()
                if self._fetcher is not None:
                    self._fetcher.tick()
            except Exception as error:
                self._refuse(error)

    def _next_job(self) -> Callable[[], None] | None:
        """Take one thing that waits; what is refused takes nothing with it that waits elsewhere."""
        learner = self._learner
        if learner is None:
            return None
        if self._early is not None and self._early[0].epoch <= learner.epoch:
            (header, data, sealed), self._early = self._early, None
            return partial(self._take, learner, header, data, sealed=sealed)
        if self._fetched is not None:
            fetched, self._fetched = self._fetched, None
            return partial(self._take_assembled, learner, *fetched)
        for waiting in (self._compiled, self._payloads):
            if waiting:
                return partial(self._open, learner, waiting.pop())
        if self._later is not None and time.monotonic() >= self._streams.due_s:
            (_, payload), self._later = self._later, None
            return partial(self._open, learner, payload)
        return None

    def _wait_s(self) -> float:
        wait_s = _WAIT_S if self._fetcher is None else min(_WAIT_S, self._fetcher.wait_s())
        if self._later is None or self._learner is None:
            return wait_s
        return max(0.0, min(wait_s, self._streams.due_s - time.monotonic()))

    def _open(self, learner: TrustedLearner, payload: bytes) -> None:
        """Take a push as it came, or have fetched what a manifest describes."""
        if self._fetcher is None or not is_manifest(payload):
            header, data = decode_push(payload, learner.key.verify)
            if self._is_due(learner, header, payload):
                self._take(learner, header, data, sealed=payload)
            return
        manifest = decode_manifest(payload, learner.key.verify)
        if self._is_due(learner, manifest.header, payload):
            self._fetcher.want(manifest)

    def _is_due(self, learner: TrustedLearner, header: PushHeader, payload: bytes) -> bool:
        """Whether a push is to be taken now; one that may be later is kept, where it is the newest of those."""
        verdict = Verdict.IGNORE if header.epoch < learner.epoch else self._streams.judge(header, time.monotonic())
        if verdict is Verdict.WAIT:
            version = (header.epoch, header.version)
            if self._later is None or not newer(self._later[0], version):
                self._later = version, payload
        self.ignored += verdict is Verdict.IGNORE
        return verdict is Verdict.TAKE

    def _take(
        self,
        learner: TrustedLearner,
        header: PushHeader,
        data: bytes,
        *,
        sealed: bytes | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Load a policy file whose header the learner has signed, and hand it on.

        Args:
            learner: see `trust`.
            header: as signed.
            data: of the header's sha256, if `check` raises nothing.
            sealed: both as they came, in one message.
            check: called before the file is kept or used.
        """
        if header.epoch < learner.epoch or not newer((header.epoch, header.version), self.latest):
            # What waited for its learner or was fetched may have been overtaken meanwhile.
            self.ignored += 1
            return
        if header.epoch > learner.epoch:
            check()
            self._hold(header, data, sealed)
            return
        try:
            acting = self._load(learner, header, read_policy(data, sha256=header.sha256))
            check()
        except Exception:
            self._streams.failed(header, time.monotonic())
            raise
        self._note_where(header)
        self._streams.taken(header)
        if self._later is not None and not newer(self._later[0], self.latest):
            self._later = None
        self.accepted += 1
        if header.variables_read_unix_ns:
            self.ready_ms.append((time.time_ns() - header.variables_read_unix_ns) / 1e6)
        self._on_ready(acting)
        if sealed is not None:
            self._keep(header, sealed, learner.key)
        if self._fetcher is not None:
            self._fetcher.outdated(self.latest)

    def _take_assembled(self, learner: TrustedLearner, header: PushHeader, data: bytes) -> None:
        """Take a file that came in chunks, each as the learner signed it, if together they are what it named."""
        # Beside loading it, which takes as long: this thread's policy waits, and the link's thread has no time for it.
        with ThreadPoolExecutor(max_workers=1) as pool:
            hashed = pool.submit(hashlib.sha256, data)

            def check() -> None:
                digest = hashed.result().hexdigest()
                if digest != header.sha256:
                    raise PayloadRefused(
                        f"policy: its sha256 is {digest[:16]}..., the manifest says {header.sha256[:16]}..."
                    )

            self._take(learner, header, data, check=check)

    def _hold(self, header: PushHeader, data: bytes, sealed: bytes | None) -> None:
        with self._changed:
            held = self._early[0] if self._early is not None else None
            version, other = (header.epoch, header.version), (held.epoch, held.version) if held else None
            # Of one version the plain one, which runs anywhere.
            is_plainer = held is not None and version == other and held.edge_tpu and not header.edge_tpu
            if other is None or newer(version, other) or is_plainer:
                self._early = (header, data, sealed)

    def _note_where(self, header: PushHeader) -> None:
        if header.edge_tpu != self._on_edge_tpu:
            self._on_edge_tpu = header.edge_tpu
            _LOG.info("policy %d acts on the %s", header.version, "Edge TPU" if header.edge_tpu else "CPU")

    def _load(self, learner: TrustedLearner, header: PushHeader, file: PolicyFile) -> ActingPolicy:
        learner.check_spaces(file)
        if header.edge_tpu and not is_compiled(file.graph):
            raise PayloadRefused(f"the push says that it is compiled, but the file has no {EDGE_TPU_OPERATOR}")
        contract = file.contract
        check_exploration(header.exploration, contract.head, contract.action, extras=learner.extras)
        golden = GoldenVectors(
            observations=file.golden.observations,
            outputs=header.golden_outputs,
            lsb=header.lsb,
            tolerance_lsb=header.tolerance_lsb,
        )
        policy = Policy.load(file, runtime=self._runtime, batch_size=self._batch_size, golden=golden, stacked=True)
        return ActingPolicy(
            policy=policy,
            epoch=header.epoch,
            version=header.version,
            exploration=header.exploration.for_actor(self._actor_index),
            reset=header.reset,
            edge_tpu=header.edge_tpu,
        )

    def _refuse(self, error: Exception) -> None:
        self.refused += 1
        self._refusals.warning("push refused: %s", error)
