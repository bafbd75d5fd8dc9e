"""PPO and A2C: tasks with a known answer, the ratio to what acted, checkpoints."""

import numpy as np
import pytest
from continuous_factory import BOX, DISCRETE, policy, rollout, round_config, without_xla

from quarl_device.errors import CheckpointError
from quarl_edge.algorithms import ALGORITHMS

__all__ = ["without_xla"]
NAMES = ("ppo", "a2c")
RATES = {"learning_rate": 1e-2, "value_learning_rate": 1e-2, "discount": 0.9}


def build(name, *, head="logits", seed=0, hidden=(16,), **changes):
    action = DISCRETE if head == "logits" else BOX
    return ALGORITHMS[name].build(
        round_config(name, **{**RATES, **changes}), policy(head, action=action, seed=seed, hidden=hidden)
    )


def draws(algorithm):
    """Return what acts as the network in training does."""

    def act(observation, rng):
        outputs = algorithm.policy.model(observation.reshape(-1, 3), training=False).numpy()
        if algorithm.policy.log_std is None:
            shares = np.exp(outputs - outputs.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            action = np.array([rng.choice(3, p=row / row.sum()) for row in shares.astype(np.float64)])
            log_prob = np.log(shares[np.arange(len(action)), action])
            lead = observation.shape[:2]
            return action.astype(np.uint8).reshape(lead), {"log_prob": log_prob.astype(np.float32).reshape(lead)}
        log_std = algorithm.policy.log_std.numpy()
        noise = rng.standard_normal(outputs.shape)
        sample = outputs + np.exp(log_std) * noise
        log_prob = -(0.5 * noise**2 + log_std + 0.5 * np.log(2 * np.pi)).sum(-1)
        lead = observation.shape[:2]
        sample = sample.astype(np.float32).reshape(*lead, 2)
        return sample, {"sample": sample, "log_prob": log_prob.astype(np.float32).reshape(lead)}

    return act


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
def test_it_learns_which_action_pays(name):
    """Episodes of one step: action 1 where the first value is positive, else action 2."""

    def reward(seen, action):
        return (action == np.where(seen[..., 0] > 0, 1, 2)).astype(np.float32)

    algorithm = build(name, minibatches=1, epochs=4 if name == "ppo" else 1)
    for seed in range(80):
        algorithm.update(rollout(draws(algorithm), reward, envs=16, seed=seed))
    seen = np.random.default_rng(999).uniform(-1, 1, (300, 3)).astype(np.float32)
    chosen = algorithm.policy.model(seen, training=False).numpy().argmax(-1)
    assert (chosen == np.where(seen[:, 0] > 0, 1, 2)).mean() > 0.9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
def test_it_learns_where_the_best_action_lies(name):
    """The best mean is the observation; what is drawn is in the head's own units."""

    def reward(seen, action):
        return -((action - seen[..., :2]) ** 2).sum(-1)

    algorithm = build(name, head="gaussian", minibatches=1, epochs=4 if name == "ppo" else 1)
    for seed in range(120):
        algorithm.update(rollout(draws(algorithm), reward, envs=32, seed=seed))
    seen = np.random.default_rng(999).uniform(-1, 1, (300, 3)).astype(np.float32)
    mean = algorithm.policy.model(seen, training=False).numpy()
    assert np.abs(mean - seen[:, :2]).mean() < 0.25
    assert (algorithm.policy.log_std.numpy() < -0.5).all(), "sure of itself by now"


@pytest.mark.usefixtures("without_xla")
def test_a_policy_far_from_what_acted_is_not_pushed_further():
    """PPO's clip: where the ratio is beyond it already, no gradient is left."""
    algorithm = build("ppo", minibatches=1, epochs=1, entropy_cost=0.0, standardize_advantages=False)
    made = rollout(draws(algorithm), lambda seen, action: np.ones(seen.shape[:2]))
    far = rollout(draws(algorithm), lambda seen, action: np.ones(seen.shape[:2]), log_prob=made.extra["log_prob"] - 2.0)
    before = algorithm.policy.snapshot().kernels
    algorithm.update(far)
    for old, new in zip(before, algorithm.policy.snapshot().kernels, strict=True):
        np.testing.assert_allclose(new, old, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_xla")
def test_steps_that_were_none_teach_nothing(name):
    one, other = build(name, minibatches=1), build(name, minibatches=1)
    made = rollout(draws(one), lambda seen, action: seen[..., 0])
    made.valid[3:] = False
    one.update(made)
    made.reward[3:] = 1e6
    other.update(made)
    for key, value in one.arrays().items():
        np.testing.assert_array_equal(value, other.arrays()[key], err_msg=key)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("head", ["logits", "gaussian"])
def test_compiling_changes_nothing_and_restoring_goes_on_exactly(name, head):
    algorithm, other = build(name, head=head), build(name, head=head, seed=7)
    before = algorithm.arrays()
    algorithm.compile()
    assert all(np.array_equal(value, before[key]) for key, value in algorithm.arrays().items())
    made = rollout(draws(algorithm), lambda seen, action: seen[..., 0])
    algorithm.update(made)
    other.restore(algorithm.arrays())
    learned = [each.update(made) for each in (algorithm, other)]
    assert learned[0].metrics == learned[1].metrics
    for key, value in algorithm.arrays().items():
        np.testing.assert_array_equal(value, other.arrays()[key], err_msg=key)
    with pytest.raises(CheckpointError, match="another network"):
        algorithm.restore(build(name, head=head, hidden=(9,)).arrays())


@pytest.mark.usefixtures("without_xla")
def test_actors_are_told_to_sample_and_how_widely():
    assert build("ppo").exploration(0).kind == "sample"
    assert build("ppo").exploration(0).values == ()
    assert build("ppo", head="gaussian", log_std_initial=-1.0).exploration(0).values == pytest.approx((-1.0, -1.0))
