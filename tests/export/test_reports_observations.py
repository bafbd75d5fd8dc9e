"""Observations of a comparison: recorded, played, or drawn; what does not fit is a clear error."""

import itertools

import numpy as np
import pytest
from report_pairs import pair

from quarl_device.contract import ObservationSpec
from quarl_device.environments import EnvSpec
from quarl_device.errors import NonFiniteError, SpaceMismatch, UnknownEnvironment, UsageError
from quarl_export.reports.observations import by_default, by_playing, from_archive, stacked_shape
from quarl_export.reports.side import read_side

VECTOR = (ObservationSpec(key="observation", shape=(4,)),)
BOTH = (ObservationSpec(key="state", shape=(3,)), ObservationSpec(key="image", shape=(2, 2, 1), dtype="uint8", stack=2))


def saved(folder, **arrays):
    path = folder / "seen.npz"
    np.savez(path, **arrays)
    return path


def test_arrays_by_key(tmp_path):
    path = saved(tmp_path, state=np.zeros((5, 3)), image=np.zeros((5, 2, 2, 2), np.uint8), other=np.ones(2))
    found = from_archive(path, BOTH)
    assert found.rows == 5
    assert found.recorded
    assert found.arrays["image"].shape == (5, 2, 2, 2, 1)
    assert "seen.npz" in found.source


def test_a_single_array_is_a_single_keys(tmp_path):
    assert from_archive(saved(tmp_path, arr_0=np.zeros((7, 4))), VECTOR).rows == 7


def test_too_many_rows_are_thinned_out_evenly(tmp_path):
    path = saved(tmp_path, observation=np.arange(400.0).reshape(100, 4))
    found = from_archive(path, VECTOR, limit=10).arrays["observation"]
    assert len(found) == 10
    assert found[0, 0] == 0
    assert found[-1, 0] == 396


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"observation": np.zeros((5, 3))}, r"shape \[5, 3\], expected \[rows, 4\]"),
        ({"observation": np.zeros((0, 4))}, "no rows"),
        ({"observation": np.float32(1)}, "shape"),
        ({"observation": np.zeros((5, 2, 2))}, r"shape \[5, 2, 2\], expected \[rows, 4\]"),
        ({"observation": np.full((5, 4), 1e19)}, "beyond"),
        ({"observation": np.array([["a"] * 4])}, "expected numbers"),
        ({"x": np.zeros((5, 4)), "y": np.zeros((5, 4))}, r"no array 'observation', .*found 'x', 'y'"),
    ],
)
def test_archives_that_do_not_fit(tmp_path, arrays, says):
    with pytest.raises(UsageError, match=says):
        from_archive(saved(tmp_path, **arrays), VECTOR)


def test_nan_is_refused_and_the_row_named(tmp_path):
    with pytest.raises(NonFiniteError, match="first in row 0"):
        from_archive(saved(tmp_path, observation=np.full((5, 4), np.nan)), VECTOR)


def test_the_same_numbers_in_another_shape_are_other_observations(tmp_path):
    """Reshaped in silence, every row would be another picture."""
    spec = (ObservationSpec(key="observation", shape=(2, 3)),)
    assert from_archive(saved(tmp_path, observation=np.zeros((5, 2, 3))), spec).rows == 5
    for shape in ((5, 3, 2), (5, 6), (5, 1, 2, 3)):
        with pytest.raises(UsageError, match=r"expected \[rows, 2, 3\]"):
            from_archive(saved(tmp_path, observation=np.zeros(shape)), spec)


def test_numbers_that_a_pixel_does_not_hold_are_refused(tmp_path):
    spec = (ObservationSpec(key="observation", shape=(2, 2), dtype="uint8"),)
    assert from_archive(saved(tmp_path, observation=np.full((3, 2, 2), 255.0)), spec).arrays[
        "observation"
    ].dtype == np.dtype("uint8")
    for wrong in (0.5, -1.0, 256.0):
        with pytest.raises(UsageError, match="uint8 does not hold"):
            from_archive(saved(tmp_path, observation=np.full((3, 2, 2), wrong)), spec)


def test_rows_that_differ(tmp_path):
    path = saved(tmp_path, state=np.zeros((5, 3)), image=np.zeros((4, 2, 2, 2), np.uint8))
    with pytest.raises(UsageError, match="differ in their number of rows"):
        from_archive(path, BOTH)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 broken"])
