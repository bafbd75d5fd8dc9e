"""Two processes with one id on one broker: recognised, and told from what an earlier life left behind."""

import logging
import random

import pytest

from quarl_device.actor.namesakes import Namesakes
from quarl_device.errors import IdInUse

OWN, OTHER = "0" * 16, "f" * 16


def play(boots, *, every_s=1.0):
    """Return how many states it took to end, and with what, or (None, None)."""
    namesakes = Namesakes("pi-1", OWN)
    for count, boot_id in enumerate(boots, 1):
        error = namesakes.heard(boot_id, count * every_s)
        if error is not None:
            return count, error
    return None, None


def test_the_older_one_ends_at_the_third_turn():
    count, error = play([OWN, OTHER] * 9)
    assert count == 6
    assert isinstance(error, IdInUse)
    assert error.code == 52
    assert str(error) == (
        "another process uses the id 'pi-1' on this broker (boot id ffffffffffffffff, this one is 0000000000000000): "
        "each throws the other off (give one of them another --id, or "
        "credentials of its own: quarl-edge enroll NAME)"
    )


def test_the_newcomer_warns_once_and_ends_at_the_sixth_turn(caplog):
    with caplog.at_level(logging.WARNING):
        assert play([OTHER, *[OWN, OTHER] * 5]) == (None, None)
    assert caplog.text.count("another process uses the id 'pi-1'") == 1
    assert play([OTHER, *[OWN, OTHER] * 9])[0] == 13


@pytest.mark.parametrize(
    "boots",
    [
        [OTHER] * 99,
        [OTHER, OTHER, *[OWN] * 99],
        [OTHER, OWN, OTHER, *[OWN] * 99],
        [*[OWN] * 9, *[OTHER] * 99],
        [boot for n in range(99) for boot in (OWN, f"{n + 1:016x}")],
    ],
    ids=["never itself", "retained", "a late will", "forged in a row", "a life after another"],
)
def test_what_is_no_other_process_never_ends_it(boots):
    assert play(boots) == (None, None)


def test_turns_of_long_ago_do_not_count():
    assert play([OWN, OTHER] * 99, every_s=16) == (None, None)
    assert play([OWN, OTHER] * 99, every_s=10)[0] == 6


def test_hostile_boot_ids_fill_no_memory():
    namesakes, rng = Namesakes("pi-1", OWN), random.Random(0)
    for step in range(10_000):
        assert namesakes.heard(f"{rng.randrange(2**64):016x}", step / 1e4) is None
        namesakes.heard(OWN, step / 1e4)
    assert len(namesakes._turns) <= 16
    assert len(namesakes._earlier) <= 16
