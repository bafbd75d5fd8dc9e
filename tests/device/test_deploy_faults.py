"""Kill, error and hang at every step of a deployment, once and twice in a row, on real slots in a real folder.

Whatever happens, the board ends on a policy that has passed its self-test, or on the safe action where there is none.
"""

import dataclasses
import itertools
import os
import shutil
import threading

import gymnasium
import numpy as np
import pytest
from deploy_factory import (
    ACROBOT,
    CARTPOLE,
    KEY,
    OTHER_KEY,
    PENDULUM,
    RUNTIME,
    Board,
    Faults,
    FaultySlots,
    Killed,
    digest,
    loads_are_steps,
    settled,
    signed,
    wrong_golden,
)  # fmt: skip

from quarl_device.deploy.activation import hand_over
from quarl_device.deploy.boot import NOTHING, PREVIOUS_ONLY
from quarl_device.deploy.limits import Wishes
from quarl_device.deploy.machine import Event, Kind, Phase, Rules
from quarl_device.deploy.notes import read_notes, write_notes
from quarl_device.deploy.slots import Slot, Slots
from quarl_device.deploy.worker import Worker
from quarl_device.environments import EnvSpec
from quarl_device.errors import EnvironmentMisbehaved, OlderVersion, SpaceMismatch, StateUnwritable, UsageError
from quarl_device.policy_file import METADATA_NAME, encode_metadata, read_policy
from quarl_export.metadata import repack

