"""The parts of deploy mode: probation, the grid of steps, limits, signed files, notes, slots."""

import dataclasses
import json
import queue
import threading

import gymnasium
import numpy as np
import pytest
from deploy_factory import CARTPOLE, KEY, OTHER_KEY, PENDULUM, RUNTIME, digest, signed, wrong_golden
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec
from quarl_device.deploy.acting import Busy, Loaded, make_act, make_finite
from quarl_device.deploy.candidates import guarded
from quarl_device.deploy.limits import Guard, Wishes, guard_of, make_wishes, read_limits
from quarl_device.deploy.machine import Fault, Phase
from quarl_device.deploy.notes import Counters, Notes, believable_unix_s, decode_notes, encode_notes
from quarl_device.deploy.probation import Probation, ProbationRules
from quarl_device.deploy.signed import load_signed, open_signed, read_signed, sign_policy
from quarl_device.deploy.slots import Slot, Slots
from quarl_device.deploy.worker import Worker
from quarl_device.errors import (
    BadSignature,
    ContractError,
    KeyFileError,
    KeyMismatch,
    ModelFileError,
    PayloadRefused,
    PolicyFailed,
    SelfTestError,
    StateUnwritable,
    UsageError,
)  # fmt: skip
from quarl_device.wire.exploration import Exploration
from quarl_device.wire.limits import MAX_SIGNED_FILE_BYTES
from quarl_device.wire.push import PushHeader, encode_push

GOOD = {"took_s": 0.001, "finite": True, "inside": True, "limited": False}


def probation(**rules):
    return Probation(ProbationRules(**rules))


def test_a_probation_is_passed_by_steps_or_by_episodes():
    by_steps = probation(steps=30, episodes=99)
    for step in range(30):
        assert not by_steps.passed, step
        by_steps.step(**GOOD)
    assert by_steps.passed
    by_episodes = probation(steps=99, episodes=2)
    by_episodes.step(**GOOD)
    by_episodes.end_episode(1)
    assert not by_episodes.passed
    by_episodes.step(**GOOD)
    by_episodes.end_episode(1)
    assert by_episodes.passed


@pytest.mark.parametrize(("bad", "says"), [({"finite": False}, "NaN"), ({"inside": False}, "outside of its space")])
def test_one_such_step_is_enough(bad, says):
    watched = probation()
    watched.step(**GOOD | bad)
    assert says in watched.failure
    for _ in range(2000):
        watched.step(**GOOD)
    assert not watched.passed


@pytest.mark.parametrize("bad", [{"took_s": 0.02}, {"limited": True}])
def test_a_share_of_slow_or_limited_steps_is_borne_and_more_is_not(bad):
    def watched(every):
        made = probation(budget_s=0.01, share=0.1, steps=200, episodes=99)
        for step in range(1, 201):
            made.step(**GOOD | (bad if step % every == 0 else {}))
        return made

    assert watched(10).passed
    assert watched(5).failure


def test_without_a_budget_nothing_is_too_slow():
    watched = probation(steps=50)
    for _ in range(50):
        watched.step(**GOOD | {"took_s": 9.0})
    assert watched.passed


@pytest.mark.parametrize(("chosen", "steps"), [(0, 0), (0, 7), (6, 7), (1, 7)])
def test_an_episode_in_which_it_has_not_chosen_every_step_does_not_count(chosen, steps):
    watched = probation(episodes=1, steps=99)
    for _ in range(3):
        for _ in range(chosen):
            watched.step(**GOOD)
        watched.end_episode(steps)
    assert (watched.episodes, watched.passed) == (0, False)
    for _ in range(steps):
        watched.step(**GOOD)
    watched.end_episode(steps)
    assert watched.passed is (steps > 0)


def test_short_episodes_are_judged_at_their_end():
    watched = probation(budget_s=0.01, episodes=1)
    watched.step(**GOOD | {"took_s": 1.0})
    watched.end_episode(1)
    assert watched.failure
    assert not watched.passed


