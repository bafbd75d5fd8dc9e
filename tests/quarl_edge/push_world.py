"""A fleet in simulated time: the learner's `Shelf`, devices' `Fetch`, and a broker with one queue per device."""

import hashlib
import heapq
import random

from quarl_device.actor.fetch import Fetch
from quarl_device.wire.manifest import make_manifest
from quarl_device.wire.push import Exploration, PushHeader
from quarl_edge.learner.shelf import Shelf

CHUNK = 64
MANIFEST_BYTES = 32


def policy_of(version, chunks, tail=7):
    return random.Random(version).randbytes(CHUNK * (chunks - 1) + tail)


def manifest_of(version, policy, *, epoch=1):
    header = PushHeader(
        epoch=epoch, version=version, env_steps=0, sha256=hashlib.sha256(policy).hexdigest(), exploration=Exploration()
    )
    return make_manifest(header, policy, chunk_bytes=CHUNK)


class Device:
    """One `Fetch` behind a link of so many bytes a second, which delivers in order."""

    def __init__(self, world, name, rate, seed):
        self.world, self.name, self.rate = world, name, rate
        self.fetch = Fetch(random.Random(seed))
        self.free_s = 0.0
        self.used = (0, 0)
        self.done = []  # (time, version, policy)
        self.queued = self.most_queued = 0
        self.up = True
        self._timer = None

    def deliver(self, size, take):
        """Queue something of `size` bytes for this device at the broker."""
        if not self.up:
            return
        self.free_s = max(self.world.now, self.free_s) + size / self.rate
        self.queued += size
        self.most_queued = max(self.most_queued, self.queued)

        def arrive():
            self.queued -= size
            if self.up:
                take()
                self.act()

        self.world.at(self.free_s, arrive)

    def manifest(self, manifest):
        if manifest.version > self.used:
            self.fetch.want(manifest, self.world.now)

    def chunk(self, chunk):
        whole = self.fetch.chunk(chunk.sha256, chunk.offset, chunk.payload, self.world.now)
        if whole is not None:
            header, policy = whole
            self.used = (header.epoch, header.version)
            self.done.append((self.world.now, header.version, policy))
            self.fetch.outdated(self.used, self.world.now)

    def act(self):
        """Ask for what is due, and look again when something may be."""
        need = self.fetch.ask(self.world.now) if self.up else None
        if need is not None:
            assert len(self.fetch._asked) <= 8
            self.world.needed(self, need)
        wait_s = self.fetch.wait_s(self.world.now)
        if wait_s < 1e6:
            self._timer = timer = object()
            self.world.at(self.world.now + max(wait_s, 1e-4), lambda: self.act() if self._timer is timer else None)

    @property
    def listens_to(self):
        return self.fetch.manifest.header.sha256 if self.fetch.manifest else ""

    def restart(self):
        """Lose everything that was in memory, and get the retained manifest."""
        self.fetch, self.used = Fetch(random.Random(99)), (0, 0)
        self.deliver(MANIFEST_BYTES, lambda: self.manifest(self.world.retained))


class World:
    """Everything, and the clock."""

    def __init__(self, rates, *, chunks=20, uplink=1e6, latency_s=0.002, loss=0.0, double=0.0, late=0.0, seed=0):
        self.rng = random.Random(seed)
        self.chunks, self.uplink, self.latency_s = chunks, uplink, latency_s
        self.loss, self.double, self.late = loss, double, late
        self.now, self._events, self._count = 0.0, [], 0
        self.shelf, self.epoch = Shelf(), 1
        self.retained = self.waiting = None
        self.published = []
        self.needs = 0
        self.spoil = lambda chunk, device: True
        self.devices = [Device(self, f"d{i}", rate, seed * 100 + i) for i, rate in enumerate(rates)]
        self.pump()

    def at(self, time_s, action):
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, action))

    def run(self, until_s):
        while self._events and self._events[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self._events)
            action()
            assert len(self.shelf.held) <= 2
        self.now = until_s

    def push(self, version):
        policy = policy_of(version * 1000 + self.epoch, self.chunks)
        self.waiting = (manifest_of(version, policy, epoch=self.epoch), policy)
        self.publish_waiting()

    def publish_waiting(self):
        if self.waiting is None or self.shelf.busy(self.now):
            return
        (manifest, policy), self.waiting = self.waiting, None
        self.shelf.put(manifest, policy, self.now)
        self.retained = manifest
        self.published.append(manifest.version[1])
        for device in self.devices:
            device.deliver(MANIFEST_BYTES, lambda device=device: device.manifest(manifest))

    def pump(self):
        """Send the next chunk to all who listen to its policy."""
        chunk = self.shelf.next(self.now, len(self.devices))
        if chunk is None:
            self.publish_waiting()
            self.at(self.now + 0.001, self.pump)
            return
        for device in self.devices:
            if device.listens_to == chunk.sha256 and self.spoil(chunk, device) and self.rng.random() >= self.loss:
                for _ in range(1 + (self.rng.random() < self.double)):
                    self._carry(device, chunk)
        self.at(self.now + len(chunk.payload) / self.uplink, self.pump)

    def _carry(self, device, chunk):
        def hand_over():
            device.deliver(len(chunk.payload), lambda: device.chunk(chunk))

        if self.rng.random() < self.late:
            self.at(self.now + self.rng.uniform(0, 0.2), hand_over)
        else:
            hand_over()

    def needed(self, device, need):
        self.needs += 1
        if self.rng.random() >= self.loss:
            self.at(self.now + self.latency_s, lambda: self.shelf.need(device.name, need, self.now))

    @property
    def sent(self):
        return self.shelf.counters.fanned_out + self.shelf.counters.repaired
