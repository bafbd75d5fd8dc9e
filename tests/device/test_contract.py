"""The policy contract: what it accepts, and that JSON carries it unchanged."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import (
    ActionSpec,
    Head,
    Normalizer,
    ObservationSpec,
    PolicyContract,
    action_from_json,
    observation_from_json,
    spec_to_json,
)
from quarl_device.errors import ContractError

OBSERVATION = ObservationSpec(key="observation", shape=(4,), low=(-1.0,), high=(1.0, 2.0, 3.0, 4.0), tensor="in")
ACTION = ActionSpec(kind="discrete", n=2)


def contract(**changes):
    fields = {
        "env_id": "CartPole-v1",
        "algorithm": "dqn",
        "scheme": "int8",
        "observations": (OBSERVATION,),
        "head": Head(kind="q_values", outputs={"q_values": "out"}),
        "action": ACTION,
        "normalizer": Normalizer(where="graph", offset={"observation": (0.5,) * 4}, scale={"observation": (2.0,) * 4}),
        "env_kwargs": {"sutton_barto_reward": True},
    }
    return PolicyContract(**{**fields, **changes})


names = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/"), min_size=1, max_size=64)
numbers = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def observation_specs(draw, key=None):
    shape = tuple(draw(st.lists(st.integers(1, 8), max_size=4)))
    bounds = st.none() | numbers.map(lambda x: (x,))
    stack = draw(st.integers(1, 16))
    return ObservationSpec(
        key=key or draw(names),
        shape=shape,
        dtype=draw(st.sampled_from(["float32", "float64", "uint8", "int64", "bool"])),
        low=draw(bounds),
        high=draw(bounds),
        stack=stack,
        stack_fill=draw(bounds) if stack > 1 else None,
        tensor=draw(st.text(max_size=20)),
    )


@st.composite
def action_specs(draw):
    if draw(st.booleans()):
        return ActionSpec(kind="discrete", n=draw(st.integers(1, 65_536)), start=draw(st.integers(-5, 5)))
    size = draw(st.integers(1, 4))
    row = st.tuples(*[numbers] * size)
    return ActionSpec(kind="box", shape=(size,), low=draw(row), high=draw(row), scale=draw(row), offset=draw(row))


@given(
    st.lists(names, min_size=1, max_size=4, unique=True).flatmap(
        lambda keys: st.tuples(*(observation_specs(key) for key in keys))
    ),
    action_specs(),
)
def test_json_round_trip(observations, action):
    before = contract(observations=observations, action=action)
    assert PolicyContract.from_json(json.loads(json.dumps(before.to_json(), allow_nan=False))) == before


@given(observation_specs(), action_specs())
def test_single_specs_round_trip(observation, action):
    assert observation_from_json(json.loads(json.dumps(spec_to_json(observation)))) == observation
    assert action_from_json(json.loads(json.dumps(spec_to_json(action)))) == action


def test_a_stack_fill_is_only_written_where_it_says_something_new():
    """Devices, learners and files from before it stay as they are, byte for byte."""
    plain = ObservationSpec(key="observation", shape=(4,), stack=2)
    assert "stack_fill" not in spec_to_json(plain)
    assert "stack_fill" not in json.dumps(contract(observations=(plain,)).to_json())
    filled = ObservationSpec(key="observation", shape=(4,), stack=2, stack_fill=(0.0,))
    assert spec_to_json(filled)["stack_fill"] == [0.0]
    assert observation_from_json({**spec_to_json(plain), "stack_fill": None}) == plain
    for bad in ([float("nan")], ["a"], [1e400], 3, [[0.0]]):
        data = contract(observations=(filled,)).to_json()
        data["observations"][0]["stack_fill"] = bad
        with pytest.raises(ContractError):
            PolicyContract.from_json(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_any_json_is_refused_or_read(data):
    with pytest.raises(ContractError):
        PolicyContract.from_json(data)


@given(st.data())
def test_a_contract_with_one_part_replaced_is_refused_or_read(data):
    whole = json.loads(json.dumps(contract().to_json()))
    target, path = whole, []
    while isinstance(target, dict) and target and (not path or data.draw(st.booleans())):
        parent, key = target, data.draw(st.sampled_from(sorted(target)))
        target = parent[key]
        path.append(key)
    parent[key] = data.draw(json_values)
    with contextlib.suppress(ContractError):
        PolicyContract.from_json(whole)


@pytest.mark.parametrize("schema", [None, 0, 2, "1"])
def test_another_schema_is_refused(schema):
    with pytest.raises(ContractError, match="schema"):
        PolicyContract.from_json({**contract().to_json(), "schema": schema})


@pytest.mark.parametrize(
    "fields",
    [
        {"key": ""},
        {"key": "a/b"},
        {"key": "x" * 65},
        {"key": "ä"},
        {"dtype": "complex64"},
        {"dtype": "object"},
        {"shape": (0,)},
        {"shape": (-1,)},
        {"shape": (1, 1, 1, 1, 1)},
        {"shape": (4096, 4096)},
        {"stack": 0},
        {"stack": 17},
        {"stack_fill": (0.0,)},
        {"stack": 2, "stack_fill": ()},
        {"stack": 2, "stack_fill": (0.0, 1.0)},
        {"low": (1.0, 2.0)},
        {"high": ()},
    ],
    ids=str,
)
def test_bad_observations(fields):
    with pytest.raises(ContractError):
        ObservationSpec(**{"key": "observation", "shape": (4,), **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "discrete"},
        {"kind": "discrete", "n": 65_537},
        {"kind": "box"},
        {"kind": "box", "low": (0.0,), "high": ()},
        {"kind": "text", "n": 2},
    ],
    ids=str,
)
def test_bad_actions(fields):
    with pytest.raises(ContractError):
        ActionSpec(**fields)


@pytest.mark.parametrize(
    ("kind", "outputs"),
    [("q_values", {}), ("q_values", {"logits": "x"}), ("gaussian", {"mean": "x"}), ("values", {"values": "x"})],
)
def test_bad_heads(kind, outputs):
    with pytest.raises(ContractError):
        Head(kind=kind, outputs=outputs)


def test_a_gaussian_has_two_outputs():
    assert Head(kind="gaussian", outputs={"mean": "a", "log_std": "b"}).kind == "gaussian"


def test_bad_normalizers():
    with pytest.raises(ContractError, match="place"):
        Normalizer(where="moon")
    with pytest.raises(ContractError, match="different keys"):
        Normalizer(where="graph", offset={"a": (0.0,)}, scale={"b": (1.0,)})


@pytest.mark.parametrize(("n", "dtype"), [(2, "uint8"), (256, "uint8"), (257, "int32")])
def test_dtype_of_actions(n, dtype):
    assert ActionSpec(kind="discrete", n=n).dtype == dtype
    assert ActionSpec(kind="box", shape=(1,), low=(0.0,), high=(1.0,)).dtype == "float32"


def test_wrappers_are_only_written_where_there_are_some():
    behind = contract(wrappers=("ClipAction", "TimeLimit(max_episode_steps=9)"))
    assert PolicyContract.from_json(json.loads(json.dumps(behind.to_json()))) == behind
    assert "wrappers" not in contract().to_json()


@pytest.mark.parametrize("wrappers", [["ClipAction"] * 17, ["x" * 257], [7], "ClipAction" * 3, 7, None, {"a": 1}])
def test_bad_wrappers(wrappers):
    with pytest.raises(ContractError):
        PolicyContract.from_json({**contract().to_json(), "wrappers": wrappers})


def test_keys_must_differ():
    with pytest.raises(ContractError, match="different observation keys"):
        contract(observations=(OBSERVATION, OBSERVATION))
    with pytest.raises(ContractError, match="different observation keys"):
        contract(observations=())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_must_be_finite(number):
    data = contract().to_json()
    data["observations"][0]["low"] = [json.loads(number)]
    with pytest.raises(ContractError, match="finite"):
        PolicyContract.from_json(data)
