"""Every so many pushes compiled for the Edge TPU, on `live/edgetpu`: what `train --edge-tpu` does.

Training never waits for the compiler. It runs in a child process of the lowest priority, for one push at a time, and
the newest that is due wins: those that it overtakes are counted and forgotten. Whatever goes wrong with it (refusals,
crashes, silence, nonsense) is said once and counted, and actors with an Edge TPU act on their CPU meanwhile.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quarl_device.capped_log import CappedWarnings
from quarl_device.errors import QuarlError
from quarl_device.link import Link
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.manifest import Manifest
from quarl_device.wire.topics import Topics
from quarl_edge.learner.blobs import BlobServer
from quarl_edge.learner.edge_tpu_counters import EdgeTpuCounters
from quarl_edge.learner.publisher import Pushed
from quarl_edge.learner.sealing import seal_policy
from quarl_export.edgetpu_push import tpu_tolerance

_LOG = logging.getLogger(__name__)
_CLOSE_S = 5.0


class Compile(Protocol):
    """What compiles one policy file; `quarl_export.edgetpu_push.compile_policy` with a deadline."""

    def __call__(self, policy: bytes, *, cancelled: Callable[[], bool]) -> bytes:
        """Return the compiled file; QuarlError where there is none. Ends soon once `cancelled()` is true."""


@dataclass(frozen=True, kw_only=True)
class _Compiled:
    """A compiled push that is ready to go out."""

    policy: bytes
    payload: bytes
    manifest: Manifest | None


class EdgeTpuPushes:
    """Compiles pushes and publishes what comes of them; retained, and sent again after a reconnection.

    Args:
        compile_policy: see `Compile`; called on a thread of this object's own.
        link: to the broker.
        topics: of the fleet.
        key: the learner's.
        blobs: serves the chunks of compiled files over the inline cap, and nothing else.
        period: every so many versions one is due, and the first of a session.

    Attributes:
        counters: see `EdgeTpuCounters`.
    """

    def __init__(
        self,
        compile_policy: Compile,
        *,
        link: Link,
        topics: Topics,
        key: LearnerKey,
        blobs: BlobServer,
        period: int,
    ) -> None:
        self._compile = compile_policy
        self._link = link
        self._topics = topics
        self._key = key
        self._blobs = blobs
        self._period = period
        self._changed = threading.Condition()
        self._due: Pushed | None = None
        self._ready: _Compiled | None = None
        self._sent: _Compiled | None = None
        self._is_first = True
        self._closed = False
        self._failing = False
        self._warnings = CappedWarnings(_LOG)
        self.counters = EdgeTpuCounters()
        self._worker = threading.Thread(target=self._work, name="edge-tpu", daemon=True)
        self._worker.start()
        link.on_connect(self._republish)

    def consider(self, pushed: Pushed) -> None:
        """Have a push compiled if it is due, in place of one that still waits; returns at once."""
        with self._changed:
            if not (self._is_first or pushed.version % self._period == 0):
                return
            self._is_first = False
            self.counters.overtaken += self._due is not None
            self._due = pushed
            self._changed.notify_all()

    @property
    def is_ready(self) -> bool:
        """Whether a compiled push waits to go out, and may."""
        with self._changed:
            return self._ready is not None and not self._blobs.busy

    def publish(self) -> None:
        """Send what is ready; what the link does not take is tried again at the next call."""
        with self._changed:
            ready = self._ready
            if ready is None or self._closed or self._blobs.busy:
                return
            if self._send(ready):
                self._ready, self._sent = None, ready
                self.counters.published += 1

    def close(self) -> None:
        """End the compiler and publish nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join(_CLOSE_S)
        if self.counters.failures > 1:
            _LOG.warning("%d pushes in all were not compiled for the Edge TPU", self.counters.failures)

    def _send(self, one: _Compiled) -> bool:
        if one.manifest is not None:
            self._blobs.put(one.manifest, one.policy)
        return self._link.publish(self._topics.edgetpu, one.payload, retain=True)

    def _republish(self) -> None:
        with self._changed:
            if self._sent is not None and not self._closed:
                self._send(self._sent)

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._due is None and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                pushed, self._due = self._due, None
            if pushed is None:
                continue
            # Whatever one push provokes, the next one is compiled again.
            try:
                ready = self._made(pushed)
            except Exception as error:
                self._note_failure(pushed.version, error)
            else:
                with self._changed:
                    self.counters.compiled += 1
                    self._failing = False
                    self._ready = ready

    def _made(self, pushed: Pushed) -> _Compiled:
        policy = self._compile(pushed.policy, cancelled=lambda: self._closed)
        header = dataclasses.replace(
            pushed.header,
            sha256=hashlib.sha256(policy).hexdigest(),
            tolerance_lsb=tpu_tolerance(pushed.header.tolerance_lsb),
            edge_tpu=True,
        )
        payload, manifest = seal_policy(header, policy, self._key)
        return _Compiled(policy=policy, payload=payload, manifest=manifest)

    def _note_failure(self, version: int, error: Exception) -> None:
        with self._changed:
            if self._closed:
                return
            said = str(error) if isinstance(error, QuarlError) else f"{type(error).__name__}: {error}"
            self.counters.failures += 1
            self.counters.last_failure = said
            is_news, self._failing = not self._failing, True
        if is_news:
            self._warnings.warning(
                "policy %d is not compiled for the Edge TPU: %s; training goes on, more failures in a row are counted",
                version,
                said,
            )