ONE, TWO, THREE = signed(1), signed(2), signed(3)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A board on version 1, to which version 2 has been handed over."""
    state = tmp_path_factory.mktemp("template")
    settled(state).offer(TWO)
    return state


def steps_of(template, tmp_path, monkeypatch):
    state = tmp_path / "dry"
    shutil.copytree(template, state)
    faults = Faults()
    with monkeypatch.context() as patch:
        loads_are_steps(patch, faults)
        assert Board(state, faults).live().acting == digest(TWO)
    return faults.seen


def lives(state, faults, monkeypatch):
    """One life that may be cut short; returns whether it was."""
    with monkeypatch.context() as patch:
        loads_are_steps(patch, faults)
        try:
            Board(state, faults).live()
        except Killed:
            return True
    return False


def ends_well(state):
    """The next start, with nothing in its way, acts with a policy that has passed, and so does the one after it."""
    board = Board(state, safe=(0,)).live()
    assert board.acting in (digest(ONE), digest(TWO))
    assert board.phase in (Phase.SETTLED, Phase.PARKED)
    assert board.acting in board._candidates.loaded
    again = Board(state).live(episodes=1)
    assert again.acting == board.acting
    return board


def test_a_kill_at_every_step(template, tmp_path, monkeypatch):
    steps = steps_of(template, tmp_path, monkeypatch)
    assert len(steps) > 15
    # Every phase of the way has steps of its own.
    for name in ("incoming -> testing", "load 2", "testing -> ready", "ready -> trial", "current -> previous",
                 "trial -> current", "notes"):  # fmt: skip
        assert any(name in step for step in steps), name
    ended = set()
    for number, _ in enumerate(steps):
        state = tmp_path / str(number)
        shutil.copytree(template, state)
        assert lives(state, Faults(number), monkeypatch), f"step {number} was not reached"
        ended.add(ends_well(state).acting)
    assert ended == {digest(ONE), digest(TWO)}


def test_a_kill_at_every_step_and_again_at_every_step_of_the_next_start(template, tmp_path, monkeypatch):
    steps = steps_of(template, tmp_path, monkeypatch)
    killed_twice = 0
    # All pairs would take a minute: every first kill, with two second ones that walk through all steps.
    for first in range(len(steps)):
        for second in {first % 5, (7 * first + 3) % len(steps)}:
            state = tmp_path / f"{first}-{second}"
            shutil.copytree(template, state)
            lives(state, Faults(first), monkeypatch)
            killed_twice += lives(state, Faults(second), monkeypatch)
            ends_well(state)
    assert killed_twice > 20


def test_an_error_of_the_disk_at_every_step(template, tmp_path, monkeypatch):
    state = tmp_path / "dry"
    shutil.copytree(template, state)
    dry = Faults(error=StateUnwritable)
    Board(state, dry).live()
    moves = [number for number, name in enumerate(dry.seen) if "->" in name]
    assert len(moves) == 5
    for number in moves:
        state = tmp_path / str(number)
        shutil.copytree(template, state)
        board = Board(state, Faults(number, StateUnwritable)).live()
        assert board.acting in (digest(ONE), digest(TWO))
        assert board._steps
        assert board.fault is not None
        assert board.fault.code == 50
        ends_well(state)


def test_a_disk_that_takes_nothing_leaves_the_policy_that_acts(template, tmp_path, monkeypatch):
    state = tmp_path / "state"
    shutil.copytree(template, state)
    before = {path.name: path.read_bytes() for path in Slots(state).directory.iterdir()}

    def full(*_, **__):
        raise StateUnwritable("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("quarl_device.deploy.agent.write_notes", full)
        patch.setattr(FaultySlots, "_move", full)
        board = Board(state).live()
    assert (board.acting, board.phase, board.fault.code) == (digest(ONE), Phase.SETTLED, 50)
    assert {path.name: path.read_bytes() for path in Slots(state).directory.iterdir()} == before
    assert ends_well(state).acting == digest(TWO)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (wrong_golden(2), 12),
        (signed(2, policy=ACROBOT), 22),
        (signed(2, key=OTHER_KEY), 40),
        (TWO[: len(TWO) // 2], 40),
        (TWO[:50], 34),
        (b"", 34),
        (bytes(5000), 34),
        (CARTPOLE.data, 10),
        (signed(0), 45),
    ],
    ids=["golden", "spaces", "key", "torn", "short", "empty", "zeros", "unsigned", "older"],
)
def test_what_does_not_hold_is_refused_and_what_acts_goes_on(tmp_path, data, code):
    slots = settled(tmp_path)
    slots.offer(data)
    board = Board(tmp_path).live()
    assert (board.acting, board.phase) == (digest(ONE), Phase.SETTLED)
    assert board.fault.code == code
    assert board._snapshot().counters.refused == 1
    assert not slots.there(Slot.INCOMING)
    assert slots.read(Slot.CURRENT) == ONE


def test_every_bit_of_a_file_counts(tmp_path):
    slots = settled(tmp_path)
    for place in range(0, len(TWO), len(TWO) // 12):
        flipped = bytearray(TWO)
        flipped[place] ^= 1
        slots.offer(bytes(flipped))
        assert Board(tmp_path).live(episodes=1).acting == digest(ONE)


def test_an_older_policy_acts_where_a_person_has_said_so(tmp_path):
    slots = settled(tmp_path, 2)
    slots.offer(ONE, allow_older=True)
    assert Board(tmp_path).live().acting == digest(ONE)
    # That word is not for another file.
    slots.offer(signed(0))
    assert Board(tmp_path).live().fault.code == 45


def test_nothing_good_is_left_and_the_safe_action_acts(tmp_path):
    slots = settled(tmp_path)
    slots.path(Slot.CURRENT).write_bytes(bytes(100))
    board = Board(tmp_path, safe=(1,)).live(episodes=2)
    assert (board.phase, board.acting, board.fault.code) == (Phase.EMPTY, "", 34)
    assert board._snapshot().counters.safe_steps > 0
    idle = Board(tmp_path).live(episodes=2)
    assert (idle.phase, idle._act, idle._steps) == (Phase.EMPTY, None, 0)
    slots.offer(ONE)
    assert Board(tmp_path).live().acting == digest(ONE)


def test_a_current_policy_that_is_damaged_gives_way_to_the_previous_one(tmp_path):
    slots = settled(tmp_path)
    slots.offer(TWO)
    assert Board(tmp_path).live().acting == digest(TWO)
    slots.path(Slot.CURRENT).write_bytes(TWO[:-1])
    board = Board(tmp_path).live(episodes=1)
    assert (board.acting, board.fault.code) == (digest(ONE), 40)


def test_whatever_a_damaged_current_policy_provokes_the_previous_one_acts(tmp_path, monkeypatch):
    from quarl_device.deploy import candidates

    slots = settled(tmp_path)
    slots.offer(TWO)
    assert Board(tmp_path).live().acting == digest(TWO)
    real = candidates.open_signed

    def provoked(data, key):
        if data == TWO:
            raise ZeroDivisionError("nobody thought of that\nat all")
        return real(data, key)

    monkeypatch.setattr(candidates, "open_signed", provoked)
    board = Board(tmp_path).live(episodes=1)
    assert (board.acting, board.fault.code) == (digest(ONE), 1)
    assert "ZeroDivisionError" in board.fault.message
    slots.path(Slot.CURRENT).replace(slots.path(Slot.TRIAL))
    assert Board(tmp_path, safe=(0,)).live(episodes=1).acting in (digest(ONE), "")


class Sick:
    """A runtime whose models, once they act, give what they are told."""

    def __init__(self, spoil, sick_calls=None):
        self.name, self.version = RUNTIME.name, RUNTIME.version
        self.spoil, self.loads, self.sick_calls = spoil, 0, sick_calls

    def load(self, model, **options):
        self.loads += 1
        loaded, number = RUNTIME.load(model, **options), self.loads
        return _Model(loaded, lambda results: self.spoil(results) if number == 2 else results)


class _Model:
    def __init__(self, model, spoil):
        self.batch_size, self.run, infer = model.batch_size, model.run, model.infer
        self.infer = lambda *inputs: spoil(infer(*inputs))


def nan(results):
    return results * float("nan")


def infinite(results):
    return results + float("inf")


def raises(results):
    raise RuntimeError("the interpreter\nis broken")


@pytest.mark.parametrize("spoil", [nan, infinite, raises])
def test_a_policy_that_fails_on_probation_falls_back_within_the_step(tmp_path, spoil):
    slots = settled(tmp_path)
    slots.offer(TWO)
    board = Board(tmp_path, runtime=Sick(spoil)).live()
    assert (board.acting, board.phase, board.fault.code) == (digest(ONE), Phase.SETTLED, 55)
    assert slots.read(Slot.REFUSED) == TWO
    assert not slots.there(Slot.TRIAL)
    # The environment got an action at every step, and none of them was the sick one's.
    assert board._snapshot().counters.fallbacks == 1
    assert board._steps > 8


def test_a_policy_that_is_too_slow_falls_back(tmp_path):
    import time

    def slow(results):
        time.sleep(0.004)
        return results

    slots = settled(tmp_path)
    slots.offer(TWO)
    probation = dataclasses.replace(Board(tmp_path)._config.probation, budget_s=0.002)
    board = Board(tmp_path, runtime=Sick(slow), probation=probation).live()
    assert (board.acting, board.fault.code) == (digest(ONE), 55)
    assert "took longer than 2 ms" in board.fault.message


def test_a_settled_policy_that_fails_gives_its_slot_to_the_previous_one(tmp_path):
    slots = settled(tmp_path)
    slots.offer(TWO)
    assert Board(tmp_path).live().acting == digest(TWO)
    # Loaded second is the current one.
    board = Board(tmp_path, runtime=Sick(nan)).live(episodes=2)
    assert (board.acting, board.phase) == (digest(ONE), Phase.PARKED)
    assert slots.read(Slot.CURRENT) == ONE
    # It is remembered, so that a unit's `--policy` does not bring it back at every start.
    assert slots.read(Slot.REFUSED) == TWO
    assert Board(tmp_path).live(episodes=1).phase is Phase.SETTLED


def test_where_the_disk_has_no_links_the_previous_one_moves_up_all_the_same(tmp_path, monkeypatch):
    def no_links(*_, **__):
        raise OSError(1, "Operation not permitted")

    slots = settled(tmp_path)
    slots.offer(TWO)
    Board(tmp_path).live()
    monkeypatch.setattr(os, "link", no_links)
    assert Board(tmp_path, runtime=Sick(nan)).live(episodes=2).acting == digest(ONE)
    assert slots.read(Slot.CURRENT) == ONE
    assert not slots.there(Slot.REFUSED)


class Ended(BaseException):
    """What `os._exit` is here."""


def test_a_start_whose_policies_do_not_load_in_time_ends(tmp_path, monkeypatch):
    """A delegate hangs: a process that a supervisor takes for alive would do nothing for ever."""
    settled(tmp_path)
    codes, ended = [], threading.Event()

    def leave(code):
        codes.append(code)
        ended.set()

    def hangs(*_):
        assert ended.wait(30)
        raise Ended

    monkeypatch.setattr("quarl_device.deploy.agent.os._exit", leave)
    monkeypatch.setattr("quarl_device.deploy.candidates.Loaded.load", hangs)
    board = Board(tmp_path, rules=Rules(work_s=0.05))
    with pytest.raises(Ended):
        board.run()
    assert codes == [55]


def behind(version, *wrappers):
    contract = dataclasses.replace(CARTPOLE.contract, wrappers=wrappers)
    content = encode_metadata(contract, CARTPOLE.golden, CARTPOLE.provenance)
    return signed(version, policy=read_policy(repack(CARTPOLE.data, metadata={METADATA_NAME: content})))


def test_a_policy_behind_other_wrappers_is_refused_by_the_agent_and_by_activate(tmp_path):
    slots = settled(tmp_path)
    other = behind(2, "TimeLimit(max_episode_steps=8)")
    with pytest.raises(SpaceMismatch, match=r"behind TimeLimit\(max_episode_steps=8\), .* made with no wrappers"):
        hand_over(other, slots, KEY.public, RUNTIME, allow_older=False)
    slots.offer(other)
    board = Board(tmp_path).live()
    assert (board.phase, board.acting, board.fault.code) == (Phase.SETTLED, digest(ONE), SpaceMismatch.code)


def test_behind_its_own_wrappers_a_policy_acts(tmp_path):
    slots = Slots(tmp_path)
    slots.make()
    slots.offer(behind(1, "TimeLimit(max_episode_steps=3)"))
    env = EnvSpec(env_id="CartPole-v1", wrappers=("TimeLimit(max_episode_steps=3)",))
    board = Board(tmp_path, env=env).live(episodes=2)
    assert (board.phase, board._steps) == (Phase.SETTLED, 6)


@pytest.mark.parametrize("wishes", [Wishes(low=(-1.0,), high=(1.0,)), Wishes(safe_action=(0.0,))])
def test_no_policy_moves_limits_or_the_safe_action(tmp_path, wishes):
    env = EnvSpec(env_id="Pendulum-v1", wrappers=("RescaleAction(min_action=-1, max_action=1)",))
    with pytest.raises(SpaceMismatch, match="which would move them"):
        Board(tmp_path, env=env, wishes=wishes)
    Board(tmp_path, env=env)._world.close()


class SlowToLook(Board):
    """Its worker begins when the environment has made ten steps."""

    def __init__(self, state, **config):
        super().__init__(state, **config)
        self._worker, self.ten = Worker(), threading.Event()
        self._worker.do(lambda: self.ten.wait(30))

    def _finite_and_count(self, observation):
        if self._steps == 10:
            self.ten.set()
        return True

    def run(self):
        self._finite = self._finite_and_count
        return super().run()


def test_the_safe_action_acts_while_the_first_policy_is_looked_at_and_counts_for_nothing(tmp_path):
    board = SlowToLook(tmp_path, safe=(0.0,), max_episodes=2)
    board._slots.offer(ONE)
    summary = board.run()
    assert summary.counters.safe_steps >= 10
    assert (summary.phase, summary.version, summary.reason) == (Phase.SETTLED, "1", "all episodes made")


def test_what_was_handed_over_before_the_start_has_the_episodes_that_were_asked_for(tmp_path):
    settled(tmp_path)
    board = SlowToLook(tmp_path, max_episodes=2)
    board._slots.offer(TWO)
    summary = board.run()
    assert (summary.phase, summary.version) == (Phase.SETTLED, "2")
    assert summary.episodes > 2
    assert summary.return_mean == 8  # each episode is cut off after eight steps


def test_steps_count_again_when_the_first_look_has_found_nothing(tmp_path):
    board = SlowToLook(tmp_path, safe=(0.0,), max_steps=3)
    board._slots.offer(wrong_golden(1))
    summary = board.run()
    assert (summary.phase, summary.reason) == (Phase.EMPTY, "all steps made")
    assert summary.steps == summary.counters.safe_steps >= 13


def test_a_policy_that_crashed_too_often_is_not_there_already_and_can_be_tried_again(tmp_path):
    slots = two_good(tmp_path)
    assert hand_over(TWO, slots, KEY.public, RUNTIME, allow_older=False).already
    notes = read_notes(slots.notes_path)[0]
    write_notes(slots.notes_path, dataclasses.replace(notes, level=PREVIOUS_ONLY))
    with pytest.raises(OlderVersion, match="has the number of the current one") as refused:
        hand_over(TWO, slots, KEY.public, RUNTIME, allow_older=False)
    assert "--allow-older" in refused.value.hint
    assert not hand_over(TWO, slots, KEY.public, RUNTIME, allow_older=True).already
    board = Board(tmp_path).live()
    assert (board.phase, board.acting) == (Phase.SETTLED, digest(TWO))


def test_a_safe_action_that_the_environment_would_refuse_is_told_at_the_start(tmp_path):
    """In float64 a bound of 0.1 is less than the float32 that is nearest to it."""
    with pytest.raises(UsageError, match="a little further inside"):
        Board(tmp_path, env=EnvSpec(env_id="QuarlNarrow-v0"), safe=(0.1,))


class Narrow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-0.1, 0.1, (1,), np.float64)


gymnasium.register("QuarlNarrow-v0", Narrow)


def two_good(state):
    """A board on version 2, with version 1 behind it."""
    slots = settled(state)
    slots.offer(TWO)
    assert Board(state).live().acting == digest(TWO)
    return slots


def gives_once(board, given):
    """Let the board's environment give this at its third step."""
    step, steps = board._world.step, itertools.count(1)

    def changed(action):
        observation, *others = step(action)
        return (given if next(steps) == 3 else observation, *others)

    board._world.step = changed


