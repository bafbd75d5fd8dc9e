"""The figures of pushes and actions: measured on real files, compared with real conversions."""

import dataclasses
import types

import numpy as np
import pytest

from quarl_device.errors import UsageError
from quarl_device.policy import Policy
from quarl_export import bench
from quarl_export.bench import act_speed, dense_policy, pixel_policy, push_speed


def test_a_push_is_timed_beside_conversions_and_compared_with_them():
    told = []
    speed = push_speed((8, 8), pushes=12, conversions=1, progress=told.append)
    assert speed.identical
    assert speed.audited == 1
    assert told == list(range(1, 13))
    assert 0 < speed.patch_ms_p50 < speed.convert_ms_p50
    assert speed.ratio == pytest.approx(speed.convert_ms_p50 / speed.patch_ms_p50)
    assert speed.bytes > 1_000


def test_a_patch_that_differs_is_not_called_identical(monkeypatch):
    monkeypatch.setattr(bench.Template, "audit", lambda *_, **__: "operator 2: results differ")
    assert not push_speed((4,), pushes=2, conversions=1).identical


def test_an_action_is_timed_beside_the_bare_call_and_a_float_file():
    speed = act_speed(dense_policy((8,)), calls=200)
    assert (speed.hidden, speed.io, speed.observation) == ((8,), "float32", "float32 8")
    assert speed.ratio == pytest.approx(speed.act_us_p50 / speed.raw_us_p50, rel=0.01)
    assert speed.float_us_p50 > 0
    assert speed.runtime.startswith("ai-edge-litert")


def test_integer_ends_are_timed_with_the_normaliser_on_the_device(monkeypatch):
    places = []

    def load(file, **options):
        places.append((file.contract.scheme, file.contract.normalizer.where))
        return Policy.load(file, **options)

    monkeypatch.setattr(bench, "Policy", types.SimpleNamespace(load=load))
    assert act_speed(dense_policy((8,)), io="int8", calls=200).io == "int8"
    assert places == [("int8", "device"), ("float32", "graph")]


def test_an_action_on_stacked_images_is_timed():
    speed = act_speed(pixel_policy(), calls=100)
    assert (speed.hidden, speed.observation) == ((512,), "uint8 84x84x1, 4 stacked")
    assert speed.act_us_p50 > speed.raw_us_p50 / 2


@pytest.mark.parametrize("hidden", [(), (0,), (10_000,), (8,) * 17])
def test_sizes_out_of_range_are_refused(hidden):
    with pytest.raises(UsageError, match="hidden"):
        dense_policy(hidden)


@pytest.mark.parametrize(("pushes", "conversions"), [(1, 2), (5, 0), (0, 0)])
def test_counts_out_of_range_are_refused(pushes, conversions):
    with pytest.raises(UsageError, match="conversions"):
        push_speed((4,), pushes=pushes, conversions=conversions)


def test_its_policy_is_the_same_for_a_seed_and_has_all_ranges():
    one, again, other = dense_policy((8, 4)), dense_policy((8, 4)), dense_policy((8, 4), seed=1)
    assert set(one.ranges) == set(one.graph.range_sites())
    assert all(np.array_equal(one.weights[name], again.weights[name]) for name in one.weights)
    assert not np.array_equal(one.weights["q_values/kernel"], other.weights["q_values/kernel"])
    assert dataclasses.replace(one).contract == again.contract
