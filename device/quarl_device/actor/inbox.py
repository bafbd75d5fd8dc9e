"""Turns pushes into policies off the stepping thread: a slot of one, the latest wins.

A manifest is handed to a `Fetcher`, which hands the policy file back once it is whole; it has a slot of its own, so
that the manifests that came meanwhile do not throw away what took long to fetch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from quarl_device.actor.acting import ActingPolicy
from quarl_device.actor.fetcher import Fetcher
from quarl_device.capped_log import CappedWarnings
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import show_action
from quarl_device.errors import SpaceMismatch
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

Signed = tuple[PushHeader, bytes]


class Inbox:
    """Verifies, lints and self-tests each push, newest first, and hands on what holds.

    Args:
        runtime: that policies are loaded into.
        batch_size: observations per call of the loop.
        actor_index: picks this actor's exploration value.
        on_ready: takes each policy that holds, on the inbox's own thread.
        fetcher: fetches what a manifest describes; without one, manifests are refused.

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
    ) -> None:
        self._runtime = runtime
        self._batch_size = batch_size
        self._actor_index = actor_index
        self._on_ready = on_ready
        self._changed = threading.Condition()
        self._payload: bytes | None = None
        self._fetched: Signed | None = None
        self._misfit: Signed | None = None
        self._fetcher = fetcher
        self._key: PublicKey | None = None
        self._observations: tuple[ObservationSpec, ...] = ()
        self._action: ActionSpec | None = None
        self._extras: tuple[str, ...] = ()
        self._closed = False
        self.latest = (-1, -1)
        self.accepted = 0
        self.refused = 0
        self._refusals = CappedWarnings(_LOG)
        self.ignored = 0
        self._epoch = 0
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
        epoch: int = 0,
        extras: tuple[str, ...] = (),
    ) -> None:
        """From now on take pushes that `key` signed, for these spaces; a push that waited for this is looked at.

        Args:
            key: of the learner.
            observations: from its birth.
            action: likewise.
            epoch: likewise; pushes of an older one are ignored (W3), such as the last learner's.
            extras: likewise; exploration must give them.
        """
        with self._changed:
            # A new learner's push may overtake its birth: what did not fit the old spaces is looked at again.
            asked, asks = (self._observations, self._action, self._extras), (observations, action, extras)
            if self._misfit and self._fetched is None and asks != asked:
                self._fetched, self._misfit = self._misfit, None
            self._key, self._observations, self._action, self._epoch = key, observations, action, epoch
            self._extras = extras
            self._changed.notify_all()

    def offer(self, payload: bytes) -> None:
        """Put a push into the slot; one that waits there is forgotten."""
        with self._changed:
            self._payload = payload
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
                if self._key is None or (self._payload is None and self._fetched is None):
                    self._changed.wait(timeout=self._wait_s())
                key = self._key
                payload, fetched = (None, None) if key is None else (self._payload, self._fetched)
                if key is not None:
                    self._payload = self._fetched = None
            # Whatever a hostile payload provokes, the thread that takes the next push must live (W5).
            try:
                self._work_once(payload, fetched, key)
            except Exception as error:
                self._refuse(error)

    def _wait_s(self) -> float:
        return _WAIT_S if self._fetcher is None else min(_WAIT_S, self._fetcher.wait_s())

    def _work_once(self, payload: bytes | None, fetched: Signed | None, key: PublicKey | None) -> None:
        if fetched is not None:
            self._take(*fetched)
        if payload and key is not None:
            self._open(payload, key)
        if self._fetcher is not None:
            self._fetcher.tick()

    def _open(self, payload: bytes, key: PublicKey) -> None:
        """Take a push as it came, or have fetched what a manifest describes."""
        if self._fetcher is None or not is_manifest(payload):
            self._take(*decode_push(payload, key.verify))
            return
        manifest = decode_manifest(payload, key.verify)
        if self._is_news(manifest.header):
            self._fetcher.want(manifest)

    def _is_news(self, header: PushHeader) -> bool:
        news = header.epoch >= self._epoch and newer((header.epoch, header.version), self.latest)
        self.ignored += not news
        return news

    def _take(self, header: PushHeader, data: bytes) -> None:
        """Load a policy file whose header the learner has signed, and whose sha256 is the header's; hand it on."""
        if not self._is_news(header):
            return
        try:
            acting = self._load(header, read_policy(data, sha256=header.sha256))
        except SpaceMismatch:
            with self._changed:
                self._misfit = (header, data)
            raise
        self.latest, self._misfit = (header.epoch, header.version), None
        self.accepted += 1
        if header.variables_read_unix_ns:
            self.ready_ms.append((time.time_ns() - header.variables_read_unix_ns) / 1e6)
        self._on_ready(acting)
        if self._fetcher is not None:
            self._fetcher.outdated(self.latest)

    def _load(self, header: PushHeader, file: PolicyFile) -> ActingPolicy:
        contract = file.contract
        self._check_spaces(file)
        check_exploration(header.exploration, contract.head, contract.action, extras=self._extras)
        golden = GoldenVectors(
            observations=file.golden.observations,
            outputs=header.golden_outputs,
            lsb=header.lsb,
            tolerance_lsb=header.tolerance_lsb,
        )
        policy = Policy.load(file, runtime=self._runtime, batch_size=self._batch_size, golden=golden)
        return ActingPolicy(
            policy=policy,
            epoch=header.epoch,
            version=header.version,
            exploration=header.exploration.for_actor(self._actor_index),
            reset=header.reset,
        )

    def _check_spaces(self, file: PolicyFile) -> None:
        wanted = [(spec.key, spec.shape, spec.dtype) for spec in self._observations]
        found = [(spec.key, spec.shape, spec.dtype) for spec in file.contract.observations]
        if found != wanted:
            raise SpaceMismatch(f"the pushed policy observes {found}, the learner's birth says {wanted}")
        ours, theirs = self._action, file.contract.action
        if ours is None or theirs.space != ours.space:
            named = "nothing" if ours is None else show_action(ours)
            raise SpaceMismatch(f"the pushed policy acts in {show_action(theirs)}, the learner's birth says {named}")

    def _refuse(self, error: Exception) -> None:
        self.refused += 1
        self._refusals.warning("push refused: %s", error)