@pytest.mark.parametrize(
    "given",
    [np.zeros(3, np.float32), np.zeros(1, np.float32), None, "no array", {}, np.full(4, 1e300), np.full(4, np.nan)],
    ids=["shape", "broadcast", "none", "string", "dict", "float64", "nan"],
)
def test_one_malformed_observation_costs_no_policy(tmp_path, given):
    slots = two_good(tmp_path)
    board = Board(tmp_path, safe=(1,))
    gives_once(board, given)
    board.live(episodes=1)
    assert (board.phase, board.acting, board.fault) == (Phase.SETTLED, digest(TWO), None)
    assert board._snapshot().counters.bad_observations == 1
    blind = Board(tmp_path)
    gives_once(blind, given)
    with pytest.raises(EnvironmentMisbehaved, match="does not fit its space"):
        blind.live(episodes=1)
    assert (slots.read(Slot.CURRENT), slots.read(Slot.PREVIOUS)) == (TWO, ONE)


def test_an_observation_that_two_policies_fail_on_is_the_environments_fault(tmp_path):
    slots = two_good(tmp_path)
    board = Board(tmp_path, safe=(1,))
    gives_once(board, np.zeros(3, np.float32))
    board._finite = lambda _: True
    board.live(episodes=1)
    assert (board.phase, board.acting) == (Phase.PARKED, digest(ONE))
    assert (board._steps, board._snapshot().counters.bad_observations) == (8, 1)
    assert slots.read(Slot.CURRENT) == ONE


