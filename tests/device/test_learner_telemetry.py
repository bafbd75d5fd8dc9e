"""What a learner says of itself: there and back, bounded, and nothing else is taken."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import PayloadRefused
from quarl_device.wire.learner_telemetry import MAX_LAGS, Lag, LearnerTelemetry
from quarl_device.wire.limits import MAX_JSON_BYTES

counts = st.integers(0, 2**53 - 1)
lags = st.builds(Lag, versions=counts, steps=counts, age_s=st.integers(0, 10**9).map(lambda ms: ms / 8))
names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True)
telemetries = st.builds(
    LearnerTelemetry,
    epoch=counts,
    env_steps=counts,
    updates_per_s=st.floats(0, 1e9),
    duplicates=counts,
    int8_return=st.none() | st.floats(-1e9, 1e9),
    blocked=st.text(max_size=40).filter(str.isprintable),
    lags=st.dictionaries(names, lags, max_size=4),
)


@given(telemetries)
def test_it_comes_back_as_it_was(telemetry):
    assert LearnerTelemetry.decode(telemetry.encode()) == telemetry


def test_only_the_devices_furthest_behind_are_told():
    many = {f"{'d' * 57}-{number}": Lag(versions=number, steps=2**53 - 1, age_s=1e9) for number in range(MAX_LAGS + 5)}
    payload = LearnerTelemetry(epoch=1, lags=many).encode()
    assert len(payload) <= MAX_JSON_BYTES
    assert {lag.versions for lag in LearnerTelemetry.decode(payload).lags.values()} == set(range(5, MAX_LAGS + 5))


GOOD = json.loads(LearnerTelemetry(epoch=3, lags={"pi": Lag(versions=1)}).encode())


@pytest.mark.parametrize("field", sorted(GOOD))
def test_w4_no_field_may_be_missing(field):
    with pytest.raises(PayloadRefused):
        LearnerTelemetry.decode(json.dumps({name: value for name, value in GOOD.items() if name != field}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"epoch": -1},
        {"epoch": 1.5},
        {"updates": True},
        {"updates_per_s": "fast"},
        {"int8_return": "good"},
        {"blocked": "x" * 300},
        {"lags": []},
        {"lags": {"Not-A-Name": [0, 0, 0]}},
        {"lags": {"pi/+": [0, 0, 0]}},
        {"lags": {"pi": [0, 0]}},
        {"lags": {"pi": [0, 0, -1]}},
        {"lags": {"pi": [True, 0, 0]}},
        {"lags": {"pi": [0, 2**53, 0]}},
        {"lags": {"pi": 7}},
        {"lags": {f"d{number}": [0, 0, 0] for number in range(MAX_LAGS + 1)}},
    ],
)
def test_w4_what_does_not_hold_is_refused(change):
    with pytest.raises(PayloadRefused):
        LearnerTelemetry.decode(json.dumps({**GOOD, **change}).encode())
