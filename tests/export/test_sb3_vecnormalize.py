"""VecNormalize's statistics are read from its pickle without executing it."""

import pickle

import numpy as np
import pytest
from sb3_factory import (
    SB3,
    Built,
    Call,
    Name,
    Raw,
    array,
    box,
    doubled,
    dqn_settings,
    field,
    pickled,
    write_agent,
)

from quarl_device.contract import ObservationSpec
from quarl_device.errors import ModelFileError, NonFiniteError, SpaceMismatch, UnsafeSource, UnsupportedModel
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.sb3 import vecnormalize as vecnormalize_module
from quarl_export.importers.sb3.importer import read_sb3
from quarl_export.importers.sb3.observations import Seen, filled, normalizer
from quarl_export.importers.sb3.spaces import Box
from quarl_export.importers.sb3.vecnormalize import Statistics, VecNormalize, read_vecnormalize

CLASS = Name("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize")
RUNNING = Name("stable_baselines3.common.running_mean_std", "RunningMeanStd")


def statistics(mean, var, count=7.0):
    return Built(Call(RUNNING, ()), {"mean": array(mean, "f8"), "var": array(var, "f8"), "count": count})


def write(path, **changed):
    state = {"obs_rms": statistics([1.0, 2.0], [4.0, 0.0]), "clip_obs": 5.0, "epsilon": 0.25, "norm_obs": True}
    path.write_bytes(pickled(Built(Call(CLASS, ()), {**state, **changed})))
    return path


def test_what_vecnormalize_itself_wrote():
    found = read_vecnormalize(SB3 / "ppo_mixed.vecnormalize.pkl")
    assert (set(found.statistics), found.clip) == ({"vector"}, 10.0)
    vector = found.statistics["vector"]
    assert vector.offset.shape == vector.scale.shape == (5,)
    assert vector.count > 60
    assert set(read_vecnormalize(SB3 / "a2c_narrow.vecnormalize.pkl").statistics) == {"observation"}
    assert not read_vecnormalize(SB3 / "ppo_sde_squashed.vecnormalize.pkl").statistics


def test_mean_and_variance_become_offset_and_scale(tmp_path):
    found = read_vecnormalize(write(tmp_path / "v.pkl"))
    one = found.statistics["observation"]
    np.testing.assert_allclose(one.offset, [1, 2])
    np.testing.assert_allclose(one.scale, [1 / np.sqrt(4.25), 2])
    assert (one.count, found.clip) == (7.0, 5.0)


def test_several_keys_of_which_some_are_normalised(tmp_path):
    both = {"a": statistics([1.0], [1.0]), "b": statistics([2.0], [1.0])}
    assert set(read_vecnormalize(write(tmp_path / "v.pkl", obs_rms=both)).statistics) == {"a", "b"}
    assert set(read_vecnormalize(write(tmp_path / "v.pkl", obs_rms=both, norm_obs_keys=["b"])).statistics) == {"b"}
    with pytest.raises(ModelFileError, match="normalised"):
        read_vecnormalize(write(tmp_path / "v.pkl", obs_rms=both, norm_obs_keys=["c"]))


def test_statistics_that_are_no_numbers(tmp_path):
    for mean, var in (([np.nan], [1.0]), ([1.0], [np.inf])):
        with pytest.raises(NonFiniteError, match="NaN or Inf"):
            read_vecnormalize(write(tmp_path / "v.pkl", obs_rms=statistics(mean, var)))


@pytest.mark.parametrize(
    "changed",
    [
        {"obs_rms": statistics([1.0], [-1.0])},
        {"obs_rms": statistics([1.0, 2.0], [1.0])},
        {"obs_rms": None},
        {"obs_rms": {"a": 3}},
        {"obs_rms": Built(Call(RUNNING, ()), {"mean": 1.0, "var": array([1.0])})},
        {"obs_rms": Call(RUNNING, ())},
        {"clip_obs": 0.0},
        {"clip_obs": float("inf")},
        {"clip_obs": float("nan")},
        {"clip_obs": "10"},
        {"epsilon": None},
        {"epsilon": -1e-8},
    ],
)
def test_what_does_not_hold_is_refused(tmp_path, changed):
    with pytest.raises(ModelFileError):
        read_vecnormalize(write(tmp_path / "v.pkl", **changed))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["clip_obs", "epsilon", "norm_obs_keys", "obs_rms"])
