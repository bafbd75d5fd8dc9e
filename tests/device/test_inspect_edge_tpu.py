"""The static Edge TPU verdict: every documented limit, with the operator, the tensor and the mend."""

import pytest
from inspect_factory import REPORTS, changed, graph, ints, operator, quantization, single, tensor

from quarl_device.flatbuffer import read_graph
from quarl_device.inspect.edge_tpu import CACHE_BYTES, judge
from quarl_device.inspect.edge_tpu_findings import CODES


def verdict_of(name):
    return judge(read_graph((REPORTS / f"{name}.tflite").read_bytes()))


def codes(verdict, severity="error"):
    return {finding.code for finding in verdict.findings if finding.severity == severity}


def dense(*, units=4, width=8, dtype="int8", channels=1, **more):
    weights = tensor(1, (units, width), size=units * width, quantization=quantization(channels=channels))
    bias = tensor(2, (units,), "int32", size=4 * units, quantization=quantization())
    tensors = [tensor(0, (1, width), dtype), weights, bias, tensor(3, (1, units))]
    call = operator(0, "FULLY_CONNECTED", (0, 1, 2), (3,), *more.get("options", ()))
    return graph(tensors, [call], (0,), (3,))


def test_a_quantized_dense_layer_is_compatible():
    verdict = judge(dense())
    assert verdict.compatible
    assert verdict.mapped == verdict.operators == 1
    assert codes(verdict, "hint") == {"E30"}


def test_every_code_is_described():
    for name in ("elu", "dynamic", "float16", "int16x8", "qat_int8", "dueling_int8", "pixels_int8"):
        assert {finding.code for finding in verdict_of(name).findings} <= set(CODES)


def test_row_14_a_float_tensor_inside_is_named_with_its_operator_and_the_mend():
    """google-coral/edgetpu #168, #313: "Model not quantized", without a word on which tensor is not."""
    verdict = verdict_of("elu")
    assert not verdict.compatible
    [first, second] = [finding for finding in verdict.findings if finding.code == "E03"]
    assert (first.op, first.operator, first.tensor) == ("DEQUANTIZE", 2, "tfl.dequantize")
    assert second.tensor.endswith("Elu")
    assert "float32" in first.message
    assert "--scheme int8" in first.mend


def test_row_14_float_ends_alone_are_a_warning():
    verdict = verdict_of("dueling_int8")
    assert verdict.compatible
    ends = [finding for finding in verdict.findings if finding.code == "E20"]
    assert [finding.op for finding in ends] == ["QUANTIZE", "DEQUANTIZE"]
    assert all(finding.severity == "warning" and "--io int8" in finding.mend for finding in ends)
    assert verdict.mapped == verdict.operators - 2


def test_int8_ends_have_no_such_warning():
    assert not {"E20", "E03"} & {finding.code for finding in verdict_of("pixels_int8").findings}


def test_a_float_normaliser_in_front_is_sent_to_the_device():
    verdict = verdict_of("qat_int8")
    assert not verdict.compatible
    assert {finding.op for finding in verdict.findings if finding.code == "E03"} == {"SUB", "MUL"}
    assert all("normalise in numpy" in finding.mend for finding in verdict.findings if finding.code == "E03")


def test_a_tensor_is_named_once():
    named = [(finding.code, finding.tensor) for finding in verdict_of("dueling_float").findings if finding.tensor]
    assert len(named) == len(set(named))


def test_a_wholly_float_model_maps_nothing():
    verdict = verdict_of("dueling_float")
    assert verdict.mapped == 0
    assert {"E03", "E09"} <= codes(verdict)


def test_an_operator_that_it_lacks():
    verdict = judge(single("GELU", (1, 4), (1, 4)))
    assert codes(verdict) == {"E01", "E09"}
    assert "GELU" in verdict.findings[0].message


def test_16_bit_activations():
    assert "E04" in codes(verdict_of("int16x8"))


