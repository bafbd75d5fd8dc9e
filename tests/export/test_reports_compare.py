"""Two files of one network compared: figures that are right, actions by the contract, findings that say something."""

import dataclasses
import json
import math

import numpy as np
import pytest
from policy_factory import mlp, rows
from report_pairs import DATA, PAIRS, compared, pair

from quarl_device.contract import ActionSpec, Head, Normalizer, ObservationSpec, PolicyContract
from quarl_device.errors import ContractError, ModelFileError, UsageError
from quarl_device.flatbuffer import Tensor, read_graph
from quarl_device.policy_file import METADATA_NAME
from quarl_device.preprocess import bind_inputs, to_tensor
from quarl_export.acting import greedy_actions
from quarl_export.calibration import CalibrationData
from quarl_export.graph import repack, view
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.reports import compare_files, write_report
from quarl_export.reports.acting import agreement
from quarl_export.reports.running import TracedFile
from quarl_export.reports.saturation import InputMeter
from quarl_export.reports.side import read_side, side_of
from quarl_export.reports.text import render_text
from quarl_export.schemes import SchemeOptions

KEYS = {"action_agreement", "max_abs_error", "mean_abs_error", "layers", "saturation"}


@pytest.mark.parametrize("name", PAIRS)
def test_json_has_what_the_issue_asks_for(name):
    data = compared(name).to_json()
    assert set(data) >= KEYS
    assert 0.9 <= data["action_agreement"] <= 1
    assert data["max_abs_error"] >= data["mean_abs_error"] > 0
    assert set(data["layers"][0]) >= {"name", "max_abs_error", "mean_abs_error", "mse", "snr_db", "cosine"}
    assert set(data["saturation"]) == {"inputs", "tensors"}
    json.dumps(data)


def test_a_file_against_itself_is_exact():
    _, int8 = pair("dueling")
    same = compare_files(int8, int8, rows=20)
    assert same.agreement.share == 1.0
    assert same.outputs.max_abs_error == 0.0
    # The observation is rounded on its way in, in either file.
    assert [layer.kind for layer in same.layers if layer.errors.snr_db != math.inf] == ["QUANTIZE"]
    assert all(layer.grid.clipped == 0.0 for layer in same.layers[1:])


def test_another_quantized_file_is_nothing_to_measure_by():
    with pytest.raises(UsageError, match="is int8: expected a float file first") as caught:
        compare_files(pair("dueling")[1], pair("cartpole")[1])
    assert "--scheme float32" in caught.value.hint


def test_layers_are_compared_of_operators_that_the_reference_kernels_lack(tmp_path):
    relu = mlp()
    layers = [dataclasses.replace(layer, kind="elu") if layer.kind == "relu" else layer for layer in relu.graph.layers]
    policy = dataclasses.replace(relu, graph=dataclasses.replace(relu.graph, layers=tuple(layers)))
    data = CalibrationData.checked(policy.contract, rows(policy, 64), source="t")
    kept = frozenset(layer.name for layer in policy.graph.layers if layer.kind == "elu")
    paths = []
    for name, options in (("float32", SchemeOptions(scheme="float32")), ("int8", SchemeOptions(keep_float=kept))):
        paths.append(tmp_path / f"{name}.tflite")
        paths[-1].write_bytes(build_file(policy, ExportOptions(scheme=options, force=True), data=data).file.data)
    comparison = compare_files(*paths, rows=32)
    assert "ELU" in [layer.kind for layer in comparison.layers]


