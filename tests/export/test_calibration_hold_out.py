"""What a file is judged by comes from other episodes than what it was calibrated with."""

import dataclasses
import importlib
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_factory import image_policy, mlp, rows, tanh_actor

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import EnvSpec
from quarl_device.errors import UsageError
from quarl_export.calibration import CalibrationData, load_npz, play
from quarl_export.calibration import data as data_module
from quarl_export.calibration.coverage import MAX_DIMENSIONS, told, visited_shares
from quarl_export.calibration.digests import episode_digests, row_digests
from quarl_export.calibration.hold_out import HELD_OUT, MIN_HELD_OUT, MIN_ROWS, hold_out
from quarl_export.calibration.play import FEW_EPISODES

UNKNOWN = "between those that were calibrated with"
LENGTHS = st.lists(st.integers(1, 60), min_size=2, max_size=40).filter(lambda lengths: sum(lengths) >= MIN_ROWS)

play_module = importlib.import_module("quarl_export.calibration.play")


def pendulum():
    """An actor of Pendulum-v1, which has one torque."""
    policy = tanh_actor()
    action = ActionSpec(kind="box", shape=(1,), low=(-2.0,), high=(2.0,), scale=(2.0,), offset=(0.0,))
    weights = {**policy.weights, "d/kernel": policy.weights["d/kernel"][:, :1], "d/bias": policy.weights["d/bias"][:1]}
    return dataclasses.replace(
        policy,
        contract=dataclasses.replace(policy.contract, action=action),
        graph=dataclasses.replace(policy.graph, weight_shapes={name: w.shape for name, w in weights.items()}),
        weights=weights,
    )


