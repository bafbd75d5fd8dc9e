"""The oracle of patching is the converter itself."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from graph_factory import (
    VALUE_KINDS,
    Build,
    cnn,
    dueling,
    make_policy,
    mlp,
    observed_ranges,
    random_graph,
    random_inputs,
    random_weights,
    shaped_values,
    snapped_weights,
    two_inputs,
)
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, Normalizer
from quarl_device.errors import NonFiniteError, PatchError, QuarlError, UsageError
from quarl_device.policy_file import read_policy
from quarl_device.runtime import find_runtime
from quarl_export.compare import difference
from quarl_export.file_runner import run_file
from quarl_export.graph import view
from quarl_export.int8_reference import run_int8_reference
from quarl_export.ir.reference import normalize, run_graph
from quarl_export.patch.places import find_places
from quarl_export.patch.values import fingerprint
from quarl_export.quantized import build_planned, convert_planned, convert_quantized, policy_values
from quarl_export.range_plan import QuantizationOptions, plan_ranges
from quarl_export.template import Audit, Template

# A conversion takes a second: few examples by default. `QUARL_PATCH_EXAMPLES=200 pytest -k any_network` is a long run.
_EXAMPLES = int(os.environ.get("QUARL_PATCH_EXAMPLES", "2"))
# Shrinking would convert for minutes, and every example is small already.
_SETTINGS = settings(
    max_examples=_EXAMPLES,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
GRAPHS = {"mlp": mlp(8, 6), "dueling": dueling(), "cnn": cnn(), "two inputs": two_inputs()}
KINDS = {"mlp": "action", "dueling": "q_values", "cnn": "action", "two inputs": "gaussian"}


def normalizer_of(graph, seed=0, clip=0.0):
    rng = np.random.default_rng(seed)
    sizes = {item.key: int(np.prod(item.shape)) for item in graph.inputs}
    return Normalizer(
        offset={key: tuple(rng.normal(size=size).tolist()) for key, size in sizes.items()},
        scale={key: tuple(rng.uniform(0.2, 3, size).tolist()) for key, size in sizes.items()},
        clip=clip,
    )


def arrays_of(normalizer, graph):
    return {
        item.key: tuple(
            np.array(part[item.key], np.float32).reshape(item.shape) for part in (normalizer.offset, normalizer.scale)
        )
        for item in graph.inputs
    }


@pytest.fixture(scope="module")
def templates():
    """Templates of the named graphs, made when they are asked for."""
    made = {}

    def get(name, **options):
        key = (name, *sorted(options.items()))
        if key not in made:
            policy = make_policy(GRAPHS[name], kind=KINDS[name])
            made[key] = Template.from_model(policy, options=QuantizationOptions(**options))
        return made[key]

    return get


@given(
    graph_seed=st.integers(0, 2**20),
    values=st.lists(st.sampled_from(VALUE_KINDS), min_size=1, max_size=2),
    io=st.sampled_from(["float32", "int8", "uint8"]),
    per_channel=st.booleans(),
    clip=st.sampled_from([None, 0.0, 2.0]),
)
@_SETTINGS
def test_any_network_patched_is_the_network_converted(graph_seed, values, io, per_channel, clip):
    graph = random_graph(graph_seed)
    # The mean of one value is that value, and the converter drops the operator.
    assume(not any(layer.kind == "mean" and graph.shapes[layer.inputs[0]] == (1,) for layer in graph.layers))
    normalizer = None if clip is None else normalizer_of(graph, graph_seed, clip)
    policy = make_policy(graph, kind="gaussian", normalizer=normalizer)
    template = Template.from_model(policy, options=QuantizationOptions(io=io, per_channel=per_channel))
    assert template.patched, template.reason
    for kind in values:
        weights, ranges = shaped_values(graph, kind, graph_seed)
        assert template.audit(weights, ranges).identical, kind


# Every kind of values, and every pair of ends, clipping and scales; what hypothesis draws comes on top.
_CORPUS = [
    (101, "float32", False, None, ("trained", "zero kernels")),
    (102, "float32", True, 0.0, ("zero biases", "equal values")),
    (103, "float32", False, 2.0, ("huge", "tiny")),
    (104, "int8", True, None, ("symmetric ranges", "empty ranges")),
    (105, "int8", False, 0.0, ("big biases", "one dead unit")),
    (106, "int8", True, 2.0, ("mixed scales", "trained")),
    (107, "uint8", False, None, ("zero biases",)),
    (108, "uint8", False, 0.0, ("mixed scales",)),
    (109, "uint8", True, 2.0, ("big biases",)),
]


def test_the_corpus_has_every_kind():
    assert {kind for *_, kinds in _CORPUS for kind in kinds} == set(VALUE_KINDS)


@pytest.mark.parametrize(("graph_seed", "io", "per_channel", "clip", "kinds"), _CORPUS)
def test_every_kind_of_values_patched_is_converted(graph_seed, io, per_channel, clip, kinds):
    graph = random_graph(graph_seed)
    normalizer = None if clip is None else normalizer_of(graph, graph_seed, clip)
    policy = make_policy(graph, kind="gaussian", normalizer=normalizer)
    options = QuantizationOptions(io=io, per_channel=per_channel)
    template = Template.from_model(policy, options=options, verify=False)
    assert template.patched, template.reason
    for kind in kinds:
        weights, ranges = shaped_values(graph, kind, graph_seed)
        assert template.audit(weights, ranges).identical, kind


@pytest.mark.parametrize(
    ("name", "options", "kinds"),
    [
        ("mlp", {}, ("zero kernels", "equal values", "huge", "empty ranges", "big biases")),
        ("mlp", {"per_channel": True}, ("zero kernels", "mixed scales", "big biases", "one dead unit")),
        ("cnn", {}, ("tiny", "one dead unit", "zero biases")),
        ("dueling", {}, ("symmetric ranges", "trained")),
        ("two inputs", {"io": "uint8", "per_channel": True}, ("trained", "mixed scales")),
        *(("mlp", {"weight_bits": bits, "activation_bits": bits}, ("trained",)) for bits in range(2, 8)),
        ("mlp", {"weight_bits": 3, "activation_bits": 6}, ("tiny", "empty ranges", "huge", "big biases")),
        ("dueling", {"weight_bits": 4, "activation_bits": 2}, ("trained",)),
        ("mlp", {"wide_outputs": frozenset({"dense_4"})}, ("trained", "huge", "zero biases")),
        ("mlp", {"wide_outputs": frozenset({"dense_4"}), "per_channel": True}, ("trained",)),
    ],
)
def test_corners_in_which_converters_take_shortcuts(templates, name, options, kinds):
    template = templates(name, **options)
    for seed, kind in enumerate(kinds):
        weights, ranges = shaped_values(GRAPHS[name], kind, seed)
        assert template.audit(weights, ranges).identical, kind


def test_a_clipping_normaliser_is_patched_too():
    graph = two_inputs()
    policy = make_policy(graph, kind="gaussian", normalizer=normalizer_of(graph, clip=2.0))
    template = Template.from_model(policy)
    weights, ranges = shaped_values(graph, "trained", 3)
    other = arrays_of(normalizer_of(graph, seed=9), graph)
    assert template.audit(weights, ranges).identical
    assert template.audit(weights, ranges, normalizer=other).identical
    assert template.patch(weights, ranges) != template.patch(weights, ranges, normalizer=other)
    with pytest.raises(PatchError, match="normalises"):
        template.patch(weights, ranges, normalizer={})
    bad = {key: (offset * np.float32(np.nan), scale) for key, (offset, scale) in other.items()}
    with pytest.raises(NonFiniteError, match="normaliser"):
        template.patch(weights, ranges, normalizer=bad)


def test_float_layers_are_patched_as_they_are():
    build = Build(observation=(4,))
    hidden = build.add("layer_norm", build.dense("observation", 8, "elu"))
    graph = build.graph({"action": build.dense(build.dense(hidden, 5, "relu"), 2)})
    kept = frozenset({"dense_0", "elu_1", "layer_norm_2", "dense_5"})
    policy = make_policy(graph, normalizer=normalizer_of(graph, clip=2.0))
    template = Template.from_model(policy, options=QuantizationOptions(keep_float=kept))
    assert template.patched, template.reason
    weights, ranges = shaped_values(graph, "trained", 1)
    assert template.audit(weights, ranges).identical
    with pytest.raises(NonFiniteError, match="dense_5/bias"):
        template.patch({**weights, "dense_5/bias": weights["dense_5/bias"] * np.float32(np.inf)}, ranges)


def test_a_large_multiplication_asks_for_the_kernel_version_that_can():
    """The one operator whose version follows the values."""
    build = Build(observation=(4,))
    graph = build.graph({"action": build.add("multiply", build.dense("observation", 3), build.dense("observation", 3))})
    template = Template.from_model(make_policy(graph))
    weights = random_weights(graph)
    ranges = dict.fromkeys(template.sites, (-1.0, 1.0))
    steep = ranges | {"dense_0": (-500.0, 500.0), "dense_1": (-500.0, 500.0), "multiply_2": (-1.0, 1.0)}
    for found, version in ((ranges, 2), (steep, 3), (ranges, 2)):
        assert template.audit(weights, found).identical
        operators = view(template.patch(weights, found)).operators
        assert [op.version for op in operators if op.name == "MUL"] == [version]


def test_patching_depends_on_the_values_alone(templates):
    template = templates("cnn")
    one, two = (shaped_values(cnn(), "trained", seed) for seed in (1, 2))
    first = template.patch(*one)
    assert template.patch(*two) != first
    assert template.patch(*one) == first == template.data
    assert len(template.patch(*two)) == len(first)


def test_tensors_are_named_after_the_network(templates):
    names = {tensor.name for tensor in view(templates("two inputs").data).tensors}
    assert {"image", "state", "mean", "log_std", "conv2d_0/kernel", "dense_7/bias", "concatenate_3"} <= names
    made_by = {o.outputs[0]: o.name for o in view(templates("two inputs").data).operators}
    concatenated = next(t.index for t in view(templates("two inputs").data).tensors if t.name == "concatenate_3")
    assert made_by[concatenated] == "CONCATENATION"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["conv2d_0/kernel", "depthwise_conv2d_2/bias", "dense_8/kernel"])
def test_nan_and_inf_are_refused_by_name_and_leave_no_trace(templates, name, bad):
    template = templates("cnn")
    weights, ranges = shaped_values(cnn(), "trained", 4)
    before = template.patch(weights, ranges)
    broken = {**weights, name: weights[name].copy()}
    broken[name].flat[-1] = bad
    with pytest.raises(NonFiniteError, match=name):
        template.patch(broken, ranges)
    assert template.patch(weights, ranges) == before


def test_another_network_is_refused(templates):
    template = templates("mlp")
    weights, ranges = shaped_values(GRAPHS["mlp"], "trained", 0)
    with pytest.raises(PatchError, match=r"dense_0/kernel is float32\[5, 8\]"):
        template.patch({**weights, "dense_0/kernel": np.zeros((5, 8), np.float32)}, ranges)
    with pytest.raises(PatchError, match="missing or unknown"):
        template.patch({**weights, "more": np.zeros(1, np.float32)}, ranges)
    with pytest.raises(PatchError, match="float64"):
        template.patch({**weights, "dense_0/bias": np.zeros(8)}, ranges)
    with pytest.raises(UsageError, match="no range for 'relu_1'"):
        template.patch(weights, {name: found for name, found in ranges.items() if name != "relu_1"})
    tanh = make_policy(mlp(8, 6, activation="tanh"))
    with pytest.raises(PatchError, match="layer 'relu_1'"):
        template.patch_policy(tanh, ranges)
    with pytest.raises(UsageError, match="the device's work"):
        templates("mlp", io="int8").patch(weights, ranges, normalizer={"observation": (np.zeros(4), np.ones(4))})


def test_a_network_that_cannot_be_patched_converts_every_time_and_says_so():
    """A mean of one value: the converter drops its operator, and its range with it."""
    graph = dueling(head=1)
    policy = make_policy(graph, kind="q_values")
    template = Template.from_model(policy, verify=False).with_metadata({"note": b"kept"})
    assert not template.patched
    assert "dropped" in template.reason
    weights, ranges = shaped_values(graph, "trained", 0)
    converted = convert_quantized(dataclasses.replace(policy, weights=weights), ranges)
    assert difference(template.patch(weights, ranges), converted) == ""
    assert b"kept" in template.patch(weights, ranges)
    # A conversion compared with itself would be no audit.
    assert template.audit(weights, ranges) == Audit(compared="nothing")
    assert not template.audit(weights, ranges).identical
    with pytest.raises(PatchError):
        Template.from_model(policy, options=QuantizationOptions(weight_bits=4, per_channel=True))


def test_layers_that_are_equal_stay_layers():
    """The converter would merge them, and leave them in float where their ranges differ."""
    build = Build(observation=(4,))
    graph = build.graph({"mean": build.dense("observation", 3), "log_std": build.dense("observation", 3, "tanh")})
    weights = random_weights(graph)
    weights |= {f"dense_1/{part}": weights[f"dense_0/{part}"] for part in ("kernel", "bias")}
    policy = make_policy(graph, kind="gaussian", weights=weights)
    ranges = {"observation": (-2.0, 2.0), "dense_0": (-1.0, 2.0), "dense_1": (-3.0, 3.0)}
    model = convert_quantized(policy, ranges)
    dense = [op for op in view(model).operators if op.name == "FULLY_CONNECTED"]
    assert [view(model).tensors[op.inputs[1]].dtype for op in dense] == [np.int8, np.int8]
    audit = Template.from_model(policy, verify=False).audit(weights, ranges)
    assert audit == Audit(compared="untied values")


@pytest.mark.parametrize("per_channel", [False, True])
def test_tied_values_compute_what_numpy_says(per_channel):
    """No conversion can be compared with them: two equal layers, and per channel a bias of one value."""
    build = Build(observation=(4,))
    graph = build.graph({"mean": build.dense("observation", 3), "log_std": build.dense("observation", 3)})
    weights = random_weights(graph)
    weights["dense_0/bias"] = np.full(3, 0.3, np.float32)
    weights |= {f"dense_1/{part}": weights[f"dense_0/{part}"] for part in ("kernel", "bias")}
    ranges = {"observation": (-2.0, 2.0), "dense_0": (-1.0, 2.0), "dense_1": (-3.0, 3.0)}
    policy = make_policy(graph, kind="gaussian", weights=weights)
    options = QuantizationOptions(per_channel=per_channel)
    template = Template.from_model(policy, options=options, verify=False)
    assert template.audit(weights, ranges).compared == "untied values"
    inputs = random_inputs(graph, 100, seed=5)
    outputs = run(template.patch(weights, ranges), graph, inputs)
    expected = run_int8_reference(policy, ranges, inputs, options=options)
    for role, source in graph.outputs.items():
        low, high = ranges[source]
        assert np.abs(np.rint((outputs[role] - expected[role]) / ((high - low) / 255))).max() == 0
        assert np.ptp(outputs[role]) > 0.5


def test_what_no_output_depends_on_is_no_part_of_the_file():
    build = Build(observation=(4,), ignored=(3,))
    head = build.dense(build.dense("observation", 5, "relu"), 2)
    build.dense("ignored", 3, "tanh")
    graph = build.graph({"action": head})
    policy = make_policy(graph, normalizer=normalizer_of(graph, clip=1.0))
    weights, ranges = shaped_values(graph, "trained", 0)
    for io in ("float32", "int8"):
        template = Template.from_model(policy, options=QuantizationOptions(io=io))
        assert template.patched, template.reason
        assert template.sites == ("observation", "relu_1", "dense_2")
        assert template.audit(weights, ranges).identical
        found = view(template.data)
        assert {found.tensors[index].name for index in found.inputs} == {"observation", "ignored"}


def test_equal_ranges_need_no_change_of_grid():
    """An input whose range is the concatenation's too: the converter leaves the operator out, a template cannot."""
    build = Build(observation=(4,), other=(3,))
    joined = build.add("concatenate", "observation", "other")
    graph = build.graph({"mean": build.dense(joined, 2), "log_std": build.dense("observation", 2)})
    template = Template.from_model(make_policy(graph, kind="gaussian"), verify=False)
    weights, ranges = shaped_values(graph, "trained", 0)
    assert template.audit(weights, {**ranges, "observation": ranges[joined]}).identical


