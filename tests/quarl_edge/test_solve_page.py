"""docs/benchmarks.md's table of learning is what `bench solve` wrote to docs/results/solve-*.json.

After another result, `python tests/quarl_edge/test_solve_page.py` prints the rows as they must be.
"""

import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
RAW = sorted((DOCS / "results").glob("solve-*.json"))


def rows(raw):
    return [row(raw, run) for run in raw["runs"]]


def row(raw, run):
    cells = [raw["env"], raw["algorithm"], str(run["seed"])]
    reached = f"{'≥' if run['solved'] else 'missed:'} {raw['target_return']:g}"
    if "error" in run:
        return _line([*cells, *["–"] * 9, f"failed: {run['error']['kind']}"])
    fresh, confirmed = run["fresh"], run["confirmation_return_mean"]
    share = "" if fresh["difference_share"] is None else f", {fresh['difference_share']:+.1%}"
    return _line(
        [
            *cells,
            f"{run['train_s']:.1f}",
            *(f"{run[name]:,}" for name in ("env_steps", "updates", "pushes")),
            f"{run['judged_return_mean']:.1f}",
            "–" if confirmed is None else f"{confirmed:.1f}",
            f"{fresh['int8_return_mean']:.1f}",
            f"{fresh['float_return_mean']:.1f}",
            f"{fresh['difference']:+.1f} [{fresh['difference_low']:+.1f}, {fresh['difference_high']:+.1f}]{share}",
            reached,
        ]
    )


def _line(cells):
    return f"| {' | '.join(cells)} |"


def test_the_table_has_a_row_of_every_run_and_no_other():
    page = (DOCS / "benchmarks.md").read_text()
    section = page.split("## Learning, three seeds each")[1].split("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert sorted(found) == sorted(line for path in RAW for line in rows(json.loads(path.read_text())))
    assert found


@pytest.mark.parametrize("path", RAW, ids=lambda path: path.stem)
def test_a_result_says_what_it_needs_to_be_made_again(path):
    raw = json.loads(path.read_text())
    assert raw["seeds"] == [run["seed"] for run in raw["runs"]]
    assert raw["fresh_episodes"] >= 20
    assert {"machine", "versions", "settings", "config", "target_return"} <= set(raw)
    assert raw["solved"] == sum(run["solved"] for run in raw["runs"])
    for run in raw["runs"]:
        if "error" not in run:
            assert run["solved"] == (run["fresh"]["int8_return_mean"] >= raw["target_return"])
            assert run["audit_failures"] == 0


if __name__ == "__main__":
    for result in RAW:
        print("\n".join(rows(json.loads(result.read_text()))))  # noqa: T201
