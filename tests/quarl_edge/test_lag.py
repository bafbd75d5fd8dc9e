"""Policy lag: versions, steps and seconds, and the bound on them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import StaleExperience, UsageError
from quarl_device.wire.learner_telemetry import Lag
from quarl_edge.flow import lag as module
from quarl_edge.flow.lag import LagBound, PolicyLag


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


class FakeBlock:
    def __init__(self, *versions, epoch=0):
        self.policy_version = list(versions)
        self.policy_epoch = [epoch] * len(versions)


@pytest.fixture
def clock():
    return Clock()


def published(clock, *, versions=3, bound=None):
    """Versions 1, 2, ..., a second and 100 steps apart."""
    lag = PolicyLag(bound, clock=clock)
    for version in range(1, versions + 1):
        lag.published(version, 100 * version)
        clock.now_s += 1
    return lag


def test_the_newest_version_is_not_behind(clock):
    assert published(clock).of(3) == Lag()


def test_lag_is_counted_in_versions_steps_and_seconds_since_it_was_replaced(clock):
    lag = published(clock)
    assert lag.of(1) == Lag(versions=2, steps=200, age_s=2.0)
    clock.now_s += 10
    assert lag.of(2) == Lag(versions=1, steps=100, age_s=11.0)


def test_of_a_version_before_a_resume_it_is_at_least_so_much(clock):
    lag = PolicyLag(clock=clock)
    lag.published(500, 1_000)
    clock.now_s += 4
    assert lag.of(480) == Lag(versions=20, steps=0, age_s=4.0)
    lag.published(501, 1_100)
    assert lag.of(480) == Lag(versions=21, steps=100, age_s=0.0)


def test_a_later_version_is_of_a_learner_before_this_one(clock):
    assert published(clock).of(900).versions == 3


def test_it_remembers_a_bounded_number_of_versions(clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_VERSIONS", 2)
    monkeypatch.setattr(module, "MAX_DEVICES", 2)
    lag = published(clock, versions=10)
    assert len(lag._versions) == 2
    assert lag.of(1).versions == 9
    for device in ("a", "b", "c"):
        lag.acted(device, 10)
    assert set(lag.by_device()) == {"b", "c"}


def test_each_device_is_as_far_behind_as_its_newest_block(clock):
    lag = published(clock)
    lag.acted("pi", 1)
    lag.acted("pi", 2)
    lag.acted("robot", 3)
    assert {device: found.versions for device, found in lag.by_device().items()} == {"pi": 1, "robot": 0}


@pytest.mark.parametrize(
    ("bound", "match"),
    [
        (LagBound(versions=1), "2 versions behind, at most 1"),
        (LagBound(steps=150), "200 steps behind, at most 150"),
        (LagBound(age_s=1.5), r"replaced 2\.0 s ago, at most 1\.5"),
    ],
)
def test_a_block_is_as_old_as_its_oldest_row(clock, bound, match):
    lag = published(clock, bound=bound)
    lag.check(FakeBlock(2, 3))
    with pytest.raises(StaleExperience, match=match):
        lag.check(FakeBlock(1, 3))


BOUNDS = [LagBound(versions=1_000), LagBound(steps=10**9), LagBound(age_s=1e9)]


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_version_of_another_epoch_is_over_every_bound(clock, bound):
    """Version 2 of a learner of long ago is not this one's version 2, however new that is."""
    lag = published(clock, versions=2, bound=bound)
    lag.check(FakeBlock(2))
    with pytest.raises(StaleExperience, match="another session"):
        lag.check(FakeBlock(2, epoch=3))
    assert lag.of(2) == Lag()
    assert lag.of(2, epoch=3) == Lag(versions=2, steps=100, age_s=1.0)
    lag.acted("pi", 2, 3)
    assert lag.by_device()["pi"].versions == 2


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("version", [0, 1, 900])
def test_a_version_that_is_not_remembered_is_over_every_bound(clock, monkeypatch, bound, version):
    monkeypatch.setattr(module, "MAX_VERSIONS", 2)
    lag = published(clock, versions=10, bound=bound)
    lag.check(FakeBlock(8))
    with pytest.raises(StaleExperience, match="not among the 3 that are remembered"):
        lag.check(FakeBlock(version))


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("others", [(900,), (3, 900), (900, 3), (0, 3)])
def test_one_row_of_an_unknown_version_is_enough(clock, bound, others):
    """Whoever made them: nothing says how old they are."""
    lag = published(clock, bound=bound)
    lag.check(FakeBlock(2, 3))
    with pytest.raises(StaleExperience, match="not among the 3 that are remembered"):
        lag.check(FakeBlock(2, *others))


@pytest.mark.parametrize("bound", BOUNDS)
def test_one_row_of_another_run_is_enough(clock, bound):
    lag = published(clock, bound=bound)
    block = FakeBlock(2, 3)
    block.policy_epoch = [0, 7]
    with pytest.raises(StaleExperience, match="another session"):
        lag.check(block)


def test_without_a_bound_everything_is_taken(clock):
    published(clock, versions=3_000).check(FakeBlock(1, 9_000))
    published(clock).check(FakeBlock(1, epoch=3))


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("10", LagBound(versions=10)),
        ("10 versions", LagBound(versions=10)),
        ("1version", LagBound(versions=1)),
        ("20000 steps", LagBound(steps=20_000)),
        ("30 s", LagBound(age_s=30.0)),
        ("0.5s", LagBound(age_s=0.5)),
        ("10, 30 s, 500 steps", LagBound(versions=10, steps=500, age_s=30.0)),
    ],
)
def test_bounds_as_people_write_them(text, bound):
    assert LagBound.parse(text) == bound


@pytest.mark.parametrize("text", ["", "0", "-1", "s", "1.5", "1.5 steps", "10 m", "1,2", "1 s, 2 s", "inf", "9x"])
def test_what_is_no_bound_is_refused(text):
    with pytest.raises(UsageError, match="--max-policy-lag"):
        LagBound.parse(text)


@given(st.text(max_size=12))
def test_no_text_does_anything_else(text):
    with contextlib.suppress(UsageError):
        assert LagBound.parse(text) != LagBound()