def test_a_value_with_two_places_is_refused():
    graph = mlp(8, 8)
    plan = plan_ranges(graph, QuantizationOptions())
    values = fingerprint(plan, {})
    same = dataclasses.replace(values, ranges=dict.fromkeys(values.ranges, (-1.0, 2.0)))
    with pytest.raises(PatchError):
        find_places(view(convert_planned(plan, same)), plan, same)


def test_a_tensor_that_nothing_explains_is_refused():
    plan = plan_ranges(mlp(8), QuantizationOptions())
    values = fingerprint(plan, {})
    other = {**values.weights, "dense_0/bias": values.weights["dense_0/bias"] * 2}
    model = view(convert_planned(plan, dataclasses.replace(values, weights=other)))
    with pytest.raises(PatchError, match=r"bias of 'dense_0'"):
        find_places(model, plan, values)
    other["dense_2/kernel"] = values.weights["dense_2/kernel"] * 2
    with pytest.raises(PatchError, match=r"kernel of 'dense_2' has 0 places"):
        find_places(model, plan, dataclasses.replace(values, weights=other))


def run(model, graph, inputs):
    loaded = find_runtime().load(model, inputs=list(inputs), outputs=list(graph.outputs))
    rows = []
    for row in range(len(next(iter(inputs.values())))):
        results = loaded.run({key: values[row : row + 1] for key, values in inputs.items()})
        rows.append({role: np.array(values) for role, values in results.items()})
    return {role: np.concatenate([row[role] for row in rows]) for role in graph.outputs}


