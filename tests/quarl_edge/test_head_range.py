"""The head's range: of actions it holds what the policy meets anywhere, of discrete numbers what it meets now."""

import numpy as np
import pytest
from continuous_factory import BOX, DISCRETE, OBSERVATION, policy

from quarl_edge.learner.head_range import OBSERVATIONS, fit_head_range
from quarl_edge.replay.buffer import ReplayBuffer
from quarl_edge.replay.transitions import Transitions


class Experience:
    """A replay that has seen many states, and then stood at one for as long as a fit looks back."""

    def __init__(self, action=BOX, *, moving=2_000, still=OBSERVATIONS):
        self.replay = ReplayBuffer(4_000, observation=OBSERVATION, action=action, seed=0)
        self.seen = np.random.default_rng(0).uniform(-9, 9, (moving, 3)).astype(np.float32)
        rows = np.concatenate((self.seen, np.full((still, 3), 0.01, np.float32)))
        zeros = np.zeros(len(rows), np.float32)
        taken = np.zeros((len(rows), *action.shape), action.dtype)
        self.replay.insert(Transitions(rows, taken, zeros, zeros, rows))
        self.recent_observations = self.replay.recent_observations
        self.spread_observations = self.replay.spread_observations

    def __len__(self):
        return len(self.replay)


def outputs(network, observations):
    return network.linear_model(observations).numpy()


def test_an_action_is_clipped_nowhere_although_the_last_second_was_all_the_same():
    network, experience = policy("action"), Experience()
    fit_head_range(network, experience, in_rounds=False)
    low, high = network.head_range
    values = np.clip(outputs(network, experience.seen), -4, 4)
    assert values.min() < -0.02, "the network must act in both directions for this to say anything"
    assert values.max() > 0.02
    assert np.mean((values < low) | (values > high)) < 0.002


@pytest.mark.parametrize(("head", "action"), [("gaussian", BOX), ("logits", DISCRETE)])
def test_a_gaussians_mean_and_logits_too(head, action):
    network, experience = policy(head, action=action), Experience(action)
    fit_head_range(network, experience, in_rounds=False)
    low, high = network.head_range
    values = outputs(network, experience.seen)
    assert np.mean((values < low) | (values > high)) < 0.002


def test_q_values_have_the_steps_of_what_is_met_now():
    network, experience = policy("q_values", action=DISCRETE), Experience(DISCRETE)
    network.set_head_range(-100, 100)
    fit_head_range(network, experience, in_rounds=False)
    low, high = network.head_range
    assert high - low < 0.2 * np.ptp(outputs(network, experience.seen))


def test_too_few_observations_of_a_replay_move_nothing_where_a_round_is_all_there_is():
    network, experience = policy("action"), Experience(moving=OBSERVATIONS - 1, still=0)
    network.set_head_range(-3, 3)
    before = network.head_range
    fit_head_range(network, experience, in_rounds=False)
    assert network.head_range == before
    fit_head_range(network, experience, in_rounds=True)
    assert network.head_range != before
