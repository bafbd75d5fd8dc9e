from __future__ import annotations

import json

import pytest
from export_factory import make_spec
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import CheckpointError, QuarlError, UnsupportedSpace, UsageError
from quarl_export.networks import NetworkSpec, QuantizationSpec

VECTOR = ObservationSpec(key="observation", shape=(4,))
DISCRETE = ActionSpec(kind="discrete", n=3, start=-1)


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
        ObservationSpec(key="o", shape=(4,), stack=2),
    ],
)
def test_other_observations_are_refused(observation):
    with pytest.raises(UnsupportedSpace, match="'o'"):
        NetworkSpec(observations=(observation,), action=DISCRETE)


def test_two_keys_and_box_actions_are_refused():
    with pytest.raises(UnsupportedSpace, match="2 observation keys"):
        NetworkSpec(observations=(VECTOR, ObservationSpec(key="b", shape=(2,))), action=DISCRETE)
    with pytest.raises(UnsupportedSpace, match="discrete"):
        NetworkSpec(observations=(VECTOR,), action=ActionSpec(kind="box", shape=(1,), low=(-1,), high=(1,)))


@pytest.mark.parametrize("fields", [{"hidden": ()}, {"hidden": (0,)}, {"hidden": (4,) * 17}, {"head": "logits"}])
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
