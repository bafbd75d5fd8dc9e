"""Calibration data are checked; ranges follow from them by stated rules, whatever their order."""

import dataclasses
import types

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from policy_factory import dueling, image_policy, mixed, mlp, rows, tanh_actor

from quarl_device.contract import ActionSpec, Normalizer, ObservationSpec
from quarl_device.environments import EnvSpec
from quarl_device.errors import NonFiniteError, SpaceMismatch, UnknownEnvironment, UsageError
from quarl_device.flatbuffer import Graph, Tensor
from quarl_device.preprocess import bind_inputs, to_tensor
from quarl_export.acting import greedy_actions
from quarl_export.calibration import CalibrationData, RangeRule, load_npz, play, with_input_normalizer
from quarl_export.calibration import data as data_module
from quarl_export.calibration.data import by_single_key
from quarl_export.ir import GraphInput, run_reference
from quarl_export.ir.reference import normalize, run_graph
from quarl_export.metadata import complete_policy
from quarl_export.pipeline import ExportOptions, prepare
from quarl_export.ranges import MIN_WIDTH, _percentiles, find_ranges
from quarl_export.schemes import SchemeOptions

MINMAX = RangeRule()


def pass_through():
    """A network of one input, whose first site is that input."""
    return mlp(inputs=1)


def data_of(policy, count=64, **changes):
    return CalibrationData.checked(policy.contract, rows(policy, count, **changes), source="test")


# ------------------------------------------------------------------ data


def test_data_keep_rows_and_ignore_foreign_keys():
    policy = mixed()
    given_rows = rows(policy, 5)
    data = CalibrationData.checked(policy.contract, {**given_rows, "reward": np.zeros(5)}, source="s")
    assert data.count == 5
    assert set(data.rows) == {"image", "vector"}
    assert np.array_equal(data.rows["vector"], given_rows["vector"])


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, "no array 'observation', .*found none"),
        ({"other": np.zeros((4, 4))}, "no array 'observation', .*found 'other'"),
        ({"observation": np.zeros((4, 5))}, r"shape \[4, 5\], expected \[rows, 4\]"),
        ({"observation": np.zeros(4)}, r"expected \[rows, 4\]"),
        ({"observation": np.zeros((0, 4))}, "0 rows"),
        ({"observation": np.zeros((1, 4))}, "1 row of observations"),
        ({"observation": np.full((3, 4), "x")}, "expected numbers"),
    ],
)
def test_data_that_do_not_hold_are_refused(arrays, says):
    with pytest.raises(UsageError, match=says):
        CalibrationData.checked(mlp().contract, arrays, source="test")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_calibration_is_refused_and_the_row_named(bad):
    array = np.zeros((9, 4), np.float32)
    array[7, 2] = bad
    with pytest.raises(NonFiniteError, match="row 7"):
        CalibrationData.checked(mlp().contract, {"observation": array}, source="test")


def test_keys_must_agree_in_rows():
    arrays = rows(mixed(), 6)
    arrays["vector"] = arrays["vector"][:4]
    with pytest.raises(UsageError, match="differ in their number of rows"):
        CalibrationData.checked(mixed().contract, arrays, source="test")


def test_pixels_must_be_what_their_type_holds():
    pixels = rows(image_policy(), 3)["observation"].astype(np.float32)
    assert CalibrationData.checked(image_policy().contract, {"observation": pixels}, source="t").rows[
        "observation"
    ].dtype == np.dtype("uint8")
    with pytest.raises(UsageError, match="uint8 does not hold"):
        CalibrationData.checked(image_policy().contract, {"observation": pixels / 255}, source="t")


def test_many_rows_are_thinned_and_stay_in_their_order(monkeypatch):
    monkeypatch.setattr(data_module, "MAX_ROWS", 10)
    array = np.arange(400, dtype=np.float32).reshape(100, 4)
    data = CalibrationData.checked(mlp().contract, {"observation": array}, source="t")
    assert data.count == 10
    assert (np.diff(data.rows["observation"][:, 0]) > 0).all()


def test_a_quarter_is_held_out_unless_there_is_too_little():
    calibrate, held = data_of(mlp(), 20).split()
    assert (calibrate.count, held.count) == (15, 5)
    both = data_of(mlp(), 7).split()
    assert [part.count for part in both] == [7, 7]


