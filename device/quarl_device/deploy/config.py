"""What the agent of deploy mode is told, and what it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quarl_device.deploy.limits import Wishes
from quarl_device.deploy.machine import Fault, Phase, Rules
from quarl_device.deploy.notes import Counters
from quarl_device.deploy.probation import ProbationRules
from quarl_device.environments import EnvSpec


@dataclass(frozen=True, kw_only=True)
class DeployConfig:
    """How to act.

    Attributes:
        env: what to act in.
        allow_module: whether this device's own user named it, see `environments.check_registered`.
        hz: steps per second on an absolute grid; 0 for as fast as the environment goes.
        max_episodes: end after so many; 0 for never.
        max_steps: likewise.
        seed: of the first reset; `None` for a random one.
        wishes: hard limits and safe action.
        probation: see `ProbationRules`.
        rules: see `machine.Rules`; whether there is a safe action is filled in.
        hang_s: a policy that computes for so long never ends: the process does, and the next start falls back.
        life_s: a process that has lived so long has not crashed at its start.
        notes_s: counters are written so often; changes of phase at once.
    """

    env: EnvSpec
    allow_module: bool = False
    hz: float = 0.0
    max_episodes: int = 0
    max_steps: int = 0
    seed: int | None = None
    wishes: Wishes = field(default_factory=Wishes)
    probation: ProbationRules = field(default_factory=ProbationRules)
    rules: Rules = field(default_factory=Rules)
    hang_s: float = 5.0
    life_s: float = 60.0
    notes_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """What acts, for whoever tells others of it (a fleet's broker): sent at the start and at every change.

    Attributes:
        phase: of the machine.
        digest: sha256 of the policy file that acts, "" for the safe action.
        epoch: of it.
        version: likewise.
        fault: the last one.
    """

    phase: Phase
    digest: str = ""
    epoch: int = 0
    version: int = 0
    fault: Fault | None = None


OnChange = Callable[[Report], None]


@dataclass(frozen=True, kw_only=True)
class DeploySummary:
    """What came of one life of the agent.

    Attributes:
        reason: why it ended.
        phase: at the end.
        digest: sha256 of the policy file that acted then, "" for the safe action.
        version: its name, "" for none.
        steps: environment steps of this life.
        episodes: whole episodes.
        return_mean: of those that count towards `max_episodes`, 0 for none.
        counters: of the state directory, this life included.
        fault: the last one.
    """

    reason: str
    phase: Phase
    digest: str
    version: str
    steps: int
    episodes: int
    return_mean: float
    counters: Counters
    fault: Fault | None
