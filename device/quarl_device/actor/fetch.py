"""Assembling one policy file from chunks, as pure decisions: no clock, no link, no thread.

The learner sends every chunk once to all who listen, upwards from the file's start (the fan-out). A device says at
first that it listens by asking for a few chunks from the file's *end*. If a chunk comes that it did not ask for, a
fan-out is under way, and it waits for as long as chunks keep coming; if only what it asked for comes, it is late, and
goes on asking downwards, a small window at a time. What is still missing when chunks stop coming is asked for again,
later and later, with jitter. A device that hears the answers to another one's questions has no need to ask itself.

Which policy: the newest wins while less than half of an older one is here, but the one that takes its place is then
finished. So a device whose link is slower than new versions come still completes one every 1.5 transfer times at the
latest, and never has more than one to assemble: versions in between are skipped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from quarl_device.errors import PayloadRefused
from quarl_device.wire.limits import MAX_NEEDED_CHUNKS
from quarl_device.wire.manifest import Manifest
from quarl_device.wire.messages import Need
from quarl_device.wire.push import PushHeader, newer

_REFILL_AT = MAX_NEEDED_CHUNKS // 2
_FIRST_PACE_S = 0.25
_PACES_OF_SILENCE = 4.0
_LEAST_SILENCE_S, _MOST_SILENCE_S = 0.1, 30.0
_SILENCES_BEFORE_GIVING_UP = 2


@dataclass(kw_only=True)
class FetchCounters:
    """What became of chunks and assemblies.

    Attributes:
        kept: chunks that were new and right.
        duplicates: chunks that were here already.
        refused: chunks of a wrong place, length or content.
        foreign: chunks of a file that is not being assembled.
        asks: questions, of up to eight chunks each.
        completed: policy files that are whole.
        abandoned: assemblies given up for a newer policy.
    """

    kept: int = 0
    duplicates: int = 0
    refused: int = 0
    foreign: int = 0
    asks: int = 0
    completed: int = 0
    abandoned: int = 0


class Fetch:
    """The assembly of at most one policy file, and the newest manifest that waits behind it.

    Args:
        rng: for jitter; devices must differ.

    Attributes:
        manifest: of the file that is being assembled, `None` if there is none.
        waiting: the newest manifest that came meanwhile.
        counters: see `FetchCounters`.
    """

    def __init__(self, rng: random.Random) -> None:
        self.manifest: Manifest | None = None
        self.waiting: Manifest | None = None
        self.counters = FetchCounters()
        self._rng = rng
        self._chunks: list[bytes | None] = []
        self._held = 0
        self._asked: set[int] = set()
        self._replaced_one = False
        self._pace_s = _FIRST_PACE_S
        self._progress_s = self._asked_s = 0.0
        self._silences = 0
        self._ask_at_s = 0.0

    @property
    def held(self) -> int:
        """Chunks of the current file that are here."""
        return self._held

    def want(self, manifest: Manifest, now_s: float) -> None:
        """Take note of a verified manifest that is newer than the policy in use.

        Args:
            manifest: begins an assembly, waits for its turn, or is ignored where it is not newer.
            now_s: monotonic time.
        """
        current = self.manifest
        if current is None:
            self._begin(manifest, now_s, replaces=False)
        elif not newer(manifest.version, current.version):
            return
        elif manifest.digests == current.digests and manifest.chunk_bytes == current.chunk_bytes:
            # The same file under a new header, as after the learner has resumed: what is here stays.
            self.manifest = manifest
        elif manifest.header.epoch > current.header.epoch or self._may_replace(current):
            self.counters.abandoned += 1
            self._begin(manifest, now_s, replaces=True)
        elif self.waiting is None or newer(manifest.version, self.waiting.version):
            self.waiting = manifest

    def _may_replace(self, current: Manifest) -> bool:
        return self._held * 2 < current.count and not self._replaced_one

    def outdated(self, version: tuple[int, int], now_s: float) -> None:
        """A policy of this (epoch, version) is in use: nothing that is not newer is worth assembling."""
        if self.waiting is not None and not newer(self.waiting.version, version):
            self.waiting = None
        if self.manifest is not None and not newer(self.manifest.version, version):
            self.counters.abandoned += 1
            self._next(now_s)

    def chunk(self, sha256: str, offset: int, payload: bytes, now_s: float) -> tuple[PushHeader, bytes] | None:
        """Take a chunk as it came.

        Args:
            sha256: of the file that its topic names.
            offset: in bytes, likewise.
            payload: untrusted.
            now_s: monotonic time.

        Returns:
            Header and policy file once every chunk is here and as the manifest says. The file's own sha256 is for the
            taker to check, beside other work: of a large one that takes milliseconds.

        Raises:
            PayloadRefused: a wrong place, length or content, and nothing has changed but the count.
        """
        manifest = self.manifest
        if manifest is None or sha256 != manifest.header.sha256:
            self.counters.foreign += 1
            return None
        try:
            index = manifest.index_of(offset)
            if self._chunks[index] is not None:
                self.counters.duplicates += 1
                # The link is busy with what somebody asked for: more questions would only make it busier.
                self._listen(now_s)
                return None
            manifest.check(index, payload)
        except PayloadRefused:
            self.counters.refused += 1
            raise
        self._keep(index, payload, now_s)
        return self._complete(now_s) if self._held == manifest.count else None

    def ask(self, now_s: float) -> Need | None:
        """Return what to ask for now, `None` if nothing is due; it counts as asked."""
        manifest = self.manifest
        if manifest is None or now_s < self._ask_at_s:
            return None
        if now_s >= self._silent_at_s:
            self._asked.clear()
            self._silences += 1
            if self.waiting is not None and (self._held == 0 or self._silences > _SILENCES_BEFORE_GIVING_UP):
                # Nobody has this one any more, it seems.
                self.counters.abandoned += 1
                self._next(now_s)
                return self.ask(now_s)
        room = MAX_NEEDED_CHUNKS - len(self._asked)
        places = range(manifest.count - 1, -1, -1)
        wanted = (i for i in places if self._chunks[i] is None and i not in self._asked)
        picked = [index for index, _ in zip(wanted, range(room), strict=False)]
        self._asked.update(picked)
        self._asked_s = now_s
        self._listen(now_s)
        if not picked:
            return None
        self.counters.asks += 1
        return Need(
            sha256=manifest.header.sha256, offsets=tuple(index * manifest.chunk_bytes for index in sorted(picked))
        )

    def wait_s(self, now_s: float) -> float:
        """Return in how many seconds `ask` may have something to say; infinite while nothing is assembled."""
        return float("inf") if self.manifest is None else max(0.0, self._ask_at_s - now_s)

    def reconnected(self, now_s: float) -> None:
        """The link is back: what was asked for or on its way is lost."""
        self._asked.clear()
        self._silences = 0
        self._ask_at_s, self._silent_at_s = now_s, float("inf")

    def _begin(self, manifest: Manifest, now_s: float, *, replaces: bool) -> None:
        self.manifest = manifest
        self.waiting = None if self.waiting and not newer(self.waiting.version, manifest.version) else self.waiting
        self._chunks = [None] * manifest.count
        self._held = 0
        self._replaced_one = replaces
        self._pace_s, self._progress_s = _FIRST_PACE_S, now_s
        self.reconnected(now_s)

    def _next(self, now_s: float) -> None:
        """End this assembly; begin the one that waits."""
        self.manifest, self._chunks, self._held = None, [], 0
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            self._begin(waiting, now_s, replaces=False)

    def _keep(self, index: int, payload: bytes, now_s: float) -> None:
        self._chunks[index] = payload
        self._held += 1
        self.counters.kept += 1
        # The longest gap of late: on a slow link a chunk takes seconds, and asking earlier would double the traffic.
        # What this device waited before it asked again was no gap of the link's.
        self._pace_s = max(now_s - max(self._progress_s, self._asked_s), 0.9 * self._pace_s)
        self._progress_s = now_s
        self._silences = 0
        self._listen(now_s)
        if index in self._asked:
            self._asked.remove(index)
            if len(self._asked) <= _REFILL_AT:
                self._ask_at_s = now_s

    def _listen(self, now_s: float) -> None:
        """Ask nothing until it has been silent for long enough; chunks that help nothing do not put it off for ever."""
        silence_s = max(_LEAST_SILENCE_S, _PACES_OF_SILENCE * self._pace_s) * 2.0 ** min(self._silences, 16)
        silent_at_s = now_s + min(silence_s, _MOST_SILENCE_S) * self._rng.uniform(0.75, 1.25)
        latest_s = max(self._progress_s, self._asked_s) + _MOST_SILENCE_S
        self._ask_at_s = self._silent_at_s = min(silent_at_s, latest_s)

    def _complete(self, now_s: float) -> tuple[PushHeader, bytes]:
        assert self.manifest is not None  # noqa: S101  only an assembly can become whole
        header = self.manifest.header
        policy = b"".join(chunk for chunk in self._chunks if chunk is not None)
        self._next(now_s)
        self.counters.completed += 1
        return header, policy
