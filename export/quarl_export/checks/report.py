"""What a check says, and their names. What each passes is in one table: docs/guides/export.md.

Where Q13 decides, Q03, Q10 and Q11 are told and stop no file: they stand in for returns that nobody has seen. So is Q09
of dynamic and int16x8 files, which has nothing exact to compare with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quarl_device.errors import CheckFailed

Standing = Literal["passed", "advisory", "not judged", "undecided", "FAILED"]

NAMES: Mapping[str, str] = {
    "Q01": "finite",
    "Q02": "ranges",
    "Q03": "saturation",
    "Q04": "bias",
    "Q05": "constant",
    "Q06": "versions",
    "Q07": "float",
    "Q08": "custom",
    "Q09": "parity",
    "Q10": "actions",
    "Q11": "regret",
    "Q12": "loads",
    "Q13": "returns",
}

AT_LEAST = frozenset({"Q05", "Q10"})
"""Checks whose value may be no less than their limit; of the others it may be no more."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What one check found.

    Attributes:
        code: a key of `NAMES`.
        passed: whether the file may be written.
        value: what was measured, `None` where the check has no number.
        limit: what `value` may be at most (Q05, Q10: at least), `None` likewise.
        message: one line that names the layer, dimension or operator.
        advisory: told, and stops no file: `value` beside `limit` says whether the limit was kept.
        detail: more that was measured, as JSON values.
    """

    code: str
    passed: bool
    message: str
    value: float | None = None
    limit: float | None = None
    advisory: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Short name of the check."""
        return NAMES[self.code]

    @property
    def standing(self) -> Standing:
        """How it came out, in a word."""
        if not self.passed:
            return "FAILED"
        if self.message.startswith("not judged"):
            return "not judged"
        if self.detail.get("verdict") == "undecided":
            return "undecided"
        return "advisory" if self.advisory else "passed"

    def to_json(self) -> dict[str, Any]:
        """Return its entry in the report."""
        return {
            "code": self.code,
            "name": self.name,
            "passed": self.passed,
            "value": self.value,
            "limit": self.limit,
            "message": self.message,
            "advisory": self.advisory,
            "detail": dict(self.detail),
        }


def finer(head: str, scheme: str) -> str:
    """Return what may help a file that acts otherwise than its float policy, by the kind of its head."""
    if scheme != "int8":
        return "--scheme float16 keeps the weights that this one rounds"
    centred = "--center-q, " if head == "q_values" else ""
    return f"{centred}--range percentile, --per-channel or --keep-float of the last layers may be finer, or not"


def refuse_failed(results: Iterable[CheckResult]) -> None:
    """Raise unless all checks passed.

    Raises:
        CheckFailed: naming every failed check, and what is undecided: that it was decided might let others pass.
    """
    made = list(results)
    failed = [result for result in made if not result.passed]
    if failed:
        told = [*failed, *(result for result in made if result.standing == "undecided")]
        raise CheckFailed(
            "; ".join(f"{result.code} {result.name}: {result.message}" for result in told),
            hint="mend it, or write the file all the same with --force, which marks it",
            checks=[result.to_json() for result in made],
        )