def test_4_bit_weights():
    four = dense()
    weights = tensor(1, (4, 8), "type-17", size=16, quantization=quantization())
    verdict = judge(graph([four.tensors[0], weights, *four.tensors[2:]], list(four.operators), (0,), (3,)))
    [finding] = [finding for finding in verdict.findings if finding.code == "E04"]
    assert "int4" in finding.message


def test_a_free_batch_is_a_warning_and_a_free_width_an_error():
    batch = tensor(0, (1, 8), shape_signature=(-1, 8))
    width = tensor(0, (1, 8), shape_signature=(1, -1))
    parts = dense()
    loose = judge(graph([batch, *parts.tensors[1:]], list(parts.operators), (0,), (3,)))
    assert codes(loose, "warning") == {"E24"}
    assert codes(judge(graph([width, *parts.tensors[1:]], list(parts.operators), (0,), (3,)))) == {"E05"}


def test_a_batch_of_two():
    parts = dense()
    two = [tensor(0, (2, 8)), *parts.tensors[1:3], tensor(3, (2, 4))]
    assert {"E06", "E02"} <= codes(judge(graph(two, list(parts.operators), (0,), (3,))))


def test_computed_weights():
    parts = dense()
    computed = tensor(1, (4, 8))
    verdict = judge(graph([parts.tensors[0], computed, *parts.tensors[2:]], list(parts.operators), (0, 1), (3,)))
    assert "E07" in codes(verdict)


def test_more_than_three_inner_dimensions():
    verdict = judge(single("RELU", (2, 3, 4, 5), (2, 3, 4, 5)))
    assert "E08" in codes(verdict)
    assert "E08" not in codes(judge(single("RELU", (1, 3, 4, 5), (1, 3, 4, 5))))


def test_parameters_over_the_cache():
    assert "E21" not in codes(judge(dense(units=1024, width=4096)), "warning")
    verdict = judge(dense(units=2049, width=4096))
    assert verdict.parameter_bytes > CACHE_BYTES
    assert "E21" in codes(verdict, "warning")
    assert verdict.compatible


def test_small_dense_policies_get_the_honest_hint_and_larger_ones_do_not():
    assert "E30" in codes(judge(dense(units=256, width=256)), "hint")
    assert "E30" not in codes(judge(dense(units=1024, width=1024)), "hint")


def test_convolutions_get_no_such_hint():
    assert "E30" not in codes(verdict_of("pixels_int8"), "hint")


def test_per_channel_dense_is_said_to_be_undocumented():
    assert "E22" in codes(judge(dense(channels=4)), "warning")
    assert "E22" not in codes(judge(dense(channels=1)), "warning")


def test_shuffled_weights():
    assert "E02" in codes(judge(dense(options=(0, 1))))


@pytest.mark.parametrize(
    ("graph_of", "says"),
    [
        (single("MAX_POOL_2D", (1, 4, 4, 2), (1, 2, 2, 2), 0, 2, 2, 2, 2, 1), "relu"),
        (single("AVERAGE_POOL_2D", (1, 4, 4, 2), (1, 2, 2, 2), 0, 2, 2, 2, 2, 3), "relu6"),
        (single("CONCATENATION", (1, 4), (1, 4), 1, 1), "relu"),
        (single("SOFTMAX", (1, 20_000), (1, 20_000), 1.0), "one-dimensional"),
        (single("SOFTMAX", (1, 2, 4), (1, 2, 4), 1.0), "one-dimensional"),
        (single("MEAN", (1, 6), (1, 1), 1, constants=ints(-1)), "multiple of 4"),
        (single("MEAN", (1, 4), (4,), 0, constants=ints(0)), "batch"),
        (single("REDUCE_MAX", (2, 4), (4,), 0, constants=ints(0)), "batch"),
        (single("PAD", (1, 4), (3, 4), constants=ints(1, 1, 0, 0)), "batch"),
    ],
)
def test_limits(graph_of, says):
    found = [finding for finding in judge(graph_of).findings if finding.code == "E02"]
    assert found
    assert says in found[0].message
    assert found[0].mend