def test_a_hang_in_the_self_test_ends_in_time_and_the_late_answer_changes_nothing(tmp_path, monkeypatch):
    slots = settled(tmp_path)
    board = Board(tmp_path, rules=Rules(work_s=5.0))
    board.live(episodes=1)
    waiting = []
    monkeypatch.setattr(board._worker, "do", waiting.append)
    for phase in (Phase.VERIFYING, Phase.TESTING):
        slots.offer(TWO)
        board._happen(Kind.OFFERED)
        if phase is Phase.TESTING:
            waiting.pop()()
            board._attend()
        assert board.phase is phase
        late = waiting.pop()
        board._handle(Event(kind=Kind.TICK, now_s=board._state.since_s + 4.9))
        assert board.phase is phase
        board._handle(Event(kind=Kind.TICK, now_s=board._state.since_s + 5.1))
        assert (board.phase, board.acting, board.fault.code) == (Phase.SETTLED, digest(ONE), 55)
        waiting.pop()()
        late()
        board._attend()
        assert (board.phase, board.acting) == (Phase.SETTLED, digest(ONE))
        assert not slots.there(Slot.READY)
        slots.discard(Slot.TESTING)


def test_a_policy_that_is_ready_does_not_wait_for_ever_for_an_episode_to_end(tmp_path):
    slots = settled(tmp_path)
    board = Board(tmp_path).live(episodes=1)
    slots.offer(TWO)
    board._happen(Kind.OFFERED)
    board._attend()
    assert (board.phase, board.acting) == (Phase.WAITING, digest(ONE))
    board._handle(Event(kind=Kind.TICK, now_s=board._state.since_s + 60.1))
    assert (board.phase, board.acting) == (Phase.PROBATION, digest(TWO))


