"""Runs all checks of a file."""

from __future__ import annotations

from collections.abc import Callable

from quarl_export.checks.agreement import check_actions, check_parity
from quarl_export.checks.numbers import check_biases, check_constant, check_finite, check_ranges, check_saturation
from quarl_export.checks.operators import check_custom, check_float, check_loads, check_versions
from quarl_export.checks.report import CheckResult
from quarl_export.checks.returns import Judged, not_judged
from quarl_export.checks.subject import Subject


def checks_before(subject: Subject) -> tuple[CheckResult, ...]:
    """Return what can be said before seconds of conversion: Q01, Q02 and Q04."""
    return (check_finite(subject), check_ranges(subject), check_biases(subject))


def checks_after(subject: Subject, complete: bytes, play: Callable[[], Judged]) -> tuple[CheckResult, ...]:
    """Return Q03 and Q05 to Q13, and Q01 again for the outputs if they are not finite.

    Where returns decide, what is only seen on single observations is told and fails nobody.

    Args:
        subject: with its model.
        complete: the model with contract and golden vectors.
        play: finds the returns of a file that loads.
    """
    found: list[CheckResult] = [] if (finite := check_finite(subject)).passed else [finite]
    found += [check_constant(subject), check_versions(subject), check_float(subject), check_custom(subject)]
    loads = check_loads(complete, target=subject.options.runtime)
    returns = play() if loads.passed else not_judged("a device refuses the file")
    decided = returns.decided
    found += [check_saturation(subject, decided=decided), check_parity(subject, decided=decided)]
    return (*found, *check_actions(subject, decided=decided), loads, returns.result)
