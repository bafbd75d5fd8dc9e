"""The books of a soak: what the environments made, what the journal holds, and whether the two add up.

Nothing here asks learner or actors what they did: steps are counted by the environments (`environment`), and stored
blocks are read from the journal's files.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarl_device.wire.block import Block, BlockCodec, BlockSpec
from quarl_device.wire.block_stamp import Stamp
from quarl_device.wire.loss import read_loss
from quarl_edge.replay.segments import iterate

COUNT = struct.Struct("<Q")
STEP_NUMBERS = 1024
"""Step n of a life is rewarded with (n mod this) / this: exact in float32, and more than a block has rows."""


@dataclass(frozen=True, kw_only=True)
class StoredBlock:
    """What the books need of one block in the journal.

    Attributes:
        device: that made it.
        boot_id: the life that made it.
        sequence: in that life.
        first_step: steps that the life had made before.
        steps: in it.
        declared: ranges of sequences, both ends included, that it says will never come.
        rows_hold: whether its rows are the steps after `first_step`, one after the other.
        lost: it is no block, but says that the one of its number will never come either; no step is in it.
    """

    device: str
    boot_id: str
    sequence: int
    first_step: int
    steps: int
    declared: tuple[tuple[int, int], ...] = ()
    rows_hold: bool = True
    lost: bool = False


@dataclass(frozen=True, kw_only=True)
class DeviceBooks:
    """The ledger of one device, in environment steps where nothing else is said.

    Attributes:
        device: its name.
        made: counted by its environments.
        stored: in the journal, each once.
        declared_dropped: between stored blocks of a life, in blocks that their actor declared dropped.
        forgotten: after the last block that is stored of a life, stored once, and gone with what a learner that was
            restored from an older state did not know any more; what of that lies before is declared.
        unfinished: made, but in no block that was ever written: what a kill takes out of an actor's memory.
        kills: of its actor.
        lives: with stored blocks.
        blocks: stored.
        duplicates: blocks that are stored again.
        faults: what does not hold, in words; empty when the books are right.
    """

    device: str
    made: int
    stored: int
    declared_dropped: int
    forgotten: int
    unfinished: int
    kills: int
    lives: int
    blocks: int
    duplicates: int
    faults: tuple[str, ...] = ()


def reward_of(step: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the rewards of steps by their numbers in their life, from 1."""
    return (step % STEP_NUMBERS / STEP_NUMBERS).astype(np.float32)


def read_counts(folder: Path) -> int:
    """Return the steps that all environments which counted in `folder` made."""
    counts = [path.read_bytes() for path in folder.iterdir()]
    return sum(COUNT.unpack(data)[0] for data in counts if len(data) == COUNT.size)


def read_journal(directory: Path, spec: BlockSpec) -> Iterator[StoredBlock]:
    """Yield the blocks of a journal in order of arrival, from its files.

    Raises:
        JournalError, PayloadRefused: what is stored does not hold.
    """
    codec = BlockCodec(spec)
    for record in iterate(directory):
        yield stored_block(record.device, record.payload, codec)


def stored_block(device: str, payload: bytes, codec: BlockCodec) -> StoredBlock:
    """Return what the books need of one payload.

    Raises:
        PayloadRefused: it does not hold.
    """
    loss = read_loss(payload)
    if loss is not None:
        return _lost(device, loss)
    block = codec.decode(payload)
    return StoredBlock(
        device=device,
        boot_id=block.boot_id,
        sequence=block.sequence,
        first_step=block.first_step,
        steps=block.transitions,
        declared=((0, block.base - 1), *block.dropped) if block.base else tuple(block.dropped),
        rows_hold=_rows_hold(block),
    )


def _lost(device: str, loss: Stamp) -> StoredBlock:
    below = ((0, loss.base - 1),) if loss.base else ()
    return StoredBlock(
        device=device,
        boot_id=loss.boot_id,
        sequence=loss.sequence,
        first_step=loss.first_step + (loss.lost_steps or 0),
        steps=0,
        declared=(*below, *loss.dropped, (loss.sequence, loss.sequence)),
        lost=True,
    )


def _rows_hold(block: Block) -> bool:
    numbers = block.first_step + 1 + np.arange(block.transitions)
    return bool(np.array_equal(block.reward[block.valid], reward_of(numbers)))


def balance(
    stored: Iterable[StoredBlock],
    *,
    made: Mapping[str, int],
    kills: Mapping[str, int],
    block_steps: int,
    rolled_back: Iterable[StoredBlock] = (),
    may_drop: Collection[str] | None = None,
) -> tuple[DeviceBooks, ...]:
    """Close the books of every device.

    Args:
        stored: in order of arrival.
        made: steps by device, as its environments counted them.
        kills: of its actor, by device.
        block_steps: rows of a block: a kill takes so many at most, of the one that was not written yet.
        rolled_back: what was stored, and taken out of the journal again.
        may_drop: devices that drop blocks to make room, by default all; another one declares only what was rolled back.
    """
    accounts = {device: _Account() for device in made}
    for block in stored:
        accounts.setdefault(block.device, _Account()).add(block)
    for block in rolled_back:
        accounts.setdefault(block.device, _Account()).forget(block)
    return tuple(
        account.close(
            device,
            made=made.get(device, 0),
            kills=kills.get(device, 0),
            block_steps=block_steps,
            may_drop=may_drop is None or device in may_drop,
        )
        for device, account in accounts.items()
    )


