"""`quarl-edge bench calibration`: what it says of each seed, and what docs/schemes.md says of its raw output."""

import json
from pathlib import Path

import numpy as np
import pytest

from quarl_edge.bench.calibration import judged_on, summarize
from quarl_edge.cli import app
from quarl_export.calibration import CalibrationData

TRAINED = Path(__file__).parent.parent / "data" / "trained"
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def run(capfd, *words):
    code = app.run(["bench", "calibration", *map(str, words)])
    out, err = capfd.readouterr()
    return code, out, err


def test_every_mixture_is_judged_seed_by_seed(capfd):
    words = ("--env", "CartPole-v1", "--seeds", 1, "--steps", 400, "--episodes", 10, "--format", "json")
    code, out, err = run(capfd, TRAINED / "a2c_cartpole.zip", *words, "--turns", "policy", "--turns", "policy,random")
    assert code == 0, err
    said = json.loads(out)
    assert (said["steps"], said["rule"], said["episodes"]) == (400, "minmax", 10)
    assert {"machine", "version", "runtime"} <= set(said)
    assert said["random_return_mean"] < 60 < said["float_return_mean"]
    assert [mixture["turns"] for mixture in said["mixtures"]] == [["policy"], ["policy", "random"]]
    for mixture in said["mixtures"]:
        [row] = mixture["rows"]
        assert mixture[row["verdict"]] == mixture["seeds"] == 1
        assert row["file_return_mean"] == pytest.approx(said["float_return_mean"] - row["loss"])


def test_a_way_to_act_that_is_none_is_one_line(capfd):
    code, _, err = run(capfd, "nothing.zip", "--env", "CartPole-v1", "--turns", "policy,best")
    assert code == 2
    assert "'best' is no way to act" in err
    assert "policy, noisy, random" in err


def data(values):
    rows = {"observation": np.full((len(values), 1), 0.0, np.float32) + np.array(values, np.float32)[:, None]}
    return CalibrationData(rows=rows, source="test")


def test_files_are_judged_on_episodes_that_were_not_calibrated_with():
    calibrate, held_out = judged_on(data([1, 2, 3]), data([4, 5])).split()
    assert calibrate.rows["observation"].ravel().tolist() == [1, 2, 3]
    assert held_out.rows["observation"].ravel().tolist() == [4, 5]


def test_a_summary_counts_verdicts():
    rows = [
        {"verdict": verdict, "loss": loss, "clipped": 0.1 * loss, "agreement": 0.5}
        for verdict, loss in (("held", 1.0), ("lost", 9.0), ("held", 2.0))
    ]
    found = summarize(rows)
    assert (found["seeds"], found["held"], found["undecided"], found["lost"]) == (3, 2, 0, 1)
    assert (found["loss_median"], found["loss_max"], found["clipped_max"]) == (2.0, 9.0, pytest.approx(0.9))


@pytest.mark.parametrize("path", sorted(RESULTS.glob("calibration-*.json")), ids=lambda path: path.stem)
def test_a_published_summary_is_that_of_its_rows(path):
    for mixture in json.loads(path.read_text())["mixtures"]:
        found = summarize(mixture["rows"])
        assert found["seeds"] >= 10
        assert {name: mixture[name] for name in found} == found
