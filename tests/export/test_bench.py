"""The figures of pushes and actions: measured on real files, compared with real conversions."""

import dataclasses
import types

import numpy as np
import pytest

from quarl_device.errors import UsageError
from quarl_device.policy import Policy
from quarl_export import bench
from quarl_export.bench import act_speed, dense_policy, pixel_policy, push_speed
from quarl_export.graph import view


def test_a_push_is_timed_beside_conversions_and_compared_with_them():
    told = []
    speed = push_speed((8, 8), pushes=12, conversions=1, progress=told.append)
    assert speed.identical
    assert speed.audited == 1
    assert told == list(range(1, 13))
    assert 0 < speed.patch_ms_p50 < speed.convert_ms_p50
    assert speed.ratio == pytest.approx(speed.convert_ms_p50 / speed.patch_ms_p50)
    assert speed.bytes > 1_000


def test_what_was_timed_is_what_is_compared(monkeypatch):
    """One byte of a kernel, changed in what the timed call gave."""
    right = bench.Template.patch_policy

    def wrong(template, policy, ranges=None):
        data = bytearray(right(template, policy, ranges))
        kernel = next(t for t in view(data).tensors if t.name == "q_values/kernel")
        kernel.data[0, 0] ^= 1
        return bytes(data)

    monkeypatch.setattr(bench.Template, "patch_policy", wrong)
    assert not push_speed((4,), pushes=2, conversions=1).identical


def test_every_push_has_a_kernel_ranges_and_a_normaliser_of_its_own(monkeypatch):
    right, pushed = bench.Template.patch_policy, []

    def kept(template, policy, ranges=None):
        pushed.append(view(right(template, policy, ranges)))
        return right(template, policy, ranges)

    monkeypatch.setattr(bench.Template, "patch_policy", kept)
    push_speed((4,), pushes=3, conversions=1)
    timed = pushed[:3]  # after them come those of which memory is measured
    for name in ("q_values/kernel", "hidden_0/kernel"):
        kernels = [next(t.data.tobytes() for t in graph.tensors if t.name == name) for graph in timed]
        assert len(set(kernels)) == 3
    for operator in ("SUB", "MUL"):
        constants = {
            next(graph.tensors[n].data.tobytes() for n in op.inputs if graph.tensors[n].data is not None)
            for graph in timed
            for op in graph.operators
            if op.name == operator
        }
        assert len(constants) == 3
    assert len({graph.tensors[graph.operators[-1].inputs[0]].scale[0] for graph in timed}) == 3


def test_memory_is_that_of_patches_alone():
    """Three times 512 units: 0.5 MiB of weights in float, of which the bench makes new ones for every push."""
    assert push_speed((512, 512, 512), pushes=60, conversions=1).rss_growth_bytes < 1 << 20


def test_an_action_is_timed_beside_the_bare_call_and_a_float_file():
    speed = act_speed(dense_policy((8,)), calls=200)
    assert (speed.hidden, speed.io, speed.observation) == ((8,), "float32", "float32 8")
    assert speed.ratio == pytest.approx(speed.act_us_p50 / speed.raw_us_p50, rel=0.01)
    assert speed.float_us_p50 > 0
    assert speed.runtime.startswith("ai-edge-litert")


@pytest.mark.parametrize(
    ("head", "exploration"), [("logits", "sample"), ("gaussian", "sample"), ("action", "gaussian")]
)
def test_an_explored_action_is_timed_beside_the_greedy_one(head, exploration):
    speed = act_speed(dense_policy((8,), head=head), calls=300)
    assert (speed.head, speed.explored.exploration) == (head, exploration)
    explored, greedy = speed.explored.explored_us_p50, speed.explored.greedy_us_p50
    assert speed.explored.ratio == pytest.approx(explored / greedy, rel=0.01)
    assert greedy > 0


def test_q_values_are_explored_without_asking_the_policy_so_there_is_nothing_to_time():
    assert act_speed(dense_policy((8,)), calls=200).explored is None


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