def test_stacked_frames_are_in_the_last_axis():
    spec = ObservationSpec(key="observation", shape=(5, 5, 1), dtype="uint8", stack=4)
    contract = dataclasses.replace(mlp().contract, observations=(spec,))
    frames = np.zeros((3, 5, 5, 4), np.uint8)
    assert CalibrationData.checked(contract, {"observation": frames}, source="t").count == 3


# ------------------------------------------------------------------ npz


def test_npz_by_key_and_without_a_name_for_a_single_key(tmp_path):
    policy = mixed()
    np.savez(tmp_path / "two.npz", **rows(policy, 4))
    assert load_npz(tmp_path / "two.npz", policy.contract).count == 4
    np.savez(tmp_path / "one.npz", rows(mlp(), 4)["observation"])
    data = load_npz(tmp_path / "one.npz", mlp().contract)
    assert (data.count, data.source) == (4, "npz one.npz")


@pytest.mark.parametrize("name", ["observation", "arr_0"])
def test_a_single_array_without_a_name_of_its_own_serves_a_single_key(name):
    array = np.zeros((4, 2))
    assert by_single_key({name: array}, ["camera"]) == {"camera": array}
    assert by_single_key({name: array}, ["camera", "arm"]) == {name: array}


def test_a_single_array_of_another_name_is_refused_with_both_names(tmp_path):
    np.savez(tmp_path / "actions.npz", next_observation=rows(mlp(), 8)["observation"])
    with pytest.raises(UsageError, match=r"no array 'observation'.*found 'next_observation'") as refused:
        load_npz(tmp_path / "actions.npz", mlp().contract)
    assert refused.value.hint == "name it so when saving: numpy.savez(path, **{'observation': rows})"


def test_a_file_of_many_long_names_is_refused_in_a_short_message(tmp_path):
    np.savez(tmp_path / "many.npz", **{"x" * 100 + str(number): np.zeros(1) for number in range(30)})
    with pytest.raises(UsageError) as refused:
        load_npz(tmp_path / "many.npz", mlp().contract)
    assert len(str(refused.value)) < 1000


# ------------------------------------------------------------------ ranges


@pytest.mark.parametrize("make", [mlp, dueling, tanh_actor, mixed, image_policy])
def test_minmax_is_the_true_extremes_of_every_site(make):
    policy = make()
    data = data_of(policy, 50)
    tensors = run_graph(policy.graph, policy.weights, normalize(policy, data.rows))
    ranges = find_ranges(policy, data, MINMAX, head_margin=0.0)
    assert tuple(ranges) == policy.graph.range_sites()
    for site, (low, high) in ranges.items():
        values = tensors[site]
        assert low <= min(0.0, values.min()) + 1e-6
        assert high >= max(0.0, values.max()) - 1e-6
        assert low == pytest.approx(min(0.0, values.min()), abs=1e-5)
        assert high == pytest.approx(max(0.0, values.max(), low + MIN_WIDTH), abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 150), st.sampled_from(["minmax", "percentile"]))
def test_calibration_does_not_depend_on_order(random, count, kind):
    policy = mlp(hidden=33)
    recorded = rows(policy, count)["observation"]
    order = list(range(count))
    random.shuffle(order)
    first, second = (
        find_ranges(
            policy,
            CalibrationData.checked(policy.contract, {"observation": array}, source="t"),
            RangeRule(kind=kind, percentile=99.0),
        )
        for array in (recorded, recorded[order])
    )
    assert first == second


