"""Which blocks have come from which life of which device: the part of exactly-once that is pure bookkeeping.

Rules:

* A life is one boot id of one device. Lives stand beside each other: what an earlier one left in a spool comes under
  its own boot id, before the newest life's blocks or among them.
* A life's blocks are accepted in sequence and once each (W1). What is expected first in an unknown life is the block's
  `base`, the lowest sequence that the actor can still send.
* `base` and declared dropped ranges move the expectation forward over blocks that will never come. So a learner that
  lost track (a torn journal, an evicted device) neither waits for ever for what the actor has freed, nor accepts
  anything twice.
* A refused block counts as done with: the actor must not send it again.
* Credit counts blocks from the expected one on: it moves with the expectation over what will never come.
* A block beyond the expected one is a gap: it is not taken, and comes again after the missing one. Every block that is
  sent says its `base` of that moment, so a gap that the actor cannot fill is never waited for.
* Memory is bounded: `max_devices` devices, `MAX_LIVES` lives each, the quietest goes first. A device delivers a life to
  its end before the next, and notes that: one that is forgotten here is not sent again.

The account of a device: every block says how many steps its life had made before it (`first_step`), so what lies
between two blocks that this learner met and was not stored is known in steps, whatever the reason; so is what comes
before the first one it met where that is number 0, and a refused block that could be read. What an actor gave up or
lost it tells in the place of the last of those blocks (`wire/loss`): at a life's head, at its end, and of lives of
which nothing else is left. Not known are steps that an earlier learner acknowledged, and those of the block that was
being made when a kill came.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quarl_device.errors import JournalError
from quarl_device.wire.block_spec import MAX_SEQUENCE
from quarl_device.wire.block_stamp import Stamp
from quarl_device.wire.messages import Ack

MAX_DEVICES = 4_096
MAX_LIVES = 16
MAX_REFUSED = 64


class Verdict(enum.Enum):
    """What to do with a block."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    GAP = "gap"


@dataclass(frozen=True, kw_only=True)
class Account:
    """What became of the steps of one device, as far as this learner has met its lives.

    Attributes:
        stored_steps: in accepted blocks.
        lost_steps: in blocks that were refused or that their actor gave up, as far as known (see above).
        lost_blocks: that their actor gave up.
    """

    stored_steps: int = 0
    lost_steps: int = 0
    lost_blocks: int = 0


@dataclass(slots=True)
class _Life:
    """One life of one device.

    Attributes:
        expected: sequence that comes next, `None` before the first block.
        step: number of the first step of the block that comes next, `None` before the first block that said so.
        credit: exclusive upper bound of the sequences that it may send.
        refused: sequence to error code, the newest `MAX_REFUSED`.
    """

    expected: int | None = None
    step: int | None = None
    credit: int = 0
    refused: dict[int, int] = field(default_factory=dict)

    def skip(self, base: int, dropped: Sequence[tuple[int, int]]) -> int:
        """Move the expectation over what will never come; returns how many blocks these are."""
        if self.expected is None:
            self.credit += base  # what was granted before it was known where the life stands
        start = expected = base if self.expected is None else self.expected
        expected = max(expected, base)
        for low, high in sorted(dropped):
            if low <= expected <= high:
                expected = high + 1
        self.expected = expected
        self.credit += expected - start
        return expected - start

    def account(self, first_step: int | None, steps: int) -> int:
        """Move on to the end of what is done with; returns the steps before it that were not stored."""
        if self.step is None and self.expected == 0:
            self.step = 0  # a life begins with its first block, whether that can be read or not
        if first_step is None:
            return 0
        lost = max(0, first_step - (first_step if self.step is None else self.step))
        self.step = first_step + steps
        return lost


@dataclass(slots=True)
class _Device:
    """One device.

    Attributes:
        active: the life that credit goes to: the one whose block or announcement came last.
        lives: by boot id, the quietest first.
        stored_steps: see `Account`, as the two that follow.
    """

    active: str
    lives: dict[str, _Life] = field(default_factory=dict)
    stored_steps: int = 0
    lost_steps: int = 0
    lost_blocks: int = 0

    def life(self, boot_id: str) -> _Life:
        """Return a life as the one that was heard of last."""
        life = self.lives.pop(boot_id, None) or _Life()
        self.lives[boot_id] = life
        self.active = boot_id
        if len(self.lives) > MAX_LIVES:
            del self.lives[next(iter(self.lives))]
        return life


