"""Trains the Stable-Baselines3 policies of the table in docs/schemes.md; not part of the product or its tests.

    python -m venv /tmp/sb3 && /tmp/sb3/bin/pip install torch==2.13.0 stable-baselines3==2.9.2
    PYTHONPATH=device /tmp/sb3/bin/python tests/data/trained/make_sb3.py [NAME...]

Takes about half an hour on two cores. Networks are small, so that the archives can be kept in the repository. Of all
that was evaluated on the way the best is kept, and training stops early where it is good enough: the table says what
the policies return, not how good an algorithm is.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zipfile
from pathlib import Path

import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize

HERE = Path(__file__).parent
GOOD_ENOUGH = {"CartPole-v1": 495.0, "Pendulum-v1": -150.0, "QuarlCatch-v0": 4.7}
SMALL = {"net_arch": [64, 64]}
TINY_CNN = {"features_extractor_kwargs": {"features_dim": 64}, "net_arch": []}


def noise(actions, sigma=0.1):
    import numpy as np

    return NormalActionNoise(np.zeros(actions), np.full(actions, sigma))


# name: algorithm, environment, environments, steps, settings, observations normalised
RECIPES = {
    "dqn_cartpole": (
        DQN, "CartPole-v1", 1, 50_000, False,
        {"policy": "MlpPolicy", "policy_kwargs": SMALL, "learning_rate": 2.3e-3, "batch_size": 64,
         "learning_starts": 1000, "gamma": 0.99, "target_update_interval": 10, "train_freq": 256,
         "gradient_steps": 128, "exploration_fraction": 0.16, "exploration_final_eps": 0.04},
    ),
    "a2c_cartpole": (
        A2C, "CartPole-v1", 8, 150_000, False, {"policy": "MlpPolicy", "policy_kwargs": SMALL, "ent_coef": 0.0},
    ),
    "ppo_cartpole": (
        PPO, "CartPole-v1", 8, 80_000, True,
        {"policy": "MlpPolicy", "policy_kwargs": SMALL, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8,
         "gamma": 0.98, "n_epochs": 20, "learning_rate": 1e-3, "clip_range": 0.2},
    ),
    "ppo_pendulum": (
        PPO, "Pendulum-v1", 4, 120_000, True,
        {"policy": "MlpPolicy", "policy_kwargs": SMALL, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9,
         "n_epochs": 10, "learning_rate": 1e-3, "clip_range": 0.2},
    ),
    "ddpg_pendulum": (
        DDPG, "Pendulum-v1", 1, 15_000, False,
        {"policy": "MlpPolicy", "policy_kwargs": SMALL, "learning_rate": 1e-3, "gamma": 0.98, "buffer_size": 50_000,
         "learning_starts": 1000, "action_noise": noise(1)},
    ),
    "td3_pendulum": (
        TD3, "Pendulum-v1", 1, 15_000, False,
        {"policy": "MlpPolicy", "policy_kwargs": SMALL, "learning_rate": 1e-3, "gamma": 0.98, "buffer_size": 50_000,
         "learning_starts": 1000, "action_noise": noise(1)},
    ),
    "sac_pendulum": (
        SAC, "Pendulum-v1", 1, 10_000, False,
        {"policy": "MlpPolicy", "policy_kwargs": SMALL, "learning_rate": 1e-3, "gamma": 0.98},
    ),
    "ppo_catch": (
        PPO, "QuarlCatch-v0", 16, 150_000, False,
        {"policy": "CnnPolicy", "policy_kwargs": TINY_CNN, "n_steps": 128, "batch_size": 256, "n_epochs": 8,
         "gamma": 0.95, "gae_lambda": 0.9, "learning_rate": 1e-3, "ent_coef": 0.01},
    ),
    "dqn_catch": (
        DQN, "QuarlCatch-v0", 1, 60_000, False,
        {"policy": "CnnPolicy", "policy_kwargs": TINY_CNN, "learning_rate": 5e-4, "batch_size": 64,
         "learning_starts": 1000, "train_freq": 4, "gradient_steps": 2, "target_update_interval": 500,
         "exploration_fraction": 0.3, "exploration_final_eps": 0.02, "buffer_size": 50_000},
    ),
}  # fmt: skip


def without_optimizers(path: Path) -> None:
    """Rewrite an archive without what only training needs: two thirds of its size, and nothing that acts."""
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if "optimizer" not in name}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in kept.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def train(name: str) -> None:
    """Train one and write `<name>.zip`, with `<name>.vecnormalize.pkl` where observations are normalised."""
    from quarl_device import environments  # noqa: F401  registers the pixel environment

    algorithm, env_id, count, steps, normalized, settings = RECIPES[name]
    env = make_vec_env(env_id, n_envs=count, seed=1)
    if normalized:
        env = VecNormalize(env, norm_reward=env_id == "Pendulum-v1", gamma=settings["gamma"])
    began = time.monotonic()
    model = algorithm(env=env, seed=1, device="cpu", verbose=0, **settings)
    judge = make_vec_env(env_id, n_envs=1, seed=1000)
    if normalized:
        judge = VecNormalize(judge, training=False, norm_reward=False)
    best = Path(tempfile.mkdtemp())
    keep = EvalCallback(
        judge, callback_on_new_best=StopTrainingOnRewardThreshold(GOOD_ENOUGH[env_id]), n_eval_episodes=20,
        eval_freq=max(1, steps // 50 // count), best_model_save_path=str(best), verbose=0,
    )  # fmt: skip
    model.learn(steps, callback=keep)
    if normalized:
        env.training = env.norm_reward = False
        env.save(str(HERE / f"{name}.vecnormalize.pkl"))
    model = algorithm.load(best / "best_model.zip", device="cpu")
    mean, spread = evaluate_policy(model, env, n_eval_episodes=20)
    model.save(str(HERE / f"{name}.zip"))
    without_optimizers(HERE / f"{name}.zip")
    size = (HERE / f"{name}.zip").stat().st_size
    spent_s = time.monotonic() - began
    sys.stdout.write(f"{name}: {mean:.1f} +- {spread:.1f} after {spent_s:.0f} s; {size:,} bytes\n")
    sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[1:] or RECIPES:
        train(chosen)
