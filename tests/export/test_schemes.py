"""One policy in every scheme: each file computes what its scheme promises, run as a device runs it."""

import dataclasses

import numpy as np
import pytest
from policy_factory import dueling, image_policy, layer, make_policy, mixed, mlp, rows, tanh_actor, with_elu

from quarl_device.contract import Normalizer
from quarl_device.errors import ConversionError, UsageError
from quarl_device.flatbuffer import read_graph
from quarl_device.lint import takes_batches
from quarl_export.calibration import CalibrationData, RangeRule, with_input_normalizer
from quarl_export.checks.agreement import parity_limit_lsb
from quarl_export.file_runner import ends_of, output_step, run_file
from quarl_export.int8_reference import run_int8_reference
from quarl_export.ir import run_reference
from quarl_export.metadata import complete_policy
from quarl_export.prologue import prepend_prologue
from quarl_export.ranges import find_ranges
from quarl_export.schemes import SCHEMES, SchemeOptions, convert, head_layers, quantization, resolved

NORMALIZED = Normalizer(
    where="graph", offset={"observation": (0.5, -1, 0, 2)}, scale={"observation": (2, 0.1, 1, 0.5)}, clip=1.5
)
POLICIES = {
    "mlp": mlp(normalizer=NORMALIZED),
    "actor": tanh_actor(),
    "dueling": dueling(),
    "image": image_policy(),
    "mixed": mixed(),
}


def convert_and_run(policy, options, *, count=40):
    """Outputs of the file and of the float network, over held-out observations; the file; the ranges."""
    data = CalibrationData.checked(policy.contract, rows(policy, 64), source="t")
    ranges = find_ranges(policy, data, RangeRule(), keep_float=options.keep_float) if options.scheme == "int8" else None
    model = convert(policy, options, ranges=ranges, samples=data.rows)
    contract = complete_policy(policy, scheme=options.scheme, io=options.io)
    held = rows(policy, count, seed=5)
    return run_file(model, contract, held), run_reference(policy, held), model, ranges, held


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    ("scheme", "tolerance"), [("float32", 1e-5), ("float16", 5e-3), ("dynamic", 3e-2), ("int16x8", 5e-2)]
)
def test_schemes_without_ranges_stay_close_to_float(name, scheme, tolerance):
    found, expected, model, _, _ = convert_and_run(POLICIES[name], SchemeOptions(scheme=scheme))
    for role, values in expected.items():
        assert np.abs(found[role] - values).mean() <= tolerance * np.abs(values).mean() + 1e-6
    graph = read_graph(model)
    assert {graph.tensors[n].dtype for n in (*graph.inputs, *graph.outputs)} == {"float32"}


INT8 = [(name, "float32", False) for name in POLICIES]
INT8 += [("mlp", "int8", True), ("image", "uint8", False), ("mixed", "int8", False), ("actor", "uint8", True)]


@pytest.mark.parametrize(("name", "io", "per_channel"), INT8)
def test_int8_files_compute_their_reference_step_by_step(name, io, per_channel):
    policy = POLICIES[name]
    options = SchemeOptions(io=io, per_channel=per_channel)
    found, expected, model, ranges, held = convert_and_run(policy, options)
    reference = run_int8_reference(policy, ranges, held, options=quantization(options))
    for role, values in found.items():
        errors = np.rint(np.abs(values - reference[role]) / output_step(model, role))
        assert errors.max() <= parity_limit_lsb(policy.graph)
        assert np.abs(values - expected[role]).mean() < 4 * output_step(model, role)
    graph = ends_of(model)
    assert {graph.tensors[n].dtype for n in (*graph.inputs, *graph.outputs)} == {io}


