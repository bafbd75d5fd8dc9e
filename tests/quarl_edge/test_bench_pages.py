"""docs/benchmarks.md says of learners and actors what the raw outputs under docs/results hold, and nothing else."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
LEARN = json.loads((DOCS / "results/learn.json").read_text("utf-8"))
ACTORS = json.loads((DOCS / "results/actors.json").read_text("utf-8"))


def section(title):
    """Return the text under a heading of the page."""
    page = (DOCS / "benchmarks.md").read_text("utf-8")
    [found] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return found


def cells(text):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def learn_cells():
    rows = {(row["algorithm"], row["qat"]): row for row in LEARN["rows"]}
    return [
        [
            name,
            row["head"],
            f"{row['unfused_ratio']:.1f}",
            f"{rows[name, False]['unfused_ratio']:.1f}",
            f"{row['qat_ratio']:.2f}",
        ]
        for (name, qat), row in rows.items()
        if qat
    ]


def actor_cells():
    rows = []
    for row in ACTORS["rows"]:
        if "error" in row:
            rows.append([row["env"], str(row["envs"]), "not measured: its extra is not installed", *[""] * 5])
            continue
        split = row["split"]
        whole = sum(split.values())
        alone = next(each for each in ACTORS["rows"] if each["env"] == row["env"] and each["envs"] == 1)
        shares = [f"{split[part] / whole:.0%}" for part in ("env_us", "inference_us", "record_us", "encode_us")]
        speedup = f"{row['steps_per_cpu_s'] / alone['steps_per_cpu_s']:.1f}"
        rows.append([row["env"], str(row["envs"]), row["exploration"], *shares, speedup])
    return rows


def test_the_table_of_gradient_steps():
    assert cells(section("A gradient step")) == learn_cells()


def test_the_table_of_actors():
    assert cells(section("Actors, by environment")) == actor_cells()


@pytest.mark.parametrize(("title", "raw"), [("A gradient step", LEARN), ("Actors, by environment", ACTORS)])
def test_load_and_machine_are_named(title, raw):
    said = section(title)
    assert f"load average of {raw['load_average']}" in said
    assert raw["versions"]["tensorflow"] in said