@pytest.mark.parametrize(
    ("name", "options", "limit"),
    [
        ("mlp", {}, 0),
        ("mlp", {"per_channel": True}, 0),
        ("mlp", {"weight_bits": 2, "per_channel": True}, 0),
        ("mlp", {"weight_bits": 5, "activation_bits": 3}, 0),
        ("cnn", {}, 1),
        ("cnn", {"weight_bits": 4, "activation_bits": 4}, 1),
        ("dueling", {}, 2),
    ],
)
def test_file_and_fake_quants_agree_in_every_step(templates, name, options, limit):
    """Fewer bits per channel have no converter to be compared with: the fake-quant model is their oracle."""
    graph = GRAPHS[name]
    chosen = QuantizationOptions(**options)
    weights, ranges = shaped_values(graph, "trained", 7)
    policy = make_policy(graph, kind=KINDS[name], weights=weights)
    plan = plan_ranges(graph, chosen)
    values = policy_values(policy, plan, ranges)
    twin = build_planned(plan, dataclasses.replace(values, weights=snapped_weights(plan, values)))
    inputs = random_inputs(graph, 200, seed=3)
    outputs = run(templates(name, **options).patch(weights, ranges), graph, inputs)
    expected = twin([inputs[item.key] for item in graph.inputs])
    for place, (role, source) in enumerate(graph.outputs.items()):
        low, high = ranges[source]
        steps = (outputs[role] - expected[f"output_{place}"].numpy()) / ((high - low) / 255)
        assert np.abs(np.rint(steps)).max() <= limit


