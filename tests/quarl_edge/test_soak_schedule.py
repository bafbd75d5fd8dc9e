"""Which faults come: by the seed, each kind, and never two that would hide each other."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import UsageError
from quarl_edge.soak.schedule import BROKER, KINDS, LEARNER, make_schedule

DEVICES = ("soak-0", "soak-1", "soak-2")


def test_the_same_seed_is_the_same_schedule():
    one, again, other = (make_schedule(seed, seconds=120, devices=DEVICES) for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("seed", range(10))
def test_every_kind_comes_within_three_minutes(seed):
    assert {fault.kind for fault in make_schedule(seed, seconds=180, devices=DEVICES)} == set(KINDS)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), seconds=st.floats(0.5, 900), devices=st.integers(1, 5))
def test_faults_are_in_order_end_in_time_and_leave_each_other_alone(seed, seconds, devices):
    names = [f"soak-{index}" for index in range(devices)]
    faults = make_schedule(seed, seconds=seconds, devices=names)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    for fault in faults:
        assert 0 <= fault.at_s <= fault.at_s + fault.lasts_s <= seconds + 1e-6
        assert fault.target in {"actor": names, "learner": [LEARNER], "broker": [BROKER]}.get(
            fault.kind.split()[0], [LEARNER, *names]
        )
    by_target = {}
    for fault in faults:
        by_target.setdefault((KINDS[fault.kind].hits, fault.target), []).append(fault)
    for alike in by_target.values():
        for before, after in itertools.pairwise(alike):
            assert before.at_s + before.lasts_s + KINDS[before.kind].rest_s <= after.at_s + 1e-6


def test_a_learner_that_starts_slowly_is_left_alone_for_a_while():
    faults = make_schedule(1, seconds=900, devices=DEVICES, learner_rest_s=45)
    kills = [fault for fault in faults if fault.target == LEARNER and KINDS[fault.kind].hits == "process"]
    assert len(kills) > 5
    for before, after in itertools.pairwise(kills):
        assert after.at_s >= before.at_s + before.lasts_s + 45


def test_only_what_is_asked_for_comes():
    assert {fault.kind for fault in make_schedule(1, seconds=60, devices=DEVICES, only=["cut"])} == {"cut"}


def test_a_kind_that_does_not_exist_is_said_with_those_that_do():
    with pytest.raises(UsageError, match="'flood' is no fault") as caught:
        make_schedule(1, seconds=60, devices=DEVICES, only=["flood"])
    assert "half open" in caught.value.hint
