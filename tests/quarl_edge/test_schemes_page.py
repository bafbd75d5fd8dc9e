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


def prose():
    return re.sub(r"^\|.*\|$|^    .*$", "", (DOCS / "schemes.md").read_text(), flags=re.MULTILINE)


def test_nothing_is_left_to_be_filled_in():
    assert re.findall(r"\b[A-Z]+_[A-Z]+(?:_[A-Z]+)*\b|\bTODO\b|\bTBD\b|\bof \(`", prose()) == []


CALIBRATIONS = {
    "SB3 DQN": "calibration-dqn-cartpole.json",
    "SB3 A2C": "calibration-a2c-cartpole.json",
    "SB3 PPO, VecNormalize, continuous": "calibration-ppo-pendulum.json",
}


def test_calibrations_are_those_that_were_measured():
    expected = [
        [
            name, ", ".join(found["turns"]), *(str(found[verdict]) for verdict in ("held", "undecided", "lost")),
            f"{found['loss_median']:.1f}", f"{found['loss_max']:.1f}", f"{found['clipped_max']:.1%}",
        ]
        for name, file in CALIBRATIONS.items()
        for found in json.loads((DOCS / "results" / file).read_text())["mixtures"]
    ]  # fmt: skip
    assert tables()[3][1:] == expected


def test_what_the_prose_says_is_what_was_measured(measured):
    """Each claim beside the figures that it is of: a table that is played again must not leave it behind."""
    text = " ".join(prose().split())
    dqn = {scheme: cell["return_mean"] for scheme, cell in measured["SB3 DQN"]["schemes"].items()}
    assert "its `dynamic` file, which has no other integers, returns less than half, as int16x8 does" in text
    assert max(dqn["dynamic"], dqn["int16x8"]) < dqn["float32"] / 2
    undecided = [cell for row in measured.values() for cell in row["schemes"].values()
                 if cell["returns_check"]["verdict"] == "undecided"]  # fmt: skip
    assert "An undecided file is written where Q03, Q10 and Q11 pass, as they do here" in text
    assert undecided
    assert all(cell["failed_checks"] == [] for cell in undecided)
    by_turns = {
        name: {tuple(found["turns"]): found for found in json.loads((DOCS / "results" / file).read_text())["mixtures"]}
        for name, file in CALIBRATIONS.items()
    }
    ours, no_random = ("policy", "noisy", "random"), ("policy", "policy", "noisy")
    more = ("policy", "policy", "noisy", "random")
    assert "More episodes of the policy's own make files worse, none of random actions by far the worst" in text
    for name in ("SB3 DQN", "SB3 PPO, VecNormalize, continuous"):
        found = by_turns[name]
        assert found[ours]["held"] > found[more]["held"] > found[no_random]["held"]
        assert found[ours]["rows"][0]["verdict"] == "undecided"
    assert "Of seed 0, the default of an export, the files of this DQN and of this PPO are undecided" in text
    [centred] = json.loads((DOCS / "results" / "calibration-dqn-cartpole-centred.json").read_text())["mixtures"]
    assert f"With `--center-q` {centred['held']} of the DQN's ten files hold" in text
    assert "All of its single actions are within 5 % of float's with every seed" in text
    ppo = by_turns["SB3 PPO, VecNormalize, continuous"].values()
    assert {row["agreement"] for found in ppo for row in found["rows"]} == {1.0}


def test_options_after_training_are_worth_what_was_measured():
    found = json.loads((DOCS / "results" / "qat-after-training.json").read_text())
    page = (DOCS / "qat.md").read_text()
    expected = [
        f"| {row['return_mean']:.1f} | {100 * row['agreement']:.0f} % | {100 * row['regret']:.1f} % | "
        f"{row['bytes']:,} | {row['verdict']} |"
        for row in found["rows"]
    ]
    shown = re.findall(r"^\| (?:none: int8 head|`--.*?`) (\|.*\|)$", page, re.MULTILINE)
    assert shown == expected
    assert f"({100 * found['rows'][0]['agreement']:.0f} % of actions)" in page
    assert all(row["forced"] for row in found["rows"])
