"""What passes between the threads of an actor and its hot loop: a policy by reference, and a wish to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quarl_device.policy import Policy
from quarl_device.wire.exploration import Exploration


@dataclass(frozen=True, kw_only=True, eq=False)
class ActingPolicy:
    """A policy that is ready to act, and how to act with it.

    Attributes:
        policy: loaded and self-tested, at the loop's batch size.
        epoch: of the learner that pushed it.
        version: of the push.
        exploration: this actor's.
        reset: lockstep: reset every environment before acting with it.
        edge_tpu: it is compiled for the Edge TPU and runs there.
    """

    policy: Policy
    epoch: int
    version: int
    exploration: Exploration = field(default_factory=lambda: Exploration(kind="none", values=()))
    reset: bool = False
    edge_tpu: bool = False


class Mailbox:
    """The hot loop looks at one attribute per step, `raised`; only when it is true at the rest.

    Writers set a field and then `raised`; the loop clears `raised` and then reads the fields, so nothing is missed.

    Attributes:
        raised: there is something new.
        policy: the newest policy.
        stop: end the block after the current step, and make no more.
        flush: end the block after the current step.
        alive: called by the loop whenever it has looked: it stands or steps, and hangs nowhere.
    """

    __slots__ = ("alive", "flush", "policy", "raised", "stop")

    def __init__(self, alive: Callable[[], None] = lambda: None) -> None:
        self.alive = alive
        self.policy: ActingPolicy | None = None
        self.stop = False
        self.flush = False
        self.raised = False

    def post_policy(self, policy: ActingPolicy) -> None:
        """Offer a newer policy."""
        self.policy = policy
        self.raised = True

    def ask_sign(self) -> None:
        """Ask the loop for nothing but a sign of life."""
        self.raised = True

    def ask_stop(self) -> None:
        """Ask the loop to stop."""
        self.stop = True
        self.raised = True

    def ask_flush(self) -> None:
        """Ask for the block as it is."""
        self.flush = True
        self.raised = True