@settings(max_examples=40, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.integers(2, 150),
    st.sampled_from(["minmax", "percentile", "bounds"]),
    st.sampled_from([None, "episodes"]),
    st.sampled_from([25, 10_000]),
)
def test_an_exports_ranges_do_not_depend_on_order(random, count, kind, marked, most):
    """From an array of observations to the ranges of a file: what is held out, what is thinned away, what is found."""
    policy = mlp(hidden=17, bounds={"observation": (-50.0, 50.0)})
    recorded = rows(policy, count)["observation"]
    # A few rows decide the extremes: whichever side they are on, it is the same one.
    recorded[:: max(2, count // 4)] *= np.float32(7)
    episodes = np.arange(count) // 7 if marked else None
    order = list(range(count))
    random.shuffle(order)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_module, "MAX_ROWS", most)
        for picked in (list(range(count)), order):
            data = CalibrationData.checked(
                policy.contract, {"observation": recorded[picked]}, source="t",
                episodes=None if episodes is None else episodes[picked],
            )  # fmt: skip
            found.append(prepare(policy, ExportOptions(rule=RangeRule(kind=kind, percentile=97.0)), data))
    assert found[0].ranges == found[1].ranges
    assert found[0].policy.contract.normalizer == found[1].policy.contract.normalizer


def test_what_int16_takes_its_ranges_from_does_not_depend_on_order():
    policy = mlp()
    recorded = rows(policy, 2_000)["observation"]
    options = ExportOptions(scheme=SchemeOptions(scheme="int16x8"))
    found = [
        prepare(policy, options, CalibrationData.checked(policy.contract, {"observation": array}, source="t"))
        for array in (recorded, recorded[::-1])
    ]
    first, second = (sorted(map(tuple, one.samples["observation"].tolist())) for one in found)
    assert first == second
    assert found[0].found_by == {"by": "converter", "observations": "t", "rows": 512}


def test_calibration_does_not_depend_on_repetition():
    """However rows were batched when they were recorded, the extremes are those of the rows."""
    policy = mlp(hidden=33)
    recorded = rows(policy, 70)["observation"]
    ranges = [
        find_ranges(policy, CalibrationData.checked(policy.contract, {"observation": a}, source="t"), MINMAX)
        for a in (recorded, np.concatenate([recorded[:50], recorded]))
    ]
    for site in ranges[0]:
        assert ranges[0][site] == pytest.approx(ranges[1][site], rel=1e-6)


def test_percentile_leaves_an_outlier_out():
    policy = mlp()
    recorded = rows(policy, 4000)["observation"]
    recorded[17, 1] = 500.0
    data = CalibrationData.checked(policy.contract, {"observation": recorded}, source="t")
    clipped = find_ranges(policy, data, RangeRule(kind="percentile", percentile=99.5))
    expected = np.percentile(recorded, [0.5, 99.5])
    assert clipped["observation"] == pytest.approx(tuple(expected), abs=0.1)
    assert find_ranges(policy, data, MINMAX)["observation"][1] == 500.0


@pytest.mark.parametrize("far", [1e6, 1e17])
def test_one_outlier_does_not_decide_what_a_percentile_is(far):
    policy = mlp()
    recorded = rows(policy, 4000)["observation"]
    recorded[17, 1] = far
    data = CalibrationData.checked(policy.contract, {"observation": np.float32(recorded)}, source="t")
    found = find_ranges(policy, data, RangeRule(kind="percentile", percentile=99.9))["observation"]
    assert found == pytest.approx(tuple(np.percentile(recorded, [0.1, 99.9])), abs=0.02)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        np.float32, st.integers(2, 300), elements=st.floats(-(2.0**59), 2.0**59, width=32, allow_subnormal=False)
    ),
    st.floats(50.5, 100.0),
)
def test_percentiles_are_values_that_were_seen(values, percentile):
    """As many lie outside at each end as the percentile says, and what lies there is the value of that rank."""
    policy = pass_through()
    data = CalibrationData(rows={"observation": values[:, None]}, source="t")
    rule = RangeRule(kind="percentile", percentile=percentile)
    found = _percentiles(policy, data, ("observation",), rule)["observation"]
    outside = rule.outside(len(values))
    assert abs(outside - len(values) * (100 - percentile) / 100) <= 1
    assert found == (np.sort(values)[outside], np.sort(values)[-1 - outside])


def test_a_percentile_leaves_out_as_many_as_it_says():
    assert [RangeRule(kind="percentile", percentile=p).outside(1000) for p in (99.9, 99.0, 100.0, 50.1)] == [
        1, 10, 0, 499,
    ]  # fmt: skip


