"""The algorithms, by name. A new one is a package here and a line in `ALGORITHMS`; docs/guides/algorithms.md shows how.

An algorithm's package holds its configuration; what needs TensorFlow is imported when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quarl_device.contract import HeadKind
from quarl_edge.algorithms.a2c import A2cConfig
from quarl_edge.algorithms.d4pg import D4pgConfig
from quarl_edge.algorithms.ddpg import DdpgConfig
from quarl_edge.algorithms.dqn import DqnConfig
from quarl_edge.algorithms.ppo import PpoConfig
from quarl_edge.config import TrainConfig

if TYPE_CHECKING:
    from quarl_edge.learner.algorithm import Algorithm
    from quarl_export.qat import QatPolicy


@dataclass(frozen=True, kw_only=True)
class AlgorithmInfo:
    """What the rest of the project knows of an algorithm.

    Attributes:
        config: its class of configurations.
        heads: head of the policy by kind of action space; a space that is not named is refused.
        build: makes the algorithm of a configuration and a fresh policy.
        images: whether its networks see images.
    """

    config: type[TrainConfig]
    heads: Mapping[str, HeadKind]
    build: Callable[[Any, QatPolicy], Algorithm]
    images: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.NAME


def _dqn(config: DqnConfig, policy: QatPolicy) -> Algorithm:
    from quarl_edge.algorithms.dqn.learner import Dqn

    return Dqn(config, policy)


def _d4pg(config: D4pgConfig, policy: QatPolicy) -> Algorithm:
    from quarl_edge.algorithms.d4pg.learner import D4pg

    return D4pg(config, policy)


def _ddpg(config: DdpgConfig, policy: QatPolicy) -> Algorithm:
    from quarl_edge.algorithms.ddpg.learner import Ddpg

    return Ddpg(config, policy)


def _a2c(config: A2cConfig, policy: QatPolicy) -> Algorithm:
    from quarl_edge.algorithms.a2c.learner import A2c

    return A2c(config, policy)


def _ppo(config: PpoConfig, policy: QatPolicy) -> Algorithm:
    from quarl_edge.algorithms.ppo.learner import Ppo

    return Ppo(config, policy)


ALGORITHMS: Mapping[str, AlgorithmInfo] = {
    info.name: info
    for info in (
        AlgorithmInfo(config=DqnConfig, heads={"discrete": "q_values"}, build=_dqn, images=True),
        AlgorithmInfo(config=D4pgConfig, heads={"box": "action"}, build=_d4pg),
        AlgorithmInfo(config=DdpgConfig, heads={"box": "action"}, build=_ddpg),
        AlgorithmInfo(config=PpoConfig, heads={"discrete": "logits", "box": "gaussian"}, build=_ppo, images=True),
        AlgorithmInfo(config=A2cConfig, heads={"discrete": "logits", "box": "gaussian"}, build=_a2c, images=True),
    )
}


def names_for(action_kind: str) -> list[str]:
    """Return the algorithms that act in such an action space."""
    return [name for name, info in ALGORITHMS.items() if action_kind in info.heads]
