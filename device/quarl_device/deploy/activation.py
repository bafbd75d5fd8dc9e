"""Handing a policy file to the agent: all that can be said against it is said to the person who does it."""

from __future__ import annotations

from dataclasses import dataclass

from quarl_device.deploy.boot import SOUND
from quarl_device.deploy.candidates import check_newer, check_wrappers_match
from quarl_device.deploy.notes import read_notes
from quarl_device.deploy.signed import SignedPolicy, load_signed, open_signed
from quarl_device.deploy.slots import Slot, Slots
from quarl_device.environments import show_action
from quarl_device.errors import QuarlError, SpaceMismatch
from quarl_device.runtime import PolicyRuntime
from quarl_device.wire.keys import PublicKey


@dataclass(frozen=True, kw_only=True)
class Handed:
    """What was handed over.

    Attributes:
        name: its version.
        digest: sha256 of the policy file.
        running: whether an agent is there that takes it within a second.
        already: whether it is current and trusted, so that nothing was to be done.
    """

    name: str
    digest: str
    running: bool
    already: bool


def hand_over(data: bytes, slots: Slots, key: PublicKey, runtime: PolicyRuntime, *, allow_older: bool) -> Handed:
    """Verify and self-test a file, and hand it to the agent, which does both again.

    Args:
        data: the file.
        slots: of the device; their directory is there.
        key: that it must be signed by.
        runtime: that runs the self-test.
        allow_older: it may be older than the current policy.

    Raises:
        PayloadRefused, BadSignature, ModelError: it does not hold.
        OlderVersion: it is not newer than the current policy.
        SpaceMismatch: it was made for other spaces than the current policy.
        StateUnwritable: the disk refuses.
    """
    signed = open_signed(data, key)
    # In its slot a policy may lie that crashed too often to act: that one is not there already, and can be tried again.
    trusted = read_notes(slots.notes_path)[0].level == SOUND
    already = trusted and slots.holds(Slot.CURRENT, signed.sha256) and not slots.there(Slot.TRIAL)
    if not already:
        check_offer(signed, slots, key, allow_older=allow_older)
        load_signed(signed, runtime)
        slots.offer(data, allow_older=allow_older)
    return Handed(name=signed.name, digest=signed.header.sha256, running=slots.in_use(), already=already)


def check_offer(signed: SignedPolicy, slots: Slots, key: PublicKey, *, allow_older: bool = False) -> None:
    """Refuse what the agent would refuse, as far as the slots tell.

    Raises:
        OlderVersion: see `hand_over`.
        SpaceMismatch: see `hand_over`.
    """
    current = _current(slots, key)
    if current is None:
        return
    if not allow_older:
        check_newer(signed, current)
    check_wrappers_match(signed.file.contract.wrappers, current.file.contract.wrappers)
    found, wanted = (
        ([(spec.key, spec.shape, spec.dtype) for spec in each.observations], each.action.space)
        for each in (signed.file.contract, current.file.contract)
    )
    if found != wanted:
        actions = [show_action(each.file.contract.action) for each in (signed, current)]
        raise SpaceMismatch(
            f"the policy observes {found[0]} and acts in {actions[0]}; the current one observes {wanted[0]} and acts "
            f"in {actions[1]}",
            hint="it was made for another environment; another --state-dir deploys it",
        )


def _current(slots: Slots, key: PublicKey) -> SignedPolicy | None:
    """Return the current policy, or the previous one where that does not hold, `None` for neither."""
    for slot in (Slot.CURRENT, Slot.PREVIOUS):
        try:
            return open_signed(slots.read(slot), key)
        except QuarlError:
            continue
    return None