def test_bounds_give_the_input_range_and_extremes_the_rest():
    policy = mlp(bounds={"observation": (-5.0, 8.0)})
    data = data_of(policy)
    bounds, minmax = find_ranges(policy, data, RangeRule(kind="bounds")), find_ranges(policy, data, MINMAX)
    assert bounds.pop("observation") == (-5.0, 8.0)
    minmax.pop("observation")
    assert bounds == minmax


def test_uint8_images_have_the_whole_range_by_bounds():
    ranges = find_ranges(image_policy(), data_of(image_policy(), 4), RangeRule(kind="bounds"))
    assert ranges["observation"] == pytest.approx((0.0, 1.0))


def test_constant_zero_calibration_keeps_a_minimal_width():
    policy = mlp()
    data = CalibrationData.checked(policy.contract, {"observation": np.zeros((8, 4))}, source="t")
    low, high = find_ranges(policy, data, MINMAX)["observation"]
    assert (low, high) == (0.0, MIN_WIDTH)


def test_zero_is_always_inside():
    policy = mlp()
    array = rows(policy, 30)["observation"] + 100.0
    data = CalibrationData.checked(policy.contract, {"observation": array}, source="t")
    for low, high in find_ranges(policy, data, MINMAX).values():
        assert low <= 0.0 <= high


def test_outputs_get_a_margin():
    policy = mlp()
    tight = find_ranges(policy, data_of(policy), MINMAX, head_margin=0.0)
    wide = find_ranges(policy, data_of(policy), MINMAX, head_margin=0.1)
    assert wide["q"][1] > tight["q"][1]
    assert wide["r"] == tight["r"]


def test_weights_that_overflow_are_named():
    policy = mlp()
    policy.weights["a/kernel"][:] = 3e38
    with pytest.raises(NonFiniteError, match="gives NaN or Inf"), np.errstate(all="ignore"):
        find_ranges(policy, data_of(policy), MINMAX)


@pytest.mark.parametrize(("kind", "percentile"), [("entropy", 99.0), ("percentile", 50.0), ("percentile", 101.0)])
def test_rules_that_do_not_exist_are_refused(kind, percentile):
    with pytest.raises(UsageError):
        RangeRule(kind=kind, percentile=percentile)


# ------------------------------------------------------------------ per dimension


@pytest.mark.parametrize("make", [mlp, dueling, tanh_actor, mixed])
def test_every_dimension_is_brought_to_one_and_the_network_stays_the_same(make):
    policy = make()
    recorded = rows(policy, 64)
    key = policy.contract.observations[-1].key
    widths = np.logspace(-2, 2, recorded[key].shape[1])
    recorded[key] = (recorded[key] + 3.0) * widths
    data = CalibrationData.checked(policy.contract, recorded, source="t")
    changed = with_input_normalizer(policy, data, MINMAX)
    inside = normalize(changed, data.rows)[key]
    np.testing.assert_allclose(inside.min(axis=0), -1.0, atol=1e-3)
    np.testing.assert_allclose(inside.max(axis=0), 1.0, atol=1e-3)
    for role, expected in run_reference(policy, data.rows).items():
        np.testing.assert_allclose(run_reference(changed, data.rows)[role], expected, rtol=2e-3, atol=2e-3)


def test_a_network_without_biases_gets_one_for_its_centred_input():
    policy = mlp(use_bias=False)
    data = CalibrationData.checked(policy.contract, {"observation": rows(policy, 64)["observation"] + 3}, source="t")
    changed = with_input_normalizer(policy, data, MINMAX)
    assert changed.graph.layer("a").use_bias
    assert not changed.graph.layer("q").use_bias
    np.testing.assert_allclose(
        run_reference(changed, data.rows)["q_values"], run_reference(policy, data.rows)["q_values"], atol=1e-4
    )


def test_bounds_need_no_data():
    policy = mlp(bounds={"observation": (-2.0, 6.0)})
    changed = with_input_normalizer(policy, None, RangeRule(kind="bounds"))
    assert changed.contract.normalizer.offset["observation"] == (2.0,) * 4
    assert changed.contract.normalizer.scale["observation"] == (0.25,) * 4


