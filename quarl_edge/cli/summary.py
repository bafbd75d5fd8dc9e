"""What the summaries of a run say alike."""

from __future__ import annotations

from quarl_edge.learner.edge_tpu_counters import EdgeTpuCounters


def selection(judgements: int, episodes: int, last: float | None, *, earlier: bool = False) -> str:
    """Say how the policy that a run kept was chosen.

    Args:
        judgements: of int8 files in this session.
        episodes: per judgement.
        last: the last judgement, `None` before the first.
        earlier: whether the best policy is of an earlier session.
    """
    rule = f"best of {judgements:,} judgement{'' if judgements == 1 else 's'} on the same {episodes} start seeds"
    if earlier:
        rule = f"best so far, of an earlier session; {judgements:,} more on the same {episodes} start seeds"
    return rule if last is None else f"{rule}; the last one: {last:.1f}"


def audit_rows(audited: int, failures: int, conversion_reason: str = "") -> list[tuple[str, str]]:
    """Return a row only where a push was not what a real conversion gives, or pushes were converted for real."""
    rows = []
    if failures:
        differed = f"{failures} of {audited} pushes differed from a real conversion; the errors above say where"
        rows.append(("audits", differed))
    if conversion_reason:
        rows.append(("converted", f"each push, for it could not be patched: {conversion_reason}"))
    return rows


def refused_rows(refused: dict[str, int]) -> list[tuple[str, str]]:
    """Return a row only where blocks of experience were refused, by error code."""
    if not refused:
        return []
    counted = ", ".join(f"{count:,} with error {code}" for code, count in sorted(refused.items()))
    return [("refused blocks", f"{counted}; the warnings above say why")]


def edge_tpu_rows(counters: EdgeTpuCounters | None) -> list[tuple[str, str]]:
    """Return a row about pushes that were compiled for the Edge TPU, only where some were to be."""
    if counters is None:
        return []
    said = f"{counters.published:,} compiled pushes"
    if counters.failures:
        said += f"; {counters.failures:,} were not compiled, the last: {counters.last_failure}"
    return [("Edge TPU", said)]


def milliseconds(value: float | None) -> str:
    """Return "1.5 ms", "-" where nothing was measured."""
    return "-" if value is None else f"{value:.1f} ms"