def test_fewer_bits_have_no_more_levels(templates):
    bits = 4
    weights, ranges = shaped_values(cnn(), "trained", 1)
    found = view(templates("cnn", weight_bits=bits, activation_bits=bits).patch(weights, ranges))
    for tensor in found.tensors:
        if tensor.name.endswith("/kernel"):
            assert np.abs(tensor.data).max() == 2 ** (bits - 1) - 1
    zero_points = {t.name: int(t.zero_point[0]) for t in found.tensors if t.scale is not None and t.data is None}
    assert zero_points["relu_1"] == 127 - (2**bits - 1)


def test_a_template_with_a_contract_makes_policy_files(templates):
    graph = two_inputs()
    weights, ranges = shaped_values(graph, "trained", 2)
    policy = make_policy(graph, kind="gaussian", weights=weights, normalizer=normalizer_of(graph, clip=3.0))
    policy = dataclasses.replace(policy, ranges=ranges, provenance={"source": "test"})
    template = Template.from_model(policy, verify=False).with_contract(policy, random_inputs(graph, 4))
    file = read_policy(template.patch_policy(policy))
    assert file.contract.scheme == "int8"
    assert [spec.tensor for spec in file.contract.observations] == ["image", "state"]
    assert dict(file.contract.head.outputs) == {"mean": "mean", "log_std": "log_std"}
    assert file.contract.normalizer.where == "graph"
    assert not file.contract.normalizer.offset
    assert file.golden.rows == 4
    assert file.provenance == {"source": "test"}