def test_a_dimension_that_did_not_move_is_not_blown_up():
    policy = mlp()
    recorded = rows(policy, 30)["observation"]
    recorded[:, 2] = 7.0
    data = CalibrationData.checked(policy.contract, {"observation": recorded}, source="t")
    changed = with_input_normalizer(policy, data, MINMAX)
    assert changed.contract.normalizer.offset["observation"][2] == 7.0
    assert changed.contract.normalizer.scale["observation"][2] == 1.0


OFFSET, SCALE = (0.0, 1.0, -2.0, 3.0), (2.0, 0.5, 1.0, -4.0)
TRAINED = Normalizer(where="graph", offset={"observation": OFFSET}, scale={"observation": SCALE})


def uneven(policy):
    """Rows whose normalised dimensions are of widths from 2 to 60."""
    recorded = rows(policy, 200)["observation"] * (1.0, 100.0, 3.0, 1.0) + 3.0
    return CalibrationData.checked(policy.contract, {"observation": recorded}, source="t")


@pytest.mark.parametrize("clip", [0.0, 500.0, 2.0])
def test_behind_a_normaliser_of_training_every_dimension_is_brought_to_one_as_well(clip):
    """Also where its clip cuts: what it cuts is one value for the network, and one for the new normaliser."""
    policy = mlp(normalizer=dataclasses.replace(TRAINED, clip=clip))
    data = uneven(policy)
    changed = with_input_normalizer(policy, data, MINMAX)
    inside = normalize(changed, data.rows)["observation"]
    for extreme, wanted in ((inside.min(axis=0), -1.0), (inside.max(axis=0), 1.0)):
        np.testing.assert_allclose(extreme, wanted, atol=0.34)
    assert (np.abs(inside).max(axis=0) > 0.999).all()
    for role, expected in run_reference(policy, data.rows).items():
        np.testing.assert_allclose(run_reference(changed, data.rows)[role], expected, rtol=2e-3, atol=2e-3)


def test_the_clip_is_never_inside_of_what_was_calibrated_nor_outside_of_the_old_one():
    policy = mlp(normalizer=dataclasses.replace(TRAINED, clip=500.0))
    changed = with_input_normalizer(policy, uneven(policy), MINMAX).contract.normalizer
    reach = changed.clip / np.array(changed.scale["observation"])
    ends = (np.array(changed.offset["observation"]) + side * reach for side in (-1, 1))
    behind = np.abs([(end - OFFSET) * SCALE for end in ends])
    assert changed.clip > 1.0
    assert behind.max() == pytest.approx(500.0, rel=1e-4)


def clipped_at_ten(scale=1.0, clip=10.0):
    """A policy whose normaliser of training only scales the last dimension, and clips all."""
    scales = {"observation": (1.0, 1.0, 1.0, scale)}
    return mlp(normalizer=Normalizer(where="graph", offset={"observation": (0.0,) * 4}, scale=scales, clip=clip))


def with_last(values):
    """Standard normal rows whose last dimension is `values`."""
    recorded = np.random.default_rng(0).normal(0.0, 1.0, (500, 4))
    recorded[:, 3] = values
    return recorded.astype(np.float32)


