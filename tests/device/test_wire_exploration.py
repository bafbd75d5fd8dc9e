"""What a push says about exploration: every kind, what does not hold, and what does not go with a policy."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, Head
from quarl_device.errors import PayloadRefused, SpaceMismatch, UnsupportedSpace
from quarl_device.wire.block_spec import ExtraSpec, extras_for
from quarl_device.wire.exploration import (
    KINDS,
    MAX_EXPLORATION_VALUES,
    Exploration,
    check_exploration,
    exploration_from_json,
)
from quarl_device.wire.push import PushHeader
from quarl_device.wire.strict_json import dumps, loads

DISCRETE = ActionSpec(kind="discrete", n=3)
BOX = ActionSpec(kind="box", shape=(2, 1), low=(-1.0, -1.0), high=(1.0, 1.0))
HEADS = {
    "q_values": (Head(kind="q_values", outputs={"q_values": "q"}), DISCRETE),
    "logits": (Head(kind="logits", outputs={"logits": "l"}), DISCRETE),
    "action": (Head(kind="action", outputs={"action": "a"}), BOX),
    "gaussian": (Head(kind="gaussian", outputs={"mean": "m"}, log_std=(0.0, 0.0)), BOX),
    "two_outputs": (Head(kind="gaussian", outputs={"mean": "m", "log_std": "s"}), BOX),
}
PER_ACTOR = ("epsilon", "gaussian", "ornstein_uhlenbeck")


def explorations():
    sigmas = st.lists(st.floats(0, 1e6), min_size=1, max_size=20).map(tuple)
    return st.one_of(
        st.builds(lambda kind, values: Exploration(kind=kind, values=values), st.sampled_from(PER_ACTOR), sigmas),
        st.builds(
            lambda values: Exploration(kind="sample", values=values),
            st.lists(st.floats(-20, 20), max_size=20).map(tuple),
        ),
        st.just(Exploration(kind="none", values=())),
    )


@given(explorations())
def test_every_kind_is_read_back_equal(exploration):
    assert exploration_from_json(loads(dumps(exploration.to_json(), what="it"), what="it").fields) == exploration
    header = PushHeader(epoch=1, version=2, env_steps=3, sha256="a" * 64, exploration=exploration)
    assert PushHeader.decode(header.encode()).exploration == exploration


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "'kind' is missing"),
        ({"kind": "epsilon"}, "'values' is missing"),
        ({"kind": "boltzmann", "values": [1.0]}, "'boltzmann', expected 'none' or 'epsilon'"),
        ({"kind": None, "values": [1.0]}, "'kind' is None"),
        ({"kind": ["epsilon"], "values": [1.0]}, "'kind' is list"),
        ({"kind": "epsilon", "values": []}, "needs one or more values"),
        ({"kind": "gaussian", "values": []}, "needs one or more values"),
        ({"kind": "ornstein_uhlenbeck", "values": []}, "needs one or more values"),
        ({"kind": "none", "values": [0.0]}, "takes no values, found 1"),
        ({"kind": "gaussian", "values": [-0.1]}, "numbers in 0..1e"),
        ({"kind": "gaussian", "values": [1e7]}, "numbers in 0..1e"),
        ({"kind": "gaussian", "values": [True]}, "numbers in 0..1e"),
        ({"kind": "gaussian", "values": ["0.1"]}, "numbers in 0..1e"),
        ({"kind": "gaussian", "values": [[0.1]]}, "numbers in 0..1e"),
        ({"kind": "gaussian", "values": {"0": 0.1}}, "expected an array"),
        ({"kind": "sample", "values": [20.1]}, "numbers in -20..20"),
        ({"kind": "sample", "values": [10**400]}, "numbers in -20..20"),
        ({"kind": "gaussian", "values": [float("nan")]}, "numbers in 0..1e"),
        ({"kind": "gaussian", "values": [0.1] * (MAX_EXPLORATION_VALUES + 1)}, "at most 4096"),
    ],
)
def test_w4_what_does_not_hold_is_refused(data, says):
    with pytest.raises(PayloadRefused, match=says) as error:
        exploration_from_json(data)
    assert len(str(error.value)) < 300


def test_an_actor_takes_the_value_at_its_index_and_all_share_a_distribution():
    for kind in PER_ACTOR:
        shared = Exploration(kind=kind, values=(0.1, 0.2))
        assert [shared.for_actor(n).values for n in range(3)] == [(0.1,), (0.2,), (0.1,)]
        assert shared.for_actor(1).kind == kind
    for alike in (Exploration(kind="sample", values=(0.1, 0.2)), Exploration(kind="none", values=())):
        assert alike.for_actor(1) == alike


FITS = {
    "none": set(HEADS),
    "epsilon": {"q_values", "logits"},
    "gaussian": {"action", "gaussian", "two_outputs"},
    "ornstein_uhlenbeck": {"action", "gaussian", "two_outputs"},
    "sample": {"logits", "gaussian", "two_outputs"},
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("kind", KINDS)
def test_exploration_must_go_with_the_head_and_the_space(kind, name):
    head, action = HEADS[name]
    exploration = Exploration(kind=kind, values=(0.1,) if kind in PER_ACTOR else ())
    if name in FITS[kind]:
        check_exploration(exploration, head, action, extras=())
    else:
        with pytest.raises(PayloadRefused, match=f"{kind}' needs a"):
            check_exploration(exploration, head, action, extras=())


@pytest.mark.parametrize(
    ("name", "values", "wanted"), [("gaussian", 1, 2), ("gaussian", 3, 2), ("two_outputs", 2, 0), ("logits", 1, 0)]
)
def test_a_log_std_for_each_element_of_a_head_that_takes_one(name, values, wanted):
    check_exploration(Exploration(kind="sample", values=(0.5, 0.5)), *HEADS["gaussian"], extras=())
    with pytest.raises(PayloadRefused, match=f"has {values} values for .* takes {wanted}"):
        check_exploration(Exploration(kind="sample", values=(0.5,) * values), *HEADS[name], extras=())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sample"])
def test_log_probabilities_come_of_sampling_alone(kind):
    head, action = HEADS["logits"] if kind == "epsilon" else HEADS["gaussian"]
    exploration = Exploration(kind=kind, values=(0.1,) if kind in PER_ACTOR else ())
    with pytest.raises(SpaceMismatch, match="gives no log_prob or sample, which the learner's birth asks for"):
        check_exploration(exploration, head, action, extras=("log_prob", "sample"))
    check_exploration(Exploration(kind="sample", values=()), head, action, extras=("log_prob",))


def test_extras_by_name():
    assert extras_for((), DISCRETE) == ()
    assert extras_for(("log_prob",), DISCRETE) == (ExtraSpec(name="log_prob"),)
    assert extras_for(("sample", "log_prob"), BOX) == (
        ExtraSpec(name="sample", shape=(2, 1)),
        ExtraSpec(name="log_prob"),
    )


@pytest.mark.parametrize(
    ("names", "action"), [(("sample",), DISCRETE), (("value",), BOX), (("log_prob", "x" * 999), BOX)]
)
def test_an_extra_that_this_version_cannot_make_is_refused(names, action):
    with pytest.raises(UnsupportedSpace, match=r"asks for extra .* here are log_prob") as error:
        extras_for(names, action)
    assert "upgrade" in error.value.hint
    assert len(str(error.value)) < 300


def test_specs_of_one_space_may_scale_otherwise():
    scaled = dataclasses.replace(BOX, scale=(2.0, 2.0), offset=(0.0, 1.0))
    assert scaled.space == BOX.space
    for change in ({"low": (-1.0, -2.0)}, {"high": (1.0, 2.0)}, {"shape": (2,)}):
        assert dataclasses.replace(BOX, **change).space != BOX.space
    assert DISCRETE.space != dataclasses.replace(DISCRETE, start=1).space