def test_layer_errors_are_those_of_a_hand_made_run():
    """The first layer of the float file in numpy, against the same layer of the int8 file in numpy."""
    left, right = (read_side(path) for path in pair("dueling"))
    comparison = compared("dueling")
    files = TracedFile(left), TracedFile(right)
    rows = {"observation": left.golden.observations["observation"]}
    kernel = left.graph.constant(next(t for t in left.graph.tensors if t.name == "model/trunk/MatMul"))
    [bias] = [t for t in left.graph.tensors if t.name.startswith("model/trunk/Relu") and t.size]
    expected = np.maximum(rows["observation"][0] @ kernel.T + left.graph.constant(bias), 0)
    for file in files:
        file.run(rows, 0)
    trunk = next(op for op in left.graph.operators if op.name == "FULLY_CONNECTED").outputs[0]
    assert files[0].traced(trunk) == pytest.approx(expected, abs=1e-5)
    assert comparison.layers[1].name == "trunk"
    assert comparison.layers[1].step == pytest.approx(0.0125, abs=1e-4)


def test_quantization_aware_files_are_compared_too():
    """QuantizationDebugger cannot: it needs a representative dataset, which a QAT model does not have."""
    comparison = compared("qat")
    assert [layer.name for layer in comparison.layers] == ["observation", "hidden_0", "hidden_1", "q_values"]
    assert all(layer.weights is not None and layer.weights.channels == 1 for layer in comparison.layers[1:])
    assert comparison.inputs[0].low < 0 < comparison.inputs[0].high


def test_a_damaged_weight_is_told_and_what_else_it_may_be(tmp_path):
    """In the first layer a converter has folded the normaliser; behind it nothing moves a weight by four steps."""
    left, right = pair("qat")
    (first,) = (finding for finding in compared("qat").findings if finding.code == "R11")
    assert (first.severity, "'hidden_0'" in first.message, "normaliser" in first.message) == ("note", True, True)
    assert all(layer.weights.error_steps < 4 for layer in compared("qat").layers[2:])
    data = bytearray(right.read_bytes())
    shape = tuple(layer.elements for layer in compared("qat").layers[2:0:-1])
    kernel = next(t.data for t in view(data).tensors if t.data is not None and t.data.shape == shape)
    kernel[0, 0] = -127 if kernel[0, 0] > 0 else 127
    damaged = tmp_path / "m.tflite"
    damaged.write_bytes(data)
    found = compare_files(left, damaged, rows=8)
    (told,) = (finding for finding in found.findings if (finding.code, finding.severity) == ("R11", "warning"))
    assert "'hidden_1'" in told.message
    assert found.layers[2].weights.error_steps > 100
    assert found.to_json()["layers"][2]["weights"]["max_abs_error"] > 0


def test_a_centred_file_is_compared_up_to_a_shift_of_all_actions(tmp_path):
    policy = mlp()
    policy.weights["q/bias"][:] += 100.0
    policy.weights["q/kernel"][:] += 1.0
    data = CalibrationData.checked(policy.contract, rows(policy, 128), source="test")
    paths = [tmp_path / name for name in ("float.tflite", "int8.tflite", "rows.npz")]
    files = (
        build_file(policy, ExportOptions(scheme=SchemeOptions(scheme="float32"))),
        build_file(policy, ExportOptions(center_q=True, force=True), data=data),
    )
    for path, built in zip(paths, files, strict=False):
        path.write_bytes(built.file.data)
    np.savez(paths[2], **data.rows)
    found = compare_files(paths[0], paths[1], observations=paths[2])
    step = found.layers[-1].step
    # The values themselves are a hundred apart.
    assert found.outputs.mean_abs_error < step < 1.0
    assert found.outputs.max_abs_error < 1.0
    assert found.agreement.share > 0.9
    told = {(finding.code, finding.severity) for finding in found.findings}
    assert ("R12", "note") in told
    assert not told & {("R04", "warning"), ("R05", "warning"), ("R11", "warning")}


def test_the_device_normalises_where_the_contract_says_so():
    """The float file has /255 in its graph, the int8 file leaves it to the device."""
    comparison = compared("pixels")
    assert comparison.outputs.snr_db > 30
    assert comparison.inputs[0].high == pytest.approx(1.0, abs=0.01)