def test_a_clip_by_the_range_of_the_input_is_the_reference_to_the_last_step():
    """The ends of a symmetric clip lie between two steps; the file never sees them, a device that clips does."""
    policy = mlp(normalizer=dataclasses.replace(NORMALIZED, clip=0.7))
    for io in ("float32", "int8"):
        options = SchemeOptions(io=io)
        found, _, model, ranges, held = convert_and_run(policy, options)
        assert ranges["observation"] == pytest.approx((-0.7, 0.7))
        reference = run_int8_reference(policy, ranges, held, options=quantization(options))
        assert np.rint(np.abs(found["q_values"] - reference["q_values"]) / output_step(model, "q_values")).max() == 0


def test_uint8_images_go_in_as_they_are_where_the_range_is_the_pixels():
    """Scale 1/255 and zero point 0: the device's normaliser and the quantization cancel out."""
    policy = image_policy()
    data = CalibrationData.checked(policy.contract, rows(policy, 16), source="t")
    ranges = find_ranges(policy, data, RangeRule(kind="bounds"))
    ends = ends_of(convert(policy, SchemeOptions(io="uint8"), ranges=ranges))
    quantization_ = ends.tensors[0].quantization
    assert ends.tensors[0].dtype == "uint8"
    assert float(quantization_.scales[0]) == pytest.approx(1 / 255)
    assert int(quantization_.zero_points[0]) == 0
    contract = complete_policy(policy, scheme="int8", io="uint8")
    assert contract.normalizer.where == "device"
    assert contract.normalizer.scale["observation"] == (1 / 255,)


def test_a_key_may_be_called_like_a_role():
    policy = make_policy(
        {"action": (3,)},
        [layer("d", "dense", "action"), layer("t", "tanh", "d")],
        {"d/kernel": (3, 2), "d/bias": (2,)},
        output="t", head="action", box=True,
    )  # fmt: skip
    found, expected, model, _, _ = convert_and_run(policy, SchemeOptions(scheme="float32"))
    np.testing.assert_allclose(found["action"], expected["action"], atol=1e-5)
    assert [tensor.name for tensor in ends_of(model).tensors] == ["action", "action"]


def test_the_normaliser_is_in_float_before_quantize():
    """A dimension of ±1000 beside one of ±0.01 keeps its resolution, in int16x8 too."""
    policy = mlp()
    spread = np.array([1000.0, 0.01, 1.0, 10.0], np.float32)
    policy.weights["a/kernel"][:] /= spread[:, None]
    observations = (rows(policy, 200)["observation"] + 2.0) * spread
    data = CalibrationData.checked(policy.contract, {"observation": observations}, source="t")
    changed = with_input_normalizer(policy, data, RangeRule())
    expected = run_reference(policy, data.rows)["q_values"]
    error = {}
    for scheme in ("int8", "int16x8"):
        model = convert(
            changed, SchemeOptions(scheme=scheme), ranges=find_ranges(changed, data, RangeRule()), samples=data.rows
        )
        operators = [operator.name for operator in read_graph(model).operators]
        assert operators[:3] == ["SUB", "MUL", "QUANTIZE"]
        found = run_file(model, complete_policy(changed, scheme=scheme, io="float32"), data.rows)["q_values"]
        error[scheme] = np.abs(found - expected).mean() / np.abs(expected).mean()
    assert error["int8"] < 0.05
    assert error["int16x8"] < 0.02


def test_the_prologue_clips_in_float():
    bare = mlp()
    model = convert(bare, SchemeOptions(scheme="float32"))
    normalized = dataclasses.replace(bare, contract=dataclasses.replace(bare.contract, normalizer=NORMALIZED))
    clipped = prepend_prologue(model, NORMALIZED)
    assert [o.name for o in read_graph(clipped).operators][:4] == ["SUB", "MUL", "MAXIMUM", "MINIMUM"]
    held = rows(bare, 20, spread=9.0)
    found = run_file(clipped, complete_policy(normalized, scheme="float32", io="float32"), held)
    np.testing.assert_allclose(found["q_values"], run_reference(normalized, held)["q_values"], atol=1e-5)


