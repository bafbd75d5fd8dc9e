"""Make the Stable-Baselines3 agents in sb3/ and what they do (expected.npz). Run by hand, in an environment of its own:

    pip install torch==2.13.0 stable-baselines3==2.9.2 sb3-contrib==2.9.2
    python tests/data/make_sb3.py

Every agent trains for a few hundred steps on tiny tasks: enough that its weights are no initial ones, not that it is
good. `expected.npz` holds, per agent, raw observations as an environment gives them ("<agent>/observation/<key>"),
Stable-Baselines3's own deterministic actions for them ("<agent>/action") and what its network gave before they were
made ("<agent>/output/<role>"). To stay small, agents with convolutions are saved without optimizer, with what is not
exported tied to what is or filled with one number, with weights rounded to bfloat16, and compressed.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common import save_util
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

HERE = Path(__file__).parent / "sb3"
ROWS = 6
EXPECTED: dict[str, np.ndarray] = {}

PIXELS = spaces.Box(0, 255, (36, 40, 3), np.uint8)
GREY = spaces.Box(0, 255, (36, 40, 1), np.uint8)
SMALL = spaces.Box(0, 255, (5, 6, 3), np.uint8)
VECTOR = spaces.Box(-np.array([1, 20, 300, 4, 0.5], np.float32), np.array([1, 20, 300, 4, 0.5], np.float32))
ASYMMETRIC = spaces.Box(np.array([-1, 0], np.float32), np.array([3, 0.25], np.float32))
NARROW = spaces.Box(-0.05, 0.05, (2,))


class Noise(gymnasium.Env):
    """Random observations of any space; reward for actions that follow their mean."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps, self.seen = 0, self.observation_space.sample()
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        first = self.seen if not isinstance(self.seen, dict) else next(iter(self.seen.values()))
        reward = float(np.mean(first) * np.mean(action))
        self.steps, self.seen = self.steps + 1, self.observation_space.sample()
        return self.seen, reward, False, self.steps >= 20, {}


def noise(observation_space: spaces.Space, action_space: spaces.Space, *, stack: int = 1, **normalize: Any) -> Any:
    """Return a vectorised `Noise`, behind a frame stack and a VecNormalize where they are asked for."""
    env: Any = DummyVecEnv([lambda: Noise(observation_space, action_space)] * 2)
    env.seed(3)
    env = VecFrameStack(env, stack) if stack > 1 else env
    return VecNormalize(env, **normalize) if normalize else env


def sample(space: spaces.Space, stack: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: sample(part, stack) for key, part in space.spaces.items()}
    rows = np.stack([space.sample() for _ in range(ROWS * stack)])
    rows = rows.reshape(ROWS, stack, *rows.shape[1:])
    return np.concatenate([rows[:, n] for n in range(stack)], axis=-1)


def head_modules(model: Any) -> dict[str, torch.nn.Module]:
    policy = model.policy
    if isinstance(model, DQN):
        return {"q_values": policy.q_net.q_net}
    if isinstance(model, (A2C, PPO)):
        discrete = isinstance(model.action_space, spaces.Discrete)
        return {"logits" if discrete else "mean": policy.action_net}
    if isinstance(model, SAC) and not model.use_sde:
        return {"mean": policy.actor.mu, "log_std": policy.actor.log_std}
    return {"before_tanh": policy.actor.mu} if isinstance(model, SAC) else {"action": policy.actor.mu}


def record(name: str, model: Any, observation: Any, seen: Any) -> None:
    """Store `observation` as the environment gives it, and what the agent does when it sees `seen`."""
    outputs: dict[str, np.ndarray] = {}
    hooks = [
        module.register_forward_hook(lambda _, __, out, role=role: outputs.__setitem__(role, out.numpy().copy()))
        for role, module in head_modules(model).items()
    ]
    actions, _ = model.predict(seen, deterministic=True)
    for hook in hooks:
        hook.remove()
    parts = observation if isinstance(observation, dict) else {"observation": observation}
    EXPECTED.update({f"{name}/observation/{key}": rows for key, rows in parts.items()})
    EXPECTED.update({f"{name}/output/{role}": rows for role, rows in outputs.items()})
    EXPECTED[f"{name}/action"] = actions


def keep(name: str, model: Any, *, steps: int, space: spaces.Space | None = None, stack: int = 1) -> None:
    """Train, save, and record what the agent does."""
    model.learn(steps)
    sharpen(model)
    env = model.get_env()
    convolved = any(parameter.ndim == 4 for parameter in model.policy.parameters())
    if convolved:
        tie(model)
    model.save(HERE / f"{name}.zip")
    if convolved:
        shrink(HERE / f"{name}.zip")
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        normalizer.training = False
        normalizer.save(str(HERE / f"{name}.vecnormalize.pkl"))
    observation = sample(space or env.observation_space, stack)
    seen = normalizer.normalize_obs(observation) if normalizer is not None else observation
    record(name, model, observation, seen)


def sharpen(model: Any) -> None:
    """Blow up the last layers, so that actions differ between observations and clips cut."""
    for role, module in head_modules(model).items():
        last = [part for part in module.modules() if isinstance(part, torch.nn.Linear)][-1]
        with torch.no_grad():
            last.weight.mul_({"q_values": 10, "log_std": 1, "before_tanh": 100, "action": 3}.get(role, 40))
            if role == "q_values":
                last.bias.zero_()


def tie(model: Any) -> None:
    """Let what does not act share the acting weights' storages, or compress to nothing."""
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.copy_(parameter.bfloat16().float())
        if isinstance(model, DQN):
            model.policy.q_net_target = model.policy.q_net
        elif isinstance(model, SAC):
            model.policy.critic.features_extractor = model.policy.actor.features_extractor
            model.policy.critic_target = model.policy.critic
        elif not model.policy.share_features_extractor:
            for parameter in model.policy.vf_features_extractor.parameters():
                parameter.fill_(0.25)


