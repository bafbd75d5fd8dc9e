from __future__ import annotations

import json
import math

import pytest
from export_factory import make_spec
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import CheckpointError, QuarlError, UnsupportedSpace, UsageError
from quarl_export.networks import HEADS, NetworkSpec, QuantizationSpec, unit_box

VECTOR = ObservationSpec(key="observation", shape=(4,))
DISCRETE = ActionSpec(kind="discrete", n=3, start=-1)
BOX = ActionSpec(kind="box", shape=(3, 1), low=(-1.0, -1.0, 0.0), high=(1.0, 2.0, 5.0))


@given(
    inputs=st.integers(1, 40),
    hidden=st.lists(st.integers(1, 300), min_size=1, max_size=5),
    actions=st.integers(1, 30),
    center_q=st.booleans(),
)
def test_json_round_trip(inputs, hidden, actions, center_q):
    spec = make_spec(inputs=inputs, hidden=tuple(hidden), actions=actions, center_q=center_q)
    assert NetworkSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_kernel_shapes_run_from_observation_to_actions():
    spec = NetworkSpec(observations=(VECTOR,), action=DISCRETE, hidden=(8, 6))
    assert spec.kernel_shapes == ((4, 8), (8, 6), (6, 3))


@pytest.mark.parametrize(
    "observation",
    [
        ObservationSpec(key="o", shape=(8, 8)),
        ObservationSpec(key="o", shape=()),
        ObservationSpec(key="o", shape=(4,), dtype="uint8"),
        ObservationSpec(key="o", shape=(8, 8, 2, 2), dtype="uint8"),
    ],
)
def test_other_observations_are_refused(observation):
    with pytest.raises(UnsupportedSpace, match="'o'"):
        NetworkSpec(observations=(observation,), action=DISCRETE)


def test_stacked_vectors_are_joined():
    seen = ObservationSpec(key="o", shape=(4,), stack=3)
    spec = NetworkSpec(observations=(seen,), action=DISCRETE, hidden=(8,))
    assert (spec.input_shape, spec.kernel_shapes[0]) == ((12,), (12, 8))


def test_two_keys_and_box_actions_are_refused():
    with pytest.raises(UnsupportedSpace, match="2 observation keys"):
        NetworkSpec(observations=(VECTOR, ObservationSpec(key="b", shape=(2,))), action=DISCRETE)
    with pytest.raises(UnsupportedSpace, match="discrete"):
        NetworkSpec(observations=(VECTOR,), action=ActionSpec(kind="box", shape=(1,), low=(-1,), high=(1,)))


@pytest.mark.parametrize("head", HEADS)
def test_a_head_acts_in_one_kind_of_space(head):
    spaces = {"discrete": DISCRETE, "box": BOX}
    assert NetworkSpec(observations=(VECTOR,), action=spaces.pop(HEADS[head]), head=head).head_units == 3
    with pytest.raises(UnsupportedSpace, match=HEADS[head]):
        NetworkSpec(observations=(VECTOR,), action=spaces.popitem()[1], head=head)


@pytest.mark.parametrize("head", ["action", "gaussian"])
@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(-1.0, math.inf, "-1.0..inf"), (-math.inf, 1.0, "-inf..1.0"), (math.nan, 1.0, "nan"), (1.0, -1.0, "1.0..-1.0")],
)
def test_a_box_without_bounds_is_refused_by_the_element(head, low, high, found):
    box = ActionSpec(kind="box", shape=(2,), low=(-1.0, low), high=(1.0, high))
    with pytest.raises(UnsupportedSpace, match=f"element 1.*{found}"):
        NetworkSpec(observations=(VECTOR,), action=box, head=head)


def test_a_box_with_other_bounds_than_elements_is_refused():
    box = ActionSpec(kind="box", shape=(3,), low=(-1.0,), high=(1.0,))
    with pytest.raises(UnsupportedSpace, match="1 bounds"):
        NetworkSpec(observations=(VECTOR,), action=box, head="action")


def test_an_action_head_ends_in_a_tanh_that_has_no_int16_form():
    quantization = QuantizationSpec(head_output="int16")
    NetworkSpec(observations=(VECTOR,), action=BOX, head="gaussian", quantization=quantization)
    with pytest.raises(UsageError, match="tanh"):
        NetworkSpec(observations=(VECTOR,), action=BOX, head="action", quantization=quantization)


@pytest.mark.parametrize(("head", "action"), [("logits", DISCRETE), ("action", BOX), ("gaussian", BOX)])
def test_only_q_values_are_centred(head, action):
    with pytest.raises(UsageError, match=f"center_q.*{head}"):
        NetworkSpec(observations=(VECTOR,), action=action, head=head, quantization=QuantizationSpec(center_q=True))


@given(st.lists(st.tuples(st.floats(-3e38, 3e38), st.floats(-3e38, 3e38)), min_size=1, max_size=5))
def test_the_unit_box_is_taken_to_the_bounds(ends):
    low, high = (tuple(side(pair) for pair in ends) for side in (min, max))
    box = unit_box(ActionSpec(kind="box", shape=(len(ends),), low=low, high=high, scale=(7.0,), offset=(7.0,)))
    for place, (bottom, top) in enumerate(zip(low, high, strict=True)):
        error = 1e-12 * max(abs(bottom), abs(top))
        assert abs(box.offset[place] - box.scale[place] - bottom) <= error
        assert abs(box.offset[place] + box.scale[place] - top) <= error
    assert unit_box(DISCRETE) == DISCRETE


@pytest.mark.parametrize("fields", [{"hidden": ()}, {"hidden": (0,)}, {"hidden": (4,) * 17}, {"head": "none"}])
def test_networks_that_cannot_be_are_usage_errors(fields):
    with pytest.raises(UsageError):
        NetworkSpec(observations=(VECTOR,), action=DISCRETE, **fields)


@pytest.mark.parametrize("fields", [{"range_decay": 1.0}, {"input_range": "often"}, {"head_margin": -0.1}])
def test_quantization_settings_are_checked(fields):
    with pytest.raises(UsageError):
        QuantizationSpec(**fields)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(schema=2),
        lambda d: d.pop("hidden"),
        lambda d: d.update(hidden=["x"]),
        lambda d: d["quantization"].update(new=1),
        lambda d: d.update(observations=3),
        lambda d: d.update(action={}),
    ],
)
def test_damaged_json_is_refused(damage):
    data = json.loads(json.dumps(make_spec().to_json()))
    damage(data)
    with pytest.raises(QuarlError):
        NetworkSpec.from_json(data)


@pytest.mark.parametrize("data", [None, [], "x", {}])
def test_json_of_another_kind_is_refused(data):
    with pytest.raises(CheckpointError):
        NetworkSpec.from_json(data)


def test_the_json_of_q_values_is_what_checkpoints_always_had():
    assert make_spec().to_json() == {
        "schema": 1,
        "observations": [
            {
                "key": "observation", "shape": [4], "dtype": "float32", "low": None, "high": None, "stack": 1,
                "tensor": "",
            }
        ],
        "action": {
            "kind": "discrete", "n": 2, "start": 0, "shape": [], "low": [], "high": [], "scale": [], "offset": [],
        },
        "hidden": [8],
        "head": "q_values",
        "quantization": {
            "weight_bits": 8, "activation_bits": 8, "head_output": "int8", "range_decay": 0.99,
            "input_range": "peak", "head_margin": 0.05, "center_q": False,
        },
    }  # fmt: skip