def test_a_newer_file_takes_the_place_of_one_that_waits(tmp_path):
    slots = settled(tmp_path)
    board = Board(tmp_path).live(episodes=1)
    for data in (TWO, THREE):
        slots.offer(data)
        board._happen(Kind.OFFERED)
        board._attend()
        assert board.phase is Phase.WAITING
    board._happen(Kind.BOUNDARY)
    assert board.acting == digest(THREE)


def crash(state, **config):
    """A life that dies as it acts."""
    Board(state, **config).live(episodes=1, clean=False)


def test_a_crash_on_probation_falls_back_at_the_next_start(tmp_path):
    slots = settled(tmp_path)
    slots.offer(TWO)
    board = Board(tmp_path, probation=dataclasses.replace(Board(tmp_path)._config.probation, episodes=99))
    board.live(episodes=2, clean=False)
    assert (board.phase, board.acting) == (Phase.PROBATION, digest(TWO))
    after = Board(tmp_path).live(episodes=1)
    assert (after.acting, after.fault.code, after.fault.digest) == (digest(ONE), 55, digest(TWO))
    assert slots.read(Slot.REFUSED) == TWO


def test_a_clean_end_on_probation_is_no_failure(tmp_path):
    slots = settled(tmp_path)
    slots.offer(TWO)
    long = dataclasses.replace(Board(tmp_path)._config.probation, episodes=99)
    assert Board(tmp_path, probation=long).live(episodes=2).phase is Phase.PROBATION
    board = Board(tmp_path).live()
    assert (board.phase, board.acting) == (Phase.SETTLED, digest(TWO))