@pytest.mark.parametrize("bad", [{"episodes": 0}, {"steps": 0}, {"share": 1.5}, {"budget_s": float("nan")}])
def test_rules_that_cannot_be(bad):
    with pytest.raises(UsageError):
        ProbationRules(**bad)


BOX = ActionSpec(kind="box", shape=(2,), low=(-1.0, -2.0), high=(1.0, 2.0))
FEW = ActionSpec(kind="discrete", n=3, start=5)


@pytest.mark.parametrize(
    ("wishes", "low", "high", "safe"),
    [
        ({"low": (-0.5,), "high": (0.5,)}, [-0.5, -0.5], [0.5, 0.5], None),
        ({"low": (-0.5, -1), "high": (0.5, 1.5), "safe_action": (0.25, -1)}, [-0.5, -1], [0.5, 1.5], [0.25, -1]),
    ],
)
def test_limits_of_a_box(wishes, low, high, safe):
    guard = guard_of(Wishes(**wishes), BOX)
    assert (guard.low.tolist(), guard.high.tolist()) == (low, high)
    assert guard.low.dtype == np.float32
    assert (guard.safe_action is None) if safe is None else guard.safe_action.tolist() == safe


def test_nothing_is_limited_where_nobody_asks_for_it():
    assert guard_of(Wishes(), BOX).low is None
    guard = guard_of(Wishes(safe_action=(0.0,)), BOX)
    assert (guard.low, guard.safe_action.tolist()) == (None, [0, 0])


@pytest.mark.parametrize(
    ("wishes", "space"),
    [
        ({"low": (-3.0,), "high": (1.0,)}, BOX),
        ({"low": (0.5,), "high": (0.2,)}, BOX),
        ({"low": (0.0, 0.0, 0.0), "high": (1.0, 1.0, 1.0)}, BOX),
        ({"safe_action": (1.5, 0.0)}, BOX),
        ({"low": (-0.1,), "high": (0.1,), "safe_action": (0.5,)}, BOX),
        ({"low": (0.0,), "high": (1.0,)}, FEW),
        ({"safe_action": (4.0,)}, FEW),
        ({"safe_action": (8.0,)}, FEW),
        ({"safe_action": (5.5,)}, FEW),
        ({"safe_action": (5.0, 5.0)}, FEW),
    ],
)
def test_limits_that_do_not_fit_are_wrong_usage(wishes, space):
    with pytest.raises(UsageError):
        guard_of(Wishes(**wishes), space)


def test_the_safe_action_of_a_discrete_space():
    assert guard_of(Wishes(safe_action=(7.0,)), FEW).safe_action == 7
    assert guard_of(Wishes(), FEW).safe_action is None


