"""Which chunk of which policy goes out next, as pure decisions: no clock, no link, no thread.

A policy is fanned out once, upwards from its start, when every known device listens (each says so by its first
question), or a moment after the first of them does. What a device lacks afterwards is repaired: a chunk that was asked
for goes out once in a while to all, however many ask for it. Repairs and the fan-out take turns.

At most two policies are held: the newest, and an older one for as long as somebody still asks for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from quarl_device.wire.manifest import Manifest
from quarl_device.wire.messages import Need

GATHER_S = 0.02
REPEAT_S = 0.1
_ANSWER_S = 0.05
_WANTED_S = 10.0
_MAX_DEVICES = 4_096
_NEVER = float("-inf")


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One chunk on its way out.

    Attributes:
        sha256: of its policy file.
        offset: in bytes.
        payload: its bytes.
    """

    sha256: str
    offset: int
    payload: bytes


@dataclass(kw_only=True)
class ShelfCounters:
    """What was sent and asked for.

    Attributes:
        fanned_out: chunks sent as part of a fan-out.
        repaired: chunks sent because somebody asked.
        spared: chunks asked for that were just sent, or about to be.
        strange: questions about a policy that is not held.
    """

    fanned_out: int = 0
    repaired: int = 0
    spared: int = 0
    strange: int = 0


@dataclass(eq=False, kw_only=True)
class _Held:
    manifest: Manifest
    policy: bytes
    put_s: float
    sent_s: list[float]
    listeners: set[str] = field(default_factory=set)
    first_s: float = float("inf")
    wanted_s: dict[str, float] = field(default_factory=dict)  # by device: when it asked last
    place: int = -1  # of the next chunk of the fan-out; -1 before it begins
    repairs: deque[int] = field(default_factory=deque)

    def is_wanted(self, now_s: float) -> bool:
        return any(now_s - asked_s < _WANTED_S for asked_s in self.wanted_s.values())

    @property
    def fanned_out(self) -> bool:
        return self.place >= self.manifest.count

    def due(self, now_s: float, audience: int) -> bool:
        """Whether the fan-out is under way or may begin."""
        begins = self.listeners and (len(self.listeners) >= audience or now_s >= self.first_s + GATHER_S)
        return bool(begins) if self.place < 0 else not self.fanned_out

    def take(self, index: int, now_s: float) -> Chunk:
        self.sent_s[index] = now_s
        start = index * self.manifest.chunk_bytes
        payload = self.policy[start : start + self.manifest.chunk_bytes]
        return Chunk(sha256=self.manifest.header.sha256, offset=start, payload=payload)


class Shelf:
    """The policies that devices may ask for.

    Attributes:
        counters: see `ShelfCounters`.
    """

    def __init__(self) -> None:
        self.counters = ShelfCounters()
        self._held: list[_Held] = []
        self._repairs_turn = True

    @property
    def held(self) -> tuple[tuple[int, int], ...]:
        """(epoch, version) of the policies that are held, oldest first."""
        return tuple(held.manifest.version for held in self._held)

    def put(self, manifest: Manifest, policy: bytes, now_s: float) -> None:
        """Hold a policy as the newest; a second time changes nothing."""
        if self._held and self._held[-1].manifest.header.sha256 == manifest.header.sha256:
            self._held[-1].manifest = manifest
            return
        if len(self._held) == 2:
            del self._held[1 if self._held[0].is_wanted(now_s) else 0]
        self._held.append(_Held(manifest=manifest, policy=policy, put_s=now_s, sent_s=[_NEVER] * manifest.count))

    def holds(self, sha256: str) -> bool:
        """Whether a policy file may be asked for here."""
        return any(held.manifest.header.sha256 == sha256 for held in self._held)

    def asks_elsewhere(self, device: str) -> None:
        """A device has asked for a policy that is not held here: it assembles none of these any more."""
        for held in self._held:
            held.wanted_s.pop(device, None)

    def clear(self) -> None:
        """Hold nothing any more."""
        self._held.clear()

    def need(self, device: str, need: Need, now_s: float) -> None:
        """Take a device's question.

        Raises:
            PayloadRefused: no chunk begins at an offset.
        """
        held = next((held for held in self._held if held.manifest.header.sha256 == need.sha256), None)
        self._note(device, held, now_s)
        if held is None:
            self.counters.strange += 1
            return
        wanted = [held.manifest.index_of(offset) for offset in need.offsets]
        if held.place < 0:
            held.first_s = min(held.first_s, now_s)
            if len(held.listeners) < _MAX_DEVICES:
                held.listeners.add(device)
            return
        for index in wanted:
            if index >= held.place or index in held.repairs or now_s - held.sent_s[index] < REPEAT_S:
                self.counters.spared += 1
            else:
                held.repairs.append(index)

    def _note(self, device: str, wanted: _Held | None, now_s: float) -> None:
        # A device assembles one policy at a time: what it asked for before, it has or has given up.
        for held in self._held:
            if held is not wanted:
                held.wanted_s.pop(device, None)
        if wanted is not None and len(wanted.wanted_s) < _MAX_DEVICES:
            wanted.wanted_s[device] = now_s

    def next(self, now_s: float, audience: int) -> Chunk | None:
        """Return the chunk to send now, `None` if there is none.

        Args:
            now_s: monotonic time.
            audience: how many devices are known to be there.
        """
        repairing = next((held for held in reversed(self._held) if held.repairs), None)
        fanning = next((held for held in self._held if held.due(now_s, audience)), None)
        if repairing is not None and (fanning is None or self._repairs_turn):
            self._repairs_turn = False
            self.counters.repaired += 1
            return repairing.take(repairing.repairs.popleft(), now_s)
        self._repairs_turn = True
        if fanning is None:
            return None
        fanning.place = max(fanning.place, 0)
        self.counters.fanned_out += 1
        chunk = fanning.take(fanning.place, now_s)
        fanning.place += 1
        return chunk

    def wait_s(self, now_s: float) -> float:
        """Return in how many seconds a fan-out begins if nobody else says that it listens; infinite without one."""
        gathering = [held.first_s + GATHER_S - now_s for held in self._held if held.place < 0 and held.listeners]
        return max(0.0, min(gathering, default=float("inf")))

    def busy(self, now_s: float) -> bool:
        """Whether the newest policy is still being fanned out, or devices have had no time to say that they listen."""
        if not self._held or self._held[-1].fanned_out:
            return False
        newest = self._held[-1]
        return newest.place >= 0 or bool(newest.listeners) or now_s < newest.put_s + _ANSWER_S