def disagreements(
    books: Iterable[DeviceBooks], accounts: Mapping[str, Mapping[str, int]], *, restored: bool = False
) -> tuple[str, ...]:
    """Return where the learner's own account of a device is not what the journal says, in words.

    Args:
        books: closed.
        accounts: as the learner told them at its end; a device that is not among them is passed over.
        restored: from an older state: of a life that it met in the middle it cannot know what was before.
    """
    found = []
    for one in books:
        told = accounts.get(one.device)
        if told is None:
            continue
        for name, right in (("stored_steps", one.stored), ("lost_steps", one.declared_dropped)):
            if told[name] != right and not (restored and name == "lost_steps" and told[name] < right):
                found.append(f"{one.device}: the learner's account says {name} {told[name]}, the journal {right}")
    return tuple(found)


@dataclass(slots=True)
class _Life:
    """Where a life stands: the sequence and the step that come next."""

    sequence: int = 0
    step: int = 0


@dataclass(slots=True)
class _Account:
    stored: int = 0
    dropped: int = 0
    blocks: int = 0
    duplicates: int = 0
    faults: list[str] = field(default_factory=list)
    lives: dict[str, _Life] = field(default_factory=dict)
    seen: set[tuple[str, int]] = field(default_factory=set)
    ends: dict[str, int] = field(default_factory=dict)  # steps of a life up to the last block that was ever stored

    rolled_back: set[tuple[str, int]] = field(default_factory=set)
    declared: set[tuple[str, int]] = field(default_factory=set)

    def forget(self, block: StoredBlock) -> None:
        self.rolled_back.add((block.boot_id, block.sequence))
        self.ends[block.boot_id] = max(self.ends.get(block.boot_id, 0), block.first_step + block.steps)

    def add(self, block: StoredBlock) -> None:
        name = f"block {block.boot_id}/{block.sequence}"
        if (block.boot_id, block.sequence) in self.seen:
            self.duplicates += 1
            self.faults.append(f"{name} is stored twice")
            return
        self.seen.add((block.boot_id, block.sequence))
        self.blocks += not block.lost
        self.stored += block.steps
        if not block.rows_hold:
            self.faults.append(f"{name}: its rows are not the steps from {block.first_step} on")
        life = self.lives.setdefault(block.boot_id, _Life())
        self._follow(name, life, block)
        life.sequence, life.step = block.sequence + 1, block.first_step + block.steps

    def _follow(self, name: str, life: _Life, block: StoredBlock) -> None:
        """Account for what lies between a block and the one before it in its life."""
        missing = range(life.sequence, block.sequence + block.lost)
        steps = block.first_step - life.step
        if block.sequence < life.sequence:
            self.faults.append(f"{name} came after block {life.sequence - 1}")
        elif steps < 0 or (steps > 0) != bool(missing):
            self.faults.append(f"{name}: {steps} steps are missing before it, and {len(missing)} blocks")
        elif any(not any(low <= number <= high for low, high in block.declared) for number in missing):
            self.faults.append(f"{name}: blocks before it are missing and were not declared dropped")
        else:
            self.dropped += steps
            self.declared.update((block.boot_id, number) for number in missing)

    def close(self, device: str, *, made: int, kills: int, block_steps: int, may_drop: bool) -> DeviceBooks:
        known = {boot_id: life.step for boot_id, life in self.lives.items()}
        forgotten = sum(max(0, end - known.get(boot_id, 0)) for boot_id, end in self.ends.items())
        unfinished = made - self.stored - self.dropped - forgotten
        bound = kills * block_steps
        faults = list(self.faults)
        if not may_drop and (dropped := self.declared - self.rolled_back):
            faults.append(f"{len(dropped)} blocks are declared dropped, and nothing was to drop them: {min(dropped)}")
        if not made:
            faults.append("it made no step")
        if unfinished < 0:
            faults.append(f"{-unfinished} steps are stored or declared that were never made")
        elif unfinished > bound:
            faults.append(f"{unfinished} steps are nowhere, {bound} at most can be in {kills} unfinished blocks")
        return DeviceBooks(
            device=device,
            made=made,
            stored=self.stored,
            declared_dropped=self.dropped,
            forgotten=forgotten,
            unfinished=unfinished,
            kills=kills,
            lives=len(self.lives),
            blocks=self.blocks,
            duplicates=self.duplicates,
            faults=tuple(faults),
        )
