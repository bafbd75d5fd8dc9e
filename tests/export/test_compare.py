from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from export_factory import random_snapshot
from graph_factory import Build, make_policy, observed_ranges, random_weights

from quarl_export.compare import difference
from quarl_export.graph import repack, view
from quarl_export.quantized import convert_quantized
from quarl_export.template import Template


@pytest.fixture
def model(patcher, spec):
    return patcher.patch(random_snapshot(spec, seed=1))


def changed(model: bytes, change) -> bytes:
    buffer = bytearray(model)
    change({tensor.name: tensor for tensor in view(buffer).tensors})
    return bytes(buffer)


def test_equal_models_do_not_differ(model):
    assert difference(model, bytes(model)) == ""


def test_names_and_metadata_do_not_count(model):
    assert difference(model, repack(model, names={3: "other"}, metadata={"note": b"x"})) == ""


def add(array: np.ndarray, amount: float) -> None:
    array.flat[0] += np.asarray(amount, array.dtype)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: add(t["hidden_1/kernel"].data, 1),
        lambda t: add(t["hidden_0/bias"].data, 1),
        lambda t: add(t["hidden_0/kernel"].scale, 1e-6),
        lambda t: add(t["relu_0"].scale, 1e-6),
        lambda t: add(t["relu_1"].zero_point, 1),
    ],
    ids=["weight", "bias", "weight scale", "range scale", "zero point"],
)
def test_one_step_anywhere_is_a_difference(model, change):
    other = changed(model, change)
    assert "differ" in difference(model, other)
    assert "differ" in difference(other, model)


def test_bias_of_zeros_is_as_good_as_none(patcher, spec):
    snapshot = random_snapshot(spec, seed=2)
    zeros = dataclasses.replace(snapshot, biases=tuple(np.zeros_like(b) for b in snapshot.biases))
    model, other = patcher.patch(snapshot), patcher.patch(zeros)
    assert difference(model, other) != ""
    tiny = changed(other, lambda t: add(t["q_values/bias"].data, 1))
    assert difference(other, tiny) != ""


def test_other_depth_is_a_difference(model, template):
    assert difference(model, template.data) != ""


def test_operators_that_compute_the_same_count_once():
    """The converter merges them, a template keeps them apart; what differs between them still counts."""
    build = Build(observation=(4,))
    graph = build.graph({"mean": build.dense("observation", 3), "log_std": build.dense("observation", 3)})
    template = Template.from_model(make_policy(graph, kind="gaussian"), verify=False)
    weights = random_weights(graph)
    twins = weights | {f"dense_1/{part}": weights[f"dense_0/{part}"] for part in ("kernel", "bias")}
    ranges = dict.fromkeys(template.sites, (-1.0, 1.0))
    both = template.patch(twins, ranges)
    one = view(both)
    assert [operator.name for operator in one.operators].count("FULLY_CONNECTED") == 2
    assert difference(both, both) == ""
    assert difference(both, template.patch(weights, ranges)) != ""
    assert difference(both, template.patch(twins, ranges | {"dense_1": (-1.0, 2.0)})) != ""


def test_settings_of_operators_count():
    files = []
    for strides in ((1, 1), (2, 2)):
        build = Build(image=(4, 4, 1))
        pooled = build.add("max_pool2d", "image", pool_size=(3, 3), strides=strides, padding="same")
        graph = build.graph({"action": build.dense(build.add("global_average_pool2d", pooled), 2)})
        weights = random_weights(graph)
        files.append(convert_quantized(make_policy(graph, weights=weights), observed_ranges(graph, weights)))
    assert "settings differ" in difference(*files)
