"""What `compare` advises is what `export` takes, and what was cut on purpose is no fault."""

import dataclasses
import re
import shlex

import numpy as np
import pytest
from policy_factory import dueling, image_policy, layer, make_policy, mixed, mlp, rows, tanh_actor
from report_pairs import pair

from quarl_export.calibration import CalibrationData, RangeRule
from quarl_export.layer_scopes import source_layers, source_of
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.reports import compare_files
from quarl_export.reports.findings import find
from quarl_export.reports.mends import finer
from quarl_export.reports.on_purpose import saturation_of
from quarl_export.reports.side import read_side
from quarl_export.reports.structure import layers_of
from quarl_export.schemes import SchemeOptions, check_layers


def files(folder, policy, observed=None, *, rule=None, **scheme):
    """Write a float32 and an int8 file of a policy and what they were calibrated with; return their paths."""
    observed = observed or rows(policy, 128)
    data = CalibrationData.checked(policy.contract, observed, source="test")
    paths = folder / "float.tflite", folder / "int8.tflite", folder / "rows.npz"
    for path, options in (
        (paths[0], ExportOptions(scheme=SchemeOptions(scheme="float32"), force=True)),
        (paths[1], ExportOptions(scheme=SchemeOptions(**scheme), rule=rule, force=True)),
    ):
        path.write_bytes(build_file(policy, options, data=data).file.data)
    np.savez(paths[2], **observed)
    return paths


def compared(folder, policy, observed=None, **changes):
    reference, quantized, seen = files(folder, policy, observed, **changes)
    return compare_files(reference, quantized, observations=seen, same_policy=True)


def named_by(mend):
    """Return what a sentence tells to give to --keep-float."""
    words = shlex.split(mend.replace(",", " ").replace("input's", "input"))
    return [words[place + 1] for place, word in enumerate(words) if word == "--keep-float"]


def renamed(policy, names):
    """Return a policy whose layers have other names."""

    def call(name):
        return names.get(name, name)

    layers = tuple(
        dataclasses.replace(each, name=call(each.name), inputs=tuple(map(call, each.inputs)))
        for each in policy.graph.layers
    )
    move = {name: f"{call(name.rpartition('/')[0])}/{name.rpartition('/')[2]}" for name in policy.weights}
    graph = dataclasses.replace(
        policy.graph,
        layers=layers,
        outputs={role: call(name) for role, name in policy.graph.outputs.items()},
        weight_shapes={move[name]: shape for name, shape in policy.graph.weight_shapes.items()},
    )
    return dataclasses.replace(policy, graph=graph, weights={move[name]: a for name, a in policy.weights.items()})


@pytest.mark.parametrize("make", [mlp, tanh_actor, dueling, image_policy, mixed])
def test_layers_have_their_sources_names_and_export_takes_what_is_advised(make, tmp_path):
    policy = make()
    odd = {each.name: f"model/q net.{place}" for place, each in enumerate(policy.graph.layers)}
    policy = renamed(policy, odd)
    found = compared(tmp_path, policy)
    layers = [each for each in found.layers if each.kind != "QUANTIZE"]
    assert layers
    assert {each.source for each in layers} <= set(odd.values())
    assert len({each.source for each in layers}) == len(layers)
    advised = [name for each in layers for name in named_by(finer(each, found.layers, scheme="int8"))]
    read_by = {each.name: each.inputs[0] for each in policy.graph.layers if each.kind == "tanh"}
    # A tanh shows the rounding of what it reads, which takes it along.
    assert advised == [read_by.get(each.source, each.source) for each in layers]
    for name in advised:
        check_layers(policy, SchemeOptions(keep_float=frozenset({name})))
    assert found.to_json()["layers"][-1]["source"] == layers[-1].source