_MEMORY = """
    import sys
    sys.path.insert(0, {tests!r})
    import numpy as np
    from graph_factory import make_policy, mlp, shaped_values
    from quarl_export.template import Template

    def resident_kib():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    graph = mlp(256, 256, 256)
    template = Template.from_model(make_policy(graph), verify=False)
    weights, ranges = shaped_values(graph, "trained", 0)
    for _ in range(50):
        template.patch(weights, ranges)
    before = resident_kib()
    for _ in range(1000):
        template.patch(weights, ranges)
    print(resident_kib() - before)
"""


def test_memory_stays_flat_over_a_thousand_pushes():
    """Converting leaks (tensorflow issue 122598); patching must not."""
    script = textwrap.dedent(_MEMORY.format(tests=str(Path(__file__).parent)))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout.split()[-1]) < 4096


def test_patching_is_far_faster_than_converting():
    """At the size that is published, 3 x 256: `docs/benchmarks.md` has the figures and the command."""
    import time

    graph = mlp(256, 256, 256)
    weights, ranges = shaped_values(graph, "trained", 0)
    template = Template.from_model(make_policy(graph), verify=False)
    start = time.perf_counter()
    convert_quantized(make_policy(graph, weights=weights), ranges)
    converting = time.perf_counter() - start
    times = []
    for _ in range(20):
        start = time.perf_counter()
        template.patch(weights, ranges)
        times.append(time.perf_counter() - start)
    assert converting > 50 * min(times)