def test_an_action_is_limited_in_place():
    guard = Guard(low=np.array([-0.5], np.float32), high=np.array([0.5], np.float32))
    action = np.array([0.9], np.float32)
    limited, beyond = guard.limit(action)
    assert (limited is action, beyond, limited.tolist()) == (True, True, [0.5])
    assert guard.limit(np.array([0.1], np.float32))[1] is False


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("limits.toml", "low = [-0.5]\nhigh = 0.5\nsafe_action = [0, 0]\n"),
        ("limits.json", '{"low": [-0.5], "high": 0.5, "safe_action": [0, 0]}'),
    ],
)
def test_limits_in_a_file(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert read_limits(path) == Wishes(low=(-0.5,), high=(0.5,), safe_action=(0.0, 0.0))
    # A word of its own goes before the file's.
    assert make_wishes(file=path, limits=[(-0.1, 0.1)]).low == (-0.1,)


@pytest.mark.parametrize(
    "text", ["low = [", 'low = "x"', "low = []", "speed = 3", "low = [nan]", "low = true", "\xff", "x = 1" * 20_000]
)
def test_limits_files_that_mean_nothing(tmp_path, text):
    path = tmp_path / "limits.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError):
        read_limits(path)


def test_a_signed_file_is_read_back():
    opened = open_signed(signed(7), KEY.public)
    assert (opened.order, opened.name, opened.header.sha256) == ((0, 7), "7", CARTPOLE.sha256)
    assert opened.file.data == CARTPOLE.data
    assert opened.sha256 == digest(signed(7))
    assert load_signed(opened, RUNTIME).act(np.zeros(4, np.float32)) in (0, 1)


def test_a_live_push_is_a_signed_file_too():
    header = PushHeader(
        epoch=12, version=3, env_steps=0, sha256=CARTPOLE.sha256, golden_outputs=CARTPOLE.golden.outputs,
        lsb=CARTPOLE.golden.lsb, exploration=Exploration(values=(0.1,)),
    )  # fmt: skip
    opened = open_signed(encode_push(header, CARTPOLE.data, KEY.sign), KEY.public)
    assert opened.name == "12.3"
    load_signed(opened, RUNTIME)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", PayloadRefused),
        (signed(1)[:100], BadSignature),
        (signed(1) + b"x", BadSignature),
        (signed(1, key=OTHER_KEY), BadSignature),
        (b"QPOL" + bytes(MAX_SIGNED_FILE_BYTES), PayloadRefused),
    ],
    ids=["empty", "torn", "longer", "key", "huge"],
)
def test_what_is_not_signed_is_not_parsed(data, error, monkeypatch):
    monkeypatch.setattr("quarl_device.deploy.signed.read_policy", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(error):
        open_signed(data, KEY.public)


def test_a_file_that_answers_otherwise_than_recorded():
    with pytest.raises(SelfTestError):
        load_signed(open_signed(wrong_golden(1), KEY.public), RUNTIME)


def test_a_policy_without_golden_answers_is_not_signed():
    silent = dataclasses.replace(CARTPOLE, golden=dataclasses.replace(CARTPOLE.golden, outputs={}, lsb={}))
    with pytest.raises(ContractError, match="no golden answers"):
        sign_policy(silent, KEY, version=1)


def test_a_policy_file_that_nobody_has_signed(tmp_path):
    path = tmp_path / "model.qpol"
    path.write_bytes(CARTPOLE.data)
    with pytest.raises(ModelFileError) as caught:
        read_signed(path)
    assert "quarl-edge sign" in caught.value.hint


def test_acting_stays_within_limits_and_sees_what_is_no_number():
    world = gymnasium.make("Pendulum-v1").unwrapped
    loaded = Loaded.load(open_signed(signed(1, policy=PENDULUM), KEY.public), RUNTIME)
    guard, busy = guard_of(Wishes(low=(-0.01,), high=(0.01,)), PENDULUM.contract.action), Busy()
    watched = Probation(ProbationRules(share=1.0))
    plain = make_act(world, loaded, guard, busy)
    observed = make_act(world, loaded, guard, busy, probation=watched)
    seen = [np.array([np.cos(a), np.sin(a), 3.0], np.float32) for a in np.linspace(0, 6, 20)]
    actions = [act(observation) for act in (plain, observed) for observation in seen]
    assert all(abs(float(action[0])) <= 0.0100001 for action in actions)
    assert busy.limited == 2 * watched.limited > 0
    assert busy.since_s == 0.0


class _Spoiling:
    """A runtime whose models give NaN when they act."""

    name, version = RUNTIME.name, RUNTIME.version

    def load(self, model, **options):
        loaded = RUNTIME.load(model, **options)
        infer = loaded.infer
        return _Spoiled(loaded, lambda *inputs: infer(*inputs) * np.float32("nan"))


class _Spoiled:
    def __init__(self, model, infer):
        self.batch_size, self.run, self.infer = model.batch_size, model.run, infer


@pytest.mark.parametrize("watched", [None, Probation(ProbationRules())])
def test_an_output_that_is_no_number_never_becomes_an_action(watched):
    world = gymnasium.make("CartPole-v1").unwrapped
    loaded = Loaded.load(open_signed(signed(1), KEY.public), _Spoiling())
    act = make_act(world, loaded, Guard(), Busy(), probation=watched)
    with pytest.raises(PolicyFailed, match="NaN"):
        act(np.zeros(4, np.float32))


def test_observations_that_are_no_numbers():
    box, images = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
    bad = np.array([0, np.nan], np.float32)
    assert not make_finite(box)(bad)
    assert make_finite(box)(np.zeros(2, np.float32))
    assert make_finite(images)(np.zeros((2, 2), np.uint8))
    both = make_finite(gymnasium.spaces.Dict({"a": box, "b": images}))
    assert not both({"a": bad, "b": np.zeros((2, 2), np.uint8)})
    assert both({"a": np.zeros(2, np.float32), "b": np.zeros((2, 2), np.uint8)})


MALFORMED = [
    np.zeros(3, np.float32), np.zeros(1, np.float32), np.float32(0), np.zeros((1, 4), np.float32), None, "abcd",
    ["a", "b", "c", "d"], [[0.0], [0.0, 1.0]], {}, {"x": np.zeros(4)}, np.array([0, 0, 0, 1e39]), np.full(4, -np.inf),
    np.zeros(4, complex), np.array([None] * 4), np.array(["0"] * 4), np.full(4, "2020-01-01", "datetime64[s]"),
]  # fmt: skip


@pytest.mark.parametrize("observation", MALFORMED, ids=[str(number) for number in range(len(MALFORMED))])
def test_observations_that_are_none_of_their_space(observation):
    box = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
    assert not make_finite(box)(observation)
    named = make_finite(gymnasium.spaces.Dict({"a": box, "b": box}))
    assert not named({"a": np.zeros(4, np.float32), "b": observation})
    assert not named({"a": np.zeros(4, np.float32)})
    assert not named(observation)


def test_observations_that_a_policy_can_act_on_in_other_clothes():
    box = make_finite(gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64))
    for seen in (np.zeros(4), np.ones(4, np.int64), [0.0, 1.0, 2.0, 3.0], np.full(4, 3e38), np.zeros(4, np.float16)):
        assert box(seen)
    images = make_finite(gymnasium.spaces.Box(0, 255, (2, 2), np.uint8))
    assert images(np.zeros((2, 2), np.int64))
    assert not images(np.full((2, 2), np.nan))


