"""The policies on the device's disk. A file's name says how far it has come; every step is one rename.

========== ==========================================================================================
incoming   handed over by `quarl-device activate`, not looked at
testing    being verified and self-tested
ready      passed its self-test, waits for an episode to end
trial      acts, on probation
current    has passed its probation
previous   was current before it
refused    the last one that failed, for a person to look at
========== ==========================================================================================

So a kill at any instant leaves files whose names are true, but for one: a policy that has passed becomes `current` in
two renames, and between them no file has that name, which `recover` mends. Nothing that acts is ever written over by
bytes: a full disk stops `offer` alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from enum import StrEnum
from pathlib import Path

from quarl_device.deploy.occupied import FOLDER, is_occupied, locked
from quarl_device.deploy.signed import read_signed
from quarl_device.errors import AgentInUse, KeyFileError, KeyMismatch, ModelFileError, StateUnwritable
from quarl_device.files import is_there, read_capped, sync_directory, write_atomic
from quarl_device.wire.keys import PublicKey

_TAKE_S = 1.0
_LOOK_S = 0.02
_DIGEST_BYTES = 64


class Slot(StrEnum):
    """Names of the files, without `.qpol`."""

    INCOMING = "incoming"
    TESTING = "testing"
    READY = "ready"
    TRIAL = "trial"
    CURRENT = "current"
    PREVIOUS = "previous"
    REFUSED = "refused"


class Slots:
    """The directory of them.

    Args:
        state: the device's state directory; the slots lie in `deploy/` in it.
    """

    def __init__(self, state: Path) -> None:
        self.directory = state / FOLDER
        self._lock = -1

    @property
    def notes_path(self) -> Path:
        """Where the agent's notes lie."""
        return self.directory / "state.json"

    def path(self, slot: Slot) -> Path:
        """Return where a slot lies, whether anything is there or not."""
        return self.directory / f"{slot}.qpol"

    def make(self) -> None:
        """Make the directory.

        Raises:
            StateUnwritable: it is not there and cannot be made.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise StateUnwritable(
                f"the state directory cannot be made: {self.directory}: {cause.strerror}", hint="--state-dir DIR"
            ) from cause

    def take(self) -> None:
        """Make this process the one agent of the directory, until it ends.

        Raises:
            AgentInUse: another process is.
            StateUnwritable: there is no directory to take.
        """
        try:
            self._lock = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as cause:
            raise StateUnwritable(f"the state directory: {self.directory}: {cause.strerror}") from cause
        deadline_s = time.monotonic() + _TAKE_S
        # `in_use` takes it for an instant, in another process.
        while not locked(self._lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline_s:
                self.release()
                raise AgentInUse(
                    f"another agent acts with the state directory {self.directory}",
                    hint="quarl-device status shows it; give one of them another --state-dir",
                )
            time.sleep(_LOOK_S)

    def release(self) -> None:
        """Let another process be the agent."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def in_use(self) -> bool:
        """Return whether an agent acts with this directory."""
        return is_occupied(self.directory.parent)

    def there(self, slot: Slot) -> bool:
        """Return whether a slot has a file; one that a damaged disk does not let be looked at is there, and bad."""
        return is_there(self.path(slot))

    def holds(self, slot: Slot, digest: str) -> bool:
        """Return whether a slot has the very file of this digest."""
        try:
            return hashlib.sha256(self.read(slot)).hexdigest() == digest
        except ModelFileError:
            return False

    def read(self, slot: Slot) -> bytes:
        """Return a slot's bytes, unchecked.

        Raises:
            ModelFileError: nothing there, unreadable, or over the cap.
        """
        return read_signed(self.path(slot))

    def offer(self, data: bytes, *, allow_older: bool = False) -> None:
        """Hand a file to the agent; one that it has not taken yet is replaced.

        Args:
            data: a signed policy file.
            allow_older: the agent may go back to it.

        Raises:
            StateUnwritable: the disk refuses; nothing else has changed.
        """
        digest = hashlib.sha256(data).hexdigest() if allow_older else ""
        # Before the file, and by its digest: whichever of two commands is later, the word is of this file alone.
        if allow_older:
            self._write(self._older_path, digest.encode(), "permission for an older policy")
        self._write(self.path(Slot.INCOMING), data, "policy")

    def allows_older(self, digest: str) -> bool:
        """Return whether a person has said that the agent may go back to this file."""
        try:
            said = read_capped(self._older_path, cap_bytes=_DIGEST_BYTES, error=ModelFileError, what="permission")
        except ModelFileError:
            return False
        return said == digest.encode()

    def examine(self) -> None:
        """Take what was offered to be looked at; raises StateUnwritable."""
        self._move(Slot.INCOMING, Slot.TESTING)

    def set_ready(self) -> None:
        """Say that it has passed its self-test; raises StateUnwritable."""
        self._move(Slot.TESTING, Slot.READY)

    def refuse(self) -> None:
        """Put a candidate out of the way, if there is one; raises StateUnwritable."""
        for slot in (Slot.TESTING, Slot.READY):
            if self.there(slot):
                self._move(slot, Slot.REFUSED)

    def begin(self) -> None:
        """Say that it acts from now on, on probation; raises StateUnwritable."""
        self._move(Slot.READY, Slot.TRIAL)

    def reject(self, digest: str) -> None:
        """Put a policy that failed its probation out of the way, wherever it has come to; raises StateUnwritable."""
        for slot in (Slot.TRIAL, Slot.READY):
            if self.there(slot):
                self._move(slot, Slot.REFUSED)
        if self.holds(Slot.CURRENT, digest):
            self.drop(digest)
        self._move_up()

    def commit(self, *, over: bool = False) -> None:
        """Make the policy on probation the current one.

        Args:
            over: in the place of the current one, which is lost; else that becomes the previous one.

        Raises:
            StateUnwritable: the disk refuses; what is done already is no harm, and is gone on with the next time.
        """
        if not self.there(Slot.TRIAL):
            return
        if not over and self.there(Slot.CURRENT):
            self._move(Slot.CURRENT, Slot.PREVIOUS)
        self._move(Slot.TRIAL, Slot.CURRENT)

    def drop(self, digest: str) -> None:
        """Take its slot from a policy that failed; the previous one moves up. Raises StateUnwritable."""
        if self.holds(Slot.CURRENT, digest) and self.there(Slot.PREVIOUS):
            # One rename, so that no kill finds a gap; what it takes the name from is kept under another one first.
            self._keep_as_refused(Slot.CURRENT)
            self._move(Slot.PREVIOUS, Slot.CURRENT)
        elif self.holds(Slot.CURRENT, digest):
            self._move(Slot.CURRENT, Slot.REFUSED)
        elif self.holds(Slot.PREVIOUS, digest):
            self._move(Slot.PREVIOUS, Slot.REFUSED)

    def recover(self) -> None:
        """End what a kill has cut short; before anything is read.

        Raises:
            StateUnwritable: the disk refuses; the slots are as true as they were.
        """
        if self.there(Slot.TRIAL) and self.there(Slot.PREVIOUS) and not self.there(Slot.CURRENT):
            self.commit()  # it had passed, or current would be there
        self._move_up()
        # What is ready has passed its self-test but never acted.
        self._offer_again(Slot.READY)

    def examine_again(self) -> None:
        """Have a candidate looked at anew whose process ended cleanly meanwhile; raises StateUnwritable."""
        self._offer_again(Slot.TESTING)

    def discard(self, slot: Slot) -> None:
        """Remove a file that is of no use, such as a copy of what acts; raises StateUnwritable."""
        try:
            self.path(slot).unlink(missing_ok=True)
        except OSError as cause:
            raise StateUnwritable(f"policy {slot} cannot be removed: {cause.strerror}") from cause

    def trusted_key(self, given: Path | None) -> PublicKey:
        """Return the learner's key that files must be signed by, and keep one that is given.

        Args:
            given: file with its public half; `None` for the one that was kept.

        Raises:
            KeyFileError: none is given and none was kept, or a file does not hold one.
            KeyMismatch: another one is given than was kept.
        """
        kept = self._kept_key()
        if given is None:
            if kept is None:
                raise KeyFileError(
                    "no learner's key is known here, so no policy can be trusted",
                    hint="--learner-key FILE, the learner.pub that quarl-edge sign writes",
                )
            return kept
        key = PublicKey.from_file(given)
        if kept is None:
            # Where it cannot be kept it must be given each time.
            with contextlib.suppress(KeyFileError):
                key.save(self._key_path)
        elif kept != key:
            raise KeyMismatch(
                f"{given} holds the key {key.hex[:16]}..., and this device trusts {kept.hex[:16]}...",
                hint=f"to trust the other one from now on: rm {self._key_path}",
            )
        return key

    @property
    def _older_path(self) -> Path:
        return self.directory / "allow-older"

    @property
    def _key_path(self) -> Path:
        return self.directory / "learner.pub"

    def _kept_key(self) -> PublicKey | None:
        try:
            return PublicKey.from_file(self._key_path)
        except KeyFileError:
            return None

    def _offer_again(self, slot: Slot) -> None:
        """Put a candidate back, unless something newer came."""
        if self.there(slot):
            self._move(slot, Slot.REFUSED if self.there(Slot.INCOMING) else Slot.INCOMING)

    def _move_up(self) -> None:
        """Leave no gap, which would say that a policy on probation had passed."""
        if self.there(Slot.PREVIOUS) and not self.there(Slot.CURRENT):
            self._move(Slot.PREVIOUS, Slot.CURRENT)

    def _keep_as_refused(self, slot: Slot) -> None:
        """Let `refused` name a file as well; where the disk has no links, nobody remembers that it failed."""
        link = self.directory / "refused.link"
        with contextlib.suppress(OSError):
            link.unlink(missing_ok=True)
            os.link(self.path(slot), link)
            link.replace(self.path(Slot.REFUSED))

    def _write(self, path: Path, data: bytes, what: str) -> None:
        write_atomic(path, data, error=StateUnwritable, what=what)

    def _move(self, source: Slot, target: Slot) -> None:
        try:
            self.path(source).replace(self.path(target))
            sync_directory(self.directory)
        except OSError as cause:
            raise StateUnwritable(
                f"policy {source} cannot become {target} in {self.directory}: {cause.strerror}",
                hint="is the disk mounted for writing?",
            ) from cause