def test_an_activation_is_named_by_the_operator_that_computes_it(tmp_path):
    """Which --keep-float takes with it: the kernel of a dense layer and its ReLU are one operator."""
    found = compared(tmp_path, mlp())
    assert [(each.name, each.activation) for each in found.layers[1:]] == [("a", "relu"), ("q", "none")]


def test_what_is_kept_in_float_already_is_not_advised(tmp_path):
    found = compared(tmp_path, dueling(), keep_float=frozenset({"h"}))
    (kept,) = (each for each in found.layers if each.source == "h")
    assert kept.grid is None
    assert named_by(finer(kept, found.layers, scheme="int8")) == []


def test_the_way_onto_the_inputs_grid_is_no_layer_to_keep(tmp_path):
    found = compared(tmp_path, mlp())
    mend = finer(found.layers[0], found.layers, scheme="int8")
    assert "normalise each dimension" in mend
    assert "does not reach" in mend
    coarse = dataclasses.replace(found.layers[0], errors=dataclasses.replace(found.layers[0].errors, snr_db=3.0))
    (told,) = find(None, (coarse,), (), recorded=True, traced_gap=0.0)[:1]
    assert (told.code, "observation 'observation'" in told.message, told.mend) == ("R04", True, mend)


def test_the_only_weights_are_not_to_be_kept(tmp_path):
    """Export refuses it: nothing would be quantized."""
    policy = make_policy(
        {"observation": (4,)}, [layer("only", "dense", "observation")], {"only/kernel": (4, 3), "only/bias": (3,)},
        output="only",
    )  # fmt: skip
    found = compared(tmp_path, policy, per_channel=True)
    assert finer(found.layers[-1], found.layers, scheme="int8") == "--scheme float16 computes it in float"


def test_a_file_that_does_not_name_its_source_says_where_the_names_are():
    found = compare_files(*pair("dueling"), rows=16)
    assert {each.source for each in found.layers} == {""}
    assert "quarl-edge inspect SOURCE" in finer(found.layers[1], found.layers, scheme="int8")


@pytest.mark.parametrize("scheme", ["int16x8", "dynamic"])
def test_schemes_that_keep_nothing_are_not_advised_to(scheme, tmp_path):
    found = compared(tmp_path, mlp(hidden=512), scheme=scheme)
    assert found.quantized.scheme == scheme
    for each in found.layers[1:]:
        assert "--scheme float16" in finer(each, found.layers, scheme=scheme)


@pytest.mark.parametrize("names", [None, "abc", [1], {"a": "b"}, [["a"]]])
def test_what_a_file_says_of_its_layers_may_be_anything(names):
    assert source_layers({"layers": names}) == ()
    assert source_of("policy/network/quarl_layer_7/add", ["a"]) == ""
    assert source_of("policy/network/quarl_layer_0/add", []) == ""
    assert source_of("x/quarl_layer_1/Relu;x/quarl_layer_0/add", ["a", "b"]) == "a"
    assert source_of("x/my_quarl_layer_1/Relu", ["a", "b"]) == ""


def steep(factor=8.0):
    """A tanh actor most of whose values saturate."""
    policy = tanh_actor()
    for name, array in policy.weights.items():
        if name.endswith("/kernel"):
            array[:] = np.float32(factor) * array
    return policy


def test_what_saturates_in_a_tanh_is_cut_on_purpose(tmp_path):
    found = compared(tmp_path, steep())
    before = [each for each in found.layers if each.kind == "FULLY_CONNECTED"]
    assert all(each.limit == 4.0 and each.beyond > 0.1 for each in before)
    assert all(each.grid.clipped == 0.0 for each in before)
    codes = [(told.code, told.severity) for told in found.findings]
    assert codes.count(("R14", "note")) == len(before)
    assert not {("R04", "warning"), ("R05", "warning")} & set(codes)
    assert "±4" in next(told.message for told in found.findings if told.code == "R14")