def test_the_prologue_refuses_an_integer_input():
    policy = mlp()
    data = CalibrationData.checked(policy.contract, rows(policy, 16), source="t")
    model = convert(policy, SchemeOptions(io="int8"), ranges=find_ranges(policy, data, RangeRule()))
    with pytest.raises(ConversionError, match="cannot be in the graph"):
        prepend_prologue(model, NORMALIZED)


@pytest.mark.parametrize("scheme", ["float32", "float16", "dynamic", "int8"])
@pytest.mark.parametrize("make", [mlp, dueling, image_policy])
def test_the_file_states_a_batch_of_one_and_still_takes_more(make, scheme):
    policy = make()
    ranges = dict.fromkeys(policy.graph.range_sites(), (-4.0, 4.0))
    graph = read_graph(convert(policy, SchemeOptions(scheme=scheme), ranges=ranges if scheme == "int8" else None))
    assert all(tensor.shape_signature == tensor.shape for tensor in graph.tensors)
    assert all(graph.tensors[n].shape[0] == 1 for n in (*graph.inputs, *graph.outputs))
    # No batch is written into a RESHAPE: rows are computed alone.
    assert takes_batches(graph, 64)


def test_float_only_layers_are_refused_by_name_or_kept():
    policy = with_elu()
    ranges = dict.fromkeys(policy.graph.range_sites(), (-1.0, 1.0))
    with pytest.raises(ConversionError, match=r"layer 'e' is elu.*--keep-float e"):
        convert(policy, SchemeOptions(), ranges=ranges)
    keep = frozenset({"e", "n"})
    found, expected, model, _, _ = convert_and_run(policy, SchemeOptions(keep_float=keep))
    assert "ELU" in {operator.name for operator in read_graph(model).operators}
    assert np.abs(found["q_values"] - expected["q_values"]).mean() < 0.1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scheme": "int4"}, "scheme 'int4' is not one of"),
        ({"io": "int16"}, "io 'int16'"),
        ({"runtime": "tflite-1"}, "runtime 'tflite-1'"),
        ({"scheme": "float32", "io": "int8"}, "float32 ends"),
        ({"scheme": "int16x8", "io": "uint8"}, "float32 ends"),
        ({"scheme": "dynamic", "per_channel": True, "runtime": "tflite-2.14"}, "version 12"),
    ],
)
def test_options_that_cannot_be_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        SchemeOptions(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keep_float": {"nothing"}}, "'nothing' is no layer"),
        ({"keep_float": {"a"}, "scheme": "float16"}, "means nothing"),
        (
            {"keep_float": {"a"}, "scheme": "int16x8"},
            "--keep-float means nothing with scheme int16x8: it keeps no layer",
        ),
        ({}, "needs a range"),
        ({"scheme": "int16x8"}, "from observations"),
    ],
)
def test_what_a_policy_cannot_take_is_refused(options, says):
    keep = frozenset(options.pop("keep_float", ()))
    with pytest.raises(UsageError, match=says):
        convert(mlp(), SchemeOptions(**options, keep_float=keep))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_files_are_reproducible(scheme):
    """To the byte, whatever the process has converted before."""
    policy = mlp()
    data = CalibrationData.checked(policy.contract, rows(policy, 16), source="t")
    ranges = find_ranges(policy, data, RangeRule())
    first, second = (convert(policy, SchemeOptions(scheme=scheme), ranges=ranges, samples=data.rows) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("name", "weight_bits", "activation_bits"),
    [("mlp", 4, 8), ("mlp", 8, 4), ("mlp", 3, 5), ("mlp", 2, 2), ("image", 8, 4), ("image", 2, 2)],
)
def test_files_of_fewer_bits_compute_their_reference_step_by_step(name, weight_bits, activation_bits):
    options = SchemeOptions(weight_bits=weight_bits, activation_bits=activation_bits)
    policy = POLICIES[name]
    found, _, model, ranges, held = convert_and_run(policy, options)
    expected = run_int8_reference(policy, ranges, held, options=quantization(options))
    for role, values in expected.items():
        errors = np.rint(np.abs(found[role] - values) / output_step(model, role))
        assert errors.max() <= parity_limit_lsb(policy.graph)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weight_bits": 1}, "expected 2-8"),
        ({"activation_bits": 9}, "expected 2-8"),
        ({"weight_bits": 4, "scheme": "dynamic"}, "fewer than 8 bits"),
        ({"activation_bits": 4, "runtime": "tflite-2.14"}, "need LiteRT"),
    ],
)
def test_bits_that_cannot_be_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        SchemeOptions(**options)


