"""The seam between the ingest, which takes blocks, and the loop, which learns from what they hold.

Two kinds: a replay of transitions that are sampled again and again, and rounds of rollouts that are used once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.frame_stack import is_image
from quarl_device.wire.block import Block, BlockSpec
from quarl_edge.config import ReplayConfig, RolloutConfig, TrainConfig
from quarl_edge.replay.buffer import ReplayBuffer
from quarl_edge.replay.frames import FrameReplay
from quarl_edge.replay.limiter import SampleToInsertRatio, default_error_buffer
from quarl_edge.replay.nstep import NStepAssembler
from quarl_edge.replay.priorities import Priorities
from quarl_edge.replay.rollouts import Rollout, RolloutStore
from quarl_edge.replay.stacking import is_restacked
from quarl_edge.replay.transitions import Array, Batch, single_observation, spread

_KEPT_OBSERVATIONS = 1_024


class Experience(Protocol):
    """Where accepted blocks go and what updates are made of. One thread may insert while another takes."""

    @property
    def dropped(self) -> int:
        """Rows that never became experience, because what followed is unknown, or they came late."""
        ...

    @property
    def samples(self) -> int:
        """Drawn so far; rounds draw each of their steps once."""
        ...

    @property
    def inserted(self) -> int:
        """Transitions, or steps, that ever came in; only grows, except through `seek`."""
        ...

    @property
    def capacity(self) -> int:
        """Of these, how many are kept."""
        ...

    def __len__(self) -> int:
        """Of these, how many are here."""
        ...

    def insert(self, device: str, block: Block) -> int:
        """Take an accepted block; returns how many transitions, or steps, it made."""
        ...

    def room(self) -> int:
        """Return how many more may be sent now, at least 0."""
        ...

    def ready(self) -> bool:
        """Say whether one call of `Algorithm.update` may be made now."""
        ...

    def take(self) -> Any:
        """Return what that call learns from: a `Batch` or a `Rollout`."""
        ...

    def learned(self, taken: Any, errors: NDArray[np.float32] | None) -> None:
        """Note the errors of what was taken, [K, B], where the algorithm has any."""
        ...

    def begin(self, epoch: int, version: int) -> None:
        """A policy version is about to go out."""
        ...

    def waits_for(self) -> str:
        """Name what updates wait for in two or three words, as a standstill's reason."""
        ...

    def why_blocked(self) -> str:
        """Say in words what updates wait for, "" where they need not wait."""
        ...

    def recent_observations(self, count: int) -> Array:
        """Return copies of the newest observations, oldest first: [min(count, len), *shape]."""
        ...

    def spread_observations(self, count: int) -> Array:
        """Return copies of observations from many of the last episodes, in no order: [min(count, len), *shape].

        The newest ones are neighbours in an episode or two, and say little of what the policy meets elsewhere.
        """
        ...

    def observations_since(self, seen: int) -> tuple[int, Array]:
        """Return a running number, and copies of the observations that came behind number `seen`, 0 for all.

        Oldest first; those that are no longer here are left out.
        """
        ...

    def seek(self, inserted: int) -> None:
        """Go on at a running number: a rebuilding from a shortened journal starts in the middle of the count."""
        ...

    def rebuilt(self) -> None:
        """The journal has been read: go on from what came in."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the journal, JSON values only."""
        ...

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays that it keeps."""
        ...

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `state` and `arrays`; raises CheckpointError."""
        ...


