"""Blocks that an actor gave up or lost: what is kept of them until the learner knows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quarl_device.wire.loss import encode_loss

UNKNOWN_TASK = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A run of blocks of one life that will never come. It has its place among the blocks, the last one's.

    Attributes:
        life: boot id of the life that made them.
        first: sequence of the first one.
        last: sequence of the last one.
        first_step: steps that the life had made before the first one.
        end_step: steps that it had made after the last one.
        task: fingerprint of their task; `UNKNOWN_TASK` where nothing tells.
    """

    life: str
    first: int
    last: int
    first_step: int
    end_step: int
    task: int = UNKNOWN_TASK

    @property
    def blocks(self) -> int:
        """How many."""
        return self.last - self.first + 1

    @property
    def steps(self) -> int:
        """Environment steps in them."""
        return max(0, self.end_step - self.first_step)

    @property
    def gap(self) -> tuple[tuple[int, int], ...]:
        """The range of sequences before `last`: one, or none."""
        return ((self.first, self.last - 1),) if self.first < self.last else ()

    def payload(self) -> bytes:
        """Return what is sent in the place of block `last`."""
        return encode_loss(
            boot_id=self.life,
            first=self.first,
            last=self.last,
            first_step=self.first_step,
            end_step=self.end_step,
        )

    def fits_task(self, task: int) -> bool:
        """Whether they may have been made for `task`."""
        return self.task in (task, UNKNOWN_TASK)

    def joined(self, other: Loss) -> Loss | None:
        """Return both as one, or `None` where something may lie between them."""
        apart = other.first > self.last + 1 or self.first > other.last + 1
        if self.life != other.life or apart or not (self.fits_task(other.task) or other.fits_task(self.task)):
            return None
        return replace(
            self,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            first_step=min(self.first_step, other.first_step),
            end_step=max(self.end_step, other.end_step),
            task=self.task or other.task,
        )


def join(losses: list[Loss]) -> list[Loss]:
    """Return losses of one life in order, those that touch as one."""
    joined: list[Loss] = []
    for loss in sorted(losses, key=lambda loss: loss.first):
        both = joined[-1].joined(loss) if joined else None
        if both is None:
            joined.append(loss)
        else:
            joined[-1] = both
    return joined
