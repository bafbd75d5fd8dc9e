"""Calibration by playing covers what a policy meets from other starts than those that were calibrated with."""

from pathlib import Path

import numpy as np
import pytest

from quarl_device.environments import EnvSpec, make_single
from quarl_export.acting import greedy_actions
from quarl_export.calibration import RangeRule, play, with_input_normalizer
from quarl_export.importers import ImportOptions, import_policy
from quarl_export.ir.reference import normalize, run_reference
from quarl_export.ranges import find_ranges

TRAINED = Path(__file__).parents[1] / "data" / "trained"
CARTPOLE = EnvSpec(env_id="CartPole-v1")


@pytest.fixture(scope="module")
def a2c():
    """Balances a pole while the cart drifts: where it gets to depends on the start."""
    return import_policy(TRAINED / "a2c_cartpole.zip", options=ImportOptions(env_id="CartPole-v1"))


def met(policy, *, seed, episodes):
    """What the float policy sees in whole greedy episodes, float32 ``[rows, 4]`` of each."""
    world, seen = make_single(CARTPOLE), []
    for number in range(episodes):
        observation, _ = world.reset(seed=seed + number)
        rows, done = [observation], False
        while not done:
            outputs = run_reference(policy, {"observation": rows[-1][None]})
            observation, _, terminated, truncated, _ = world.step(int(greedy_actions(policy.contract, outputs)[0]))
            rows.append(observation)
            done = terminated or truncated
        seen.append(np.array(rows))
    world.close()
    return seen


def test_ranges_of_a_play_hold_other_episodes(a2c):
    """With 4,096 steps of whole greedy and random episodes in turn 4 to 20 % of a dimension were clipped, 88 % of it in
    single episodes: eight greedy starts, and none that has strayed."""
    data = play(a2c, CARTPOLE, seed=0)
    changed = with_input_normalizer(a2c, data, RangeRule())
    low, high = find_ranges(changed, data, RangeRule())["observation"]
    slack = (high - low) / 510
    shares = []
    for rows in met(a2c, seed=105_000, episodes=15):
        inside = normalize(changed, {"observation": rows})["observation"]
        shares.append(((inside < low - slack) | (inside > high + slack)).mean(axis=0))
    assert np.mean(shares, axis=0).max() < 0.02
    assert np.max(shares) < 0.3