def test_recorded_observations_are_used(tmp_path):
    path = tmp_path / "seen.npz"
    np.savez(path, observation=np.zeros((3, 6), np.float32))
    comparison = compare_files(*pair("dueling"), observations=path)
    assert comparison.rows == 3
    assert comparison.recorded
    assert "R08" not in {finding.code for finding in comparison.findings}


def test_played_observations_are_used():
    comparison = compare_files(*pair("cartpole"), env_id="CartPole-v1", rows=80)
    assert comparison.rows == 80
    assert "CartPole-v1" in comparison.observations
    # The balanced pole moves in a small part of the range that uniform samples calibrated.
    assert "R06" in {finding.code for finding in comparison.findings}


def test_observations_outside_of_the_range_are_counted_by_dimension(tmp_path):
    rows = np.zeros((10, 6), np.float32)
    rows[:3, 2] = 5.0
    rows[:1, 4] = -5.0
    path = tmp_path / "wide.npz"
    np.savez(path, observation=rows)
    comparison = compare_files(*pair("dueling"), observations=path)
    [saturation] = comparison.inputs
    assert saturation.by_dimension == pytest.approx((0, 0, 0.3, 0, 0.1, 0))
    assert (saturation.worst, saturation.worst_share) == (2, pytest.approx(0.3))
    [finding] = [finding for finding in comparison.findings if finding.code == "R03"]
    assert finding.severity == "warning"
    assert "dimension 2" in finding.message


def clipping_at(side, limit):
    normalizer = Normalizer(where="device", offset={"state": (0.0,)}, scale={"state": (1.0,)}, clip=limit)
    return dataclasses.replace(side, contract=dataclasses.replace(side.contract, normalizer=normalizer))


def test_what_the_contract_clips_is_no_saturation():
    """VecNormalize clips observations; an int8 input does it by its range."""
    rows = np.full((4, 5), 3.0, np.float32)
    side = read_side(pair("arm")[1])
    clipping = clipping_at(side, 2.0)
    shares = []
    for each in (side, clipping):
        file, meter = TracedFile(each), InputMeter(each)
        for row in range(4):
            meter.add(file, file.run({"state": rows}, row))
        shares.append(meter.result()[0].share)
    assert shares == [1.0, 0.0]


def test_what_the_float_graph_clips_is_none_either():
    """A file that normalises in its graph says so there alone: MAXIMUM and MINIMUM before the first layer."""
    left, right = (read_side(path) for path in pair("qat"))
    limit = np.array([1.5], "<f4").tobytes()
    [source] = left.inputs
    size = len(left.graph.tensors)
    bound = Tensor(index=size, name="limit", shape=(1,), shape_signature=(1,), dtype="float32", quantization=None,
                   buffer=99, start=len(left.data), size=4, plain=True)  # fmt: skip
    cut = dataclasses.replace(left.graph.operators[0], name="MINIMUM", inputs=(source, size))
    graph = dataclasses.replace(
        left.graph, data=left.data + limit, tensors=(*left.graph.tensors, bound), operators=(cut,)
    )
    file = TracedFile(right)
    rows = {"observation": np.full((1, 4), 100.0, np.float32)}
    shares = []
    for reference in (left, dataclasses.replace(left, graph=graph)):
        meter = InputMeter(right, reference)
        meter.add(file, file.run(rows, 0))
        shares.append(meter.result()[0].share)
    assert shares == [1.0, 0.0]


def test_the_way_onto_the_input_grid_is_the_first_layer():
    """Rounding the observation is the first error of all; its largest is half a step where nothing is clipped."""
    for name in ("dueling", "qat", "arm", "pixels"):
        first = compared(name).layers[0]
        assert first.kind == "QUANTIZE"
        if first.grid.clipped == 0:
            assert first.errors.max_abs_error <= 0.5001 * first.step
    zeros = compare_files(pair("dueling")[0], pair("dueling")[0], rows=8)
    assert zeros.layers[0].kind == "FULLY_CONNECTED"