def raises_from(board, step):
    """Let the board's environment raise from this step on, as at actions that it does not bear."""
    real, steps = board._world.step, itertools.count(1)

    def checked(action):
        if next(steps) >= step:
            raise ValueError("no such action")
        return real(action)

    board._world.step = checked


def test_a_trial_at_whose_actions_the_environment_raises_is_rejected_at_the_next_start(tmp_path):
    slots = settled(tmp_path)
    slots.offer(TWO)
    long = dataclasses.replace(Board(tmp_path)._config.probation, episodes=99)
    assert Board(tmp_path, probation=long).live(episodes=2).phase is Phase.PROBATION
    board = Board(tmp_path, probation=long)
    raises_from(board, 5)
    with pytest.raises(EnvironmentMisbehaved):
        board.run()
    assert not read_notes(slots.notes_path)[0].clean
    after = Board(tmp_path).live(episodes=1)
    assert (after.acting, after.fault.digest) == (digest(ONE), digest(TWO))
    assert slots.read(Slot.REFUSED) == TWO


def test_an_environment_that_raises_is_an_orderly_end_of_a_settled_policy(tmp_path):
    slots = settled(tmp_path)
    board = Board(tmp_path)
    raises_from(board, 5)
    with pytest.raises(EnvironmentMisbehaved):
        board.run()
    notes = read_notes(slots.notes_path)[0]
    assert (notes.clean, notes.starts) == (True, 0)


def test_a_first_policy_that_crashes_is_tried_a_few_times_for_want_of_a_better_one(tmp_path):
    slots = Slots(tmp_path)
    slots.make()
    slots.offer(ONE)
    long = dataclasses.replace(Board(tmp_path)._config.probation, episodes=99)
    rules = Rules(max_starts=3)
    for _ in range(3):
        board = Board(tmp_path, probation=long, rules=rules, safe=(0,)).live(episodes=2, clean=False)
        assert board.phase is Phase.PROBATION
    board = Board(tmp_path, probation=long, rules=rules, safe=(0,)).live(episodes=1)
    assert (board.phase, board.acting) == (Phase.EMPTY, "")
    assert slots.there(Slot.REFUSED)


def test_a_crash_loop_parks_on_the_last_good_policy_and_then_on_the_safe_action(tmp_path):
    slots = settled(tmp_path)
    slots.offer(TWO)
    assert Board(tmp_path).live().acting == digest(TWO)
    few = Rules(max_starts=3)
    # An end of the first episode would be a passed probation: these die before.
    long = dataclasses.replace(Board(tmp_path)._config.probation, episodes=99)
    for _ in range(3):
        board = Board(tmp_path, rules=few, probation=long, safe=(0,)).live(episodes=1, clean=False)
        assert board.acting == digest(TWO)
    for _ in range(3):
        board = Board(tmp_path, rules=few, probation=long, safe=(0,)).live(episodes=1, clean=False)
        assert (board.acting, board.phase) == (digest(ONE), Phase.PARKED)
        assert "crash loop" in board.fault.message
    assert read_notes(slots.notes_path)[0].level == PREVIOUS_ONLY
    board = Board(tmp_path, rules=few, probation=long, safe=(0,)).live(episodes=1, clean=False)
    assert (board.acting, board.phase) == ("", Phase.EMPTY)
    assert read_notes(slots.notes_path)[0].level == NOTHING
    # A new policy ends it, and what was distrusted is not kept as the one to fall back to.
    slots.offer(THREE)
    assert Board(tmp_path, rules=few, safe=(0,)).live().acting == digest(THREE)
    assert read_notes(slots.notes_path)[0].level == 0


def test_a_start_that_lives_breaks_the_row_and_the_next_one_tries_the_last_good_policy_again(tmp_path):
    slots = settled(tmp_path)
    notes = dataclasses.replace(read_notes(slots.notes_path)[0], clean=False, starts=4, level=NOTHING)
    write_notes(slots.notes_path, notes)
    board = Board(tmp_path, safe=(0,), life_s=0.0).live(episodes=2, clean=False)
    assert board.phase is Phase.EMPTY
    notes = read_notes(slots.notes_path)[0]
    assert (notes.starts, notes.level) == (0, PREVIOUS_ONLY)
    assert Board(tmp_path, safe=(0,)).live(episodes=1).acting == digest(ONE)


