"""Faults that people reported of other exporters, each by its number in the list of public reports."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from export_factory import make_spec, observations
from policy_factory import mlp, rows, with_elu, with_norm
from report_pairs import pair

from quarl_device.errors import CheckFailed, ConversionError
from quarl_device.flatbuffer import read_graph
from quarl_device.policy_file import read_policy
from quarl_device.runtime import find_runtime
from quarl_export.calibration import CalibrationData, RangeRule
from quarl_export.checks.op_versions import unknown_operators
from quarl_export.checks.operators import check_float
from quarl_export.keras2 import keras, tf
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.qat import QatPolicy
from quarl_export.range_health import range_health
from quarl_export.range_plan import QuantizationOptions
from quarl_export.ranges import find_ranges
from quarl_export.reports import compare_files
from quarl_export.schemes import SchemeOptions, convert
from quarl_export.snapshot import START_RANGE
from quarl_export.template import Template

ROOT = Path(__file__).parents[2]


def data_of(policy):
    return CalibrationData.checked(policy.contract, rows(policy, 128), source="test")


def with_ranges(policy, **ranges):
    found = find_ranges(policy, data_of(policy), RangeRule())
    return dataclasses.replace(policy, ranges={**found, **ranges})


@pytest.mark.parametrize("scheme", ["int8", "int16x8"])
def test_row_2_a_layer_norm_is_refused_with_its_name_and_what_to_do(scheme):
    with pytest.raises(ConversionError, match=r"layer 'n' is layer_norm.*--keep-float n"):
        build_file(with_norm(), ExportOptions(scheme=SchemeOptions(scheme=scheme)), data=data_of(with_norm()))


def test_row_6_a_range_that_is_still_where_stock_quantizers_start_is_refused():
    policy = mlp()
    policy.weights["a/kernel"][:] *= 0.05
    policy.weights["a/bias"][:] *= 0.05
    with pytest.raises(CheckFailed, match=r"the range of 'r' \(0, 6\) as stock quantizers start it costs"):
        build_file(with_ranges(policy, r=(0.0, 6.0)), ExportOptions(), data=data_of(policy))


def test_row_6_an_output_stuck_between_0_and_6_is_refused():
    policy = mlp()
    policy.weights["q/bias"][:] = 40.0
    with pytest.raises(CheckFailed, match=r"the range of 'q' \(0, 6\) clips 100% of its values"):
        build_file(with_ranges(policy, q=(0.0, 6.0)), ExportOptions(), data=data_of(policy))


def test_row_8_ranges_of_training_need_no_data_set():
    built = build_file(with_ranges(mlp()), ExportOptions())
    assert built.forced == ()
    assert built.golden_lsb == 0
    assert built.file.provenance["export"]["ranges"] == {"by": "training"}


def test_row_9_dynamic_files_load_in_old_runtimes_unless_asked_otherwise():
    policy = mlp(hidden=64, inputs=32)
    old, new = (
        read_graph(convert(policy, SchemeOptions(scheme="dynamic", per_channel=per_channel)))
        for per_channel in (False, True)
    )
    assert unknown_operators(old, "tflite-2.14") == ()
    assert [str(found) for found in unknown_operators(new, "tflite-2.14")] == [
        "FULLY_CONNECTED version 12 (needs TFLite 2.17)"
    ]
    assert unknown_operators(new, "litert") == ()
    ranges = find_ranges(policy, data_of(policy), RangeRule())
    int8 = read_graph(convert(policy, SchemeOptions(per_channel=True, runtime="tflite-2.14"), ranges=ranges))
    assert unknown_operators(int8, "tflite-2.14") == ()


_CONVERTS = """
import resource, sys
sys.path.insert(0, {tests!r})
from policy_factory import mlp, rows
from quarl_export.schemes import SchemeOptions, convert
from quarl_export.pipeline import ExportOptions, build_file
policy = mlp()
ranges = dict.fromkeys(policy.graph.range_sites(), (-3.0, 3.0))
for number in range(8):
    convert(policy, SchemeOptions(), ranges=ranges)
    if number == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_row_13_conversions_do_not_pile_up_memory():
    """Four conversions of a small network, after the first ones; pushes do not convert at all."""
    script = _CONVERTS.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout.split()[-1]) < 40, "MiB"


def test_row_14_nothing_in_an_int8_file_with_int8_ends_is_float():
    policy = mlp()
    graph = read_graph(
        convert(policy, SchemeOptions(io="int8"), ranges=find_ranges(policy, data_of(policy), RangeRule()))
    )
    assert {tensor.dtype for tensor in graph.tensors} == {"int8", "int32"}


def test_row_21_a_kept_layer_norm_is_told_as_the_operators_it_becomes():
    built = build_file(
        with_elu(), ExportOptions(scheme=SchemeOptions(keep_float=frozenset({"e", "n"}))), data=data_of(with_elu())
    )
    (found,) = (result for result in built.checks if result.code == "Q07")
    assert found.passed
    assert "ELU" in found.message
    assert "RSQRT" in found.message or "SQRT" in found.message
    bare = dataclasses.replace(built.subject, options=SchemeOptions())
    assert not check_float(bare).passed