def test_values_that_are_bombs_are_one_short_error(tmp_path, name):
    for bomb in (Raw(doubled()), Raw(b"]" + doubled() + b"a"), Raw(b"\x8b\xb8\x0b\0\0" + b"\x7f" * 3_000)):
        with pytest.raises(ModelFileError) as caught:
            read_vecnormalize(write(tmp_path / "v.pkl", **{name: bomb}))
        assert len(caught.value.message) < 400


def test_other_pickles_and_files_are_refused(tmp_path):
    path = tmp_path / "v.pkl"
    for content in (b"", b"junk", pickle.dumps({"mean": 1}), pickled(Call(RUNNING, ())), pickled(Call(CLASS, ()))):
        path.write_bytes(content)
        with pytest.raises(ModelFileError):
            read_vecnormalize(path)
    for missing in (tmp_path, tmp_path / "none.pkl"):
        with pytest.raises(ModelFileError):
            read_vecnormalize(missing)


@pytest.mark.parametrize("size", [0.1, 0.5, 0.9, 0.999])
def test_cut_off(tmp_path, size):
    path = write(tmp_path / "v.pkl")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * size)])
    with pytest.raises(ModelFileError, match=r"damaged|no end"):
        read_vecnormalize(path)


@pytest.mark.parametrize("name", [("os", "system"), ("builtins", "eval"), ("__main__", "MyEnv"), ("torch", "load")])
def test_a_pickle_that_names_anything_else_is_refused_by_name(tmp_path, name):
    path = write(tmp_path / "v.pkl", extra=Call(Name(*name), (f"touch {tmp_path / 'harmed'}",)))
    with pytest.raises(UnsafeSource, match=rf"{name[0]}\.{name[1]}.*nothing of it was executed"):
        read_vecnormalize(path)
    assert not (tmp_path / "harmed").exists()


def test_the_file_is_capped(tmp_path, monkeypatch):
    monkeypatch.setattr(vecnormalize_module, "MAX_BYTES", 10)
    with pytest.raises(ModelFileError, match="cap of 10 bytes"):
        read_vecnormalize(write(tmp_path / "v.pkl"))


def seen(shape, *, image=False, dtype="float32", stack=1, frame=None, fill=None):
    low, high = (np.zeros(shape), np.full(shape, 255)) if dtype == "uint8" else (np.full(shape, -9), np.full(shape, 9))
    own = (*shape[1:], shape[0]) if image else (int(np.prod(shape)),)
    spec = ObservationSpec(key="x", shape=frame or (own if image else shape), dtype=dtype, stack=stack, stack_fill=fill)
    return Seen(box=Box(shape=shape, dtype=dtype, low=low, high=high), spec=spec, shape=own, is_image=image)


def constants(each, mean, *, clip=10.0, divides_images=True):
    mean = np.asarray(mean, np.float64)
    statistics = {} if mean.size == 0 else {"x": Statistics(offset=mean, scale=mean + 1, count=1.0)}
    found = VecNormalize(statistics=statistics, clip=clip)
    return normalizer((each,), found, divides_images=divides_images, what="it")


def test_statistics_of_images_are_turned_round_with_them():
    mean = np.arange(24.0).reshape(2, 3, 4)
    found = constants(seen((2, 3, 4), image=True), mean)
    assert found.offset["x"] == tuple(mean.transpose(1, 2, 0).ravel())
    assert found.scale["x"] == tuple(mean.transpose(1, 2, 0).ravel() + 1)


def test_statistics_of_one_frame_serve_every_frame():
    found = constants(seen((6,), stack=3, frame=(2,)), [1.0, 2.0])
    assert found.offset["x"] == (1.0, 2.0) * 3
    found = constants(seen((2, 4), stack=2, frame=(2, 2)), [[1.0, 2.0], [3.0, 4.0]])
    assert found.offset["x"] == (1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0)


def test_statistics_of_something_else_are_refused():
    for each, mean in ((seen((6,)), [1.0, 2.0]), (seen((6,), stack=3, frame=(2,)), [1.0] * 3)):
        with pytest.raises(SpaceMismatch, match="saved with this agent"):
            constants(each, mean)
    one = Statistics(offset=np.zeros(1), scale=np.ones(1), count=1.0)
    with pytest.raises(SpaceMismatch, match="'y'"):
        normalizer((seen((6,)),), VecNormalize(statistics={"y": one}, clip=1.0), divides_images=True, what="it")


