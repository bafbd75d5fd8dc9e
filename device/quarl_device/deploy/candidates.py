"""What is found in the slots, and the candidates' way through them: the work that the machine orders."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import gymnasium

from quarl_device.deploy.acting import Loaded
from quarl_device.deploy.boot import NOTHING, SOUND, Found
from quarl_device.deploy.machine import Fault, Rules
from quarl_device.deploy.notes import Notes
from quarl_device.deploy.signed import SignedPolicy, open_signed
from quarl_device.deploy.slots import Slot, Slots
from quarl_device.environments import check_matches, first_line
from quarl_device.errors import OlderVersion, QuarlError, SpaceMismatch, StateUnwritable
from quarl_device.runtime import PolicyRuntime
from quarl_device.wire.keys import PublicKey
from quarl_device.wire.push import newer
from quarl_device.wire.strict_json import one_line

_LOG = logging.getLogger(__name__)


class AlreadyActing(Exception):
    """The candidate is the very file that acts: nothing to do."""


@dataclass(kw_only=True, eq=False)
class Candidates:
    """Opens, verifies and loads the policies of a device.

    Attributes:
        slots: where they lie.
        key: that they must be signed by.
        runtime: that they are loaded into.
        world: whose spaces they must have.
        env_id: its id, for messages.
        wrappers: that it was made behind.
        loaded: by digest, those that are ready to act.
    """

    slots: Slots
    key: PublicKey
    runtime: PolicyRuntime
    world: gymnasium.Env[object, object]
    env_id: str = ""
    wrappers: tuple[str, ...] = ()
    loaded: dict[str, Loaded] = field(default_factory=dict)
    _candidate: SignedPolicy | None = None

    def look(self, notes: Notes, rules: Rules) -> Found:
        """Return what a start finds, with all that may act loaded and self-tested."""
        digests = dict.fromkeys((Slot.CURRENT, Slot.PREVIOUS), "")
        starts = 0 if notes.clean else notes.starts
        looping = starts >= rules.max_starts and not self.slots.there(Slot.TRIAL)
        level = min(notes.level + looping, NOTHING)
        fault = notes.fault
        # Newest last: the fault that a person reads is the current policy's.
        for slot in (Slot.PREVIOUS, Slot.CURRENT):
            if not self.slots.there(slot):
                continue
            try:
                signed = self._open(slot)
                # What may have crashed the process before is not loaded again while there is another one.
                suspected = level >= NOTHING and rules.has_safe_action
                if not suspected and not (level > SOUND and slot is Slot.CURRENT and digests[Slot.PREVIOUS]):
                    self.loaded[signed.sha256] = Loaded.load(signed, self.runtime)
                digests[slot] = signed.sha256
            # Whatever a damaged file provokes, the other slot may hold.
            except Exception as error:
                said = as_fault(error)
                _LOG.error("the %s policy does not hold: %s", slot, said.message)
                fault = replace(said, message=f"{slot}: {said.message}")
        return Found(
            current=digests[Slot.CURRENT],
            previous=digests[Slot.PREVIOUS],
            trial=self._trial(),
            trial_there=self.slots.there(Slot.TRIAL),
            testing_there=self.slots.there(Slot.TESTING),
            clean=notes.clean,
            starts=notes.starts,
            level=notes.level,
            fault=fault,
        )

    def verify(self, acting: SignedPolicy | None, *, busy_with: str) -> str:
        """Take what was offered, and return its digest if it may be tested.

        Args:
            acting: what it must be newer than, `None` for nothing.
            busy_with: digest of what acts.

        Raises:
            AlreadyActing: it is what acts.
            QuarlError: it does not hold, is older, or was made for other spaces.
            StateUnwritable: the disk refuses.
        """
        self._candidate = None
        self.slots.examine()
        signed = self._open(Slot.TESTING)
        if signed.sha256 == busy_with:
            self.slots.discard(Slot.TESTING)
            raise AlreadyActing
        if acting is not None and not self.slots.allows_older(signed.sha256):
            check_newer(signed, acting)
        self._candidate = signed
        return signed.sha256

    def test(self, is_wanted: Callable[[], bool]) -> None:
        """Load the candidate, which runs its self-test; raises QuarlError.

        Args:
            is_wanted: asked when it has passed: a test that hung must not speak for the file that came after it.
        """
        candidate, self._candidate = self._candidate, None
        if candidate is None:
            raise StateUnwritable("no candidate has been verified")
        loaded = Loaded.load(candidate, self.runtime)
        if is_wanted():
            self.loaded[candidate.sha256] = loaded
            self.slots.set_ready()

    def load_trial(self) -> None:
        """Make the policy on probation ready to act again, after a restart; raises QuarlError."""
        signed = self._open(Slot.TRIAL)
        self.loaded[signed.sha256] = Loaded.load(signed, self.runtime)

    def forget_all_but(self, digests: tuple[str, ...]) -> None:
        """Free the policies that will not act again."""
        for digest in [digest for digest in self.loaded if digest not in digests]:
            del self.loaded[digest]

    def _trial(self) -> str:
        try:
            return self._open(Slot.TRIAL).sha256 if self.slots.there(Slot.TRIAL) else ""
        except Exception as error:
            _LOG.error("the policy on probation does not hold: %s", as_fault(error).message)
            return ""

    def _open(self, slot: Slot) -> SignedPolicy:
        signed = open_signed(self.slots.read(slot), self.key)
        contract = signed.file.contract
        # Spaces can be the same behind other wrappers, and what is observed another thing.
        check_wrappers_match(contract.wrappers, self.wrappers)
        check_matches(self.world, contract.observations, contract.action, given=self.env_id, made_for=contract.env_id)
        return signed


def check_wrappers_match(wanted: tuple[str, ...], found: tuple[str, ...]) -> None:
    """Refuse a policy that was trained behind other wrappers than what acts; the environment is made once.

    Raises:
        SpaceMismatch: naming both.
    """
    if wanted != found:
        raise SpaceMismatch(
            f"the policy was trained behind {_named(wanted)}, and the environment here is made with {_named(found)}",
            hint="another --state-dir deploys it; with no policy there yet: stop the agent, activate it, start again",
        )


def _named(wrappers: tuple[str, ...]) -> str:
    return ", ".join(wrappers) or "no wrappers"


def check_newer(signed: SignedPolicy, acting: SignedPolicy) -> None:
    """Refuse a policy that is not newer than what acts.

    Raises:
        OlderVersion: naming both versions.
    """
    if not newer(signed.order, acting.order):
        kind = "is older than" if signed.order < acting.order else "has the number of"
        raise OlderVersion(
            f"version {signed.name} {kind} the current one, {acting.name}",
            hint="to go back to it: quarl-device activate MODEL --allow-older",
        )


def as_fault(error: Exception) -> Fault:
    """Return what a policy provoked, on one line; code 1 for what no part foresaw."""
    said = error.message if isinstance(error, QuarlError) else f"{type(error).__name__}: {first_line(error)}"
    code = error.code if isinstance(error, QuarlError) else QuarlError.code
    return Fault(code=code, message=one_line(said, max_length=300))


def guarded(work: Callable[[], None]) -> Fault | None:
    """Do disk work, and return what the disk, or anything, said against it, logged."""
    try:
        work()
    except StateUnwritable as error:
        _LOG.error("%s", error)
        return as_fault(error)
    # A damaged disk raises what nobody foresaw; whoever acts goes on.
    except Exception as error:
        fault = as_fault(error)
        _LOG.error("disk work failed: %s", fault.message)
        return fault
    return None
