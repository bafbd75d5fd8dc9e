"""Where experience enters the learner: checked, judged, journalled, made into transitions, inserted, acknowledged.

The order is the promise. A block is journalled before it is in replay and before its session moves on, so `inserted`
and `durable` are one number: what is acknowledged survives ``kill -9`` (W2), and what the journal refuses stays
unacknowledged and comes again. A payload that does not hold is counted, logged and done with; it hurts nothing else
(W4).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_device.capped_log import CappedWarnings
from quarl_device.errors import JournalError, PayloadRefused
from quarl_device.wire.block import Block, BlockCodec, BlockSpec
from quarl_device.wire.block_stamp import Stamp
from quarl_device.wire.limits import MAX_BLOCK_BYTES, check_incoming
from quarl_device.wire.loss import read_loss
from quarl_device.wire.messages import Ack
from quarl_edge.flow.lag import LagBound, PolicyLag
from quarl_edge.ingest.credit import Credit
from quarl_edge.ingest.identity import identity
from quarl_edge.ingest.sessions import SessionTable, Verdict
from quarl_edge.replay.buffer import ReplayBuffer
from quarl_edge.replay.experience import Experience, ReplayExperience, make_experience
from quarl_edge.replay.journal import Journal
from quarl_edge.replay.limiter import SampleToInsertRatio

if TYPE_CHECKING:
    from quarl_edge.config import TrainConfig

_LOG = logging.getLogger(__name__)

MAX_MAGNITUDE = 1e9
"""Largest absolute reward or float observation that is taken.

