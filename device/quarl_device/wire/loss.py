"""What stands in the place of blocks that will never come: a block's metadata, and no block.

It has the sequence of the last one of them and their number of steps, and it travels, is journalled and is acknowledged
as any block is. So what an actor gave up is told exactly once too, over kills of either side, also where no block
follows that could tell it: at the end of a life, or of a life of which nothing is left. A learner that does not know
the form refuses it as it refuses any block that does not hold, and goes on.
"""

from __future__ import annotations

from quarl_device.errors import PayloadRefused
from quarl_device.wire.block_stamp import METADATA_MARK, Stamp, head_of, read_stamp
from quarl_device.wire.limits import MAX_BLOCK_BYTES, check_incoming

_BEGINNING = b"{" + METADATA_MARK


def encode_loss(*, boot_id: str, first: int, last: int, first_step: int, end_step: int) -> bytes:
    """Return the payload that says that blocks are lost.

    Args:
        boot_id: of the life that made them.
        first: sequence of the first one.
        last: sequence of the last one.
        first_step: steps that the life had made before the first one.
        end_step: steps that it had made after the last one.

    Raises:
        SpaceMismatch: the numbers do not hold.
    """
    stamp = Stamp(
        boot_id=boot_id,
        sequence=last,
        base=first,
        first_step=first_step,
        dropped=((first, last - 1),) if first < last else (),
        lost_steps=max(0, end_step - first_step),
    )
    return b"".join(head_of(b"{", stamp))


def read_loss(payload: bytes) -> Stamp | None:
    """Return what an untrusted payload says to be lost, `None` where it is to be a block.

    Raises:
        PayloadRefused: it is over the cap of a block, or has no rows and does not hold.
    """
    check_incoming(len(payload), MAX_BLOCK_BYTES, what="block")
    if not payload.startswith(_BEGINNING, 8):
        return None
    stamp = read_stamp(payload)
    if stamp.lost_steps is None or len(payload) != 8 + int.from_bytes(payload[:8], "little"):
        raise PayloadRefused("block: it has no rows, and does not say how many steps are lost, and no more")
    return stamp