def shrink(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist() if "optimizer" not in name}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def discrete_agents() -> None:
    off = {"learning_starts": 50, "buffer_size": 500, "seed": 1, "batch_size": 16}
    on = {"n_steps": 32, "seed": 1}
    small = {"net_arch": [12, 8]}
    keep("dqn_cartpole", DQN("MlpPolicy", "CartPole-v1", policy_kwargs=small, **off), steps=300)
    keep("a2c_cartpole", A2C("MlpPolicy", "CartPole-v1", policy_kwargs=small, **on), steps=300)
    kwargs: dict[str, Any] = {"net_arch": {"pi": [12], "vf": [6, 6]}, "activation_fn": torch.nn.ReLU}
    keep("ppo_acrobot", PPO("MlpPolicy", "Acrobot-v1", policy_kwargs=kwargs, batch_size=16, **on), steps=300)
    kwargs = {"net_arch": [8], "activation_fn": torch.nn.ELU}
    keep("ppo_elu", PPO("MlpPolicy", "CartPole-v1", policy_kwargs=kwargs, batch_size=16, **on), steps=64)
    keep("ppo_linear", PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": []}, batch_size=16, **on), steps=64)
    three = spaces.Discrete(3)
    env = noise(VECTOR, three, stack=4, norm_reward=False, clip_obs=1.2)
    keep("dqn_stacked", DQN("MlpPolicy", env, policy_kwargs=small, **off), steps=200, space=VECTOR, stack=4)
    both = spaces.Dict({"z": VECTOR, "a": spaces.Box(-1, 1, (2, 3))})
    keep("dqn_dict", DQN("MultiInputPolicy", noise(both, three), policy_kwargs=small, **off), steps=200, space=both)
    env = noise(SMALL, three)
    keep("dqn_flat_image", DQN("MlpPolicy", env, policy_kwargs=small, **off), steps=200, space=SMALL)
    kwargs = {"net_arch": [], "features_extractor_kwargs": {"features_dim": 12}}
    env = noise(GREY, three, stack=4)
    keep("dqn_cnn", DQN("CnnPolicy", env, policy_kwargs=kwargs, **off), steps=100, space=GREY, stack=4)
    kwargs = {"features_extractor_kwargs": {"features_dim": 12}, "share_features_extractor": False}
    keep("ppo_cnn", PPO("CnnPolicy", noise(PIXELS, three), policy_kwargs=kwargs, **on), steps=64, space=PIXELS)


def box_agents() -> None:
    off = {"learning_starts": 50, "buffer_size": 500, "seed": 1, "batch_size": 16}
    on = {"n_steps": 32, "seed": 1}
    small = {"net_arch": [12, 8]}
    env = noise(VECTOR, NARROW, clip_obs=1.5)
    keep("a2c_narrow", A2C("MlpPolicy", env, policy_kwargs=small, **on), steps=300, space=VECTOR)
    kwargs = {"squash_output": True, **small}
    env = noise(VECTOR, ASYMMETRIC, norm_obs=False)
    ppo = PPO("MlpPolicy", env, policy_kwargs=kwargs, use_sde=True, batch_size=16, **on)
    keep("ppo_sde_squashed", ppo, steps=64, space=VECTOR)
    keep("ppo_sde", PPO("MlpPolicy", "Pendulum-v1", policy_kwargs=small, use_sde=True, batch_size=16, **on), steps=64)
    for name, algorithm in (("ddpg", DDPG), ("td3", TD3), ("sac", SAC)):
        model = algorithm("MlpPolicy", noise(VECTOR, ASYMMETRIC), policy_kwargs=small, **off)
        keep(f"{name}_asymmetric", model, steps=200, space=VECTOR)
    keep("sac_sde", SAC("MlpPolicy", "Pendulum-v1", policy_kwargs=small, use_sde=True, **off), steps=300)
    kwargs = {"net_arch": [12], "features_extractor_kwargs": {"features_dim": 12}}
    sac = SAC("CnnPolicy", noise(PIXELS, ASYMMETRIC), policy_kwargs=kwargs, **off)
    keep("sac_cnn", sac, steps=80, space=PIXELS)
    mixed = spaces.Dict({"vector": VECTOR, "image": GREY})
    kwargs = {"net_arch": [10], "features_extractor_kwargs": {"cnn_output_dim": 6}}
    env = noise(mixed, ASYMMETRIC, norm_obs_keys=["vector"])
    keep("ppo_mixed", PPO("MultiInputPolicy", env, policy_kwargs=kwargs, **on), steps=64, space=mixed)


def refused_agents() -> None:
    kwargs = {"net_arch": [8], "lstm_hidden_size": 8}
    model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=16, batch_size=16, seed=1, policy_kwargs=kwargs)
    model.save(HERE / "refused_recurrent.zip")
    shrink(HERE / "refused_recurrent.zip")


def main() -> None:
    assert torch.__version__.split("+")[0] == "2.13.0"
    assert stable_baselines3.__version__ == "2.9.2"
    torch.set_num_threads(1)
    # What machine made them is nobody's business.
    save_util.get_system_info = lambda print_info=True: ({}, "- Stable-Baselines3: 2.9.2\n- PyTorch: 2.13.0\n")
    HERE.mkdir(exist_ok=True)
    for space in (PIXELS, GREY, SMALL, VECTOR):
        space.seed(7)
    discrete_agents()
    box_agents()
    refused_agents()
    np.savez_compressed(HERE / "expected.npz", **EXPECTED)


if __name__ == "__main__":
    main()
