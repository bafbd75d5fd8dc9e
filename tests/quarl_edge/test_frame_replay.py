"""A replay that keeps each frame once, beside one that keeps what it is given, and beside the truth."""

import numpy as np
import pytest
from frames_factory import ACTION, FRAMES, MODES, Fleet
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.contract import ObservationSpec
from quarl_edge.configure import make_config
from quarl_edge.replay import frames as frames_module
from quarl_edge.replay.buffer import ReplayBuffer
from quarl_edge.replay.experience import ReplayExperience
from quarl_edge.replay.frames import FrameReplay
from quarl_edge.replay.nstep import NStepAssembler
from quarl_edge.replay.priorities import Priorities
from quarl_edge.replay.stacking import restacked

FIELDS = ("observation", "action", "reward", "discount", "next_observation")


def replay_of(fleet, capacity, *, rows=8, priorities=False, seed=5):
    prioritised = Priorities(capacity, exponent=0.5, correction=0.4) if priorities else None
    return FrameReplay(
        capacity, observation=fleet.seen, action=ACTION, seed=seed, priorities=prioritised, block_rows=rows
    )


def plain_replay(fleet, capacity, *, priorities=False, seed=5):
    """Return a replay of whole stacks: each frame as often as it is seen."""
    spec = ObservationSpec(key="observation", shape=frames_module.input_shape(fleet.seen), dtype=fleet.seen.dtype)
    prioritised = Priorities(capacity, exponent=0.5, correction=0.4) if priorities else None
    return ReplayBuffer(capacity, observation=spec, action=ACTION, seed=seed, priorities=prioritised)


