"""Who carries which range, without TensorFlow."""

import numpy as np
import pytest
from graph_factory import Build, cnn, dueling, mlp, two_inputs

from quarl_device.contract import Normalizer
from quarl_device.errors import NonFiniteError, UsageError
from quarl_export.range_plan import MIN_RANGE_WIDTH, QuantizationOptions, plan_ranges


def plan(graph, *, clip=0.0, **options):
    return plan_ranges(graph, QuantizationOptions(**options), normalizer=Normalizer(clip=clip))


def test_a_fused_relu_carries_the_range_of_its_operator():
    found = plan(mlp(8))
    assert found.carrier("dense_0") is None
    assert found.carrier("relu_1") == "relu_1"
    assert found.sites == ("observation", "relu_1", "dense_2")


def test_pooling_and_flattening_hand_on_the_range_of_what_they_read():
    found = plan(cnn())
    assert {found.carrier(name) for name in ("relu6_3", "max_pool2d_4")} == {"relu6_3"}
    assert found.carrier("flatten_7") == "relu_6"


def test_what_enters_a_concatenation_alone_is_on_its_grid():
    found = plan(two_inputs())
    assert {found.carrier(name) for name in ("relu_1", "flatten_2", "state", "concatenate_3")} == {"concatenate_3"}
    assert found.sites == ("image", "concatenate_3", "dense_4", "dense_6", "dense_7")
    assert found.is_fixed(found.carrier("tanh_5"))


def test_what_others_read_too_keeps_its_own_range():
    build = Build(a=(3,), b=(3,))
    joined = build.add("concatenate", "a", "b")
    graph = build.graph({"action": build.add("add", build.dense(joined, 3), "a")})
    assert plan(graph).carrier("a") == "a"
    assert plan(graph).carrier("b") == joined


def test_nested_concatenations_share_the_outer_grid():
    build = Build(a=(3,), b=(3,), c=(2,))
    outer = build.add("concatenate", build.add("concatenate", "a", "b"), "c")
    found = plan(build.graph({"action": build.dense(outer, 2)}))
    assert {found.carrier(key) for key in "abc"} == {outer}


def test_a_float_layer_takes_its_activation_along_and_needs_a_way_back():
    graph = mlp(8, 6)
    found = plan(graph, keep_float=frozenset({"dense_2"}))
    assert found.floats == {"dense_2", "relu_3"}
    assert found.carrier("relu_3") is None
    assert found.entry("relu_3") == "relu_3"
    assert "relu_3" in found.sites
    assert graph.range_sites(keep_float=frozenset({"relu_3"})) == found.sites


def test_a_float_head_needs_no_range():
    found = plan(mlp(8), keep_float=frozenset({"dense_2"}))
    assert found.sites == ("observation", "relu_1")
    with pytest.raises(UsageError, match=r"dense_2.*float.*int8"):
        plan(mlp(8), keep_float=frozenset({"dense_2"}), io="int8")


def test_an_input_that_only_float_layers_read_is_never_quantized():
    found = plan(mlp(8), keep_float=frozenset({"dense_0"}), clip=5.0)
    assert found.carrier("observation") is None
    assert found.clips_in_float("observation")


def test_layers_without_an_int8_form_are_refused_by_name():
    graph = mlp(8, activation="elu")
    with pytest.raises(UsageError, match="'elu_1'"):
        plan(graph)
    assert plan(graph, keep_float=frozenset({"elu_1"})).sites == ("observation", "dense_0", "elu_1", "dense_2")
    with pytest.raises(UsageError, match="no layer 'nope'"):
        plan(graph, keep_float=frozenset({"nope"}))


def test_the_clip_is_in_the_range_where_an_input_has_its_own():
    found = plan(mlp(8), clip=2.0)
    assert not found.clips_in_float("observation")
    ranges = found.effective({"observation": (-3.0, 1.0), "relu_1": (0.0, 9.0), "dense_2": (-1.0, 1.0)})
    assert ranges["observation"] == (-2.0, 1.0)
    assert ranges["relu_1"] == (0.0, 9.0)
    assert plan(two_inputs(), clip=2.0).clips_in_float("state")
    assert plan(mlp(8), clip=2.0, io="int8").clip == 0.0


def test_effective_ranges_hold_zero_and_have_a_width():
    found = plan(mlp(8))
    ranges = found.effective({"observation": (0.5, 2.0), "relu_1": (0.0, 0.0), "dense_2": (-3.0, -1.0)})
    assert ranges["observation"] == (0.0, 2.0)
    assert ranges["relu_1"] == (0.0, float(np.float32(MIN_RANGE_WIDTH)))
    assert ranges["dense_2"] == (-3.0, 0.0)


@pytest.mark.parametrize(
    ("bad", "error"),
    [((np.nan, 1.0), NonFiniteError), ((0.0, np.inf), NonFiniteError), ((1.0, -1.0), UsageError), (None, UsageError)],
)
def test_bad_ranges_are_refused_by_site(bad, error):
    ranges = {"observation": (-1.0, 1.0), "relu_1": (0.0, 1.0), "dense_2": (-1.0, 1.0)}
    if bad is None:
        del ranges["relu_1"]
    else:
        ranges["relu_1"] = bad
    with pytest.raises(error, match="'relu_1'"):
        plan(mlp(8)).effective(ranges)


def test_fewer_bits_are_for_relus_alone():
    found = plan(dueling(), activation_bits=4)
    assert {site: found.bits(site) for site in found.sites if found.bits(site) < 8} == {
        "relu_1": 4, "relu_3": 4, "relu_6": 4,
    }  # fmt: skip
    assert plan(two_inputs(), activation_bits=4).bits("concatenate_3") == 8


@pytest.mark.parametrize(
    "options", [{"io": "int16"}, {"weight_bits": 1}, {"activation_bits": 9}, {"min_weight_range": 0.0}]
)
def test_options_are_checked(options):
    with pytest.raises(UsageError):
        QuantizationOptions(**options)
