from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from export_factory import make_contract, make_spec, observations
from keras_twin import lsb_errors, twin_outputs, with_snapped_biases

from quarl_device.errors import NonFiniteError, PatchError, SelfTestError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy
from quarl_export.audit import audit
from quarl_export.compare import difference
from quarl_export.file_runner import run_file
from quarl_export.golden import run_goldens
from quarl_export.graph import output_scale, view
from quarl_export.qat import QatPolicy
from quarl_export.qat_template import QatTemplate
from quarl_export.quantizers import WeightQuantizer


def test_a_push_is_a_policy_file_that_a_device_loads(template, policy):
    data = template.patch(policy.snapshot())
    file = read_policy(data)
    assert file.contract == template.contract
    assert file.contract.normalizer.where == "graph"
    assert file.contract.observations[0].tensor == "observation"
    assert dict(file.contract.head.outputs) == {"q_values": "q_values"}
    golden = run_goldens(data, file.contract, file.golden.observations)
    device = Policy.load(file, golden=golden)
    inputs = observations(50, seed=3)
    wanted = twin_outputs(policy.spec, policy.snapshot(), inputs).argmax(axis=1)
    assert [device.act(row) for row in inputs] == wanted.tolist()


def test_batches_act_like_single_observations(template, policy):
    file = read_policy(template.patch(policy.snapshot()))
    inputs = observations(64, seed=4)
    batch = Policy.load(file, batch_size=64, self_test=False).act_batch(inputs)
    single = Policy.load(file, self_test=False)
    assert batch.tolist() == [single.act(row) for row in inputs]


def test_the_file_as_built_passes_its_own_goldens(spec):
    policy = QatPolicy(spec, seed=8)
    policy.calibrate(observations(64))
    template = QatTemplate.from_model(policy, make_contract(spec), observations(8), provenance={"run": "x"})
    file = read_policy(template.patch(policy.snapshot()))
    Policy.load(file)
    assert file.provenance == {"run": "x"}
    assert file.contract.normalizer.where == "none"


def test_old_goldens_do_not_pass_for_another_policy(template, policy):
    other = policy.clone()
    for variable in other.trainable_variables:
        variable.assign(variable * 1.5)
    old = read_policy(template.patch(policy.snapshot()))
    golden = run_goldens(old.data, old.contract, old.golden.observations)
    with pytest.raises(SelfTestError):
        Policy.load(read_policy(template.patch(other.snapshot())), golden=golden)


def test_metadata_changes_nothing_that_computes(template, policy):
    assert audit(policy.spec, policy.snapshot(), template.patch(policy.snapshot())).identical


def test_every_patch_has_the_same_size(template, policy):
    assert len(template.patch(policy.snapshot())) == len(template.data)


def test_centred_files_act_like_the_network_with_smaller_outputs():
    inputs = observations(128, seed=5)
    policy = QatPolicy(make_spec(actions=3, center_q=True), seed=3)
    policy.calibrate(inputs)
    policy.trainable_variables[-1].assign([30.0, 30.5, 31.0])
    policy.head_range_from(inputs)
    template = QatTemplate.from_model(policy, make_contract(policy.spec), inputs[:8])
    file = read_policy(template.patch(policy.snapshot()))
    q_values = policy.model(inputs, training=False).numpy()
    assert q_values.min() > 20.0
    assert np.abs(run_goldens(file.data, file.contract, inputs[:32]).outputs["q_values"]).max() < 10.0
    device = Policy.load(file, self_test=False)
    agree = np.mean([device.act(row) == q.argmax() for row, q in zip(inputs, q_values, strict=True)])
    assert agree > 0.95


@pytest.mark.parametrize(
    ("quantization", "step"),
    [
        ({}, 0.0),
        ({"weight_bits": 4, "activation_bits": 4}, 0.0),
        ({"weight_bits": 2, "activation_bits": 6}, 0.0),
        ({"head_output": "int16"}, 0.0),
        # Sums of floats in another order.
        ({"head_output": "float32"}, 1e-6),
        ({"head_output": "float32", "weight_bits": 5, "activation_bits": 3}, 1e-6),
    ],
)
def test_trained_file_and_network_agree_in_every_step(quantization, step):
    """The claim of QAT: the file computes what the network computed in training, bias rounding aside."""
    from quarl_export.keras2 import keras, tf

    policy = QatPolicy(make_spec(inputs=6, hidden=(32, 32), actions=3, **quantization), seed=4)
    optimizer = keras.optimizers.Adam(5e-3)
    optimizer.build(policy.trainable_variables)
    inputs = observations(256, inputs=6)

    @tf.function(jit_compile=True)
    def train(batch):
        goals = tf.sin(batch[:, :3] * 2.0) + batch[:, 3:]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(policy.model(batch, training=True) - goals))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, policy.trainable_variables), policy.trainable_variables, strict=True)
        )
        return loss

    for _ in range(300):
        loss = float(train(tf.constant(inputs)))
    assert loss < (
        0.6 if min(policy.spec.quantization.weight_bits, policy.spec.quantization.activation_bits) < 8 else 0.1
    )
    policy.head_range_from(inputs)
    snapshot = policy.snapshot()
    template = QatTemplate.from_model(policy, make_contract(policy.spec), inputs[:8])
    model = template.patch(snapshot)
    outputs = run_file(model, template.contract, {"observation": inputs})["q_values"]
    lsb = output_scale(model, "q_values")
    assert bool(lsb) == (step == 0.0)
    twin = twin_outputs(policy.spec, snapshot, inputs)
    if lsb:
        # A step of int16 is so fine that float sums in another order, as other processors have them, may miss one.
        fine = int(policy.spec.quantization.head_output == "int16")
        assert lsb_errors(outputs, twin, lsb=lsb).max() <= fine
        step = fine * lsb / np.abs(twin).max()
    np.testing.assert_allclose(outputs, twin, rtol=3e-7, atol=step * np.abs(twin).max())
    _check_grids(model, policy.spec.quantization)