@pytest.mark.parametrize(
    "graph_of",
    [
        single("MAX_POOL_2D", (1, 4, 4, 2), (1, 2, 2, 2), 0, 2, 2, 2, 2, 0),
        single("SOFTMAX", (1, 16_000), (1, 16_000), 1.0),
        single("MEAN", (1, 8), (1, 1), 1, constants=ints(-1)),
        single("MEAN", (1, 3, 3, 5), (1, 5), 0, constants=ints(1, 2)),
        single("REDUCE_MAX", (1, 5), (1, 1), 0, constants=ints(1)),
        single("PAD", (1, 4), (1, 6), constants=ints(0, 0, 1, 1)),
        single("TANH", (1, 4), (1, 4)),
        single("RESHAPE", (1, 4), (4,)),
    ],
)
def test_within_the_limits(graph_of):
    assert judge(graph_of).compatible


def test_different_dilations():
    def conv(x, y):
        tensors = [tensor(0, (1, 8, 8, 2)), tensor(1, (4, 3, 3, 2), size=72), tensor(2, (1, 6, 6, 4))]
        return graph(tensors, [operator(0, "CONV_2D", (0, 1), (2,), 1, 1, 1, 0, x, y)], (0,), (2,))

    assert judge(conv(2, 2)).compatible
    assert codes(judge(conv(2, 1))) == {"E02", "E09"}


@pytest.mark.parametrize(("joined", "fits"), [(b"\0\0", True), (b"\0\1", False)])
def test_joining_a_constant(joined, fits):
    tensors = [tensor(0, (1, 2)), tensor(1, (1, 2), size=2), tensor(2, (1, 4))]
    joint = graph(tensors, [operator(0, "CONCATENATION", (0, 1), (2,), 1, 0)], (0,), (2,), joined)
    assert judge(joint).compatible is fits


def test_limits_that_cannot_be_seen_are_said():
    verdict = judge(single("STRIDED_SLICE", (1, 4), (1, 2)))
    assert verdict.compatible
    assert codes(verdict, "warning") == {"E23"}
    large = judge(single("RESHAPE", (1, 1, 1024, 1024), (1, 1024 * 1024)))
    assert codes(large, "warning") == {"E23"}


def test_a_compiled_file_is_known():
    verdict = judge(single("edgetpu-custom-op", (1, 4), (1, 2)))
    assert verdict.compatible
    assert codes(verdict, "hint") == {"E31"}


@pytest.mark.parametrize(("inputs", "outputs"), [((), (1,)), ((-1,), (1,)), ((0,), ())])
@pytest.mark.parametrize("name", ["QUANTIZE", "DEQUANTIZE", "FULLY_CONNECTED", "MEAN", "PAD", "RESHAPE"])
def test_malformed_operators_are_findings(name, inputs, outputs):
    verdict = judge(graph([tensor(0, (1, 4)), tensor(1, (1, 4))], [operator(0, name, inputs, outputs)], (0,), (1,)))
    assert "E02" in codes(verdict)


def test_an_empty_graph():
    assert codes(judge(graph([tensor(0, (1, 4))], [], (0,), (0,)))) == {"E09"}


def test_json_is_plain():
    data = verdict_of("elu").to_json()
    assert set(data) >= {"compatible", "findings", "mapped", "parameter_bytes", "cache_bytes"}
    assert set(data["findings"][0]) == {"code", "severity", "operator", "op", "tensor", "message", "mend"}


def test_what_follows_an_operator_on_the_cpu_is_not_counted_as_mapped():
    def rename(model):
        model.operatorCodes[1].deprecatedBuiltinCode = model.operatorCodes[1].builtinCode = 111  # ELU

    verdict = judge(read_graph(changed(REPORTS / "pixels_int8.tflite", rename)))
    assert verdict.mapped == 1