NOTES = Notes(
    phase=Phase.PROBATION, since_unix_s=1e9, acting="a" * 64, activated_unix_s=2e9, clean=True, starts=3, level=1,
    env_id="CartPole-v1", fault=Fault(code=55, message="it\nhung", digest="b" * 64), fault_unix_s=5.0,
    counters=Counters(steps=10, safe_steps=2),
)  # fmt: skip


def test_notes_are_read_back():
    found = decode_notes(encode_notes(NOTES))
    assert found == dataclasses.replace(NOTES, fault=dataclasses.replace(NOTES.fault, message="it hung"))
    assert decode_notes(encode_notes(Notes())) == Notes()


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_notes_of_any_bytes_are_refused(data):
    with pytest.raises(PayloadRefused):
        decode_notes(data)


@pytest.mark.parametrize("change", [{"starts": -1}, {"level": 3}, {"phase": "asleep"}, {"acting": "x"}, {"clean": 1}])
def test_notes_that_are_well_summed_and_mean_nothing(change):
    from quarl_device.deploy import notes

    inner = json.loads(encode_notes(NOTES))["notes"] | change
    data = json.dumps({"schema": 1, "checksum": notes._checksum(inner), "notes": inner}).encode()
    with pytest.raises(PayloadRefused):
        decode_notes(data)


@settings(deadline=None)
@given(st.floats(allow_nan=False))
def test_any_clock_makes_notes_that_are_read_back(now_s):
    notes = Notes(since_unix_s=believable_unix_s(now_s))
    assert decode_notes(encode_notes(notes)) == notes


def test_the_key_is_kept_at_its_first_use_and_another_one_is_refused(tmp_path):
    slots = Slots(tmp_path)
    slots.make()
    with pytest.raises(KeyFileError, match="no learner's key"):
        slots.trusted_key(None)
    for name, key in (("one", KEY), ("two", OTHER_KEY)):
        key.public.save(tmp_path / name)
    assert slots.trusted_key(tmp_path / "one") == KEY.public
    assert slots.trusted_key(None) == KEY.public
    with pytest.raises(KeyMismatch):
        slots.trusted_key(tmp_path / "two")
    (slots.directory / "learner.pub").write_bytes(bytes(70))
    assert slots.trusted_key(tmp_path / "two") == OTHER_KEY.public


