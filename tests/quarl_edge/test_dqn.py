"""The fused learner against plain steps, its target network, and what a checkpoint must hold."""

import dataclasses

import numpy as np
import pytest
from learner_factory import CONTRACT, batch, config, policy

from quarl_device.errors import CheckpointError
from quarl_edge.algorithms.dqn.learner import Dqn
from quarl_export.file_runner import run_file
from quarl_export.qat_template import QatTemplate


def one_by_one(whole, k):
    return dataclasses.replace(
        whole, **{field.name: getattr(whole, field.name)[k : k + 1] for field in dataclasses.fields(whole)}
    )


def online(algorithm):
    return {name: value for name, value in algorithm.arrays().items() if name.startswith("online/")}


def target(algorithm):
    return {name: value for name, value in algorithm.arrays().items() if name.startswith("target/")}


@pytest.mark.parametrize(("double_q", "target_tau"), [(True, 0.0), (False, 0.0), (True, 0.1)])
def test_k_fused_updates_equal_k_single_ones(double_q, target_tau):
    settings = config(double_q=double_q, target_tau=target_tau, target_period_updates=0 if target_tau else 256)
    fused, single = Dqn(settings, policy()), Dqn(settings, policy())
    whole = batch()
    fused.update(whole)
    for k in range(4):
        single.update(one_by_one(whole, k))
    a, b = fused.arrays(), single.arrays()
    assert a["updates"] == b["updates"] == 4
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_compiling_changes_nothing():
    algorithm = Dqn(config(), policy())
    algorithm.update(batch())
    before = algorithm.arrays()
    algorithm.compile()
    for name, value in algorithm.arrays().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_a_hard_target_moves_only_at_its_period():
    algorithm = Dqn(config(target_tau=0.0, target_period_updates=8), policy())
    first = target(algorithm)
    algorithm.update(batch())
    for name, value in target(algorithm).items():
        np.testing.assert_array_equal(value, first[name])
    algorithm.update(batch(seed=1))
    for name, value in target(algorithm).items():
        np.testing.assert_array_equal(value, online(algorithm)[name.replace("target/", "online/")])


def test_a_soft_target_moves_towards_the_online_weights_and_takes_its_ranges():
    algorithm = Dqn(config(target_tau=0.25, target_period_updates=0), policy())
    before = target(algorithm)
    algorithm.update(one_by_one(batch(), 0))
    after, now = target(algorithm), online(algorithm)
    weights = len(algorithm.policy.trainable_variables)
    for i, name in enumerate(sorted(before)):
        new = now[name.replace("target/", "online/")]
        expected = before[name] + 0.25 * (new - before[name]) if i < weights else new
        np.testing.assert_allclose(after[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_ranges_move_only_through_training():
    algorithm = Dqn(config(), policy())
    before = algorithm.policy.snapshot().ranges
    algorithm.policy.model(batch().observation[0], training=False)
    np.testing.assert_array_equal(algorithm.policy.snapshot().ranges, before)
    algorithm.update(batch())
    assert not np.array_equal(algorithm.policy.snapshot().ranges, before)


def test_errors_and_weights_go_with_their_transitions():
    """A transition of weight 0 changes nothing but its own error, which is told for all."""
    one, other = Dqn(config(), policy()), Dqn(config(), policy())
    whole = batch(steps=1)
    ignored = dataclasses.replace(whole, weight=whole.weight * np.float32([1, 1, 1, 1, 0]))
    changed = dataclasses.replace(ignored, reward=ignored.reward + np.float32([0, 0, 0, 0, 5]))
    learned, after = one.update(ignored), other.update(changed)
    for name, array in online(one).items():
        np.testing.assert_array_equal(array, online(other)[name], err_msg=name)
    assert learned.errors.shape == (1, 5)
    np.testing.assert_allclose(after.errors - learned.errors, [[0, 0, 0, 0, 5]], atol=1e-5)


def test_it_learns_a_bandit():
    """Reward 1 for action 1 whatever is seen, episodes of one step."""
    algorithm = Dqn(config(learning_rate=0.01), policy())
    for seed in range(60):
        sample = batch(seed=seed)
        reward = (sample.action == 1).astype(np.float32)
        algorithm.update(dataclasses.replace(sample, reward=reward, discount=np.zeros_like(reward)))
    values = algorithm.policy.model(batch(seed=99).observation[0], training=False).numpy()
    np.testing.assert_allclose(values, np.tile([0.0, 1.0], (5, 1)), atol=0.25)


@pytest.mark.parametrize(
    "quantization",
    [
        {"weight_bits": 4, "activation_bits": 4},
        {"weight_bits": 6, "activation_bits": 6, "head_output": "int16"},
        {"weight_bits": 3, "head_output": "float32"},
    ],
)
def test_the_file_of_a_network_of_few_bits_acts_as_it_has_learned(quantization):
    """The sign of the first value decides which of two actions pays."""
    algorithm = Dqn(config(learning_rate=0.01), policy(hidden=(16, 16), center_q=True, **quantization))
    for seed in range(150):
        sample = batch(size=32, seed=seed)
        reward = (sample.action == (sample.observation[..., 0] > 0)).astype(np.float32)
        algorithm.update(dataclasses.replace(sample, reward=reward, discount=np.zeros_like(reward)))
    seen = batch(steps=1, size=300, seed=999).observation[0]
    algorithm.policy.head_range_from(seen)
    template = QatTemplate.from_model(algorithm.policy, CONTRACT, seen[:8])
    found = run_file(template.patch(algorithm.policy.snapshot()), template.contract, {"observation": seen})["q_values"]
    assert np.mean(found.argmax(axis=1) == (seen[:, 0] > 0)) > 0.85


def test_restoring_goes_on_exactly():
    algorithm, other = Dqn(config(), policy()), Dqn(config(), policy(seed=7))
    algorithm.update(batch())
    other.restore(algorithm.arrays())
    algorithm.update(batch(seed=1))
    other.update(batch(seed=1))
    for name, value in algorithm.arrays().items():
        np.testing.assert_array_equal(value, other.arrays()[name], err_msg=name)


def test_a_checkpoint_of_another_network_is_refused():
    algorithm = Dqn(config(), policy())
    with pytest.raises(CheckpointError, match="shape"):
        algorithm.restore(Dqn(config(), policy(hidden=(9,))).arrays())
    with pytest.raises(CheckpointError, match="missing"):
        algorithm.restore(Dqn(config(), policy(hidden=(8, 8))).arrays() | {"extra": np.zeros(1)})
    arrays = algorithm.arrays()
    arrays.pop("updates")
    with pytest.raises(CheckpointError, match="updates"):
        algorithm.restore(arrays)


def test_a_normaliser_from_data_reaches_the_target_network_at_once():
    algorithm = Dqn(config(), policy())
    algorithm.set_normalizer(np.float32([1, 2, 3]), np.float32([0.5, 0.25, 4]))
    arrays = algorithm.arrays()
    for wanted in ([1, 2, 3], [0.5, 0.25, 4]):
        holders = [name.split("/")[0] for name, value in arrays.items() if np.array_equal(value, np.float32(wanted))]
        assert sorted(holders) == ["online", "target"]
