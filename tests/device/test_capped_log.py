"""Log lines that a peer can provoke: the first are shown, the rest counted."""

import logging

from quarl_device.capped_log import Burst, CappedWarnings

LOG = logging.getLogger(__name__)


def test_the_first_are_shown_and_the_rest_are_counted(caplog):
    warnings = CappedWarnings(LOG, limit=3)
    for number in range(100):
        warnings.warning("number %d", number)
    shown = "(more of these are counted, not shown)"
    assert [record.getMessage() for record in caplog.records] == ["number 0", "number 1", f"number 2 {shown}"]
    warnings.sum_up("numbers")
    assert caplog.records[-1].getMessage() == "97 more numbers were not shown"


def test_nothing_to_sum_up(caplog):
    warnings = CappedWarnings(LOG, limit=3)
    for _ in range(3):
        warnings.warning("one")
    warnings.sum_up("numbers")
    assert len(caplog.records) == 3


def test_a_burst_is_allowed_again_later():
    burst = Burst(lines=3, period_s=10)
    assert [burst.allows(now_s) for now_s in (0, 1, 2, 3, 9, 10.5, 10.6, 11.5)] == [True] * 3 + [False] * 2 + [
        True,
        False,
        True,
    ]
