"""The pixel environment: what it shows, what it pays, and that its frames suffice to play it well."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from quarl_device.catch import BALLS, CATCH_ID, CELL_PIXELS, CELLS, Catch
from quarl_device.environments import EnvSpec, make_single


def play(act, seed):
    env = Catch()
    frame, _ = env.reset(seed=seed)
    rewards, steps, done = [], 0, False
    while not done:
        frame, reward, done, truncated, _ = env.step(act(frame))
        rewards.append(reward)
        steps += 1
        assert not truncated
    return sum(rewards), steps


def seen(frame):
    """Read ball, tail and paddle columns from a frame alone."""
    cells = frame[::CELL_PIXELS, ::CELL_PIXELS, 0]
    ball = np.argwhere(cells == 255)
    tail = np.argwhere(cells[:-1] == 128)
    paddle = np.argwhere(cells[-1] == 200)
    return ball, tail, paddle


def next_of(actions, _frame):
    return next(actions)


def by_the_frame(frame):
    """Go to where the ball will land."""
    ball, tail, paddle = seen(frame)
    if not len(ball) or not len(paddle):
        return 1
    row, column = ball[0]
    drift = int(column - tail[0][1]) if len(tail) else 0
    for _ in range(CELLS - 1 - row):
        drift = drift if 0 <= column + drift < CELLS else -drift
        column += drift
    return 1 + int(np.sign(column - paddle[0][0]))


def test_it_is_a_proper_gymnasium_environment():
    check_env(gymnasium.make(CATCH_ID).unwrapped, skip_render_check=True)


def test_our_own_makers_know_it():
    env = make_single(EnvSpec(env_id=CATCH_ID))
    assert env.observation_space.shape == (36, 36, 1)
    env.close()


@pytest.mark.parametrize("seed", range(5))
def test_an_episode_has_five_balls_and_a_seed_repeats_it(seed):
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, 3, 100)
    first, second = (play(partial(next_of, iter(actions)), seed) for _ in range(2))
    assert first == second
    assert first[1] == BALLS * (CELLS - 1)
    assert abs(first[0]) <= BALLS


def test_one_frame_says_enough_to_catch_nearly_all():
    assert np.mean([play(by_the_frame, seed)[0] for seed in range(50)]) > 3.5


def test_standing_still_catches_little():
    assert np.mean([play(lambda _: 1, seed)[0] for seed in range(50)]) < -2