@pytest.mark.parametrize(("limit", "phase"), [(2.0, Phase.SETTLED), (0.001, Phase.EMPTY)])
def test_hard_limits_hold_and_a_policy_that_is_mostly_beyond_them_does_not_pass(tmp_path, limit, phase):
    slots = Slots(tmp_path)
    slots.make()
    slots.offer(signed(1, policy=PENDULUM))
    board = Board(
        tmp_path,
        env=EnvSpec(env_id="Pendulum-v1", kwargs={"max_episode_steps": 30}),
        wishes=Wishes(low=(-limit,), high=(limit,), safe_action=(0.0,)),
    )
    actions, step = [], board._world.step
    board._world.step = lambda action: actions.append(float(action[0])) or step(action)
    board.live(episodes=3)
    assert len(actions) == 90
    assert max(map(abs, actions)) <= limit * 1.0001
    assert board.phase is phase
    if phase is Phase.EMPTY:
        assert "beyond the hard limits" in board.fault.message
        assert board._snapshot().counters.limited > 0


def test_without_a_safe_action_a_crash_loop_stays_on_the_last_good_policy(tmp_path):
    settled(tmp_path)
    long = dataclasses.replace(Board(tmp_path)._config.probation, episodes=99)
    for _ in range(8):
        board = Board(tmp_path, rules=Rules(max_starts=2), probation=long).live(episodes=1, clean=False)
        assert board.acting == digest(ONE)


@pytest.mark.parametrize("now", [0.0, 86_400.0 * 365 * 67, -5.0, 1e18])
def test_a_wrong_clock_decides_nothing(tmp_path, monkeypatch, now):
    slots = settled(tmp_path)
    monkeypatch.setattr("time.time", lambda: now)
    slots.offer(TWO)
    assert Board(tmp_path).live().acting == digest(TWO)
    notes, why_none = read_notes(slots.notes_path)
    assert (why_none, notes.acting) == ("", digest(TWO))


@pytest.mark.parametrize(
    "content",
    [b"", bytes(4096), b"{", b'{"schema": 0}', b'{"schema": 99, "notes": {}}', b"[]", b"\xff\xfe", b"x" * 100_000],
)
def test_notes_that_are_no_notes_cost_no_policy(tmp_path, content):
    slots = settled(tmp_path)
    slots.notes_path.write_bytes(content)
    board = Board(tmp_path).live(episodes=1)
    assert (board.acting, board.phase) == (digest(ONE), Phase.SETTLED)
    assert read_notes(slots.notes_path)[1] == ""


def test_notes_that_are_torn_at_every_byte_or_changed(tmp_path):
    slots = settled(tmp_path)
    data = slots.notes_path.read_bytes()
    for length in range(0, len(data), 7):
        slots.notes_path.write_bytes(data[:length])
        assert read_notes(slots.notes_path)[1]
    changed = data.replace(b'"starts": 0', b'"starts": 9')
    assert changed != data
    slots.notes_path.write_bytes(changed)
    assert "checksum" in read_notes(slots.notes_path)[1]


def test_notes_where_a_directory_lies(tmp_path):
    slots = settled(tmp_path)
    slots.notes_path.unlink()
    slots.notes_path.mkdir()
    assert Board(tmp_path).live(episodes=1).acting == digest(ONE)
    with pytest.raises(StateUnwritable):
        write_notes(slots.notes_path, read_notes(slots.notes_path)[0])


def test_reports_for_a_fleet_name_the_policy_that_acts(tmp_path):
    slots = settled(tmp_path)
    slots.offer(TWO)
    board = Board(tmp_path).live()
    assert (board.reports[0].phase, board.reports[0].version) == (Phase.SETTLED, 1)
    last = board.reports[-1]
    assert (last.phase, last.version, last.digest) == (Phase.SETTLED, 2, CARTPOLE.sha256)
    phases = [phase for phase, _ in itertools.groupby(report.phase for report in board.reports)]
    assert phases[1:6] == [Phase.VERIFYING, Phase.TESTING, Phase.WAITING, Phase.PROBATION, Phase.SETTLING]


def test_two_agents_on_one_directory(tmp_path):
    from quarl_device.errors import AgentInUse

    first, second = Slots(tmp_path), Slots(tmp_path)
    first.make()
    first.take()
    assert second.in_use()
    errors = []

    def take():
        try:
            second.take()
        except AgentInUse as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(5.0)
    assert errors
    first.release()
    assert not second.in_use()
    second.take()
    second.release()