def numbers(lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


def digests(count, seed=0):
    """Of rows that are all different."""
    return row_digests({"x": np.random.default_rng(seed).normal(size=(count, 2))})


# ------------------------------------------------------------------ the rule


@given(LENGTHS, st.randoms(use_true_random=False))
def test_no_episode_is_on_both_sides(lengths, random):
    """Rows of several environments may take turns."""
    episodes = numbers(lengths)
    order = list(range(len(episodes)))
    random.shuffle(order)
    episodes = episodes[order]
    found = hold_out(digests(len(episodes)), episodes)
    if found.of == "of other episodes":
        assert not set(episodes[found.rows]) & set(episodes[~found.rows])


@given(LENGTHS)
def test_something_is_held_out_and_most_is_left(lengths):
    found = hold_out(digests(sum(lengths)), numbers(lengths))
    assert MIN_HELD_OUT <= found.rows.mean() <= 0.5


def test_a_quarter_of_equal_episodes_is_held_out():
    found = hold_out(digests(400), numbers([10] * 40))
    assert (found.rows.mean(), found.of) == (HELD_OUT, "of other episodes")


def test_long_and_short_episodes_are_both_held_out():
    episodes = numbers([20, 500] * 8)
    held = np.unique(episodes[hold_out(digests(len(episodes)), episodes).rows])
    assert {number % 2 for number in held} == {0, 1}


@pytest.mark.parametrize("episodes", [None, np.zeros(64, np.int64)])
def test_without_enough_episodes_rows_are_held_out_and_that_is_said(episodes):
    found = hold_out(digests(64), episodes)
    assert (found.of, found.rows.mean()) == (UNKNOWN, HELD_OUT)


@given(LENGTHS, st.booleans(), st.randoms(use_true_random=False))
def test_what_is_held_out_does_not_depend_on_the_order(lengths, marked, random):
    """Nor on what episodes are called."""
    rows, episodes = digests(sum(lengths)), numbers(lengths)
    order = list(range(len(rows)))
    random.shuffle(order)
    names = np.array(random.sample(range(1000), len(lengths)))
    first = hold_out(rows, episodes if marked else None)
    second = hold_out(rows[order], names[episodes][order] if marked else None)
    assert first.of == second.of
    assert np.array_equal(first.rows[order], second.rows)


def test_equal_rows_are_on_one_side():
    rows = np.repeat(digests(10), 8)
    held = hold_out(rows).rows
    assert not set(rows[held].tolist()) & set(rows[~held].tolist())
    assert hold_out(np.repeat(digests(1), 64)) is None, "there is nothing to judge one observation by"


def test_too_few_rows_are_not_divided():
    assert hold_out(digests(MIN_ROWS - 1)) is None
    assert hold_out(digests(MIN_ROWS)) is not None


# ------------------------------------------------------------------ data


def observations(count):
    return {"observation": np.arange(count * 4, dtype=np.float32).reshape(count, 4)}


def test_data_are_divided_by_episodes_and_say_so():
    contract, episodes = mlp().contract, numbers([5, 7, 3, 9, 4, 6, 2, 8])
    data = CalibrationData.checked(contract, observations(len(episodes)), source="t", episodes=episodes)
    calibrate, held = data.split()
    assert calibrate.count + held.count == data.count
    of_row = {float(row[0]): number for row, number in zip(data.rows["observation"], episodes, strict=True)}
    sides = [{of_row[float(row[0])] for row in side.rows["observation"]} for side in (calibrate, held)]
    assert not sides[0] & sides[1]
    assert held.title == "held-out observations of other episodes"


def test_few_rows_judge_themselves_and_say_so():
    calibrate, held = CalibrationData.checked(mlp().contract, observations(7), source="t").split()
    assert calibrate.count == held.count == 7
    assert held.title == "observations that were calibrated with"


def test_thinned_rows_stay_on_their_side(monkeypatch):
    episodes = numbers([10] * 40)
    whole = CalibrationData.checked(mlp().contract, observations(400), source="t", episodes=episodes)
    monkeypatch.setattr(data_module, "MAX_ROWS", 100)
    thin = CalibrationData.checked(mlp().contract, observations(400), source="t", episodes=episodes)
    assert thin.count == 100
    for few, all_ in zip(thin.split(), whole.split(), strict=True):
        assert set(few.rows["observation"][:, 0].tolist()) <= set(all_.rows["observation"][:, 0].tolist())


def test_as_many_episode_numbers_as_rows():
    with pytest.raises(UsageError, match=r"\(3,\) episode numbers for 9 rows"):
        CalibrationData.checked(mlp().contract, observations(9), source="t", episodes=np.arange(3))


def test_thinning_keeps_the_extremes_whatever_the_order(monkeypatch):
    monkeypatch.setattr(data_module, "MAX_ROWS", 60)
    array = np.random.default_rng(2).normal(size=(900, 4)).astype(np.float32)
    kept = []
    for order in (np.arange(900), np.random.default_rng(3).permutation(900)):
        data = CalibrationData.checked(mlp().contract, {"observation": array[order]}, source="t")
        calibrate, held = data.split()
        assert data.count == 60
        assert held.count > 5
        kept.append(sorted(map(tuple, data.rows["observation"].tolist())))
    assert kept[0] == kept[1]
    sides = ~hold_out(row_digests({"observation": array})).rows
    seen = calibrate.rows["observation"]
    assert np.array_equal(seen.min(axis=0), array[sides].min(axis=0))
    assert np.array_equal(seen.max(axis=0), array[sides].max(axis=0))


def test_rows_are_capped_in_bytes_too(monkeypatch):
    monkeypatch.setattr(data_module, "MAX_BYTES", 50 * 4 * 4)
    assert CalibrationData.checked(mlp().contract, observations(400), source="t").count == 50
    assert play(mlp(actions=2), EnvSpec(env_id="CartPole-v1"), steps=400).count == 50


def test_a_digest_is_of_all_keys_and_of_nothing_else():
    one = {"a": np.arange(6.0).reshape(3, 2), "b": np.array([True, False, True])}
    assert len(set(row_digests(one).tolist())) == 3
    assert not (row_digests(one) == row_digests({**one, "b": ~one["b"]})).any()
    assert np.array_equal(row_digests({key: array[::-1] for key, array in one.items()}), row_digests(one)[::-1])


def test_an_episodes_digest_is_of_its_rows_in_any_order():
    rows = digests(6)
    found = episode_digests(rows, np.array([0, 0, 1, 1, 1, 2]))
    assert len(set(found.tolist())) == 3
    assert np.array_equal(found, episode_digests(rows[::-1], np.array([2, 1, 1, 1, 0, 0])))


# ------------------------------------------------------------------ npz


@pytest.mark.parametrize("name", ["start", "episode"])
def test_an_npz_may_say_which_rows_are_of_one_episode(tmp_path, name):
    episodes = numbers([12] * 8)
    marks = {"episode": episodes, "start": np.diff(episodes, prepend=-1) > 0}[name]
    for key in ("observation", "arr_0"):
        np.savez(tmp_path / "rows.npz", **{key: observations(96)["observation"], name: marks})
        data = load_npz(tmp_path / "rows.npz", mlp().contract)
        assert data.split()[1].title == "held-out observations of other episodes"
        assert data.held_out.rows.reshape(8, 12).all(axis=1).sum() == 2


@pytest.mark.parametrize(
    ("name", "marks", "says"),
    [
        ("start", np.zeros(16, np.int64), r"'start' is int64 \[16\], expected booleans \[rows\]"),
        ("episode", np.zeros(16), r"'episode' is float64 \[16\], expected integers \[rows\]"),
        ("episode", np.zeros((16, 1), np.int64), r"'episode' is int64 \[16, 1\]"),
        ("start", np.zeros(15, np.bool_), r"\(15,\) episode numbers for 16 rows"),
    ],
)
def test_marks_that_do_not_hold_are_refused(tmp_path, name, marks, says):
    np.savez(tmp_path / "rows.npz", observation=observations(16)["observation"], **{name: marks})
    with pytest.raises(UsageError, match=says):
        load_npz(tmp_path / "rows.npz", mlp().contract)


def test_an_observation_may_be_called_as_a_mark_is(tmp_path):
    contract = dataclasses.replace(mlp().contract, observations=(ObservationSpec(key="start", shape=(4,)),))
    np.savez(tmp_path / "rows.npz", start=observations(16)["observation"])
    assert load_npz(tmp_path / "rows.npz", contract).rows["start"].shape == (16, 4)


# ------------------------------------------------------------------ playing


@pytest.mark.parametrize("steps", [2, 7, 8, 60, 400])
def test_what_is_played_to_judge_by_is_of_episodes_of_its_own(steps):
    """CartPole's first observation is within 0.05, and nothing it does takes it back there at once."""
    data = play(mlp(actions=2), EnvSpec(env_id="CartPole-v1"), steps=steps, seed=3)
    assert data.count == steps
    if steps < MIN_ROWS:
        assert data.held_out is None
        return
    held = data.held_out.rows
    assert held.sum() == steps // 4
    assert not (np.diff(held.astype(int)) < 0).any(), "held out are the last"
    first = data.rows["observation"][held.argmax()]
    assert (np.abs(first) <= 0.05).all(), "an episode begins where what is held out does"
    # An upright pole's episode of CartPole begins within 0.05 in all four dimensions.
    begun = int((np.abs(data.rows["observation"][held]) <= 0.05).all(axis=1).sum())
    told = re.fullmatch(r"held-out observations of (only )?(\d+) other episodes?( \(few.*--steps.*\))?",
                        data.split()[1].title)  # fmt: skip
    assert told
    assert 1 <= int(told[2]) <= begun
    assert bool(told[1]) == bool(told[3]) == (int(told[2]) < FEW_EPISODES)


def test_many_steps_are_thinned_while_they_are_played(monkeypatch):
    """They lie evenly between the steps, and the last quarter of these is held out."""
    whole = play(mlp(actions=2), EnvSpec(env_id="CartPole-v1"), steps=400, seed=3)
    monkeypatch.setattr(data_module, "MAX_ROWS", 40)
    thin = play(mlp(actions=2), EnvSpec(env_id="CartPole-v1"), steps=400, seed=3)
    picked = np.linspace(0, 399, 40).astype(int)
    assert np.array_equal(thin.rows["observation"], whole.rows["observation"][picked])
    assert np.array_equal(thin.held_out.rows, picked >= 300)


def test_playing_takes_the_memory_of_what_is_kept(monkeypatch):
    monkeypatch.setattr(data_module, "MAX_BYTES", 64 * 1024)
    policy, spec = mlp(actions=2), EnvSpec(env_id="CartPole-v1")
    play(policy, spec, steps=100)
    tracemalloc.start()
    try:
        play(policy, spec, steps=20_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000, "20,000 arrays of a row each take 2.5 MB"
    finally:
        tracemalloc.stop()


@pytest.fixture
def episodes(monkeypatch):
    """What is played, in order: (start seed, steps, actions) of each episode; the policy's own actions are all 0.5."""
    played = []
    original = play_module._episode

    def recorded(world, contract, choose, kept, end, *, seed):
        actions, before = [], kept.seen

        def chosen(row):
            actions.append(float(choose(row)[0]))
            return np.float32(actions[-1:])

        original(world, contract, chosen, kept, end, seed=seed)
        played.append((seed, kept.seen - before, actions))

    monkeypatch.setattr(play_module, "_greedy", lambda policy: lambda row: np.float32([0.5]))
    monkeypatch.setattr(play_module, "_episode", recorded)
    return played


def test_however_long_episodes_are_each_way_has_two_in_both_parts(episodes):
    """Pendulum's episodes have 200 steps: two of them would be all that is calibrated with."""
    data = play(pendulum(), EnvSpec(env_id="Pendulum-v1"), steps=400, seed=5)
    assert [steps for _, steps, _ in episodes] == [50] * 6 + [16] * 6 + [4]
    assert [seed for seed, _, _ in episodes] == list(range(5, 18)), "each begins from a seed of its own"
    assert data.split()[1].title.startswith("held-out observations of only 7 other episodes")


def test_ways_take_turns_and_a_quarter_of_noisy_actions_is_random(episodes):
    play(pendulum(), EnvSpec(env_id="Pendulum-v1"), steps=6_000)
    calibrated = int(np.searchsorted(np.cumsum([steps for _, steps, _ in episodes]), 4_500)) + 1
    for part in (episodes[:calibrated], episodes[calibrated:]):
        assert len(part) >= 6
        for place, (_, _, actions) in enumerate(part):
            random = np.mean(np.array(actions) != 0.5) if actions else 0.0
            low, high = ((0.0, 0.0), (0.1, 0.4), (1.0, 1.0))[place % 3]
            assert low <= random <= high or len(actions) < 100, (place, random)


def test_playing_that_takes_too_long_fails_and_says_what_to_do(monkeypatch):
    monkeypatch.setattr(play_module, "MAX_S", -1.0)
    with pytest.raises(UsageError, match=r"more than -1 s for 64 of 200 steps") as caught:
        play(pendulum(), EnvSpec(env_id="Pendulum-v1"), steps=200)
    assert "--steps" in caught.value.hint


def test_episodes_are_played_to_their_ends_where_there_are_steps(episodes):
    """What comes late in an episode is seen."""
    play(pendulum(), EnvSpec(env_id="Pendulum-v1"), steps=6_000)
    assert sum(steps == 201 for _, steps, _ in episodes) > 20


# ------------------------------------------------------------------ coverage


def spec(low, high, shape=(3,), **changes):
    return ObservationSpec(key="x", shape=shape, low=low, high=high, **changes)


def data_of(one, values):
    return CalibrationData(rows={one.key: np.asarray(values, one.dtype)}, source="t")


def test_the_share_of_bounds_is_told_for_each_dimension():
    one = spec((-1.0, -1.0, 0.0), (1.0, 3.0, 10.0))
    shares = visited_shares((one,), data_of(one, [[-1, 0, 2], [1, 1, 3]]))
    assert shares == {"x": (1.0, 0.25, 0.1)}
    assert told(shares) == "calibration visited 10% of the bounds of observation 'x'[2], the least of all"


def test_bounds_that_are_none_or_a_types_limits_say_nothing():
    for one in (spec(None, None), spec((-3e38,), (3e38,))):
        assert visited_shares((one,), data_of(one, np.zeros((2, 3)))) == {}
    assert told({}) == ""


def test_bounds_of_one_value_are_visited_by_being_there():
    one = spec((0.0, 0.0, 1.0), (1.0, 1.0, 1.0))
    assert visited_shares((one,), data_of(one, [[0, 0, 1], [1, 0, 1]])) == {"x": (1.0, 0.0, 1.0)}


def test_an_image_has_one_share():
    policy = image_policy()
    assert np.prod(policy.contract.observations[0].shape) > MAX_DIMENSIONS
    data = CalibrationData.checked(policy.contract, rows(policy, 4), source="t")
    shares = visited_shares(policy.contract.observations, data)
    assert len(shares["observation"]) == 1
    assert shares["observation"][0] > 0.9
    assert told(shares).endswith("of the bounds of observation 'observation'")


def test_frames_of_a_stack_are_frames():
    one = spec((0.0,), (10.0,), stack=2)
    shares = visited_shares((one,), data_of(one, [[[0, 1, 2], [5, 1, 4]], [[5, 1, 4], [10, 1, 6]]]))
    assert shares == {"x": (1.0, 0.0, 0.4)}


def test_a_share_is_never_more_than_all():
    one = spec((-1.0,), (1.0,))
    assert visited_shares((one,), data_of(one, [[-9, -9, 0], [9, 0, 0]])) == {"x": (1.0, 1.0, 0.0)}
