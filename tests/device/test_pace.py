"""The token bucket: a mean rate, whatever the sizes and the gaps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.actor.pace import Pace
from quarl_device.errors import UsageError


def test_no_rate_is_no_bound():
    pace = Pace(0)
    for _ in range(100):
        assert pace.allows(0.0)
        pace.spend(10**9)


def test_a_negative_rate_is_refused():
    with pytest.raises(UsageError):
        Pace(-1)


@given(
    st.floats(100, 1e6),
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 100_000)), min_size=1, max_size=60),
)
def test_over_any_time_the_rate_a_burst_and_one_payload_are_the_most(rate, steps):
    pace, now_s, spent, largest = Pace(rate), 0.0, 0, 0
    pace.allows(now_s)
    for gap_s, size in steps:
        now_s += gap_s
        if pace.allows(now_s):
            pace.spend(size)
            spent, largest = spent + size, max(largest, size)
    assert spent <= rate * (now_s + 0.25) + largest + 1e-3


def test_a_payload_over_the_rate_goes_when_the_last_is_paid_for():
    pace = Pace(100)
    assert pace.allows(0.0)
    pace.spend(1_000)
    assert not pace.allows(9.7)
    assert pace.allows(9.8)
