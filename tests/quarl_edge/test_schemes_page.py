"""docs/schemes.md says what docs/results/schemes.json holds, and nothing else."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def tables():
    """Every table of the page: rows of cells, the header first, the rule below it left out."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", (DOCS / "schemes.md").read_text(), re.MULTILINE)
    lines = [[line.strip("|").split("|") for line in block.strip().splitlines()] for block in blocks]
    return [[[cell.strip() for cell in row] for row in block if not row[0].startswith("-")] for block in lines]


@pytest.fixture(scope="module")
def measured():
    return {row["name"]: row for row in json.loads((DOCS / "results" / "schemes.json").read_text())["rows"]}


def test_returns_and_stars_are_those_that_were_measured(measured):
    header, *rows = tables()[0]
    assert [row[0] for row in rows] == list(measured)
    for name, env, *cells in rows:
        assert env == measured[name]["env"]
        for scheme, shown in zip(header[2:], cells, strict=True):
            cell = measured[name]["schemes"][scheme]
            assert shown == f"{cell['return_mean']:.1f}" + "*" * bool(cell["failed_checks"]), (name, scheme)


def test_every_star_is_explained(measured):
    explained = re.findall(r"^- (.*): (Q\d\d(?:, Q\d\d)*)$", (DOCS / "schemes.md").read_text(), re.MULTILINE)
    failed = [
        (f"{name}, {scheme}", ", ".join(cell["failed_checks"]))
        for name, row in measured.items()
        for scheme, cell in row["schemes"].items()
        if cell["failed_checks"]
    ]
    assert explained == failed


def test_verdicts_are_those_that_were_measured(measured):
    header, *rows = tables()[1]
    assert [row[0] for row in rows] == list(measured)
    for name, _, mean, *cells in rows:
        schemes = measured[name]["schemes"]
        assert mean == f"{schemes['float16']['returns_check']['float_return_mean']:.1f}"
        for scheme, shown in zip(header[3:], cells, strict=True):
            found = schemes[scheme]["returns_check"]
            assert shown == f"{found['verdict']}, {-found['loss'] + 0.0:+.1f} ± {found['standard_error']:.1f}", name


def test_sizes_are_those_that_were_measured(measured):
    header, *rows = tables()[2]
    for name, *cells in rows:
        sizes = [f"{measured[name]['schemes'][scheme]['bytes']:,}" for scheme in header[1:]]
        assert cells == sizes, name
