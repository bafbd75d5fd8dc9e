"""DDPG and D4PG: fused against plain steps, targets, a task with a known answer, checkpoints."""

import dataclasses

import numpy as np
import pytest
from continuous_factory import BOX, box_batch, policy, replay_config, without_xla

from quarl_device.errors import CheckpointError
from quarl_edge.algorithms import ALGORITHMS

__all__ = ["without_xla"]
NAMES = ("ddpg", "d4pg")


def build(name, *, seed=0, hidden=(16,), **changes):
    return ALGORITHMS[name].build(replay_config(name, **changes), policy("action", seed=seed, hidden=hidden))


def group(algorithm, name):
    return {key: value for key, value in algorithm.arrays().items() if key.startswith(f"{name}/")}


def step(whole, k):
    return dataclasses.replace(
        whole, **{field.name: getattr(whole, field.name)[k : k + 1] for field in dataclasses.fields(whole)}
    )


@pytest.mark.parametrize(("tau", "period"), [(0.1, 0), (0.0, 4)])
@pytest.mark.parametrize("name", NAMES)
def test_k_fused_updates_equal_k_single_ones(name, tau, period):
    fused, single = (build(name, target_tau=tau, target_period_updates=period) for _ in range(2))
    whole = box_batch(reward=lambda seen, action: seen[..., 0] + action[..., 0], discount=0.9)
    fused.update(whole)
    for k in range(4):
        single.update(step(whole, k))
    a, b = fused.arrays(), single.arrays()
    assert a["updates"] == b["updates"] == 4
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=1e-3, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
def test_it_learns_where_the_best_action_lies(name):
    """Episodes of one step; the best action is the observation itself, scaled to the box: -2..2 and 0..1."""

    def reward(seen, action):
        wanted = np.stack([2 * seen[..., 0], (seen[..., 1] + 1) / 2], -1)
        return -(((action - wanted) / [2.0, 0.5]) ** 2).sum(-1)

    atoms = {"value_min": -10.0, "value_max": 1.0} if name == "d4pg" else {}
    algorithm = build(
        name, learning_rate=3e-3, critic_learning_rate=3e-3, hidden=(32, 32), critic_hidden=(64, 64), batch_size=64,
        target_tau=0.05, target_period_updates=0, **atoms,
    )  # fmt: skip
    for seed in range(200):
        algorithm.update(box_batch(size=64, seed=seed, reward=reward))
    seen = box_batch(steps=1, size=200, seed=999).observation[0]
    unit = algorithm.policy.model(seen, training=False).numpy()
    assert np.abs(unit - seen[:, :2]).mean() < 0.2


def saturate(algorithm):
    """Drive both actions so deep into saturation that float32 has no slope there."""
    snapshot = algorithm.policy.snapshot()
    biases = (*snapshot.biases[:-1], snapshot.biases[-1] + np.float32([30, -30]))
    algorithm.policy.restore(dataclasses.replace(snapshot, biases=biases))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
@pytest.mark.parametrize(("weight", "comes_back"), [(0.1, True), (0.0, False)])
def test_a_saturated_policy_comes_back(name, weight, comes_back):
    algorithm = build(name, saturation_weight=weight, learning_rate=0.1)
    saturate(algorithm)
    for seed in range(30):
        algorithm.update(box_batch(seed=seed))
    entering = np.abs(algorithm.policy.linear_model(box_batch(steps=1, seed=99).observation[0]).numpy())
    assert (entering.max() < 6.0) == comes_back
    assert (entering.min() > 25.0) != comes_back


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
def test_targets_are_copied_by_period_or_blended(name):
    copied = build(name, target_tau=0.0, target_period_updates=4)
    copied.update(box_batch())
    for one, other in (("online", "target"), ("critic", "target_critic")):
        pairs = zip(group(copied, one).values(), group(copied, other).values(), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)
    blended = build(name, target_tau=0.25, target_period_updates=0)
    before = group(blended, "target_critic")
    blended.update(step(box_batch(reward=lambda seen, action: seen[..., 0]), 0))
    after, online = group(blended, "target_critic"), group(blended, "critic")
    for old, new, source in zip(before.values(), after.values(), online.values(), strict=True):
        np.testing.assert_allclose(new, old + 0.25 * (source - old), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
def test_a_terminated_transition_does_not_look_further(name):
    one, other = build(name), build(name)
    done = box_batch(reward=lambda seen, action: seen[..., 0], discount=0.0)
    one.update(done)
    other.update(dataclasses.replace(done, next_observation=done.next_observation + 5.0))
    for key, value in group(one, "critic").items():
        np.testing.assert_allclose(value, group(other, "critic")[key], atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
def test_errors_are_told_and_weights_heeded(name):
    one, other = build(name), build(name)
    whole = step(box_batch(), 0)
    silent = dataclasses.replace(whole, weight=np.where(np.arange(16) == 0, 0, whole.weight).astype(np.float32))
    changed = dataclasses.replace(silent, reward=np.where(np.arange(16) == 0, 5, silent.reward).astype(np.float32))
    learned, after = one.update(silent), other.update(changed)
    assert learned.errors.shape == (1, 16)
    assert after.errors[0, 0] != learned.errors[0, 0]
    for key, value in group(one, "critic").items():
        np.testing.assert_array_equal(value, group(other, "critic")[key], err_msg=key)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
def test_compiling_changes_nothing_and_restoring_goes_on_exactly(name):
    algorithm, other = build(name), build(name, seed=7)
    before = algorithm.arrays()
    algorithm.compile()
    assert all(np.array_equal(value, before[key]) for key, value in algorithm.arrays().items())
    algorithm.update(box_batch())
    other.restore(algorithm.arrays())
    algorithm.update(box_batch(seed=1))
    other.update(box_batch(seed=1))
    for key, value in algorithm.arrays().items():
        np.testing.assert_array_equal(value, other.arrays()[key], err_msg=key)
    with pytest.raises(CheckpointError, match="another network"):
        algorithm.restore(build(name, hidden=(9,)).arrays())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
def test_noise_falls_and_comes_with_its_kind(name):
    algorithm = build(name, noise="ornstein_uhlenbeck", noise_initial=0.5, noise_final=0.1, noise_steps=100)
    assert [algorithm.exploration(steps).values[0] for steps in (0, 50, 900)] == pytest.approx([0.5, 0.3, 0.1])
    assert algorithm.exploration(0).kind == "ornstein_uhlenbeck"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
def test_the_normaliser_reaches_every_network(name):
    algorithm = build(name)
    offset, scale = np.float32([1, 2, 3]), np.float32([2, 2, 0.5])
    algorithm.set_normalizer(offset, scale)
    for part in ("online", "target", "critic", "target_critic"):
        values = list(group(algorithm, part).values())
        assert any(value.shape == (3,) and np.array_equal(value, offset) for value in values), part
        assert any(value.shape == (3,) and np.array_equal(value, scale) for value in values), part
    assert BOX.kind == "box"