def test_a_disk_without_room_takes_no_offer_and_changes_nothing(tmp_path, monkeypatch):
    import os

    slots = Slots(tmp_path)
    slots.make()
    slots.offer(signed(1))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateUnwritable, match="No space"):
        slots.offer(signed(2))
    assert slots.read(Slot.INCOMING) == signed(1)
    assert [path.name for path in slots.directory.iterdir()] == ["incoming.qpol"]


def test_what_a_kill_leaves_between_two_renames_is_mended(tmp_path):
    slots = Slots(tmp_path)
    slots.make()
    slots.path(Slot.TRIAL).write_bytes(b"new")
    slots.path(Slot.PREVIOUS).write_bytes(b"old")
    slots.recover()
    assert (slots.read(Slot.CURRENT), slots.read(Slot.PREVIOUS)) == (b"new", b"old")
    slots.path(Slot.CURRENT).unlink()
    slots.recover()
    assert slots.read(Slot.CURRENT) == b"old"
    slots.path(Slot.READY).write_bytes(b"ready")
    slots.recover()
    assert slots.read(Slot.INCOMING) == b"ready"


@pytest.mark.parametrize(("number", "there"), [(2, False), (20, False), (5, True), (13, True), (117, True)])
def test_whatever_a_disk_says_but_not_found_a_slot_is_there(tmp_path, monkeypatch, number, there):
    import pathlib

    def damaged(*_, **__):
        raise OSError(number, "damaged")

    slots = Slots(tmp_path)
    slots.make()
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "stat", damaged)
        assert slots.there(Slot.CURRENT) is there


def test_a_disk_that_refuses_to_unlink_does_not_hide_why_it_refused_to_write(tmp_path, monkeypatch):
    import os
    import pathlib

    def refuses(number, text):
        def refuse(*_, **__):
            raise OSError(number, text)

        return refuse

    slots = Slots(tmp_path)
    slots.make()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuses(28, "No space left on device"))
        patch.setattr(pathlib.Path, "unlink", refuses(30, "Read-only file system"))
        with pytest.raises(StateUnwritable, match="No space"):
            slots.offer(signed(1))


def test_disk_work_that_raises_anything_is_a_fault(caplog):
    def damaged():
        raise OSError(117, "Structure needs cleaning")

    assert "Structure needs cleaning" in guarded(damaged).message
    assert caplog.text.count("Structure needs cleaning") == 1
    assert guarded(lambda: None) is None


def test_the_worker_goes_on_after_a_job_that_raises(caplog):
    worker, done = Worker(), []
    for job in (lambda: 1 / 0, lambda: {}["x"], lambda: done.append(1)):
        worker.do(job)
    worker.close(timeout_s=5.0)
    assert done == [1]
    assert caplog.text.count("told once") == 1


def test_what_waits_behind_a_job_that_hangs_is_done_by_another_thread():
    worker, done = Worker(), []
    began, released, last = threading.Event(), threading.Event(), threading.Event()

    def hang():
        began.set()
        released.wait(5.0)
        done.append("late")

    hung = worker._thread
    for job in (hang, lambda: done.append(1), lambda: done.append(2)):
        worker.do(job)
    assert began.wait(5.0)
    worker.abandon()
    worker.do(last.set)
    assert last.wait(5.0)
    assert done == [1, 2]
    released.set()
    hung.join(5.0)
    assert not hung.is_alive()
    worker.close(timeout_s=5.0)
    assert not worker._thread.is_alive()
    assert done == [1, 2, "late"]


def test_a_job_that_another_thread_takes_first_is_not_waited_for():
    class Raced(queue.SimpleQueue):
        """Says that a job waits, which is gone when it is asked for."""

        def empty(self):
            return False

    worker = Worker()
    worker.close(timeout_s=5.0)
    worker._jobs = Raced()
    abandoning = threading.Thread(target=worker.abandon, daemon=True)
    abandoning.start()
    abandoning.join(5.0)
    assert not abandoning.is_alive()
    worker.close(timeout_s=5.0)
