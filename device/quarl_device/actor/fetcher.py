"""Fetches big policies over a link: the hands of `Fetch`.

Manifests come from the inbox's thread, chunks on the link's, and the inbox's thread asks when it is time. Nothing is
published or handed on while the lock is held: a link in memory answers before `publish` returns.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from quarl_device.actor.fetch import Fetch, FetchCounters
from quarl_device.capped_log import CappedWarnings
from quarl_device.errors import PayloadRefused
from quarl_device.link import Link, Message
from quarl_device.wire.manifest import Manifest
from quarl_device.wire.push import PushHeader
from quarl_device.wire.topics import Topics

_LOG = logging.getLogger(__name__)


class Fetcher:
    """Assembles the newest big policy; listens to the chunks of that one alone.

    Args:
        link: chunks come by it; may not be connected yet.
        topics: of the fleet.
        device: this device's name.
    """

    def __init__(self, link: Link, *, topics: Topics, device: str) -> None:
        self._link = link
        self._topics = topics
        self._need_topic = topics.need(device)
        # Jitter must differ between devices that lost the same chunk, so the seed is the system's.
        self._fetch = Fetch(random.Random())  # noqa: S311
        self._lock = threading.Lock()
        self._subscribing = threading.RLock()
        self._filter = ""
        self._refusals = CappedWarnings(_LOG)
        self._on_policy: Callable[[PushHeader, bytes], None] = lambda _header, _policy: None
        link.on_connect(self._reconnected)

    @property
    def counters(self) -> FetchCounters:
        """What became of chunks and assemblies."""
        return self._fetch.counters

    def deliver_to(self, on_policy: Callable[[PushHeader, bytes], None]) -> None:
        """Hand every policy file that is whole to `on_policy`, on the link's thread."""
        self._on_policy = on_policy

    def want(self, manifest: Manifest) -> None:
        """Fetch this policy, as `Fetch.want` decides."""
        with self._lock:
            self._fetch.want(manifest, time.monotonic())
        self.tick()

    def outdated(self, version: tuple[int, int]) -> None:
        """A policy of this (epoch, version) is in use."""
        with self._lock:
            self._fetch.outdated(version, time.monotonic())
        self.tick()

    def wait_s(self) -> float:
        """Return in how many seconds `tick` may have something to do; infinite while there is nobody to ask."""
        if not self._link.connected:
            return float("inf")
        with self._lock:
            return self._fetch.wait_s(time.monotonic())

    def tick(self) -> None:
        """Listen to the chunks of what is being assembled, and ask for what is due."""
        self._listen()
        if not self._link.connected:
            return
        with self._lock:
            need = self._fetch.ask(time.monotonic())
        if need is not None:
            self._link.publish(self._need_topic, need.encode())
        # Asking may have given one policy up for another.
        self._listen()

    def close(self) -> None:
        """Say what was refused in silence."""
        self._refusals.sum_up("refused chunks")

    def _listen(self) -> None:
        """Subscribe to the chunks of the current file, and no longer to those of the last one.

        A slow link would otherwise carry, and its broker queue, the chunks of every version that comes.
        """
        with self._subscribing:
            manifest = self._fetch.manifest
            wanted = self._topics.blobs(manifest.header.sha256) if manifest is not None else ""
            if wanted == self._filter:
                return
            before, self._filter = self._filter, wanted
            if before:
                self._link.unsubscribe(before)
            if wanted:
                self._link.subscribe(wanted, self._on_chunk)

    def _on_chunk(self, message: Message) -> None:
        # Chunks are never retained: what a broker kept is somebody's mistake or malice.
        if message.retain:
            return
        try:
            sha256, offset = self._topics.chunk_of(message.topic)
            with self._lock:
                whole = self._fetch.chunk(sha256, offset, message.payload, time.monotonic())
        except PayloadRefused as error:
            self._refusals.warning("message on %s refused: %s", message.topic, error)
            return
        if whole is not None:
            self._on_policy(*whole)
        if whole is not None or self.wait_s() == 0.0:
            self.tick()

    def _reconnected(self) -> None:
        with self._lock:
            self._fetch.reconnected(time.monotonic())
        self.tick()