class Both:
    """The same blocks in both replays; there is room for the frames of any block, so that none leaves early."""

    def __init__(self, fleet, capacity, *, n=1, **settings):
        self.fleet, self.frames = fleet, replay_of(fleet, capacity, **settings)
        self.plain = plain_replay(fleet, capacity, priorities=settings.get("priorities", False))
        self._assemblers = [NStepAssembler(n, 0.9) for _ in range(2)]

    def insert(self, name, block):
        taken = self.frames.insert(self._assemblers[0].push(name, self.frames.enter(block)))
        assert taken == self.plain.insert(self._assemblers[1].push(name, restacked(block, self.fleet.seen)))

    def check(self):
        one, other = self.frames.sample(2, 9), self.plain.sample(2, 9)
        for name in (*FIELDS, "place", "weight"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        shape = frames_module.input_shape(self.fleet.seen)
        self.fleet.numbers(one.observation.reshape(-1, *shape))
        self.fleet.numbers(one.next_observation.reshape(-1, *shape))
        for replay, batch in ((self.frames, one), (self.plain, other)):
            replay.learned(batch, batch.reward)
        np.testing.assert_array_equal(self.frames.recent_observations(7), self.plain.recent_observations(7))
        for name in FIELDS:
            found, wanted = (getattr(replay.newest(6), name) for replay in (self.frames, self.plain))
            np.testing.assert_array_equal(found, wanted, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    frame=st.sampled_from(FRAMES),
    depth=st.integers(1, 4),
    n=st.integers(1, 4),
    rows=st.integers(3, 9),
    devices=st.integers(1, 3),
    priorities=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_it_samples_what_a_replay_of_whole_stacks_does(mode, frame, depth, n, rows, devices, priorities, seed):
    dtype, shape = frame
    fleet = Fleet(depth, shape=shape, dtype=dtype, seed=seed)
    makers = [fleet.device(name, envs=2, mode=mode, rows=rows) for name in range(devices)]
    both = Both(fleet, 37, n=n, rows=1, priorities=priorities)
    rng = np.random.default_rng(seed)
    for _ in range(12):
        name = int(rng.integers(devices))
        block = makers[name]()
        if rng.random() < 0.2:
            continue  # lost on its way
        both.insert(str(name), block)
        if len(both.plain):
            both.check()


@pytest.fixture
def short_of_frames(monkeypatch):
    """Frames of 64 transitions and no more, of which a block may refer to the last 24."""
    monkeypatch.setattr(frames_module, "_reach_frames", lambda _: 24)


@pytest.mark.parametrize("priorities", [False, True])
def test_transitions_leave_with_their_frames(short_of_frames, priorities):
    # Each episode is a step or two long, so that frames come nearly twice as fast as transitions.
    fleet = Fleet(3, end_chance=0.9)
    make, replay = fleet.device(1, rows=8), replay_of(fleet, 64, priorities=priorities)
    assembler, entered, history = NStepAssembler(1, 0.9), 0, []
    for _ in range(60):
        block = make()
        transitions = assembler.push("1", replay.enter(block))
        entered += 8 + 3 + len(block.final_index)
        replay.insert(transitions)
        history.append((entered, replay.inserted))
        gone = entered - replay.frame_capacity
        wanted = max([inserted for added, inserted in history if added - 24 < gone], default=0)
        assert len(replay) == min(64, replay.inserted - wanted)
        batch = replay.sample(4, 16)
        shape = (1, 3, 3)
        fleet.numbers(batch.observation.reshape(-1, *shape))
        fleet.numbers(batch.next_observation.reshape(-1, *shape))
        newest = [numbers[-1] for numbers in fleet.numbers(batch.observation.reshape(-1, *shape))]
        assert newest == batch.reward.reshape(-1).tolist()
        replay.learned(batch, np.abs(batch.reward) + 1)
    assert 0 < len(replay) < 64
    assert replay.dropped == 0
    here = set(np.unique(replay.sample(64, 64).place).tolist())
    assert here <= {number % 64 for number in range(replay.inserted - len(replay), replay.inserted)}
    assert len(here) > len(replay) // 2


def test_a_late_error_does_not_bring_a_forgotten_transition_back(short_of_frames):
    fleet = Fleet(3, end_chance=0.9)
    make, replay = fleet.device(1, rows=8), replay_of(fleet, 64, priorities=True)
    assembler, old = NStepAssembler(1, 0.9), None
    for _ in range(40):
        replay.insert(assembler.push("1", replay.enter(make())))
        if old is not None:
            replay.learned(old, np.full(old.reward.shape, 1e6, np.float32))
        old = replay.sample(1, 64)
        oldest = replay.inserted - len(replay)
        assert {int(place) for place in old.place.ravel()} <= {n % 64 for n in range(oldest, replay.inserted)}


def test_rows_whose_frames_are_gone_when_their_window_ends_are_counted(short_of_frames):
    fleet = Fleet(3, end_chance=0.0)
    slow, fast = fleet.device(1, rows=8), fleet.device(2, rows=8)
    replay, assembler = replay_of(fleet, 64), NStepAssembler(3, 0.9)
    replay.insert(assembler.push("slow", replay.enter(slow())))
    for _ in range(9):
        replay.insert(assembler.push("fast", replay.enter(fast())))
    assert replay.dropped == 0
    inserted = replay.inserted
    assert replay.insert(assembler.push("slow", replay.enter(slow()))) == 6
    assert replay.dropped == 2
    assert replay.inserted == inserted + 6


def test_a_frame_takes_its_bytes_once():
    seen = ObservationSpec(key="observation", shape=(84, 84, 1), dtype="uint8", stack=4)
    replay = FrameReplay(10_000, observation=seen, action=ACTION, seed=0, block_rows=64)
    frame_bytes = 84 * 84
    assert 10_000 * frame_bytes < replay.nbytes < 1.6 * 10_000 * frame_bytes
    assert replay.frame_capacity - 10_000 * (68 / 64 + 1 / 8) < 16 * 1024 * 1024 / frame_bytes + 1


def test_experience_of_images_is_a_frame_replay_and_says_what_it_drops(short_of_frames):
    fleet = Fleet(2)
    config = make_config("CartPole-v1", asked={"n_step": 1, "replay_capacity": 1000, "learning_starts": 10})
    experience = ReplayExperience.of(config, fleet.spec, unit=8)
    assert isinstance(experience.replay, FrameReplay)
    make = fleet.device(1, rows=8)
    assert sum(experience.insert("1", make()) for _ in range(4)) == experience.inserted == 32
    experience.replay.dropped = 3
    assert experience.dropped == 3
    fleet.numbers(experience.recent_observations(8))
    plain = Fleet(1, shape=(4,), dtype="float32")
    assert type(ReplayExperience.of(config, plain.spec, unit=8).replay) is ReplayBuffer


def test_the_same_calls_give_the_same_batches_after_a_rebuilding_from_a_shortened_journal():
    fleet = Fleet(3, seed=8)
    make = fleet.device(1, rows=8)
    blocks = [make() for _ in range(20)]

    def filled(replay, kept):
        assembler = NStepAssembler(1, 0.9)
        for block in kept:
            replay.insert(assembler.push("1", replay.enter(block)))
        return replay

    one, other = filled(replay_of(fleet, 50), blocks), replay_of(fleet, 50)
    other.seek(filled(replay_of(fleet, 50), blocks[:10]).inserted)
    filled(other, blocks[10:])
    other.set_random_state(one.random_state())
    assert other.inserted == one.inserted
    for _ in range(3):
        found, wanted = other.sample(2, 20), one.sample(2, 20)
        for name in (*FIELDS, "place"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
