"""Turns pushes into policies off the stepping thread: those that came last wait, the latest is looked at first.

They are several since what came last need not be the newest: a broker may hand out two in the wrong order, and which
one is newer is known when its signature has been checked, not before. Whoever is overtaken costs that check alone.

A manifest is handed to a `Fetcher`, which hands the policy file back once it is whole; it has a slot of its own, so
that the manifests that came meanwhile do not throw away what took long to fetch.

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
from dataclasses import dataclass
from functools import partial

from quarl_device.actor.acting import ActingPolicy
from quarl_device.actor.fetcher import Fetcher
from quarl_device.capped_log import CappedWarnings
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import show_action
from quarl_device.errors import PayloadRefused, SpaceMismatch
from quarl_device.policy import Policy
from quarl_device.policy_file import GoldenVectors, PolicyFile, read_policy
from quarl_device.runtime import PolicyRuntime
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


@dataclass(frozen=True, kw_only=True)
class _Learner:
    """Whose pushes are taken, for which spaces: a birth, see `Inbox.trust`."""

    key: PublicKey
    observations: tuple[ObservationSpec, ...]
    action: ActionSpec
    epoch: int
    extras: tuple[str, ...] = ()


class Inbox:
    """Verifies, lints and self-tests each push, newest first, and hands on what holds.

    Args:
        runtime: that policies are loaded into.
        batch_size: observations per call of the loop.
        actor_index: picks this actor's exploration value.
        on_ready: takes each policy that holds, on the inbox's own thread.
        fetcher: fetches what a manifest describes; without one, manifests are refused.
        keep: takes each push that holds and came in one message, with the learner's signature, likewise.

    Attributes:
        latest: (epoch, version) of the newest policy handed on.
        accepted: policies handed on.
        refused: pushes that did not hold; the policy in use goes on.
        ignored: pushes that were not newer (W3).
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
        keep: Callable[[PushHeader, bytes], None] = lambda *_: None,
    ) -> None:
        self._runtime = runtime
        self._batch_size = batch_size
        self._actor_index = actor_index
        self._on_ready = on_ready
        self._keep = keep
        self._changed = threading.Condition()
        self._payloads: deque[bytes] = deque(maxlen=_WAITING)
        self._fetched: Signed | None = None
        self._early: Sealed | None = None  # of a learner whose birth has not come
        self._fetcher = fetcher
        self._learner: _Learner | None = None
        self._closed = False
        self.latest = (-1, -1)
        self.accepted = 0
        self.refused = 0
        self._refusals = CappedWarnings(_LOG)
        self.ignored = 0
        self.ready_ms: deque[float] = deque(maxlen=_PUSHES_KEPT)
        if fetcher is not None:
            fetcher.deliver_to(self._take_fetched)
        self._thread = threading.Thread(target=self._work, name="inbox", daemon=True)
        self._thread.start()

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
            self._learner = _Learner(key=key, observations=observations, action=action, epoch=epoch, extras=extras)
            self._changed.notify_all()

    def offer(self, payload: bytes) -> None:
        """Have a push looked at, before all that wait; the oldest of too many is forgotten."""
        with self._changed:
            self._payloads.append(payload)
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
        if self._payloads:
            return partial(self._open, learner, self._payloads.pop())
        return None

    def _wait_s(self) -> float:
        return _WAIT_S if self._fetcher is None else min(_WAIT_S, self._fetcher.wait_s())

    def _open(self, learner: _Learner, payload: bytes) -> None:
        """Take a push as it came, or have fetched what a manifest describes."""
        if self._fetcher is None or not is_manifest(payload):
            self._take(learner, *decode_push(payload, learner.key.verify), sealed=payload)
            return
        manifest = decode_manifest(payload, learner.key.verify)
        if self._is_news(learner, manifest.header):
            self._fetcher.want(manifest)

    def _is_news(self, learner: _Learner, header: PushHeader) -> bool:
        news = header.epoch >= learner.epoch and newer((header.epoch, header.version), self.latest)
        self.ignored += not news
        return news

    def _take(
        self,
        learner: _Learner,
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
        if not self._is_news(learner, header):
            return
        if header.epoch > learner.epoch:
            check()
            self._hold(header, data, sealed)
            return
        acting = self._load(learner, header, read_policy(data, sha256=header.sha256))
        check()
        self.latest = (header.epoch, header.version)
        self.accepted += 1
        if header.variables_read_unix_ns:
            self.ready_ms.append((time.time_ns() - header.variables_read_unix_ns) / 1e6)
        self._on_ready(acting)
        if sealed is not None:
            self._keep(header, sealed)
        if self._fetcher is not None:
            self._fetcher.outdated(self.latest)

    def _take_assembled(self, learner: _Learner, header: PushHeader, data: bytes) -> None:
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
            if held is None or newer((header.epoch, header.version), (held.epoch, held.version)):
                self._early = (header, data, sealed)

    def _load(self, learner: _Learner, header: PushHeader, file: PolicyFile) -> ActingPolicy:
        _check_spaces(learner, file)
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
        )

    def _refuse(self, error: Exception) -> None:
        self.refused += 1
        self._refusals.warning("push refused: %s", error)


def _check_spaces(learner: _Learner, file: PolicyFile) -> None:
    wanted, found = (
        [(spec.key, spec.shape, spec.dtype, spec.stack, spec.stack_fill) for spec in specs]
        for specs in (learner.observations, file.contract.observations)
    )
    if found != wanted:
        raise SpaceMismatch(f"the pushed policy observes {found}, the learner's birth says {wanted}")
    ours, theirs = learner.action, file.contract.action
    if theirs.space != ours.space:
        raise SpaceMismatch(
            f"the pushed policy acts in {show_action(theirs)}, the learner's birth says {show_action(ours)}"
        )