def test_the_ticker_goes_on_after_any_error(tmp_path, monkeypatch, caplog):
    settled(tmp_path)
    board, looks = Board(tmp_path).live(episodes=1), []

    def look(now_s):
        looks.append(now_s)
        if len(looks) == 3:
            board.stop("enough")
        raise RuntimeError("nobody thought of that")

    monkeypatch.setattr(board, "_look_around", look)
    monkeypatch.setattr("quarl_device.deploy.agent.TICK_S", 0.0)
    board._tick()
    assert len(looks) == 3
    assert caplog.text.count("told once") == 1


def test_a_trial_that_is_the_previous_policy_too_is_rejected_and_stays_ready_as_that(tmp_path):
    slots = two_good(tmp_path)
    board = Board(tmp_path).live(episodes=1)
    slots.offer(ONE, allow_older=True)
    board._happen(Kind.OFFERED)
    board._attend()
    board._happen(Kind.BOUNDARY)
    assert (board.phase, board.acting) == (Phase.PROBATION, digest(ONE))
    board._fail(RuntimeError("it is sick"))
    assert (board.phase, board.acting, board._state.good) == (Phase.SETTLED, digest(TWO), (digest(TWO), digest(ONE)))
    board._fail(RuntimeError("this one too"))
    assert (board.phase, board.acting) == (Phase.PARKED, digest(ONE))
    assert board._act not in (None, board._safe)


@pytest.mark.parametrize("safe", [(), (0,)])
def test_a_policy_that_is_to_act_and_is_not_loaded_has_failed(tmp_path, safe):
    two_good(tmp_path)
    board = Board(tmp_path, safe=safe).live(episodes=1)
    del board._candidates.loaded[digest(TWO)]
    board._let_act(digest(TWO))
    board._attend()
    assert (board.phase, board.acting) == (Phase.PARKED, digest(ONE))
    assert (board.fault.code, board.fault.digest) == (55, digest(TWO))
    assert board._act is not None


def test_a_trial_that_does_not_load_at_a_start_fails_alone(tmp_path, monkeypatch):
    slots = settled(tmp_path)
    slots.offer(TWO)
    long = dataclasses.replace(Board(tmp_path)._config.probation, episodes=99)
    assert Board(tmp_path, probation=long).live(episodes=2).phase is Phase.PROBATION
    board = Board(tmp_path)
    monkeypatch.setattr(board._candidates, "load_trial", lambda: 1 / 0)
    board.live(episodes=1)
    assert (board.phase, board.acting) == (Phase.SETTLED, digest(ONE))
    assert "ZeroDivisionError" in board.fault.message


def test_a_start_that_cannot_be_noted_acts_with_current_and_not_with_the_trial(tmp_path, monkeypatch):
    slots = settled(tmp_path)
    slots.offer(TWO)
    long = dataclasses.replace(Board(tmp_path)._config.probation, episodes=99)
    assert Board(tmp_path, probation=long).live(episodes=2).phase is Phase.PROBATION
    assert read_notes(slots.notes_path)[0].clean

    def read_only(*_, **__):
        raise StateUnwritable("read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr("quarl_device.deploy.agent.write_notes", read_only)
        patch.setattr(FaultySlots, "_move", read_only)
        for _ in range(3):
            board = Board(tmp_path, probation=long).live(episodes=1)
            assert (board.phase, board.acting) == (Phase.SETTLED, digest(ONE))


def test_where_the_only_good_policy_fails_the_one_that_waits_acts_within_the_step(tmp_path):
    slots = settled(tmp_path)
    board = Board(tmp_path).live(episodes=1)
    slots.offer(TWO)
    board._happen(Kind.OFFERED)
    board._attend()
    assert board.phase is Phase.WAITING

    def fails(_):
        raise RuntimeError("it is sick")

    board._act = fails
    assert board._choose(np.zeros(4, np.float32)) in (0, 1)
    assert (board.phase, board.acting, board._state.good) == (Phase.PROBATION, digest(TWO), ())
    assert slots.read(Slot.TRIAL) == TWO
    assert not slots.there(Slot.CURRENT)


def test_a_policy_that_never_acted_does_not_pass(tmp_path):
    slots = settled(tmp_path)
    slots.offer(TWO)
    board = Board(tmp_path, safe=(0,))
    board._finite = lambda _: False
    board.live(episodes=6)
    assert (board.phase, board.acting) == (Phase.PROBATION, digest(TWO))
    assert slots.read(Slot.CURRENT) == ONE