@given(
    centre=st.floats(-60.0, 60.0),
    spread=st.sampled_from([0.0, 1e-5, 0.01, 1.0, 30.0]),
    clip=st.sampled_from([0.3, 1.0, 5.0, 10.0]),
)
@settings(max_examples=40, deadline=None)
@example(centre=20.0, spread=0.0, clip=10.0)
@example(centre=-10.0, spread=0.0, clip=10.0)
@example(centre=9.99, spread=0.0, clip=10.0)
@example(centre=500.0, spread=20.0, clip=10.0)
def test_a_dimension_at_or_beyond_the_clip_takes_it_from_no_other(centre, spread, clip):
    """What the policy computes stays, of what was calibrated with, and a clip stays there for what comes later."""
    policy = clipped_at_ten(clip=clip)
    recorded = with_last(centre + np.linspace(-spread, spread, 500))
    data = CalibrationData.checked(policy.contract, {"observation": recorded}, source="t")
    changed = with_input_normalizer(policy, data, MINMAX)
    assert changed.contract.normalizer.clip >= 0.999
    inside = normalize(changed, data.rows)["observation"]
    assert np.abs(inside).max() <= 1.001
    far = {"observation": np.repeat(recorded[:1], 2, axis=0)}
    far["observation"][:, 3] = (1e4, 1e6)
    assert np.ptp(run_reference(changed, far)["q_values"], axis=0).max() == 0.0
    wanted = run_reference(policy, data.rows)["q_values"]
    np.testing.assert_allclose(run_reference(changed, data.rows)["q_values"], wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("clip", [0.0, 10.0])
def test_a_dimension_in_small_units_moves_as_much_as_its_normaliser_makes_of_it(clip):
    policy = clipped_at_ten(scale=5e4, clip=clip)
    recorded = with_last(np.linspace(-4e-5, 4e-5, 500))
    data = CalibrationData.checked(policy.contract, {"observation": recorded}, source="t")
    changed = with_input_normalizer(policy, data, MINMAX)
    inside = normalize(changed, data.rows)["observation"]
    np.testing.assert_allclose([inside[:, 3].min(), inside[:, 3].max()], [-1.0, 1.0], atol=1e-3)
    assert changed.contract.normalizer.scale["observation"][3] == pytest.approx(2.5e4)


def test_a_dimension_in_large_units_that_its_normaliser_brings_to_rest_is_not_blown_up():
    policy = clipped_at_ten(scale=1e-5, clip=0.0)
    recorded = with_last(np.linspace(-3.0, 3.0, 500))
    data = CalibrationData.checked(policy.contract, {"observation": recorded}, source="t")
    changed = with_input_normalizer(policy, data, MINMAX)
    assert changed.contract.normalizer.scale["observation"][3] == pytest.approx(1e-5)


def test_one_clip_is_of_all_keys_so_that_all_are_brought_to_one_or_none():
    policy = mixed()
    image, flat = (spec.key for spec in policy.contract.observations)
    both = Normalizer(where="graph", offset={image: (0.0,), flat: (1.0,)}, scale={image: (0.1,), flat: (2.0,)})
    data = CalibrationData.checked(policy.contract, rows(policy, 64), source="t")
    for clip, left_alone in ((0.0, False), (5.0, True)):
        given = dataclasses.replace(policy.contract, normalizer=dataclasses.replace(both, clip=clip))
        found = with_input_normalizer(dataclasses.replace(policy, contract=given), data, MINMAX).contract.normalizer
        assert (found.scale[image], found.clip) == ((0.1,), clip)
        assert (found.scale[flat] == (2.0,)) == left_alone


def test_0_is_a_level_of_an_input_that_lies_nearly_around_it():
    """A state of rest is then no half a level off."""
    policy = mlp()
    recorded = rows(policy, 200)["observation"]
    recorded[:, :3] = np.linspace((-0.9, -0.5, 0.0), (1.0, 1.0, 1.0), 200)
    data = CalibrationData.checked(policy.contract, {"observation": recorded}, source="t")
    changed = with_input_normalizer(policy, data, MINMAX)
    assert normalize(changed, {"observation": np.zeros((1, 4), np.float32)})["observation"][0, 0] == 0.0
    np.testing.assert_allclose(changed.contract.normalizer.offset["observation"][:3], [0.0, 0.25, 0.5], atol=1e-6)


def test_images_and_what_nothing_is_known_of_are_left_alone():
    pixels = image_policy()
    assert with_input_normalizer(pixels, data_of(pixels, 4), MINMAX).weights.keys() == pixels.weights.keys()
    assert with_input_normalizer(mlp(), None, RangeRule(kind="bounds")).contract.normalizer.offset == {}


# ------------------------------------------------------------------ playing


def test_playing_is_seeded_and_fits_the_contract():
    policy = mlp(actions=2)
    first, again, other = (play(policy, EnvSpec(env_id="CartPole-v1"), steps=60, seed=s) for s in (3, 3, 4))
    assert first.count == 60
    assert np.array_equal(first.rows["observation"], again.rows["observation"])
    assert not np.array_equal(first.rows["observation"], other.rows["observation"])


def test_playing_with_the_policy_differs_from_random():
    policy = mlp(actions=2)
    greedy, random = (
        play(policy, EnvSpec(env_id="CartPole-v1"), steps=40, turns=[who]).rows["observation"]
        for who in ("policy", "random")
    )
    assert not np.array_equal(greedy, random)


def test_playing_a_continuous_environment():
    policy = tanh_actor()
    policy = dataclasses.replace(
        policy,
        contract=dataclasses.replace(
            policy.contract,
            action=ActionSpec(kind="box", shape=(1,), low=(-2.0,), high=(2.0,), scale=(2.0,), offset=(0.0,)),
        ),
        graph=dataclasses.replace(
            policy.graph, weight_shapes={**policy.graph.weight_shapes, "d/kernel": (16, 1), "d/bias": (1,)}
        ),
        weights={
            **policy.weights,
            "d/kernel": policy.weights["d/kernel"][:, :1],
            "d/bias": policy.weights["d/bias"][:1],
        },
    )
    data = play(policy, EnvSpec(env_id="Pendulum-v1"), steps=30, turns=["policy"])
    assert data.rows["observation"].shape == (30, 3)


def test_playing_what_does_not_fit_is_refused():
    with pytest.raises(SpaceMismatch):
        play(mlp(actions=3), EnvSpec(env_id="CartPole-v1"), steps=10)
    with pytest.raises(UnknownEnvironment):
        play(mlp(), EnvSpec(env_id="CartPole-v99"), steps=10)
    with pytest.raises(UsageError, match="steps"):
        play(mlp(actions=2), EnvSpec(env_id="CartPole-v1"), steps=1)
    for turns in ([], ["policy", "best"]):
        with pytest.raises(UsageError, match="expected some of policy, noisy, random"):
            play(mlp(actions=2), EnvSpec(env_id="CartPole-v1"), steps=10, turns=turns)


def test_greedy_actions_of_discrete_and_box_heads():
    assert greedy_actions(mlp().contract, {"q_values": np.array([[1, 5, 2], [9, 0, 0]])}).tolist() == [1, 0]
    scaled = greedy_actions(tanh_actor().contract, {"action": np.array([[0.5, -2.0]])})
    assert scaled.tolist() == [[1.0, -2.0]]


# ------------------------------------------------------------------ stacks


def stacked(frames=3, fill=None):
    policy = mlp(inputs=4 * frames, actions=2)
    spec = ObservationSpec(key="observation", shape=(4,), stack=frames, stack_fill=fill)
    return dataclasses.replace(policy, contract=dataclasses.replace(policy.contract, observations=(spec,)))


def test_playing_stacks_frames_and_begins_episodes_with_repeated_ones():
    rows_ = play(stacked(), EnvSpec(env_id="CartPole-v1"), steps=50).rows["observation"]
    assert rows_.shape == (50, 3, 4)
    assert (rows_[0] == rows_[0][0]).all()
    starts = [n for n in range(50) if (rows_[n] == rows_[n][0]).all()]
    for row in range(1, 50):
        if row not in starts:
            assert np.array_equal(rows_[row][:2], rows_[row - 1][1:])
    assert len(starts) > 1


def test_playing_begins_episodes_as_the_contract_says():
    rows_ = play(stacked(fill=(0.0,)), EnvSpec(env_id="CartPole-v1"), steps=50).rows["observation"]
    starts = [n for n in range(50) if not rows_[n][:2].any()]
    assert len(starts) > 1
    for row in starts:
        assert rows_[row][2].any()
        assert np.array_equal(rows_[row + 1], [np.zeros(4), rows_[row][2], rows_[row + 1][2]])


def test_joined_and_separate_frames_are_the_same():
    separate = np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32)
    joined = separate.reshape(6, 12)
    for array in (separate, joined):
        data = CalibrationData.checked(stacked().contract, {"observation": array}, source="t")
        assert np.array_equal(data.rows["observation"], separate)