class ReplayExperience:
    """A replay of n-step transitions behind a limiter of samples per insert. See `Experience`.

    Args:
        replay: is sampled by the learner.
        assembler: makes transitions of blocks.
        limiter: gives room to both sides.
        updates_per_call: K.
        batch_size: B.
    """

    def __init__(
        self,
        replay: ReplayBuffer,
        assembler: NStepAssembler,
        limiter: SampleToInsertRatio,
        *,
        updates_per_call: int = 1,
        batch_size: int = 1,
    ) -> None:
        self.replay = replay
        self.limiter = limiter
        self._assembler = assembler
        self._shape = (updates_per_call, batch_size)

    @classmethod
    def of(cls, config: ReplayConfig, spec: BlockSpec, *, unit: int) -> ReplayExperience:
        """Build one from a configuration; `unit` is the steps of a full block.

        Raises:
            UnsupportedSpace: replay cannot hold these observations.
            UsageError: the limiter could deadlock.
        """
        observation = single_observation(spec.observations)
        samples = config.updates_per_call * config.batch_size
        buffer = config.error_buffer or default_error_buffer(
            config.samples_per_insert, insert_unit=unit, sample_unit=samples, actors=max(1, config.actors)
        )
        limiter = SampleToInsertRatio(
            config.samples_per_insert, config.learning_starts, buffer, insert_unit=unit, sample_unit=samples
        )
        return cls(
            _replay(config, observation, spec.action, block_rows=max(1, unit // config.envs_per_actor)),
            NStepAssembler(config.n_step, config.discount, key=observation.key),
            limiter,
            updates_per_call=config.updates_per_call,
            batch_size=config.batch_size,
        )

    @property
    def dropped(self) -> int:
        """See `Experience`."""
        return self._assembler.dropped + self.replay.dropped

    @property
    def samples(self) -> int:
        """See `Experience`."""
        return self.limiter.samples

    @property
    def inserted(self) -> int:
        """See `Experience.inserted`."""
        return self.replay.inserted

    @property
    def capacity(self) -> int:
        """See `Experience.capacity`."""
        return self.replay.capacity

    def __len__(self) -> int:
        return len(self.replay)

    def insert(self, device: str, block: Block) -> int:
        """See `Experience.insert`."""
        taken = self.replay.insert(self._assembler.push(device, self.replay.enter(block)))
        self.limiter.insert(taken)
        return taken

    def room(self) -> int:
        """See `Experience.room`."""
        return self.limiter.insert_room()

    def ready(self) -> bool:
        """See `Experience.ready`."""
        return self.limiter.can_sample(self._shape[0] * self._shape[1])

    def take(self) -> Batch:
        """See `Experience.take`."""
        batch = self.replay.sample(*self._shape)
        self.limiter.sample(self._shape[0] * self._shape[1])
        return batch

    def learned(self, taken: Batch, errors: NDArray[np.float32] | None) -> None:
        """See `Experience.learned`."""
        if errors is not None:
            self.replay.learned(taken, errors)

    def begin(self, epoch: int, version: int) -> None:
        """Do nothing: replay takes what any policy did."""

    def waits_for(self) -> str:
        """See `Experience.waits_for`."""
        return "first transitions" if self.limiter.inserts < self.limiter.min_size else "samples per insert"

    def why_blocked(self) -> str:
        """See `Experience.why_blocked`."""
        return self.limiter.why_blocked(self._shape[0] * self._shape[1])

    def recent_observations(self, count: int) -> Array:
        """See `Experience.recent_observations`."""
        return self.replay.recent_observations(count)

    def spread_observations(self, count: int) -> Array:
        """See `Experience.spread_observations`."""
        return self.replay.spread_observations(count)

    def observations_since(self, seen: int) -> tuple[int, Array]:
        """See `Experience.observations_since`; the number is that of transitions."""
        return self.replay.observations_since(seen)

    def seek(self, inserted: int) -> None:
        """See `Experience.seek`."""
        self.replay.seek(inserted)

    def rebuilt(self) -> None:
        """See `Experience.rebuilt`."""
        self.limiter.restore(inserts=self.replay.inserted, samples=self.limiter.samples)

    def state(self) -> dict[str, Any]:
        """See `Experience.state`."""
        return {"replay": self.replay.random_state(), "samples": self.limiter.samples}

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """See `Experience.arrays`."""
        return self.replay.priority_arrays()

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `Experience.restore`."""
        self.replay.set_random_state(state["replay"])
        self.replay.restore_priorities(arrays)
        self.limiter.restore_samples(int(state["samples"]))


class RoundExperience:
    """Rounds of rollouts. See `Experience`.

    Args:
        store: collects the open round.
        ahead_steps: steps that a device may be ahead: no credit ever holds a round up.
    """

    def __init__(self, store: RolloutStore, *, ahead_steps: int) -> None:
        self.store = store
        self._ahead_steps = ahead_steps
        self._skipped = 0
        self._recent: Array | None = None
        self._samples = 0
        self._lock = threading.Lock()

    @classmethod
    def of(cls, config: RolloutConfig, spec: BlockSpec) -> RoundExperience:
        """Build one from a configuration.

        Raises:
            UnsupportedSpace: rollouts cannot hold these observations.
        """
        streams = config.round_actors or config.actors
        store = RolloutStore(spec, round_steps=config.round_steps, streams=streams)
        return cls(store, ahead_steps=2 * config.round_steps * config.envs_per_actor * streams)

    @property
    def dropped(self) -> int:
        """See `Experience.dropped`."""
        return self.store.late

    @property
    def samples(self) -> int:
        """See `Experience.samples`."""
        return self._samples

    @property
    def inserted(self) -> int:
        """See `Experience.inserted`."""
        return self._skipped + self.store.inserted

    @property
    def capacity(self) -> int:
        """Nothing is kept behind the round."""
        return 0

    def __len__(self) -> int:
        return 0 if self._recent is None else len(self._recent)

    def insert(self, device: str, block: Block) -> int:
        """See `Experience.insert`."""
        with self._lock:
            return self.store.push(device, block)

    def room(self) -> int:
        """See `Experience.room`."""
        return self._ahead_steps

    def ready(self) -> bool:
        """See `Experience.ready`."""
        with self._lock:
            return self.store.whole

    def take(self) -> Rollout:
        """See `Experience.take`."""
        with self._lock:
            taken = self.store.take()
        self._samples += taken.steps
        self._recent = taken.observation[taken.valid]
        return taken

    def learned(self, taken: Rollout, errors: NDArray[np.float32] | None) -> None:
        """Do nothing: a round is used once."""

    def begin(self, epoch: int, version: int) -> None:
        """Open the version's round."""
        with self._lock:
            self.store.begin(epoch, version)

    def waits_for(self) -> str:
        """See `Experience.waits_for`."""
        return "rollouts"

    def why_blocked(self) -> str:
        """See `Experience.why_blocked`."""
        with self._lock:
            return self.store.why_blocked()

    def recent_observations(self, count: int) -> Array:
        """Return observations of the newest whole round."""
        if self._recent is None:
            raise ValueError("recent_observations() before the first round")
        return self._recent[max(0, len(self._recent) - count) :].copy()

    def observations_since(self, seen: int) -> tuple[int, Array]:
        """See `Experience.observations_since`; the number is that of steps in rounds taken, and the newest is here."""
        return self._samples, self.recent_observations(self._samples - seen)

    def spread_observations(self, count: int) -> Array:
        """Return observations of the newest whole round, of its end if it is a long one: what a checkpoint keeps."""
        kept = self.recent_observations(_KEPT_OBSERVATIONS)
        return kept[spread(count, len(kept))]

    def seek(self, inserted: int) -> None:
        """See `Experience.seek`."""
        self._skipped = inserted

    def rebuilt(self) -> None:
        """Do nothing: rounds of an earlier session are over."""

    def state(self) -> dict[str, Any]:
        """See `Experience.state`."""
        return {"samples": self.samples}

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the newest observations, which the next push's ranges come from. A round that was open begins anew."""
        return {} if self._recent is None else {"recent": self._recent[-_KEPT_OBSERVATIONS:]}

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `Experience.restore`."""
        self._samples = int(state["samples"])
        if "recent" in arrays:
            self._recent = np.asarray(arrays["recent"])


def _replay(config: ReplayConfig, observation: ObservationSpec, action: ActionSpec, *, block_rows: int) -> ReplayBuffer:
    """Return a replay of transitions; of images and stacked frames one that keeps each frame once."""
    shared: dict[str, Any] = {
        "observation": observation,
        "action": action,
        "seed": config.seed,
        "priorities": _priorities(config),
    }
    if is_image(observation) or is_restacked(observation):
        return FrameReplay(config.replay_capacity, **shared, block_rows=block_rows)
    return ReplayBuffer(config.replay_capacity, **shared)


def _priorities(config: ReplayConfig) -> Priorities | None:
    if not config.priority_exponent:
        return None
    return Priorities(config.replay_capacity, exponent=config.priority_exponent, correction=config.importance_exponent)


def make_experience(config: TrainConfig, spec: BlockSpec, *, unit: int) -> ReplayExperience | RoundExperience:
    """Return what the algorithm of `config` learns from.

    Args:
        config: hyperparameters.
        spec: of the blocks.
        unit: steps of a full block.

    Raises:
        UnsupportedSpace, UsageError: see `ReplayExperience.of` and `RoundExperience.of`.
    """
    if isinstance(config, RolloutConfig):
        return RoundExperience.of(config, spec)
    if isinstance(config, ReplayConfig):
        return ReplayExperience.of(config, spec, unit=unit)
    raise TypeError(f"{type(config).__name__} is neither a ReplayConfig nor a RolloutConfig")