def test_options_that_do_not_fit_are_refused_before_anything_is_converted():
    with pytest.raises(QuarlError, match="no layer"):
        Template.from_model(make_policy(mlp(8)), options=QuantizationOptions(keep_float=frozenset({"x"})))


def test_observed_ranges_are_all_the_sites_need(templates):
    graph = GRAPHS["dueling"]
    assert set(templates("dueling").sites) <= set(observed_ranges(graph, random_weights(graph)))


# ------------------------------------------------------------------ integer ends, and what a file says of its policy


def bound(policy, normalizer):
    return dataclasses.replace(policy, contract=dataclasses.replace(policy.contract, normalizer=normalizer))


def vector_policy(*, clip=0.0, seed=0, normalizer_seed=0):
    graph = GRAPHS["mlp"]
    policy = make_policy(graph, seed=seed, normalizer=normalizer_of(graph, normalizer_seed, clip))
    action = ActionSpec(kind="box", shape=(2,), low=(-9.0, -9.0), high=(9.0, 9.0))
    policy = dataclasses.replace(policy, contract=dataclasses.replace(policy.contract, action=action))
    return dataclasses.replace(policy, ranges=observed_ranges(graph, policy.weights, seed))


@pytest.fixture(scope="module")
def coral():
    """By the type of their ends: templates of one policy whose normaliser is the device's work."""
    return {
        io: Template.from_model(vector_policy(clip=2.0), options=QuantizationOptions(io=io)) for io in ("int8", "uint8")
    }


