"""Identity environments: their optimum is reached by the right answer alone, and chance is far from it."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from quarl_device.environments import EnvSpec, is_one_vector, make_single, make_vector, spaces_to_specs
from quarl_device.testing import identity
from quarl_device.testing.identity import BOX_ID, DICT_ID, DISCRETE_ID, EPISODE_STEPS, OPTIMUM, PIXELS_ID


def right(env_id, observation):
    if env_id == DICT_ID:
        observation = observation["right"]
    return observation if env_id == BOX_ID else int(np.argmax(observation))


def play(env, choose, *, seed):
    observation, total, steps = env.reset(seed=seed)[0], 0.0, 0
    while True:
        observation, reward, terminated, truncated, _ = env.step(choose(observation))
        total, steps = total + reward, steps + 1
        assert not truncated
        if terminated:
            return total, steps


@pytest.mark.parametrize("env_id", [DISCRETE_ID, BOX_ID, DICT_ID])
def test_the_right_answer_returns_the_optimum(env_id):
    env = make_single(EnvSpec(env_id=env_id))
    for seed in range(20):
        total, steps = play(env, lambda observation: right(env_id, observation), seed=seed)
        assert total == pytest.approx(OPTIMUM, abs=1e-6)
        assert steps == EPISODE_STEPS


@pytest.mark.parametrize(("env_id", "chance"), [(DISCRETE_ID, 1 / 4), (BOX_ID, 1 / 3), (DICT_ID, 1 / 4)])
def test_chance_returns_what_is_said(env_id, chance):
    env = make_single(EnvSpec(env_id=env_id), seed=3)
    returns = [play(env, lambda _: env.action_space.sample(), seed=seed)[0] for seed in range(600)]
    assert np.mean(returns) == pytest.approx(OPTIMUM * chance, abs=0.15)


def test_a_wrong_action_is_paid_nothing():
    env = make_single(EnvSpec(env_id=DISCRETE_ID))
    total, _ = play(env, lambda observation: (int(np.argmax(observation)) + 1) % 4, seed=0)
    assert total == 0.0


def test_a_box_of_other_bounds_and_size_has_the_same_optimum():
    env = make_single(EnvSpec(env_id=BOX_ID, kwargs={"size": 3, "low": -2.0, "high": 6.0}))
    assert env.action_space == gymnasium.spaces.Box(-2.0, 6.0, (3,))
    assert play(env, lambda observation: observation, seed=1)[0] == pytest.approx(OPTIMUM, abs=1e-5)
    # Half the range away in every element is worth nothing.
    assert play(env, lambda observation: observation + 4.0, seed=1)[0] == pytest.approx(0.0, abs=1e-5)


class Remembering:
    """Answers with the quarter that was lit `ago` frames before, or with the first that it was shown."""

    def __init__(self, ago):
        self.lit, self.ago = [], ago

    def __call__(self, frame):
        self.lit.append(int(frame[::6, ::6, 0].argmax()))
        return self.lit[max(0, len(self.lit) - 1 - self.ago)]


def test_pixels_pay_for_the_frame_before():
    env = make_single(EnvSpec(env_id=PIXELS_ID))
    assert {play(env, Remembering(1), seed=seed) for seed in range(20)} == {(OPTIMUM, EPISODE_STEPS)}
    alone = np.mean([play(env, Remembering(0), seed=seed)[0] for seed in range(400)])
    assert alone == pytest.approx(1 + (OPTIMUM - 1) / 4, abs=0.15)


@pytest.mark.parametrize("env_id", [DISCRETE_ID, BOX_ID, DICT_ID, PIXELS_ID])
def test_they_are_environments_by_gymnasiums_own_check(env_id):
    check_env(make_single(EnvSpec(env_id=env_id)), skip_render_check=True)


@pytest.mark.parametrize("env_id", [DISCRETE_ID, BOX_ID, DICT_ID, PIXELS_ID])
def test_a_seed_decides_all_that_is_shown(env_id):
    def shown(seed):
        env = make_single(EnvSpec(env_id=env_id, flat=True), seed=seed)
        return np.stack([env.reset()[0] for _ in range(20)])

    np.testing.assert_array_equal(shown(1), shown(1))
    assert not np.array_equal(shown(1), shown(2))


def test_what_a_caller_does_to_an_observation_does_not_change_what_is_right():
    env = make_single(EnvSpec(env_id=DISCRETE_ID))
    observation = env.reset(seed=0)[0]
    answer = int(np.argmax(observation))
    observation[:] = 0
    assert env.step(answer)[1] == 1.0


def test_a_learner_sees_each_of_them_as_one_vector():
    for env_id, size in ((DISCRETE_ID, 4), (BOX_ID, 2), (DICT_ID, 5)):
        adapter = make_vector(EnvSpec(env_id=env_id, flat=True), 3)
        assert is_one_vector(adapter.observations)
        assert adapter.reset(seed=0).shape == (3, size)
        adapter.close()


def test_importing_twice_registers_once():
    assert {DISCRETE_ID, BOX_ID, DICT_ID} <= set(gymnasium.registry)
    env = gymnasium.make(DISCRETE_ID, n=2)
    assert isinstance(env.unwrapped, identity.IdentityDiscrete)
    assert spaces_to_specs(env.observation_space, env.action_space)[1].n == 2