def _q_mlp():
    return mlp(normalizer=NORMALIZED, head="q_values")


@pytest.mark.parametrize(
    ("head_output", "options"),
    [
        ("float32", {}),
        ("float32", {"weight_bits": 4, "per_channel": True}),
        ("int16", {}),
        ("int16", {"per_channel": True}),
    ],
)
def test_finer_heads_compute_their_reference_and_are_nearer_to_float(head_output, options):
    policy = POLICIES["dueling"] if head_output == "float32" else _q_mlp()
    chosen = resolved(SchemeOptions(head_output=head_output, **options), policy)
    found, exact, model, ranges, held = convert_and_run(policy, chosen)
    (role,) = found
    expected = run_int8_reference(policy, ranges, held, options=quantization(chosen))[role]
    step = output_step(model, role)
    assert step < 1e-3
    np.testing.assert_allclose(found[role], expected, rtol=1e-5, atol=max(1.01 * step, 1e-5))
    plain = convert_and_run(policy, SchemeOptions(**options))[0][role]
    assert np.abs(found[role] - exact[role]).mean() < np.abs(plain - exact[role]).mean()
    operators = [(op.name, op.version) for op in read_graph(model).operators]
    assert (("QUANTIZE", 2) in operators) == (head_output == "int16")


def test_a_head_is_the_dense_layers_of_the_q_values_and_their_sums():
    graph = POLICIES["dueling"].graph
    kinds = sorted(graph.layer(name).kind for name in head_layers(graph))
    assert kinds.count("dense") == 2
    assert set(kinds) <= {"dense", "add", "subtract", "mean"}
    with pytest.raises(UsageError, match="relu"):
        head_layers(dataclasses.replace(graph, outputs={"q_values": _first_relu(graph)}))


def _first_relu(graph):
    return next(layer.name for layer in graph.layers if layer.kind == "relu")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"head_output": "int4"}, "not one of"),
        ({"head_output": "int16", "runtime": "tflite-2.14"}, "no kernel"),
        ({"head_output": "float32", "io": "int8"}, "float32 ends"),
        ({"head_output": "int16", "scheme": "float32"}, "use --scheme int8|no int16 head"),
    ],
)
def test_heads_that_cannot_be_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        SchemeOptions(**options)


def test_a_head_in_float_takes_its_tanh_along():
    actor = POLICIES["actor"]
    last = actor.graph.layer(actor.graph.outputs["action"])
    assert resolved(SchemeOptions(head_output="float32"), actor).keep_float == {last.name, *last.inputs}


@pytest.mark.parametrize("name", ["dueling", "actor"])
def test_an_int16_head_is_one_dense_layer(name):
    with pytest.raises(UsageError, match="cannot be int16"):
        convert_and_run(POLICIES[name], SchemeOptions(head_output="int16"))


def test_biases_that_are_all_the_same_are_right_on_scales_per_channel():
    """The converter quantizes the first one and writes that everywhere."""
    policy = POLICIES["image"]
    weights = {
        name: np.full_like(array, 0.1) if name.endswith("/bias") else array for name, array in policy.weights.items()
    }
    policy = dataclasses.replace(policy, weights=weights)
    options = SchemeOptions()
    found, _, model, ranges, held = convert_and_run(policy, options)
    expected = run_int8_reference(policy, ranges, held, options=quantization(options))
    for role, values in expected.items():
        errors = np.rint(np.abs(found[role] - values) / output_step(model, role))
        assert errors.max() <= parity_limit_lsb(policy.graph)