No sum, square or weight leaves a larger finite number finite: one sensor's fault must not end a run (W4).
"""

_KEPT_CHECKPOINTS = 2
_LOGGED_REFUSALS = 20
_COUNTERS = ("blocks", "env_steps", "duplicates", "gaps")


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One moment of the ingest, for a checkpoint.

    Attributes:
        journal_position: position after the last accepted block.
        env_steps: environment steps in accepted blocks.
        samples: drawn from replay so far.
        inserted: transitions (steps, of rounds) that came in so far.
    """

    journal_position: int
    env_steps: int
    samples: int
    inserted: int


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What a rebuild brought back.

    Attributes:
        blocks: read from the journal.
        transitions: made of them; the oldest may have left the ring again.
        env_steps: counted since the run began.
        discarded_bytes: of records after the point to resume from.
        torn_bytes: of a record that a power cut left half written.
    """

    blocks: int
    transitions: int
    env_steps: int
    discarded_bytes: int
    torn_bytes: int


class Ingest:
    """Feeds replay from any number of devices. Thread-safe; `offer` runs on the link's thread.

    Args:
        spec: what blocks must carry.
        sessions: which blocks came.
        journal: belongs to the ingest from here on.
        experience: what accepted blocks become.
        block_transitions: expected size of a device's block before its first has come.
        lag: of the policies that act; bounds it.

    Attributes:
        experience: see above.
        sessions: see above.
        lag: see above.
        blocked: why no block can be stored, "" while the journal takes them.
        refused: payloads that did not hold, by error code.
    """

    def __init__(
        self,
        spec: BlockSpec,
        *,
        sessions: SessionTable,
        journal: Journal,
        experience: Experience,
        block_transitions: int = 1,
        lag: PolicyLag | None = None,
    ) -> None:
        self._codec = BlockCodec(spec, max_magnitude=MAX_MAGNITUDE)
        self._journal = journal
        self._lock = threading.RLock()
        self._credit = Credit(sessions, experience, block_transitions=block_transitions)
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._checkpoints: deque[int] = deque(maxlen=_KEPT_CHECKPOINTS)
        self.sessions = sessions
        self.experience = experience
        self.lag = lag or PolicyLag(epoch=sessions.epoch)
        self._losses = CappedWarnings(_LOG)
        self.blocked = ""
        self.refused: dict[int, int] = {}
        journal.bind(self._segment_snapshot)

    @classmethod
    def open(cls, config: TrainConfig, spec: BlockSpec, directory: Path, *, epoch: int) -> Ingest:
        """Build the whole path from a run's configuration.

        Args:
            config: hyperparameters.
            spec: what blocks must carry.
            directory: of the journal.
            epoch: of this learner, stated in acks.

        Raises:
            UnsupportedSpace: replay cannot hold these observations.
            UsageError: the limiter could deadlock.
            JournalError: see `Journal`.
        """
        envs = config.envs_per_actor
        unit = min(config.block_steps, spec.max_steps(envs)) * envs
        return cls(
            spec,
            sessions=SessionTable(epoch),
            journal=Journal(
                directory,
                segment_bytes=config.journal_segment_bytes,
                fsync_interval_s=config.journal_fsync_interval_s,
            ),
            experience=make_experience(config, spec, unit=unit),
            block_transitions=unit,
            lag=PolicyLag(
                LagBound(versions=config.max_lag_versions, steps=config.max_lag_steps, age_s=config.max_lag_s),
                epoch=epoch,
            ),
        )

    @property
    def replay(self) -> ReplayBuffer:
        """The replay, where experience is one; raises TypeError where it is not."""
        return self._replay_experience.replay

    @property
    def limiter(self) -> SampleToInsertRatio:
        """Its limiter, likewise."""
        return self._replay_experience.limiter

    @property
    def _replay_experience(self) -> ReplayExperience:
        if not isinstance(self.experience, ReplayExperience):
            raise TypeError(f"a {type(self.experience).__name__} has no replay")
        return self.experience

    # -- devices -----------------------------------------------------------------------------------------------------

    def opened(self, device: str, boot_id: str, base: int | None = None) -> None:
        """Note a birth: the device shares in the credit, and its next ack tells it where it stands.

        Args:
            device: its name.
            boot_id: the life whose blocks it sends now.
            base: see `SessionTable.open`.
        """
        with self._lock:
            self.sessions.open(device, boot_id, base)
            self._credit.join(device, boot_id)

    def closed(self, device: str) -> None:
        """Note a death: the device no longer takes part in the credit; a later block brings it back."""
        with self._lock:
            self._credit.leave(device)

    def acks(self) -> list[tuple[str, Ack]]:
        """Return the acks of the live devices for which anything changed since the last call, credit included."""
        with self._lock:
            due = self._credit.take_due()
            return [(name, self.sessions.ack(name, life)) for name, life in due if self.sessions.remembers(name, life)]

    # -- blocks ------------------------------------------------------------------------------------------------------

    def offer(self, device: str, payload: bytes) -> Verdict | None:
        """Take one payload as it came.

        Returns:
            What became of the block; `None` where the payload did not hold or could not be stored.
        """
        with self._lock:
            try:
                check_incoming(len(payload), MAX_BLOCK_BYTES, what="block")
                loss = read_loss(payload)
                block = self._codec.decode(payload) if loss is None else None
            except PayloadRefused as error:
                self._refuse(device, payload, error)
                return None
            if block is not None:
                return self._take(device, payload, block)
            return None if loss is None else self._take_loss(device, payload, loss)

    def _take_loss(self, device: str, payload: bytes, loss: Stamp) -> Verdict | None:
        """Count what an actor says to be lost: journalled and acknowledged as a block, since it is told once."""
        verdict = self.sessions.examine(device, loss.boot_id, loss.sequence, loss.base, loss.dropped)
        if verdict is Verdict.ACCEPT and not self._credit.covers(device, loss.boot_id):
            verdict = Verdict.GAP
        if verdict is not Verdict.ACCEPT:
            self._pass_over(device, loss, verdict)
            return verdict
        if not self._store(device, payload):
            return None
        lost = self.sessions.lose(device, loss)
        if lost:
            self._losses.warning(
                "%s steps of %s up to block %d never come: lost, given up or discarded on the device",
                f"{lost:,}",
                device,
                loss.sequence,
            )
        self._credit.join(device, loss.boot_id)
        return verdict

    def _store(self, device: str, payload: bytes) -> bool:
        """Write a payload to the journal, or say why not; returns whether it is there."""
        try:
            self._journal.append(device, payload)
        except JournalError as error:
            if not self.blocked:
                _LOG.error("experience is not stored: %s", error)
            self.blocked = str(error)
            return False
        if self.blocked:
            _LOG.warning("experience is stored again")
            self.blocked = ""
        return True

    def _take(self, device: str, payload: bytes, block: Block) -> Verdict | None:
        verdict = self.sessions.examine(device, block.boot_id, block.sequence, block.base, block.dropped)
        if verdict is not Verdict.ACCEPT:
            self._pass_over(device, block, verdict)
            return verdict
        try:
            self.lag.check(block)
        except PayloadRefused as error:
            self._refuse(device, payload, error, block)
            return None
        if not self._credit.covers(device, block.boot_id):
            self._pass_over(device, block, Verdict.GAP)
            return Verdict.GAP
        if not self._store(device, payload):
            return None
        lost = self.sessions.accept(
            device, block.boot_id, block.dropped, first_step=block.first_step, steps=block.transitions
        )
        if lost:
            self._losses.warning("%s steps of %s before block %d never came", f"{lost:,}", device, block.sequence)
        self._insert(device, block)
        self._credit.join(device, block.boot_id, block.transitions)
        self.lag.acted(device, int(block.policy_version[-1]), int(block.policy_epoch[-1]))
        return verdict

    def _insert(self, device: str, block: Block) -> int:
        made = self.experience.insert(device, block)
        self._counts["blocks"] += 1
        self._counts["env_steps"] += block.transitions
        return made

    def _pass_over(self, device: str, block: Block | Stamp, verdict: Verdict) -> None:
        self._counts["duplicates" if verdict is Verdict.DUPLICATE else "gaps"] += 1
        # Its ack was lost, or the device does not know what is missing: say it again.
        self._credit.join(device, block.boot_id)
        _LOG.debug("block %s/%s/%d: %s", device, block.boot_id, block.sequence, verdict.value)

    def _refuse(self, device: str, payload: bytes, error: PayloadRefused, block: Block | None = None) -> None:
        count = self.refused.get(error.code, 0) + 1
        self.refused[error.code] = count
        if count <= _LOGGED_REFUSALS:
            _LOG.warning("payload of %s refused: %s", device, error)
        named = identity(payload)
        if named is not None:
            boot_id, sequence, base = named
            first_step, steps = (None, 0) if block is None else (block.first_step, block.transitions)
            self.sessions.refuse(device, boot_id, sequence, base, code=error.code, first_step=first_step, steps=steps)
            self._credit.join(device, boot_id)

    # -- run ---------------------------------------------------------------------------------------------------------

    @property
    def env_steps(self) -> int:
        """Environment steps in accepted blocks, over all sessions of the run."""
        return self._counts["env_steps"]

    @property
    def counters(self) -> dict[str, Any]:
        """Counts since the run began (blocks, env_steps, duplicates, gaps), and of this process the rest."""
        with self._lock:
            return {
                **self._counts,
                "transitions": self.experience.inserted,
                "dropped_rows": self.experience.dropped,
                "lost_blocks": self.sessions.lost,
                "lost_steps": self.sessions.lost_steps,
                "refused": {str(code): count for code, count in self.refused.items()},
            }

    @property
    def journal_position(self) -> int:
        """Position after the last whole record in the journal."""
        return self._journal.position

    def sync(self) -> None:
        """Let accepted blocks survive a power cut, if that is due; raises JournalError.

        Call it often, on another thread than the link's: blocks come in while the disk takes its time.
        """
        with self._lock:
            job = self._journal.sync_job() if self._journal.sync_is_due() else None
        if job is not None:
            job()

    @contextlib.contextmanager
    def paused(self) -> Iterator[Cut]:
        """Hold the ingest still while a checkpoint is taken, with everything accepted so far on disk.

        Blocks wait meanwhile: copy here what they change, and nothing else. When it is saved, say so: `checkpointed`.

        Raises:
            JournalError: the disk refuses.
        """
        with self._lock:
            job = self._journal.sync_job()
        job()
        with self._lock:
            self._journal.sync()  # what came meanwhile
            yield Cut(
                journal_position=self._journal.position,
                env_steps=self.env_steps,
                samples=self.experience.samples,
                inserted=self.experience.inserted,
            )

    def checkpointed(self, cut: Cut) -> None:
        """Note that the checkpoint of a cut is saved, and delete the segments that the last two do not need.

        Raises:
            JournalError: the disk refuses; they go another time.
        """
        with self._lock:
            self._checkpoints.append(cut.inserted)
            if len(self._checkpoints) == _KEPT_CHECKPOINTS:
                self._journal.trim(self._checkpoints[0] - self.experience.capacity)

    def rebuild(self, *, until: int | None = None) -> Rebuilt:
        """Fill replay, sessions and counters from the journal; call it before the first `offer`.

        Args:
            until: position to resume from: everything after it is discarded, for good. `None` keeps all.

        Raises:
            JournalError: damaged, or written for other spaces.
        """
        with self._lock:
            discarded = 0 if until is None else self._journal.truncate(until)
            blocks = transitions = 0
            for number, segment in enumerate(self._journal.segments):
                if number == 0:
                    self.sessions.restore(_mapping(segment.snapshot, "sessions"))
                # What the oldest segment's first rows continue is gone with the one before it; from here it is exact.
                self.experience.seek(segment.items)
                self._counts = self._restored_counts(segment.snapshot)
                for record in segment.records():
                    blocks += 1
                    transitions += self._replay_record(record.device, record.payload)
            self.experience.rebuilt()
            return Rebuilt(
                blocks=blocks,
                transitions=transitions,
                env_steps=self.env_steps,
                discarded_bytes=discarded,
                torn_bytes=self._journal.torn_bytes,
            )

    def close(self) -> None:
        """Sync and close the journal."""
        with self._lock:
            self._journal.close()

    def _replay_record(self, device: str, payload: bytes) -> int:
        try:
            loss = read_loss(payload)
            if loss is not None:
                self._replay_loss(device, loss)
                return 0
            block = self._codec.decode(payload)
        except PayloadRefused as error:
            raise JournalError(
                f"journal {self._journal.directory} holds a block that does not fit this environment: {error}"
            ) from error
        # What was journalled had been accepted: whatever is missing before it was lost or declared dropped then.
        verdict = self.sessions.admit(
            device,
            block.boot_id,
            block.sequence,
            block.sequence,
            block.dropped,
            first_step=block.first_step,
            steps=block.transitions,
        )
        if verdict is not Verdict.ACCEPT:
            self._counts["duplicates"] += 1
            _LOG.warning("the journal holds block %s/%s/%d twice", device, block.boot_id, block.sequence)
            return 0
        return self._insert(device, block)

    def _replay_loss(self, device: str, loss: Stamp) -> None:
        before = ((loss.base, loss.sequence - 1),) if loss.base < loss.sequence else ()
        if self.sessions.examine(device, loss.boot_id, loss.sequence, loss.base, before) is Verdict.ACCEPT:
            self.sessions.lose(device, loss)

    def _segment_snapshot(self) -> tuple[int, Mapping[str, Any]]:
        return self.experience.inserted, {"sessions": self.sessions.snapshot(), "counters": dict(self._counts)}

    def _restored_counts(self, snapshot: Mapping[str, Any]) -> dict[str, int]:
        counters = _mapping(snapshot, "counters")
        return {name: int(counters.get(name, 0)) for name in _COUNTERS}


def _mapping(snapshot: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = snapshot.get(name, {}) if isinstance(snapshot, Mapping) else None
    if not isinstance(value, Mapping):
        raise JournalError(f"the journal's snapshot does not hold: {name!r} is no object")
    return value
