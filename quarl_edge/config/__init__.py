"""Every hyperparameter of a run, stated once: its type, its range, its default.

What all runs have is in `train`, what learns from a replay of transitions adds `replay`, what learns from rounds of
rollouts `rollout`; each algorithm adds its own (`quarl_edge.algorithms`). `quarl_edge.configure` puts one together.
"""

from quarl_edge.config.replay import ReplayConfig
from quarl_edge.config.rollout import RolloutConfig
from quarl_edge.config.train import CONFIG_SCHEMA, HEAD_OUTPUTS, RUNTIMES, TrainConfig

__all__ = ["CONFIG_SCHEMA", "HEAD_OUTPUTS", "RUNTIMES", "ReplayConfig", "RolloutConfig", "TrainConfig"]
