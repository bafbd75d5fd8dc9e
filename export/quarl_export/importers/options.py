"""What a source cannot say of itself: the environment, what its outputs mean, and in which units it acts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quarl_device.contract import HeadKind
from quarl_device.errors import UsageError

MAX_STACK = 16
# As `quarl-edge export` calls them.
COMMAND_OPTIONS: Mapping[str, str] = {
    "env_id": "--env",
    "wrappers": "--wrapper",
    "head": "--head",
    "outputs": "--output",
    "inputs": "--input",
    "stack": "--stack",
    "stack_fill": "--stack-fill",
    "action_units": "--action-units",
    "squash": "--squash",
    "signature": "--signature",
    "vecnormalize": "--vecnormalize",
}
ROLES = ("q_values", "logits", "action", "mean", "log_std")


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What the user adds to a source. Everything may be left out; what is then assumed is in the provenance.

    Attributes:
        env_id: gymnasium id; its spaces become the observations and the action of the contract. "" for none: the
            observations then have the shapes of the model's inputs, the action the width of its head.
        env_kwargs: keyword arguments of `gymnasium.make`, JSON values only.
        wrappers: that the policy was trained behind, see `quarl_device.environments.wrappers`.
        head: what the outputs mean; `None` to guess from action space and last activation.
        outputs: role of the head to the source's output name, for models with several outputs.
        inputs: the source's input name to observation key, where the two differ.
        algorithm: "dqn", ...; "" where it is not known.
        stack: frames that an input holds, of every observation or by key; 1 for none.
        stack_fill: what the frames before an episode's first one hold, in the environment's units; "first": that frame
            itself, which is assumed where nothing is said.
        action_units: "unit": a box action leaves the network in [-1, 1], or in [0, 1] after a sigmoid that nothing
            scales, and is scaled to the space's bounds; "environment": it leaves in the environment's units; `None` to
            guess: "unit" where an environment was named and a tanh or sigmoid is last, "environment" otherwise.
        squash: of a gaussian head, see `Head`.
        log_std: of a gaussian head whose standard deviation is constant, see `Head`.
        signature: of a SavedModel without Keras metadata, the one to export; "" to pick "action" or
            "serving_default", or the only one.
        vecnormalize: file with the observation statistics of a Stable-Baselines3 policy.

    Raises:
        UsageError: a role or a number that cannot be.
    """

    env_id: str = ""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    head: HeadKind | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    algorithm: str = ""
    stack: int | Mapping[str, int] = 1
    stack_fill: float | Literal["first"] | None = None
    action_units: Literal["unit", "environment"] | None = None
    squash: Literal["none", "tanh"] = "none"
    log_std: tuple[float, ...] = ()
    signature: str = ""
    vecnormalize: Path | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.outputs) - set(ROLES))
        if unknown:
            raise UsageError(f"output roles {unknown} are not among {', '.join(ROLES)}")
        if self.head not in (None, "q_values", "logits", "action", "gaussian"):
            raise UsageError(f"head {self.head!r} is not q_values, logits, action or gaussian")
        frames = list(self.stack.values()) if isinstance(self.stack, Mapping) else [self.stack]
        for count in frames:
            if not 1 <= count <= MAX_STACK:
                raise UsageError(f"stack {count} is not in 1..{MAX_STACK}")
        if isinstance(self.stack_fill, (int, float)) and not math.isfinite(self.stack_fill):
            raise UsageError(f"stack fill {self.stack_fill} is not a finite number")
        if self.stack_fill is not None and max(frames, default=1) == 1:
            raise UsageError("a stack fill without stacked frames", hint="say how many: --stack K")
        if self.action_units not in (None, "unit", "environment"):
            raise UsageError(f"action units {self.action_units!r} are not unit or environment")

    def frames(self, key: str) -> int:
        """Return how many frames of observation `key` are stacked."""
        return self.stack.get(key, 1) if isinstance(self.stack, Mapping) else self.stack

    def fill(self) -> tuple[float, ...] | None:
        """Return the `stack_fill` of a contract."""
        return None if self.stack_fill in (None, "first") else (float(self.stack_fill),)

    def refuse_all_but(self, taken: frozenset[str], what: str) -> None:
        """Refuse what would be ignored.

        Args:
            taken: names of attributes that have a meaning.
            what: the source, for the message.

        Raises:
            UsageError: an attribute that is not `taken` differs from its default.
        """
        default = ImportOptions()
        names = [part.name for part in dataclasses.fields(self)]
        lost = [name for name in names if name not in taken and getattr(self, name) != getattr(default, name)]
        if lost:
            option = COMMAND_OPTIONS.get(lost[0], lost[0])
            raise UsageError(f"{option} says nothing of {what}", hint=f"leave {option} out")