def test_a_dimension_that_hardly_moves_on_the_grid_is_named(tmp_path):
    """One scale for all dimensions: one that is small beside the others has few steps left."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (50, 6)).astype(np.float32) * [1, 1, 1, 0.02, 1, 0]
    path = tmp_path / "uneven.npz"
    np.savez(path, observation=rows)
    comparison = compare_files(*pair("dueling"), observations=path)
    [finding] = [finding for finding in comparison.findings if finding.code == "R07"]
    assert "dimension 3 spans 5 of" in finding.message
    assert comparison.inputs[0].steps_by_dimension[0] > 200
    assert comparison.inputs[0].steps_by_dimension[5] == 0


def test_saturation_of_an_int8_input_is_counted_before_the_device_clips():
    rows = {"state": np.array([[9.0, 0, 0, 0, 0]], np.float32)}
    side = read_side(pair("arm")[1])
    entering = TracedFile(side).run(rows, 0)
    assert entering["state"][0] == 9.0


def test_a_file_is_fed_what_the_device_feeds_it():
    for name in ("pixels", "arm", "qat"):
        side = read_side(pair(name)[1])
        golden = side.golden.observations
        file = TracedFile(side)
        file.run(golden, 1)
        [binding] = bind_inputs(side.contract, side.graph)
        fed = to_tensor(binding, golden[binding.spec.key][1:2])
        assert np.array_equal(file.stored(side.inputs[0]), fed.ravel())
        [role] = side.contract.head.outputs
        [output] = side.graph.outputs
        lsb = side.golden.lsb[role]
        assert file.output(output) == pytest.approx(side.golden.outputs[role][1].ravel(), abs=1.01 * lsb)


def discrete():
    return PolicyContract(
        env_id="",
        algorithm="",
        scheme="int8",
        observations=(ObservationSpec(key="o", shape=(1,)),),
        head=Head(kind="q_values", outputs={"q_values": "q"}),
        action=ActionSpec(kind="discrete", n=3),
    )


def box(head, **action):
    roles = {"mean": "m", "log_std": "s"} if head == "gaussian" else {head: "a"}
    more = {"squash": "tanh"} if head == "gaussian" else {}
    return PolicyContract(
        env_id="",
        algorithm="",
        scheme="int8",
        observations=(ObservationSpec(key="o", shape=(1,)),),
        head=Head(kind=head, outputs=roles, **more),
        action=ActionSpec(kind="box", shape=(1,), **{"low": (-2.0,), "high": (2.0,), **action}),
    )


def test_agreement_of_discrete_actions_and_what_a_disagreement_costs():
    mine = np.array([[1.0, 0.9, 0.0], [1.0, 2.0, 3.0], [5.0, 1.0, 1.0], [0.0, 1.0, 0.5]])
    its = np.array([[0.8, 0.9, 0.0], [1.0, 2.0, 3.0], [5.0, 1.0, 1.0], [0.0, 0.4, 0.5]])
    found = agreement(discrete(), {"q_values": mine}, {"q_values": its})
    assert found.share == 0.5
    assert found.disagreements == 2
    assert found.gap_mean == pytest.approx((0.1 + 0.5) / 2)
    assert found.gap_max == pytest.approx(0.5)
    assert found.gap_relative == pytest.approx(0.3 / 2.0)
    assert found.agrees == (False, True, True, False)


def test_agreement_of_box_actions_is_within_a_twentieth_of_the_range():
    mine, its = np.array([[0.0], [0.0]]), np.array([[0.199], [0.201]])
    found = agreement(box("action"), {"action": mine}, {"action": its})
    assert found.agrees == (True, False)
    assert found.gap_max == pytest.approx(0.201, abs=1e-6)
    assert "range apart" in found.gap


def test_a_box_without_ends_is_measured_by_what_the_float_file_does():
    endless = box("action", low=(-1e30,), high=(1e30,))
    found = agreement(endless, {"action": np.array([[0.0], [10.0]])}, {"action": np.array([[0.05], [11.0]])})
    assert found.agrees == (True, False)


def test_box_actions_are_squashed_scaled_and_clipped_as_on_the_device():
    squashed = box("gaussian", scale=(2.0,), offset=(0.5,))
    outputs = {"mean": np.array([[0.0], [100.0]]), "log_std": np.zeros((2, 1))}
    assert greedy_actions(squashed, outputs).ravel() == pytest.approx([0.5, 2.0])


def without_contract(path):
    data = path.read_bytes()
    return repack(data, metadata={METADATA_NAME: b"{}"}).replace(METADATA_NAME.encode(), b"nobody.cares.v1")


def test_a_float_file_of_strangers_is_read_by_the_other_ones_contract(tmp_path):
    path = tmp_path / "foreign.tflite"
    path.write_bytes(without_contract(pair("dueling")[0]))
    comparison = compare_files(path, pair("dueling")[1], rows=40)
    assert comparison.agreement is not None
    assert comparison.agreement.share > 0.9


def test_without_any_contract_outputs_are_compared_and_actions_are_not(tmp_path):
    paths = []
    for place, source in enumerate(pair("dueling")):
        path = tmp_path / f"{place}.tflite"
        path.write_bytes(without_contract(source))
        paths.append(path)
    comparison = compare_files(*paths, rows=40)
    assert comparison.to_json()["action_agreement"] is None
    assert "R01" in {finding.code for finding in comparison.findings}
    render_text(comparison)
    with pytest.raises(UsageError, match="--env needs a policy contract"):
        compare_files(*paths, env_id="CartPole-v1")


def test_a_contract_that_does_not_hold_is_an_error():
    broken = repack(pair("dueling")[1].read_bytes(), metadata={METADATA_NAME: b"{}"})
    with pytest.raises(ContractError):
        side_of(broken)


def test_files_that_do_not_belong_together():
    with pytest.raises(UsageError, match="observe different things"):
        compare_files(pair("cartpole")[0], DATA / "acrobot.tflite")
    with pytest.raises(UsageError, match="not the same network"):
        compare_files(pair("cartpole")[0], pair("qat")[1])
    with pytest.raises(UsageError, match="exclude each other"):
        compare_files(*pair("cartpole"), env_id="CartPole-v1", observations=DATA)


def test_files_of_one_policy_with_other_operators_are_compared_by_what_they_give(tmp_path):
    """A LayerNormalization that is kept in float is converted to other operators than in a float file."""
    left, right = pair("cartpole")[0], pair("qat")[1]
    found = compare_files(left, right, rows=20, same_policy=True)
    assert "R13" in {finding.code for finding in found.findings}
    assert {layer.kind for layer in found.layers} <= {"QUANTIZE"}
    assert found.agreement is not None
    assert "different operators" in write_report(found, tmp_path).read_text()


def test_a_file_that_no_runtime_survives_is_refused_before_it_runs_here():
    """The lint refuses it, so a child process tries it first."""
    side = read_graph(pair("cartpole")[1].read_bytes())
    assert len(side.operators) == 4

    def change(data):
        import flatbuffers
        from ai_edge_litert import schema_py_generated as schema

        model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(bytearray(data), 0))
        model.subgraphs[0].operators[1].inputs = np.array([5, -1, 3], np.int32)
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    with pytest.raises(ModelFileError, match="ai-edge-litert cannot run"):
        side_of(change(pair("cartpole")[1].read_bytes()))


def test_text_is_a_page_with_every_layer():
    page = render_text(compared("dueling"))
    for name in ("trunk", "value_hidden", "advantage"):
        assert name in page
    assert "action agreement" in page
    assert "R08" in page
    assert len(page.splitlines()) < 40