def test_all_frames_of_a_stack_are_normalised_alike():
    policy = stacked()
    array = np.random.default_rng(0).normal(size=(30, 3, 4)).astype(np.float32)
    data = CalibrationData.checked(policy.contract, {"observation": array}, source="t")
    scale = with_input_normalizer(policy, data, MINMAX).contract.normalizer.scale["observation"]
    assert scale[:4] == scale[4:8] == scale[8:]


def test_a_device_normalises_one_frame_as_the_environment_gives_it():
    policy = stacked()
    array = np.random.default_rng(0).normal(size=(30, 3, 4)).astype(np.float32)
    data = CalibrationData.checked(policy.contract, {"observation": array}, source="t")
    changed = with_input_normalizer(policy, data, MINMAX)
    device = complete_policy(changed, scheme="int8", io="int8").normalizer
    assert (device.where, len(device.scale["observation"])) == ("device", 4)
    assert device.scale["observation"] == changed.contract.normalizer.scale["observation"][:4]


@pytest.mark.parametrize(
    ("frame", "shape"),
    [((4,), (12,)), ((2, 3), (2, 3, 3)), ((2, 3), (2, 9)), ((5, 2, 3), (2, 3, 15)), ((2, 3, 2), (2, 3, 6)), ((), (3,))],
)
def test_a_device_has_each_frames_own_constants_where_it_puts_the_frame(frame, shape):
    """In every layout: a file whose normaliser is on the device sees what one with it in the graph computes."""
    size = int(np.prod(shape))
    rng = np.random.default_rng(4)
    offset, scale = (tuple(rng.uniform(0.5, 2, size).tolist()) for _ in range(2))
    spec = ObservationSpec(key="observation", shape=frame, stack=3)
    normalizer = Normalizer(where="graph", offset={"observation": offset}, scale={"observation": scale}, clip=1.5)
    contract = dataclasses.replace(mlp().contract, observations=(spec,), normalizer=normalizer)
    policy = types.SimpleNamespace(
        contract=contract,
        graph=types.SimpleNamespace(
            inputs=(GraphInput(key="observation", shape=shape),), layers=(), outputs={}, float_layers=lambda kept: kept
        ),
    )
    device = complete_policy(policy, scheme="int8", io="int8")
    assert (device.normalizer.where, len(device.normalizer.scale["observation"])) == ("device", size)
    [raw], [binding] = bind_to(spec, shape, Normalizer()), bind_to(spec, shape, device.normalizer)
    stacks = rng.normal(size=(5, 3, *frame)).astype(np.float32)
    wanted = np.clip(
        (to_tensor(raw, stacks) - np.float32(offset).reshape(shape)) * np.float32(scale).reshape(shape), -1.5, 1.5
    )
    np.testing.assert_array_equal(to_tensor(binding, stacks), wanted)


