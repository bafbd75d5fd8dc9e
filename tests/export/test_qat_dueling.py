"""A dueling head learns a value and advantages, and is one dense layer everywhere else."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from export_factory import make_contract, make_spec, observations
from hypothesis import given, settings
from hypothesis import strategies as st
from keras_twin import lsb_errors, twin_outputs

from quarl_device.errors import PatchError, UsageError
from quarl_export.audit import audit
from quarl_export.compare import difference
from quarl_export.converter import convert
from quarl_export.dueling import DuelingHead, unfolded
from quarl_export.file_runner import output_step, run_file
from quarl_export.keras2 import keras, tf
from quarl_export.networks import NetworkSpec
from quarl_export.qat import QatPolicy
from quarl_export.qat_template import QatTemplate
from quarl_export.quantizers import WeightQuantizer
from quarl_export.snapshot import for_export, initial_snapshot


def dueling(**changes) -> NetworkSpec:
    return make_spec(actions=3, hidden=(16, 11), dueling=True, **changes)


@pytest.fixture(scope="module")
def trained() -> QatPolicy:
    """Fitted to something that has a value far from its advantages, in a compiled loop."""
    policy = QatPolicy(dueling(), seed=3, normalize=True)
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(policy.trainable_variables)
    inputs = observations(256)

    @tf.function(jit_compile=True)
    def train(batch):
        goals = 3.0 + tf.sin(batch[:, :3]) + batch[:, 3:]
        loss = tf.constant(0.0)
        for _ in tf.range(400):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(policy.model(batch, training=True) - goals))
            gradients = tape.gradient(loss, policy.trainable_variables)
            optimizer.apply_gradients(zip(gradients, policy.trainable_variables, strict=True))
        return loss

    assert float(train(tf.constant(inputs))) < 0.6
    policy.head_range_from(inputs)
    return policy


def head_of(kernels, biases, *, units, value_units) -> DuelingHead:
    head = DuelingHead(units, value_units=value_units, quantizer=None)
    head.build((None, value_units + len(kernels[1])))
    for variable, array in zip(head.weights, (kernels[0], biases[0], kernels[1], biases[1]), strict=True):
        variable.assign(array)
    return head


def test_values_and_advantages_by_hand():
    """V = 2x + 1; A = (3, -1, 4)y + (0, 3, 0), whose mean is 2y + 1."""
    head = head_of(([[2.0]], [[3.0, -1.0, 4.0]]), ([1.0], [0.0, 3.0, 0.0]), units=3, value_units=1)
    # x = 10: V = 21. y = 5: A = (15, -2, 20), mean 11.
    np.testing.assert_allclose(head(tf.constant([[10.0, 5.0]])), [[25.0, 8.0, 30.0]], rtol=1e-6)


@given(
    units=st.integers(1, 6), value_units=st.integers(1, 5), advantage_units=st.integers(1, 5), seed=st.integers(0, 999)
)
@settings(max_examples=25, deadline=None)
def test_it_is_the_mean_free_sum_whatever_the_weights_and_unfolds_to_the_same(
    units, value_units, advantage_units, seed
):
    rng = np.random.default_rng(seed)
    kernels = rng.normal(size=(value_units, 1)), rng.normal(size=(advantage_units, units))
    biases = rng.normal(size=1), rng.normal(size=units)
    head = head_of(kernels, biases, units=units, value_units=value_units)
    inputs = rng.normal(size=(7, value_units + advantage_units)).astype(np.float32)
    value = inputs[:, :value_units] @ kernels[0] + biases[0]
    advantage = inputs[:, value_units:] @ kernels[1] + biases[1]
    wanted = value + advantage - advantage.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(head(tf.constant(inputs)), wanted, atol=1e-4)
    folded = [part.numpy() for part in head.folded()]
    for variable, array in zip(head.weights, unfolded(*folded, value_units=value_units), strict=True):
        variable.assign(array)
    for part, again in zip(folded, head.folded(), strict=True):
        np.testing.assert_allclose(again, part, atol=1e-5)


def test_training_computes_with_the_kernel_on_the_grid_of_the_file():
    policy = QatPolicy(dueling(weight_bits=3), seed=1)
    inputs = observations(50)
    body = keras.Model(policy.model.input, policy.model.layers[-2].output)
    hidden = body(inputs, training=False).numpy()
    kernel, bias = policy.snapshot().kernels[-1], policy.snapshot().biases[-1]
    gridded = WeightQuantizer(bits=3)(tf.constant(kernel), False, {}).numpy()
    assert len(np.unique(gridded)) <= 7
    np.testing.assert_allclose(policy.model(inputs, training=False), hidden @ gridded + bias, atol=1e-5)


def test_target_and_restored_policies_give_the_same_q_values(trained):
    inputs = observations(64, seed=2)
    wanted = trained.model(inputs, training=False).numpy()
    copy = trained.clone()
    np.testing.assert_array_equal(copy.model(inputs, training=False), wanted)
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(copy.variables, trained.variables, strict=True))
    again = QatPolicy(trained.spec, seed=77, normalize=True)
    again.restore(trained.snapshot())
    # To within rounding, which may move a weight by a step of its grid.
    assert np.abs(again.model(inputs, training=False) - wanted).mean() < 1e-2
    for one, other in zip(again.snapshot().kernels, trained.snapshot().kernels, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_head_that_is_none_is_not_restored(trained):
    plain = initial_snapshot(trained.spec.in_file, seed=0, normalized=True)
    with pytest.raises(PatchError, match="dueling"):
        trained.clone().restore(plain)


@pytest.mark.parametrize("changes", [{}, {"center_q": True}, {"head_output": "float32"}])
def test_its_files_are_patched_as_converted_and_those_of_the_plain_network(changes):
    policy = QatPolicy(dueling(**changes), seed=2, normalize=True)
    policy.calibrate(observations(64))
    template = QatTemplate.from_model(policy, make_contract(policy.spec), observations(8))
    assert template.reason == ""
    snapshot = policy.snapshot()
    model = template.patch(snapshot)
    assert audit(policy.spec, snapshot, model).identical
    plain = QatPolicy(policy.spec.in_file, normalize=True)
    plain.restore(for_export(policy.spec, snapshot))
    assert difference(model, convert(plain)) == ""
    if not changes:
        assert difference(model, convert(policy)) == ""


def test_trained_file_and_network_agree(trained):
    inputs, snapshot = observations(256), trained.snapshot()
    template = QatTemplate.from_model(trained, make_contract(trained.spec), inputs[:8])
    model = template.patch(snapshot)
    outputs = run_file(model, template.contract, {"observation": inputs})["q_values"]
    step = output_step(model, "q_values")
    errors = lsb_errors(outputs, twin_outputs(trained.spec, snapshot, inputs), lsb=step)
    assert (errors > 0).mean() < 0.005
    assert np.abs(outputs - trained.model(inputs, training=False)).max() < 3 * step


def test_it_takes_q_values_and_two_hidden_units():
    with pytest.raises(UsageError, match=r"dueling.*logits"):
        make_spec(head="logits", dueling=True)
    with pytest.raises(UsageError, match="at least 2"):
        make_spec(hidden=(8, 1), dueling=True)


def test_json_says_it_only_where_it_is_so():
    spec = dueling()
    assert NetworkSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert "dueling" not in spec.in_file.to_json()
    assert dataclasses.replace(spec.in_file, dueling=True) == spec
