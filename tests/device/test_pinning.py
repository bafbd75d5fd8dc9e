"""Another learner's key: what the error advises is what works, with a key from a file and with one that was met."""

from __future__ import annotations

import pytest

from quarl_device.actor.pinning import PinnedKey
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import KeyMismatch
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.limits import WIRE_VERSION
from quarl_device.wire.messages import LearnerBirth

OURS, OTHER = LearnerKey.generate().public, LearnerKey.generate().public


def birth(key):
    return LearnerBirth(
        status="online", epoch=1, wire=WIRE_VERSION, beat=1, env_id="CartPole-v1", env_kwargs={}, algorithm="dqn",
        observations=(ObservationSpec(key="observation", shape=(4,)),), action=ActionSpec(kind="discrete", n=2),
        public_key=key.hex, mode="async", seed=0, block_steps=8, version="0",
    )  # fmt: skip


def test_a_key_that_was_met_is_forgotten_by_a_restart():
    pinned = PinnedKey(None)
    pinned.check(birth(OURS))
    pinned.pin(birth(OURS))
    with pytest.raises(KeyMismatch) as caught:
        pinned.check(birth(OTHER))
    assert "restart the actor to trust it, or give its key with --learner-key" in caught.value.hint
    PinnedKey(None).check(birth(OTHER))


def test_a_key_that_came_with_credentials_is_not(tmp_path):
    """A restart reads the same file again."""
    file = tmp_path / "pi-1" / "learner.pub"
    file.parent.mkdir()
    OURS.save(file)
    with pytest.raises(KeyMismatch) as caught:
        PinnedKey(file).check(birth(OTHER))
    assert f"in the place of {file}" in caught.value.hint
    assert not caught.value.hint.startswith("restart")
    OTHER.save(file)
    PinnedKey(file).check(birth(OTHER))
