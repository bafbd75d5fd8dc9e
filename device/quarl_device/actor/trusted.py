"""Whose pushes an actor takes, and for which spaces: what a learner's birth says."""

from __future__ import annotations

from dataclasses import dataclass

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import show_action
from quarl_device.errors import SpaceMismatch
from quarl_device.policy_file import PolicyFile
from quarl_device.wire.keys import PublicKey


@dataclass(frozen=True, kw_only=True)
class TrustedLearner:
    """A learner as its birth describes it.

    Attributes:
        key: that its pushes are signed with.
        observations: that its policies take.
        action: that they give.
        epoch: pushes of an older one are ignored (W3).
        extras: that exploration must give.
    """

    key: PublicKey
    observations: tuple[ObservationSpec, ...]
    action: ActionSpec
    epoch: int
    extras: tuple[str, ...] = ()

    def check_spaces(self, file: PolicyFile) -> None:
        """Refuse a policy file for other spaces.

        Raises:
            SpaceMismatch: says what differs.
        """
        wanted, found = (
            [(spec.key, spec.shape, spec.dtype, spec.stack, spec.stack_fill) for spec in specs]
            for specs in (self.observations, file.contract.observations)
        )
        if found != wanted:
            raise SpaceMismatch(f"the pushed policy observes {found}, the learner's birth says {wanted}")
        theirs = file.contract.action
        if theirs.space != self.action.space:
            raise SpaceMismatch(
                f"the pushed policy acts in {show_action(theirs)}, the learner's birth says {show_action(self.action)}"
            )
