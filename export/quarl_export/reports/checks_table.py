"""The checks of an export as a table of its page: what each measured, what it may be, and whether that decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from quarl_export.checks.report import AT_LEAST, CheckResult

_MEANINGS = {
    "passed": "kept, or it had nothing to find",
    "FAILED": "written all the same, with --force",
    "advisory": "told only, stops no file",
    "undecided": "told only: too few episodes to tell",
    "not judged": "could not be asked",
}


def checks_table(checks: Sequence[CheckResult]) -> Iterator[str]:
    """Yield the section, nothing where there are no checks."""
    if not checks:
        return
    failed = [check.code for check in checks if not check.passed]
    yield '<section id="checks"><h2>Checks</h2>'
    yield f"<p>{_summary(checks, failed)}</p>"
    yield '<div class="panel scroll"><table class="checks"><thead><tr>'
    yield "".join(f"<th>{name}</th>" for name in ("check", "verdict", "value", "limit", "what it found"))
    yield "</tr></thead><tbody>"
    for check in checks:
        yield _row(check)
    yield "</tbody></table></div></section>"


def _summary(checks: Sequence[CheckResult], failed: Sequence[str]) -> str:
    if failed:
        return f"Written with --force although {', '.join(failed)} failed."
    judged = sum(check.standing == "passed" for check in checks)
    return f"{judged} of {len(checks)} judged the file and passed; the others are told and stop no file."


def _row(check: CheckResult) -> str:
    standing = check.standing
    kind = standing.lower().replace(" ", "-")
    cells = [
        f"<td><code>{check.code}</code> {escape(check.name)}</td>",
        f'<td class="verdict" title="{escape(_MEANINGS[standing], quote=True)}">{escape(standing)}</td>',
        f"<td>{_figure(check.value)}</td>",
        f"<td>{_limit(check)}</td>",
        f'<td class="words">{escape(check.message)}</td>',
    ]
    return f'<tr class="{kind}">{"".join(cells)}</tr>'


def _limit(check: CheckResult) -> str:
    if check.limit is None:
        return "–"
    return f"{'≥' if check.code in AT_LEAST else '≤'} {_figure(check.limit)}"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}".replace("-", "−")