def test_files_that_are_no_archive(tmp_path, content):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"is not an \.npz"):
        from_archive(path, VECTOR)


def test_missing_and_directory(tmp_path):
    with pytest.raises(UsageError, match="not found"):
        from_archive(tmp_path / "none.npz", VECTOR)
    with pytest.raises(UsageError, match="is a directory"):
        from_archive(tmp_path, VECTOR)


def test_pickles_are_never_opened(tmp_path):
    path = saved(tmp_path, observation=np.array([{"a": 1}] * 4, dtype=object))
    with pytest.raises(UsageError, match="plain arrays"):
        from_archive(path, VECTOR)


def test_by_default_golden_ones_come_first_and_the_rest_lies_within_the_bounds():
    side = read_side(pair("dueling")[1])
    found = by_default(side, rows=50)
    array = found.arrays["observation"]
    assert array.shape == (50, 6)
    assert np.array_equal(array[:4], side.golden.observations["observation"])
    assert np.abs(array).max() <= 1
    assert not found.recorded
    assert "4 golden observations and 46 random ones" in found.source


def test_images_are_drawn_as_whole_numbers():
    array = by_default(read_side(pair("pixels")[1]), rows=20).arrays["image"]
    assert array.dtype == np.uint8
    assert array.min() < 20
    assert array.max() > 235


def test_a_dimension_without_bounds_is_drawn_where_the_golden_ones_are():
    side = read_side(pair("cartpole")[1])
    array = by_default(side, rows=200).arrays["observation"]
    golden = side.golden.observations["observation"]
    assert np.isfinite(array).all()
    assert np.abs(array[:, 1]).max() < 3 * np.abs(golden[:, 1]).max() + 1


def test_the_same_seed_draws_the_same():
    side = read_side(pair("arm")[1])
    first, second, other = (by_default(side, rows=20, seed=seed).arrays["state"] for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_playing_keeps_what_the_environment_shows_and_repeats():
    def act(shown):
        return int(shown["observation"][2] > 0)

    first, second = (
        by_playing(EnvSpec(env_id="CartPole-v1"), VECTOR, act, rows=60, seed=3).arrays["observation"] for _ in range(2)
    )
    assert first.shape == (60, 4)
    assert np.array_equal(first, second)
    assert len(np.unique(first, axis=0)) > 50


def test_playing_another_environment():
    with pytest.raises(SpaceMismatch, match="Acrobot-v1 shows"):
        by_playing(EnvSpec(env_id="Acrobot-v1"), VECTOR, lambda _: 0)
    with pytest.raises(UnknownEnvironment):
        by_playing(EnvSpec(env_id="CartPole-v99"), VECTOR, lambda _: 0)


@pytest.mark.parametrize("fill", [None, (0.0,)])
def test_playing_stacks_frames_as_the_device_does(fill):
    spec = ObservationSpec(key="state", shape=(4,), stack=3, stack_fill=fill)
    shown = []

    def act(row):
        shown.append(row["state"])
        return int(row["state"][-1, 2] > 0)

    array = by_playing(EnvSpec(env_id="CartPole-v1"), (spec,), act, rows=200, seed=3).arrays["state"]
    assert array.shape == (200, 3, 4)
    assert array.dtype == np.float32
    assert {row.shape for row in shown} == {(3, 4)}
    follows = np.array([np.array_equal(later[:2], before[1:]) for before, later in itertools.pairwise(array)])
    begins = array[1:][~follows]
    assert 1 <= len(begins) < 20
    for stack in (array[0], *begins):
        before = stack[2] if fill is None else np.zeros(4)
        assert np.array_equal(stack[:2], [before, before])
        assert stack[2].any()


def test_stacks_lie_in_front_and_joined_ones_are_taken_apart(tmp_path):
    assert stacked_shape(BOTH[1]) == (2, 2, 2, 1)
    assert stacked_shape(VECTOR[0]) == (4,)
    state, frames = np.zeros((3, 3)), np.arange(24).reshape(3, 2, 2, 2, 1)
    joined = np.concatenate([frames[:, 0], frames[:, 1]], axis=-1)
    apart = from_archive(saved(tmp_path, state=state, image=frames), BOTH).arrays["image"]
    together = from_archive(saved(tmp_path, state=state, image=joined), BOTH).arrays["image"]
    assert np.array_equal(apart, frames)
    assert np.array_equal(together, frames)