def test_row_21_a_kept_layer_norm_computes_all_of_itself_in_float():
    """The converter takes a mean of int8 values in int8, whatever was asked."""
    policy = with_norm()
    options = ExportOptions(scheme=SchemeOptions(keep_float=frozenset({"n"})))
    built = build_file(policy, options, data=data_of(policy))
    assert (built.golden_lsb, built.judged_lsb) == (0, 0)


def test_weights_beyond_int8_are_clipped_nowhere():
    """Stock quantizers keep the largest weight of the step before; ours is the weights' own."""
    policy = mlp()
    policy.weights["a/kernel"][0, 0] = 9.0
    graph = read_graph(convert(policy, SchemeOptions(), ranges=find_ranges(policy, data_of(policy), RangeRule())))
    kernels = [t for t in graph.tensors if t.size and t.dtype == "int8" and t.shape == (16, 4)]
    assert float(kernels[0].quantization.scales[0]) == pytest.approx(9.0 / 127)
    assert np.abs(graph.constant(kernels[0])).max() == 127


@pytest.mark.parametrize("flag", [{"training": True}, {}], ids=["training", "forgotten"])
def test_row_23_ranges_move_in_a_loop_of_ones_own_and_a_forgotten_flag_is_named(flag):
    policy, data = QatPolicy(make_spec(hidden=(8, 6)), seed=1), observations(32)
    optimizer = keras.optimizers.SGD(0.1)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(policy.model(data, **flag) - 1.0))
        gradients = tape.gradient(loss, policy.trainable_variables)
        optimizer.apply_gradients(zip(gradients, policy.trainable_variables, strict=True))
    snapshot = policy.snapshot()
    faults = range_health(snapshot, data).faults
    if flag:
        assert snapshot.range_updates.tolist() == [3.0] * 3
        assert (snapshot.ranges[:, 1] != START_RANGE).all()
        assert not faults
    else:
        assert snapshot.range_updates.tolist() == [0.0] * 3
        assert len(faults) == 3
        assert all("was never set" in fault for fault in faults)


def test_row_26_the_guide_writes_other_weights_into_a_converted_file(tmp_path, monkeypatch, capsys):
    """The guide's own words, run where its agent lies: they print what it says, and what that means holds."""
    guide = (ROOT / "docs" / "guides" / "patching.md").read_text()
    (code,), (printed,) = (re.findall(rf"```{kind}\n(.*?)```", guide, re.DOTALL) for kind in ("python", "text"))
    (source,) = re.findall(r"cp (\S+) agent\.zip", guide)
    (tmp_path / "agent.zip").write_bytes((ROOT / source).read_bytes())
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(compile(code, "patching.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == printed
    before, after = (read_policy((tmp_path / f"{name}.tflite").read_bytes()) for name in ("before", "after"))
    assert before.data != after.data
    one, two = (
        find_runtime()
        .load(file.data, inputs=["observation"], outputs=["q_values"])
        .run({"observation": before.golden.observations["observation"][:1]})["q_values"]
        .copy()
        for file in (before, after)
    )
    np.testing.assert_array_equal(two, one[:, ::-1])
    assert one[0, 0] != one[0, 1]


def test_comparing_leaves_the_next_conversion_as_it_was():
    """TensorFlow's own debugger leaves its converter in a state in which it gives float files."""
    policy = mlp()
    ranges = find_ranges(policy, data_of(policy), RangeRule())
    before = convert(policy, SchemeOptions(), ranges=ranges)
    assert compare_files(*pair("dueling"), rows=16).layers
    assert convert(policy, SchemeOptions(), ranges=ranges) == before


def test_digests_see_every_weight():
    """The hash that the converter writes sees the structure alone."""
    policy = mlp()
    options, data = ExportOptions(scheme=SchemeOptions(scheme="float32")), data_of(policy)
    one, again = (build_file(policy, options, data=data).file for _ in range(2))
    policy.weights["q/bias"][0] += np.float32(1e-3)
    other = build_file(policy, options, data=data).file
    assert one.sha256 == again.sha256 != other.sha256


def test_bit_widths_do_not_leak_from_one_template_into_another():
    """Stock n-bit settings are kept in a class, so that building for 4 bits changes what was built for 8."""
    policy = with_ranges(mlp())

    def largest(template):
        graph = read_graph(template.patch_policy(policy))
        kernels = [t for t in graph.tensors if t.dtype == "int8" and len(t.shape) == 2 and t.size]
        return [int(np.abs(graph.constant(kernel)).max()) for kernel in kernels if graph.constant(kernel) is not None]

    eight = Template.from_model(policy, verify=False)
    whole = eight.patch_policy(policy)
    four = Template.from_model(policy, options=QuantizationOptions(weight_bits=4), verify=False)
    assert set(largest(four)) == {7}
    assert eight.patch_policy(policy) == whole
    assert set(largest(eight)) == {127}
