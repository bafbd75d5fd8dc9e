"""docs/benchmarks.md's table of learning within minutes is what `bench solve` wrote to docs/results/budget-*.json.

After another result, `python tests/quarl_edge/test_budget_page.py` prints the rows as they must be.
"""

import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
RAW = sorted((DOCS / "results").glob("budget-*.json"))


def rows(raw):
    return [row(raw, run) for run in raw["runs"]]


def row(raw, run):
    fresh, seconds = run["fresh"], run["train_s"]
    cells = [
        raw["env"],
        raw["algorithm"],
        str(run["seed"]),
        f"{seconds:,.0f}",
        f"{run['env_steps']:,}",
        f"{run['env_steps'] / seconds:.0f}",
        f"{run['updates'] / seconds:.0f}",
        " → ".join(f"{mean:.0f}" for _, mean in run["curve"]),
        f"{run['picked_env_steps']:,}",
        f"{fresh['int8_return_mean']:.1f}",
        f"{fresh['float_return_mean']:.1f}",
        f"{fresh['difference']:+.1f} [{fresh['difference_low']:+.1f}, {fresh['difference_high']:+.1f}], "
        f"{fresh['difference_share']:+.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def test_the_table_has_a_row_of_every_run_and_no_other():
    section = (DOCS / "benchmarks.md").read_text().split("## Learning, within minutes")[1].split("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert sorted(found) == sorted(line for path in RAW for line in rows(json.loads(path.read_text())))
    assert found


@pytest.mark.parametrize("path", RAW, ids=lambda path: path.stem)
def test_a_result_says_what_it_needs_to_be_made_again(path):
    raw = json.loads(path.read_text())
    assert {"machine", "versions", "settings", "config", "budget_steps"} <= set(raw)
    assert raw["fresh_episodes"] >= 20
    for run in raw["runs"]:
        assert run["audit_failures"] == 0
        assert run["curve"][-1][0] <= run["env_steps"]


if __name__ == "__main__":
    for result in RAW:
        print("\n".join(rows(json.loads(result.read_text()))))  # noqa: T201