def _check_grids(model, quantization):
    """No kernel or hidden layer of the file has more levels than it may, and one that was trained has them all."""
    tensors = {tensor.name: tensor for tensor in view(model).tensors}
    for layer in ("hidden_0", "hidden_1", "q_values"):
        kernel = tensors[f"{layer}/kernel"]
        if layer == "q_values" and quantization.head_output == "float32":
            assert kernel.dtype is np.float32
        else:
            assert np.abs(kernel.data).max() == 2 ** (quantization.weight_bits - 1) - 1
    for name in ("relu_0", "relu_1"):
        assert 127 - tensors[name].zero_point[0] == 2**quantization.activation_bits - 1


@pytest.mark.parametrize("bits", range(2, 9))
def test_training_computes_on_grids_of_its_bits(bits):
    """Not only the file: what the loss sees is quantized."""
    policy = QatPolicy(make_spec(hidden=(24,), weight_bits=bits, activation_bits=bits), seed=1)
    inputs = observations(400)
    policy.calibrate(inputs)
    wrapped = policy.model.layers[2]
    hidden = wrapped(policy.model.layers[1](inputs, training=False), training=False).numpy()
    high = policy.snapshot().ranges[1, 1]
    steps = hidden / (high / (2**bits - 1))
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
    assert hidden.max() == pytest.approx(high)
    kernel = WeightQuantizer(bits=bits)(policy.trainable_variables[0], True, {}).numpy()
    steps = kernel / (np.abs(policy.trainable_variables[0]).max() / (2 ** (bits - 1) - 1))
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
    assert np.abs(np.rint(steps)).max() == 2 ** (bits - 1) - 1


@pytest.mark.parametrize("head_output", ["float32", "int16"])
def test_a_finer_head_tells_actions_apart_that_int8_does_not(head_output):
    """Gaps of a hundredth beside values of a hundred."""
    inputs = observations(200)
    agreement = {}
    for output in ("int8", head_output):
        policy = QatPolicy(make_spec(actions=3, hidden=(16,), head_output=output), seed=2)
        policy.trainable_variables[-1].assign([100.0, 100.01, 100.02])
        policy.calibrate(inputs)
        template = QatTemplate.from_model(policy, make_contract(policy.spec), inputs[:8])
        found = run_file(template.patch(policy.snapshot()), template.contract, {"observation": inputs})["q_values"]
        agreement[output] = np.mean(found.argmax(axis=1) == policy.model(inputs, training=False).numpy().argmax(axis=1))
    assert agreement["int8"] < 0.8
    assert agreement[head_output] > 0.98


def test_goldens_behind_int8_layers_allow_what_kernels_may_differ_in():
    """A float or int16 output shows a step of the layers before in full; its own steps would be far too strict."""
    inputs = observations(100)
    for output in ("float32", "int16"):
        policy = QatPolicy(make_spec(actions=3, head_output=output), seed=2)
        policy.calibrate(inputs)
        golden = QatTemplate.from_model(policy, make_contract(policy.spec), inputs[:8])
        vectors = run_goldens(golden.patch(policy.snapshot()), golden.contract, inputs[:8])
        assert vectors.lsb["q_values"] == pytest.approx(np.abs(vectors.outputs["q_values"]).max() / 255)


def test_no_biases_snapped_no_agreement(policy):
    """Snapping is not decoration: the twin's biases differ from the learned ones."""
    snapshot = dataclasses.replace(
        policy.snapshot(), biases=tuple(b + np.float32(0.0123) for b in policy.snapshot().biases)
    )
    snapped = with_snapped_biases(policy.spec, snapshot)
    assert not np.array_equal(snapped.biases[0], snapshot.biases[0])
    np.testing.assert_allclose(snapped.biases[0], snapshot.biases[0], atol=1e-3)


def test_kernels_are_named_for_readers(template):
    names = {tensor.name for tensor in view(template.data).tensors}
    assert {"hidden_0/kernel", "q_values/bias", "observation/offset", "observation", "relu_1"} <= names


def test_a_network_that_cannot_be_patched_is_converted_every_time_and_says_why(policy, template, monkeypatch):
    def refuse(*_, **__):
        raise PatchError("two ranges cannot be told apart")

    monkeypatch.setattr("quarl_export.patcher.Patcher.build", refuse)
    converting = QatTemplate.from_model(policy, make_contract(policy.spec), observations(8))
    assert converting.reason == "two ranges cannot be told apart"
    assert template.reason == ""
    snapshot = policy.snapshot()
    file = read_policy(converting.patch(snapshot))
    assert difference(file.data, template.patch(snapshot)) == ""
    assert file.contract == template.contract
    Policy.load(file, golden=run_goldens(file.data, file.contract, file.golden.observations))
    # As strict as the patcher.
    for bad, error in ((np.nan, NonFiniteError), (-9.0, PatchError)):
        with pytest.raises(error):
            converting.patch(dataclasses.replace(snapshot, head_range=np.array([0.0, bad], np.float32)))
    with pytest.raises(NonFiniteError):
        converting.patch(dataclasses.replace(snapshot, biases=tuple(bias * np.nan for bias in snapshot.biases)))


def test_a_converted_file_is_centred_as_a_patched_one():
    policy = QatPolicy(make_spec(actions=3, center_q=True), seed=3)
    policy.calibrate(observations(50))
    patched = QatTemplate.from_model(policy, make_contract(policy.spec), observations(8))
    converted = patched.converting("for a test")
    assert difference(converted.patch(policy.snapshot()), patched.patch(policy.snapshot())) == ""
