"""Sends the chunks of big policies on a thread of its own: the hands of `Shelf`.

Policies of a second stream (those compiled for the Edge TPU) have a server of their own, `beside` the first, so that
neither displaces the other's; what devices need comes by one topic, which the first listens to.

Training never waits for it. At most `_OPEN_BYTES` are on their way to the broker at a time: acks, births and
keep-alives share the connection, and must not stand behind megabytes of chunks on a slow link.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from quarl_device.capped_log import CappedWarnings
from quarl_device.errors import QuarlError
from quarl_device.link import Link, Message
from quarl_device.wire.limits import MAX_CHUNK_BYTES
from quarl_device.wire.manifest import Manifest
from quarl_device.wire.messages import Need
from quarl_device.wire.topics import Topics
from quarl_edge.learner.shelf import Chunk, Shelf, ShelfCounters

_LOG = logging.getLogger(__name__)
_OPEN_BYTES = 8 * MAX_CHUNK_BYTES
_WAIT_S = 1.0
_AGAIN_S = 0.1


class BlobServer:
    """Serves the chunks of the newest policies to all devices at once.

    Args:
        link: to the broker.
        topics: of the fleet.
        audience: how many devices are known to be there; the fan-out waits a moment for all of them to listen.

    Attributes:
        on_idle: called on the server's thread when a fan-out has ended.
    """

    def __init__(self, link: Link, topics: Topics, *, audience: Callable[[], int] = lambda: 1) -> None:
        self._link = link
        self._topics = topics
        self._audience = audience
        self._shelf = Shelf()
        self._changed = threading.Condition()
        self._closed = False
        self._refusals = CappedWarnings(_LOG)
        self._beside: list[BlobServer] = []
        self.on_idle: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="blobs", daemon=True)

    @property
    def counters(self) -> ShelfCounters:
        """What was sent and asked for."""
        return self._shelf.counters

    @property
    def busy(self) -> bool:
        """Whether the newest policy is still on its way: a newer one had better wait until it is out."""
        with self._changed:
            return self._shelf.busy(time.monotonic())

    def start(self, *, beside: BlobServer | None = None) -> None:
        """Serve devices from now on.

        Args:
            beside: a server of the same link that listens to what devices need, and passes on what is held here alone.
        """
        if beside is None:
            self._link.subscribe(self._topics.any_need, self._on_need)
        else:
            beside._beside.append(self)
        self._thread.start()

    def put(self, manifest: Manifest, policy: bytes) -> None:
        """Serve a policy, before its manifest is published."""
        with self._changed:
            self._shelf.put(manifest, policy, time.monotonic())

    def close(self) -> None:
        """Serve nobody any more."""
        with self._changed:
            self._closed = True
            self._shelf.clear()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        self._refusals.sum_up("refused needs")

    def _on_need(self, message: Message) -> None:
        if message.retain:
            return
        try:
            device, need = self._topics.device_of(message.topic), Need.decode(message.payload)
            takers = [server._takes(device, need) for server in (self, *self._beside)]
            if not any(takers):
                self._ask_shelf(device, need)  # which counts it as strange
        except QuarlError as error:
            self._refusals.warning("message on %s refused: %s", message.topic, error)

    def _takes(self, device: str, need: Need) -> bool:
        """Take a question about a policy that is held here; any other says that none of these is wanted any more."""
        with self._changed:
            held = self._shelf.holds(need.sha256)
            if not held:
                self._shelf.asks_elsewhere(device)
        if held:
            self._ask_shelf(device, need)
        return held

    def _ask_shelf(self, device: str, need: Need) -> None:
        with self._changed:
            self._shelf.need(device, need, time.monotonic())
            self._changed.notify_all()

    def _run(self) -> None:
        fanning = False
        while not self._closed:
            # Whatever goes wrong with one chunk, the next one is asked for again (W5).
            try:
                chunk = self._next()
                if chunk is not None:
                    self._send(chunk)
                if fanning and not self.busy:
                    self.on_idle()
                fanning = self.busy
            except Exception:
                _LOG.exception("a chunk was not sent")

    def _next(self) -> Chunk | None:
        audience = self._audience()
        with self._changed:
            chunk = self._shelf.next(time.monotonic(), audience)
            if chunk is None and not self._closed:
                self._changed.wait(timeout=min(_WAIT_S, self._shelf.wait_s(time.monotonic())))
            return chunk

    def _send(self, chunk: Chunk) -> None:
        """Hand a chunk over as soon as there is room; a connection that is away is waited for."""
        topic = self._topics.blob(chunk.sha256, chunk.offset)
        while not self._closed:
            room = self._link.drain(to_bytes=_OPEN_BYTES - len(chunk.payload), timeout_s=_WAIT_S)
            if room and self._link.publish(topic, chunk.payload):
                return
            with self._changed:
                if not self._closed:
                    self._changed.wait(timeout=_AGAIN_S)
