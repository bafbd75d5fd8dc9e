"""How fast actors step environments: the actor's own loop, with an int8 policy of random weights made for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from quarl_device.actor.bench import actor_speed
from quarl_device.contract import Head, PolicyContract
from quarl_device.environments import EnvSpec, make_single, spaces_to_specs
from quarl_device.errors import QuarlError, UnsupportedSpace
from quarl_device.policy_file import PolicyFile, read_policy
from quarl_edge.algorithms import ALGORITHMS, names_for
from quarl_edge.configure import make_config
from quarl_edge.replay.stacking import as_seen
from quarl_edge.task import look_at
from quarl_export.networks import NetworkSpec
from quarl_export.qat import QatPolicy
from quarl_export.qat_template import QatTemplate

ENVIRONMENTS = (
    "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1", "LunarLander-v3", "HalfCheetah-v5",
)  # fmt: skip


class ActorBench:
    """Measures one environment after the other. Its rows are JSON values.

    Args:
        hidden: sizes of the policies' hidden layers.
        duration_s: of each measurement.

    Attributes:
        faults: what kept an environment from being measured, in order.
    """

    def __init__(self, *, hidden: Sequence[int], duration_s: float) -> None:
        self._hidden = tuple(hidden)
        self._duration_s = duration_s
        self.faults: list[QuarlError] = []

    def rows(self, env_id: str, envs: Sequence[int]) -> list[dict[str, Any]]:
        """Return a row for each number of environments per actor; one that says why where there is nothing to measure.

        Args:
            env_id: registered gymnasium id.
            envs: numbers of environments.
        """
        try:
            file = random_policy(env_id, hidden=self._hidden)
        except QuarlError as error:
            return [self._fault(env_id, count, error) for count in envs]
        return [self._row(file, count) for count in envs]

    def _row(self, file: PolicyFile, envs: int) -> dict[str, Any]:
        try:
            speed = actor_speed(file, num_envs=envs, duration_s=self._duration_s)
        except QuarlError as error:
            return self._fault(file.contract.env_id, envs, error)
        cpu_us = sum(asdict(speed.split).values())
        measured = {name: value for name, value in asdict(speed).items() if name not in ("machine", "split", "sha256")}
        return {
            **measured,
            "hidden": list(self._hidden),
            "steps_per_cpu_s": round(1e6 / cpu_us, 1),
            "split": asdict(speed.split),
        }

    def _fault(self, env_id: str, envs: int, error: QuarlError) -> dict[str, Any]:
        self.faults.append(error)
        return {"env": env_id, "envs": envs, "error": error.message, "code": error.code, "hint": error.hint}


def random_policy(env_id: str, *, hidden: Sequence[int]) -> PolicyFile:
    """Return an int8 policy of random weights for an environment, made as a learner makes its first push.

    Discrete actions get Q values and boxes a deterministic action: the heads of the first algorithm that acts there.

    Raises:
        UnknownEnvironment, MissingExtra: it cannot be made here.
        UnsupportedSpace: no algorithm of this version takes its spaces.
    """
    env = make_single(EnvSpec(env_id=env_id, flat=True))
    try:
        _, action = spaces_to_specs(env.observation_space, env.action_space)
    finally:
        env.close()
    names = names_for(action.kind)
    if not names:
        raise UnsupportedSpace(f"{env_id} has {action.kind} actions, which no algorithm takes")
    config = make_config(env_id, algorithm=names[0], asked={"hidden": tuple(hidden)})
    task, head = look_at(config), ALGORITHMS[names[0]].heads[action.kind]
    spec = NetworkSpec(
        observations=(task.observation,),
        action=task.action,
        hidden=config.hidden,
        head=head,
        convolutions=task.convolutions,
    )
    policy = QatPolicy(spec, normalize=True)
    policy.calibrate(as_seen(task.golden_observations, task.observation))
    contract = PolicyContract(
        env_id=env_id,
        algorithm=config.algorithm,
        scheme="int8",
        observations=(task.observation,),
        head=Head(kind=head, outputs={spec.role: ""}),
        action=task.action,
    )
    template = QatTemplate.from_model(policy, contract, task.golden_observations)
    return read_policy(template.patch(policy.snapshot()))
