"""The one learner key that an agent trusts: given, or the first that it meets."""

from __future__ import annotations

import logging
from pathlib import Path

from quarl_device.errors import KeyMismatch, PayloadRefused
from quarl_device.wire.keys import PublicKey
from quarl_device.wire.messages import HIGHEST_BELIEVABLE_EPOCH, LearnerBirth

_LOG = logging.getLogger(__name__)


class PinnedKey:
    """Holds the key. Births are not signed: one under another key, or from no possible time, must not end an actor.

    Args:
        file: with the only key to trust; `None` pins the first that is met.

    Raises:
        KeyFileError: the file is missing or holds no key.
    """

    def __init__(self, file: Path | None) -> None:
        self._key = PublicKey.from_file(file) if file else None
        self._file = file

    def check(self, birth: LearnerBirth) -> None:
        """Refuse a birth that cannot be of the learner that is trusted.

        Raises:
            PayloadRefused: its epoch is not a time.
            KeyMismatch: it is under another key.
        """
        if birth.epoch > HIGHEST_BELIEVABLE_EPOCH:
            raise PayloadRefused(f"learner birth: epoch {birth.epoch} is not a time")
        if self._key is not None and self._key != PublicKey.from_hex(birth.public_key):
            raise KeyMismatch(
                f"learner epoch {birth.epoch} has key {birth.public_key[:16]}..., pinned is {self._key.hex[:16]}...",
                hint=self._advice(),
            )

    def _advice(self) -> str:
        """Return how the other key comes to be trusted: a restart forgets one that was met, and reads a file again."""
        if self._file is None:
            return "restart the actor to trust it, or give its key with --learner-key"
        return f"to trust it, put its public key (learner.pub) in the place of {self._file}, and restart the actor"

    def pin(self, birth: LearnerBirth) -> PublicKey:
        """Return the key, that of a checked birth if it is the first."""
        if self._key is None:
            _LOG.warning("pinning the learner's key %s, the first that was met", birth.public_key[:16])
            self._key = PublicKey.from_hex(birth.public_key)
        return self._key