@pytest.mark.parametrize("io", ["int8", "uint8"])
def test_a_policy_with_integer_ends_is_pushed_and_acts(coral, io):
    policy, other = vector_policy(clip=2.0), vector_policy(clip=2.0, seed=5)
    rows = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    template = coral[io].with_contract(policy, {"observation": rows})
    pushed = template.patch_policy(other)
    plan = plan_ranges(other.graph, QuantizationOptions(io=io))
    assert difference(pushed, convert_planned(plan, policy_values(other, plan, other.ranges))) == ""
    found = read_policy(pushed)
    assert found.contract.normalizer.where == "device"
    wanted = run_graph(other.graph, other.weights, normalize(other, {"observation": rows}))["dense_4"]
    acted = run_file(pushed, found.contract, {"observation": rows})["action"]
    low, high = other.ranges["dense_4"]
    assert np.abs(acted - np.clip(wanted, low, high)).max() < 0.1 * (high - low)
    assert template.patch(other.weights, other.ranges) == pushed


def test_constants_that_a_device_would_not_know_are_refused(coral):
    policy, moved = vector_policy(clip=2.0), vector_policy(clip=2.0, normalizer_seed=9)
    rows = {"observation": np.zeros((2, 4), np.float32)}
    for template in (coral["int8"], coral["int8"].with_contract(policy, rows)):
        for other in (moved, vector_policy(clip=3.0), bound(policy, Normalizer())):
            with pytest.raises(PatchError, match=r"normalizer.*with_contract"):
                template.patch_policy(other)
    said = coral["int8"].with_contract(moved, rows)
    assert read_policy(said.patch_policy(moved)).contract.normalizer.offset == moved.contract.normalizer.offset
    with pytest.raises(PatchError, match="normalizer"):
        said.patch_policy(policy)


def test_constants_in_the_file_may_move_but_not_its_clip():
    template = Template.from_model(vector_policy(clip=2.0), verify=False)
    moved = vector_policy(clip=2.0, normalizer_seed=9)
    assert template.patch_policy(moved) != template.patch_policy(vector_policy(clip=2.0))
    for clip in (0.0, 3.0):
        with pytest.raises(PatchError, match=r"clips what it normalised to ±2, the policy to ±" + f"{clip:g}"):
            template.patch_policy(vector_policy(clip=clip))
        with pytest.raises(PatchError, match="clips"):
            template.with_contract(vector_policy(clip=clip), {"observation": np.zeros((2, 4))})


def test_a_policy_of_which_the_contract_in_the_file_says_otherwise_is_refused():
    policy = vector_policy()
    bare = Template.from_model(policy, verify=False)
    scaled = dataclasses.replace(policy.contract.action, scale=(2.0, 2.0), offset=(0.0, 0.0))
    other = dataclasses.replace(policy, contract=dataclasses.replace(policy.contract, action=scaled))
    assert bare.patch_policy(other) == bare.patch_policy(policy), "nothing of it is in a file without a contract"
    with pytest.raises(PatchError, match="go with action"):
        bare.with_contract(policy, {"observation": np.zeros((2, 4))}).patch_policy(other)


# ------------------------------------------------------------------ refusals leave no trace


@pytest.mark.parametrize(
    ("name", "value"),
    [("dense_4/kernel", np.nan), ("dense_4/bias", np.inf), ("dense_4/kernel", 1e31)],
)
def test_a_refused_patch_leaves_the_file_as_it_was(templates, name, value):
    """The last layer is at fault: ranges and the layers before it must not have been written."""
    template = templates("mlp")
    first, (weights, ranges) = (shaped_values(GRAPHS["mlp"], "trained", seed) for seed in (1, 2))
    before = template.patch(*first)
    broken = {**weights, name: weights[name].copy()}
    broken[name].flat[0] = value
    with pytest.raises(QuarlError):
        template.patch(broken, ranges)
    assert template.data == before


def test_a_refused_float_layer_leaves_the_file_as_it_was():
    build = Build(observation=(4,))
    graph = build.graph({"action": build.dense(build.dense("observation", 5, "relu"), 2)})
    template = Template.from_model(
        make_policy(graph), options=QuantizationOptions(keep_float=frozenset({"dense_2"})), verify=False
    )
    before = template.patch(*shaped_values(graph, "trained", 1))
    weights, ranges = shaped_values(graph, "trained", 2)
    weights["dense_2/bias"] = weights["dense_2/bias"] * np.float32(np.nan)
    with pytest.raises(NonFiniteError, match="dense_2/bias"):
        template.patch(weights, ranges)
    assert template.data == before