def test_a_tanh_that_ends_at_one_is_not_to_be_calibrated(tmp_path):
    """Its kernel's range ends at 127/128, whatever it was calibrated with; what is to be kept does make it finer."""
    policy = steep()
    found = compared(tmp_path, policy)
    last = found.layers[-1]
    assert (last.kind, last.grid.clipped > 0.01) == ("TANH", True)
    mend = finer(last, found.layers, scheme="int8")
    assert "calibrate" not in mend
    (name,) = named_by(mend)
    kept = compared(tmp_path, policy, keep_float=frozenset({name}))
    assert kept.layers[-1].errors.snr_db > last.errors.snr_db


def test_an_output_that_a_tanh_reads_too_is_not_cut(tmp_path):
    policy = tanh_actor()
    reference, _, _ = files(tmp_path, policy)
    side = read_side(reference)
    layers = layers_of(side.graph, side.inputs)
    assert set(saturation_of(side.graph, layers, side.contract).values()) == {4.0}
    (dense, tanh) = layers[-2:]
    both = dataclasses.replace(side.graph, outputs=(dense.output, tanh.output))
    assert len(saturation_of(both, layers, side.contract)) == len(saturation_of(side.graph, layers, side.contract)) - 1


def heavy(policy, count=4_000):
    """Observations a few of which are far out."""
    rng = np.random.default_rng(0)
    return {
        spec.key: rng.standard_t(2, (count, *spec.shape)).astype(np.float32) for spec in policy.contract.observations
    }


def test_what_a_percentile_leaves_out_is_told_as_that(tmp_path):
    policy = mlp()
    found = compared(tmp_path, policy, heavy(policy), rule=RangeRule(kind="percentile", percentile=97.0))
    assert found.quantized.cut_share == pytest.approx(0.06)
    told = [each for each in found.findings if each.code == "R14"]
    assert {each.severity for each in told} == {"note"}
    assert any("observation" in each.message for each in told)
    assert any("layer 'a'" in each.message for each in told)
    assert all("--range percentile leaves out up to 6.0%" in each.message for each in told)
    assert not {each.code for each in found.findings if each.severity == "warning"} & {"R03", "R04", "R05"}


def test_more_than_a_percentile_leaves_out_is_a_warning(tmp_path):
    """The files are shown other observations than they were calibrated with."""
    policy = mlp()
    observed = heavy(policy)
    reference, quantized, seen = files(tmp_path, policy, observed, rule=RangeRule(kind="percentile", percentile=99.0))
    np.savez(seen, **{key: 4 * array for key, array in observed.items()})
    found = compare_files(reference, quantized, observations=seen)
    assert {"R03", "R05"} <= {each.code for each in found.findings if each.severity == "warning"}


def test_without_a_percentile_a_narrow_range_is_a_warning(tmp_path):
    policy = mlp()
    reference, quantized, seen = files(tmp_path, policy)
    np.savez(seen, **{key: 4 * array for key, array in rows(policy, 64).items()})
    found = compare_files(reference, quantized, observations=seen)
    assert found.quantized.cut_share == 0.0
    assert {"R03", "R05"} <= {each.code for each in found.findings if each.severity == "warning"}
    assert "R14" not in {each.code for each in found.findings}


def test_what_is_left_beside_a_cut_is_still_judged(tmp_path):
    """A range that clips a little and rounds everything is a fault in spite of the percentile."""
    policy = mlp()
    found = compared(tmp_path, policy, heavy(policy), rule=RangeRule(kind="percentile", percentile=97.0))
    worst = dataclasses.replace(
        found.layers[1], in_range_snr_db=2.0, errors=dataclasses.replace(found.layers[1].errors, snr_db=1.0)
    )
    told = find(None, (worst,), (), recorded=True, traced_gap=0.0, cut_share=0.06)
    assert ("R04", "warning") in {(each.code, each.severity) for each in told}
    assert re.search("layer 'a': the error rises here, 1.0 dB", told[0].message)
