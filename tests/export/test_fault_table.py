"""The table of public faults names tests that exist, and every test that is named for one of its rows."""

import re
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "reported-faults.md"
ROWS = {*range(1, 11), 12, 13, 14, *range(16, 22), *range(23, 27)}


def cells_of(text, *, columns):
    """Cells of every table of so many columns, without its head."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [cells for cells in lines if len(cells) == columns and "`" in cells[-1]]


def names_in(cell):
    return re.findall(r"`(test_\w+)`", cell)


@pytest.fixture(scope="module")
def defined():
    """How often each test function is defined, over all test modules."""
    modules = (path.read_text() for path in TESTS.rglob("test_*.py"))
    return Counter(name for text in modules for name in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE))


@pytest.fixture(scope="module")
def public():
    """Names of tests by row."""
    return {int(cells[0]): names_in(cells[-1]) for cells in cells_of(TABLE.read_text(), columns=4)}


def test_every_row_has_its_tests(public):
    assert set(public) == ROWS
    assert all(public.values())


def test_every_test_of_the_table_is_there_once(public, defined):
    seen = [name for cells in cells_of(TABLE.read_text(), columns=2) for name in names_in(cells[-1])]
    assert len(seen) > 30
    named = [*seen, *(name for names in public.values() for name in names)]
    assert {name: defined[name] for name in named if defined[name] != 1} == {}


def test_every_test_that_is_named_for_a_row_is_listed_in_it(public, defined):
    for name in defined:
        match = re.match(r"test_row_(\d+)_", name)
        assert match is None or name in public[int(match[1])], name