def bind_to(spec, shape, normalizer):
    """Bind `spec` to a float tensor of `shape`."""
    tensor = Tensor(
        index=0, name="t", shape=(1, *shape), shape_signature=(1, *shape), dtype="float32", quantization=None,
        buffer=0, start=0, size=0, plain=True,
    )  # fmt: skip
    graph = Graph(data=b"", tensors=(tensor,), operators=(), inputs=(0,), outputs=(), metadata={}, description="")
    given_spec = dataclasses.replace(spec, tensor="t")
    contract = dataclasses.replace(mlp().contract, observations=(given_spec,), normalizer=normalizer)
    return bind_inputs(contract, graph)


def test_a_normaliser_of_an_image_with_channels_first_is_turned_round():
    policy = image_policy()
    spec = ObservationSpec(key="observation", shape=(2, 9, 9), dtype="uint8")
    constants = np.arange(9 * 9 * 2, dtype=np.float64).reshape(9, 9, 2)
    values = {"observation": tuple(constants.ravel().tolist())}
    contract = dataclasses.replace(
        policy.contract, observations=(spec,), normalizer=Normalizer(where="graph", offset=values, scale=values)
    )
    device = complete_policy(dataclasses.replace(policy, contract=contract), scheme="int8", io="uint8").normalizer
    assert device.offset["observation"] == tuple(np.moveaxis(constants, -1, 0).ravel().tolist())


def test_what_saturates_gets_its_range_where_it_still_moves():
    policy = tanh_actor()
    policy.weights["d/kernel"][:] *= 100
    ranges = find_ranges(policy, data_of(policy), MINMAX)
    assert ranges["d"] == (-4.0, 4.0)


def test_numbers_beyond_float32_are_the_datas_fault(tmp_path):
    rows = np.full((8, 4), 1e300)
    with pytest.raises(UsageError, match="beyond"):
        CalibrationData.checked(mlp().contract, {"observation": rows}, source="rows.npz")