def test_an_image_is_divided_or_normalised_but_not_both():
    image = seen((2, 3, 4), image=True, dtype="uint8")
    mean = np.zeros((2, 3, 4))
    with pytest.raises(UnsupportedModel, match="divided by 255"):
        constants(image, mean)
    assert len(constants(image, mean, divides_images=False).scale["x"]) == 24
    assert constants(image, []).scale["x"] == (1 / 255,)
    assert constants(image, [], divides_images=False).where == "none"


def test_a_clip_that_would_cut_images_is_refused():
    vector, image = seen((2,)), seen((2, 3, 4), image=True, dtype="uint8")
    vector = Seen(box=vector.box, spec=ObservationSpec(key="v", shape=(2,)), shape=(2,), is_image=False)
    one = {"v": Statistics(offset=np.zeros(2), scale=np.ones(2), count=1.0)}
    found = normalizer((vector, image), VecNormalize(statistics=one, clip=1.0), divides_images=True, what="it")
    assert found.clip == 1.0
    with pytest.raises(UnsupportedModel, match="clip"):
        normalizer((vector, image), VecNormalize(statistics=one, clip=0.9), divides_images=True, what="it")


@pytest.mark.parametrize(("frame", "stack"), [((2, 3, 4), 1), ((1, 3, 4), 2), ((3, 4), 2), ((3, 4, 1), 2)])
def test_statistics_per_pixel_lie_where_the_network_has_the_pixel(frame, stack):
    """Whichever axes the environment has: constants are of the graph's input, channels last."""
    mean = np.arange(24.0).reshape(2, 3, 4)
    found = constants(seen((2, 3, 4), image=True, stack=stack, frame=frame), mean)
    assert found.offset["x"] == tuple(mean.transpose(1, 2, 0).ravel())


def test_zeros_before_an_episode_are_zeros_of_what_was_stacked():
    raw = seen((6,), stack=3, frame=(2,), fill=(0.0,))
    after = VecNormalize(statistics={"x": Statistics(offset=np.arange(6.0), scale=np.ones(6), count=1.0)}, clip=9.0)
    before = VecNormalize(
        statistics={"x": Statistics(offset=np.array([3.0, 4.0]), scale=np.ones(2), count=1.0)}, clip=9.0
    )
    for statistics_, fill in ((None, (0.0,)), (after, (0.0,)), (before, (3.0, 4.0))):
        [found] = filled((raw,), statistics_, what="it")
        assert found.spec.stack_fill == fill
    single = seen((2,))
    assert filled((single,), before, what="it") == (single,)
    whole = seen((6,), stack=3, frame=(2,), fill=(0.0,), dtype="uint8")
    with pytest.raises(UnsupportedModel, match="is uint8 and was normalised before it was stacked"):
        filled((whole,), before, what="it")


@pytest.mark.parametrize(
    ("dtype", "mean", "var", "warned"),
    [
        ("f8", 1.7e9, 25.0, True),
        ("f8", 1.7e9, 1e10, False),
        ("f8", 3.0, 1.0, False),
        ("f4", 1.7e9, 25.0, False),  # the environment itself has no finer ones
    ],
)
def test_observations_that_float32_cannot_tell_apart_are_warned_of(tmp_path, dtype, mean, var, warned):
    space = field(box([0.0, -5, -5, -5], [2e9, 5, 5, 5], dtype))
    agent = write_agent(tmp_path / "a.zip", settings=dqn_settings(observation_space=space))
    means, variances = ([value, *rest] for value, rest in ((mean, [0.0] * 3), (var, [1.0] * 3)))
    given = write(tmp_path / "v.pkl", obs_rms=statistics(means, variances), clip_obs=10.0, epsilon=1e-8)
    warnings = read_sb3(agent, options=ImportOptions(vecnormalize=given)).provenance["warnings"]
    found = [warning for warning in warnings if "float32 has steps of 128: 26 of its standard deviations" in warning]
    assert len(found) == warned
    assert not any("float32 has" in warning for warning in set(warnings) - set(found))