class SessionTable:
    """The sessions of all devices.

    Args:
        epoch: of the learner, stated in every ack.
        max_devices: remembered devices.
    """

    def __init__(self, epoch: int = 0, *, max_devices: int = MAX_DEVICES) -> None:
        self.epoch = epoch
        self._max_devices = max_devices
        self._devices: dict[str, _Device] = {}

    def __len__(self) -> int:
        return len(self._devices)

    def __contains__(self, device: str) -> bool:
        return device in self._devices

    @property
    def lost(self) -> int:
        """Blocks of the remembered devices that their actors gave up before they came."""
        return _said(sum(device.lost_blocks for device in self._devices.values()))

    @property
    def lost_steps(self) -> int:
        """Steps of the remembered devices that lie between accepted blocks and never came."""
        return _said(sum(device.lost_steps for device in self._devices.values()))

    def account(self, device: str) -> Account:
        """Return what became of a device's steps."""
        known = self._devices.get(device)
        if known is None:
            return Account()
        return Account(
            stored_steps=_said(known.stored_steps),
            lost_steps=_said(known.lost_steps),
            lost_blocks=_said(known.lost_blocks),
        )

    def open(self, device: str, boot_id: str, base: int | None = None) -> None:
        """Note that `device` announced the life whose blocks it sends now; credit goes to it from here on.

        Args:
            device: its name.
            boot_id: the life.
            base: lowest sequence that it can still send, if it says so.
        """
        known = self._device(device, boot_id)
        life = known.life(boot_id)
        if base is not None:
            known.lost_blocks += life.skip(base, ())

    def examine(
        self, device: str, boot_id: str, sequence: int, base: int, dropped: Sequence[tuple[int, int]] = ()
    ) -> Verdict:
        """Judge a block without accepting it yet; `accept` or `refuse` follows an ACCEPT.

        Args:
            device: its name.
            boot_id: the life that it belongs to.
            sequence: its number in that life.
            base: lowest sequence that the actor can still send.
            dropped: inclusive ranges that will never be sent.
        """
        known = self._device(device, boot_id)
        life = known.life(boot_id)
        known.lost_blocks += life.skip(base, dropped)
        expected = life.expected or 0
        if sequence > expected:
            return Verdict.GAP
        return Verdict.ACCEPT if sequence >= expected else Verdict.DUPLICATE

    def accept(
        self,
        device: str,
        boot_id: str,
        dropped: Sequence[tuple[int, int]] = (),
        *,
        first_step: int | None = None,
        steps: int = 0,
    ) -> int:
        """Count the block that `examine` found to be next as stored.

        Args:
            device: its name.
            boot_id: the life that it belongs to.
            dropped: inclusive ranges that will never be sent.
            first_step: steps that its life had made before it, `None` where that cannot be read.
            steps: in it.

        Returns:
            Steps between the block before and this one that never came.
        """
        known = self._devices[device]
        life = known.lives[boot_id]
        lost = life.account(first_step, steps)
        self._done_with(known, life, dropped)
        known.lost_steps += lost
        known.stored_steps += steps
        return lost

    def lose(self, device: str, loss: Stamp) -> int:
        """Count the blocks that an actor says to be lost; `examine` found the last of them to be next.

        Returns:
            Steps in them, and between them and the block before, that never came.
        """
        known = self._devices[device]
        life = known.lives[loss.boot_id]
        steps = loss.lost_steps or 0
        if life.step is None:
            # Of what came before a life was met its actor knows what no learner has.
            life.step = loss.first_step
        end_step = loss.first_step + steps
        lost = life.account(max(life.step, end_step), 0)
        known.lost_blocks += 1
        known.lost_steps += lost
        self._done_with(known, life, loss.dropped)
        return lost

    def admit(
        self,
        device: str,
        boot_id: str,
        sequence: int,
        base: int,
        dropped: Sequence[tuple[int, int]] = (),
        *,
        first_step: int | None = None,
        steps: int = 0,
    ) -> Verdict:
        """`examine`, and `accept` at once where the verdict is ACCEPT."""
        verdict = self.examine(device, boot_id, sequence, base, dropped)
        if verdict is Verdict.ACCEPT:
            self.accept(device, boot_id, dropped, first_step=first_step, steps=steps)
        return verdict

    def refuse(
        self,
        device: str,
        boot_id: str,
        sequence: int,
        base: int,
        dropped: Sequence[tuple[int, int]] = (),
        *,
        code: int,
        first_step: int | None = None,
        steps: int = 0,
    ) -> Verdict:
        """Like `admit` for a block that does not hold: it is done with, and its error code goes into the acks.

        Where `first_step` can be read its steps are counted as lost now, else when the next block says where it stands.
        """
        verdict = self.examine(device, boot_id, sequence, base, dropped)
        if verdict is Verdict.ACCEPT:
            known = self._devices[device]
            life = known.lives[boot_id]
            life.refused[sequence] = code
            while len(life.refused) > MAX_REFUSED:
                del life.refused[next(iter(life.refused))]
            known.lost_steps += life.account(first_step, steps) + steps
            self._done_with(known, life, dropped)
        return verdict

    def has_credit(self, device: str, boot_id: str) -> bool:
        """Whether the block that comes next in a life may come now."""
        life = self._find(device, boot_id)
        return life is not None and (life.expected or 0) < life.credit

    def active(self, device: str) -> str:
        """Return the life of `device` that was heard of last, "" for an unknown device."""
        known = self._devices.get(device)
        return "" if known is None else known.active

    def expected(self, device: str, boot_id: str = "") -> int | None:
        """Return the sequence that comes next in a life, by default the active one; `None` for an unknown one."""
        life = self._find(device, boot_id)
        return None if life is None else life.expected

    def grant(self, device: str, ahead: int) -> bool:
        """Let `device` send up to `ahead` blocks of its active life beyond what has come in.

        A credit once given is never taken back.

        Returns:
            Whether the credit grew.
        """
        known = self._devices[device]
        life = known.lives[known.active]
        credit = (life.expected or 0) + ahead
        if credit <= life.credit:
            return False
        life.credit = credit
        return True

    def ack(self, device: str, boot_id: str = "") -> Ack:
        """Return the ack that `device` should see now, for a life that is remembered; by default the active one.

        Every accepted block is in the journal before it is in replay, so `durable` is `inserted`.
        """
        boot_id = boot_id or self._devices[device].active
        life = self._devices[device].lives[boot_id]
        stored = -1 if life.expected is None else life.expected - 1
        return Ack(
            boot_id=boot_id,
            epoch=self.epoch,
            inserted=stored,
            durable=stored,
            refused=dict(life.refused),
            credit=_said(life.credit),
        )

    def remembers(self, device: str, boot_id: str) -> bool:
        """Whether there is an ack for that life."""
        return self._find(device, boot_id) is not None

    def snapshot(self) -> dict[str, Any]:
        """Return the table as JSON, quietest device and life first."""
        return {
            name: {
                "active": device.active,
                "lives": {boot_id: [life.expected, life.step] for boot_id, life in device.lives.items()},
                "account": [_said(device.stored_steps), _said(device.lost_steps), _said(device.lost_blocks)],
            }
            for name, device in self._devices.items()
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Replace the table by a `snapshot`.

        Raises:
            JournalError: the snapshot does not hold.
        """
        devices: dict[str, _Device] = {}
        for name, entry in snapshot.items():
            try:
                devices[name] = _device_from_json(entry)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise JournalError(f"the journal's session table does not hold for {name!r}: {error!r}") from error
        self._devices = devices

    def _done_with(self, known: _Device, life: _Life, dropped: Sequence[tuple[int, int]]) -> None:
        """Expect the next block of a life."""
        life.expected = (life.expected or 0) + 1
        life.credit = max(life.credit, life.expected)
        known.lost_blocks += life.skip(life.expected, dropped)

    def _find(self, device: str, boot_id: str) -> _Life | None:
        known = self._devices.get(device)
        return None if known is None else known.lives.get(boot_id or known.active)

    def _device(self, name: str, boot_id: str) -> _Device:
        """Return a device as the one that was heard of last."""
        device = self._devices.pop(name, None) or _Device(boot_id)
        self._devices[name] = device
        if len(self._devices) > self._max_devices:
            del self._devices[next(iter(self._devices))]
        return device


def _device_from_json(entry: Mapping[str, Any]) -> _Device:
    lives = {boot_id: _Life(_int(expected), _int(step)) for boot_id, (expected, step) in entry["lives"].items()}
    if entry["active"] not in lives:
        raise ValueError("the active life is none of its lives")
    stored_steps, lost_steps, lost_blocks = map(int, entry["account"])
    return _Device(entry["active"], lives, stored_steps, lost_steps, lost_blocks)


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _said(count: int) -> int:
    """Return a count as the wire takes it: an actor may claim any loss, and nobody is to be kept from reading the rest.

    No honest count gets there: 2**53 steps are 28,000 years at 10,000 a second.
    """
    return min(count, MAX_SEQUENCE)
