"""A sweep over two seeds as a user makes it, and everything that is looked at afterwards."""

import json
import signal
from pathlib import Path

import pytest
from runs_helper import EDGE, Started, edge, last_json
from tensorboard_events import read_events

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
NO_GOAL = ["--set", "goal_return=none"]
SWEEP = ["train", "CartPole-v1", "--seeds", "0,3", "--steps", 1000, "--actors", 1, "--set", "hidden=32", *NO_GOAL]
SWEEP += ["--format", "json"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two short runs, and what `train --seeds` said of them."""
    folder = tmp_path_factory.mktemp("sweep")
    done = edge(*SWEEP, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, last_json(done)


def test_a_sweep_is_one_run_per_seed(swept):
    folder, said = swept
    assert said["seeds"] == [0, 3]
    assert [run["reason"] for run in said["runs"]] == ["budget", "budget"]
    best = [run["int8_return_mean"] for run in said["runs"]]
    assert said["int8_return_mean"] == pytest.approx(sum(best) / 2)
    listed = last_json(edge("runs", "ls", "--format", "json", cwd=folder))["runs"]
    assert sorted(run["seed"] for run in listed) == [0, 3]
    for run, trained in zip(sorted(listed, key=lambda each: each["seed"]), said["runs"], strict=True):
        assert (run["state"], run["reason"], run["damage"]) == ("ended", "budget", [])
        assert run["int8_return_mean"] == trained["int8_return_mean"]
        assert run["last_return_mean"] == trained["last_return_mean"]
        assert run["env_steps"] == trained["env_steps"]
        assert run["judgements"] == trained["judgements"] > 0


def test_a_sweep_that_is_done_has_nothing_left_to_go_on_with(swept):
    folder, said = swept
    done = edge(*SWEEP, "--resume", cwd=folder)
    assert done.returncode == 0, done.stderr
    again = last_json(done)
    assert [run["earlier"] for run in again["runs"]] == [True, True]
    assert again["int8_return_mean"] == said["int8_return_mean"]
    assert [run["run"] for run in again["runs"]] == [run["run"] for run in said["runs"]]


def test_a_run_says_what_it_was_and_how_runs_differ(swept):
    folder, said = swept
    run = Path(said["runs"][1]["run"]).name
    shown = last_json(edge("runs", "show", run, "--format", "json", cwd=folder))
    assert shown["settings_changed"]["hidden"]["run"] == [32]
    assert shown["settings_changed"]["seed"]["run"] == 3
    assert len(shown["policy_sha256"]) == 64
    assert shown["policy_sha256"] in {point["sha256"] for point in shown["judgements"]}
    assert shown["checkpoints"]
    both = [each["run"] for each in said["runs"]]
    compared = last_json(edge("runs", "compare", *both, "--format", "json", cwd=folder))
    assert compared["settings"] == {"seed": [0, 3]}


def test_the_curve_is_of_the_judgements(swept):
    folder, said = swept
    runs = [run["run"] for run in said["runs"]]
    done = edge("plot", *runs, "--out", "c.svg", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    (curve,) = last_json(done)["curves"]
    assert (curve["seeds"], curve["label"]) == ([0, 3], "dqn (2 seeds)")
    assert curve["best_of_runs"] == [run["int8_return_mean"] for run in said["runs"]]
    assert "mean return of the int8 file" in (folder / "c.svg").read_text()


def test_tensorboard_has_what_people_look_at(swept):
    folder, said = swept
    run = said["runs"][0]
    events = read_events(folder / run["run"] / "tb")
    expected = {
        "return/int8_mean", "return/int8_std", "learner/loss", "learner/q_mean", "learner/updates",
        "ranges/bits_lost", "ranges/clipped_share", "ranges/healthy", "ranges/pushes_held_back",
        "ranges/input_low", "ranges/input_high", "ranges/hidden_1_high", "ranges/head_low", "ranges/head_high",
        "lag/versions_max", "lag/env_steps_max", "lag/seconds_max",
        "rate/samples_per_insert", "rate/env_steps_per_s", "rate/updates_per_s", "actors/online", "actors/epsilon",
    }  # fmt: skip
    assert expected <= set(events)
    assert max(value for _, value in events["return/int8_mean"]) == pytest.approx(run["int8_return_mean"], rel=1e-5)
    lines = (folder / run["run"] / "judgements.jsonl").read_text().splitlines()
    noted = [json.loads(line) for line in lines]
    told = events["return/int8_mean"]
    assert [(each["env_steps"], pytest.approx(each["return_mean"], rel=1e-5)) for each in noted] == told


def test_ctrl_c_ends_the_run_and_the_sweep(tmp_path):
    words = [*EDGE, "train", "CartPole-v1", "--seeds", "0-9", "--actors", 1, "--format", "json", *NO_GOAL]
    with Started(words, cwd=tmp_path, log=tmp_path / "log") as learner:
        learner.wait_for(lambda: "int8 return" in learner.said(), seconds=120, what="training")
        listed = last_json(edge("runs", "ls", "--format", "json", cwd=tmp_path))["runs"]
        assert [run["state"] for run in listed] == ["running"]
        code, out = learner.end(signal.SIGINT)
    assert code == 0
    said = json.loads(out.splitlines()[-1])
    assert [run["reason"] for run in said["runs"]] == ["interrupted"]
    assert (said["seeds"], said["seeds_not_begun"]) == ([0], 9)
    listed = last_json(edge("runs", "ls", "--format", "json", cwd=tmp_path))["runs"]
    assert [(run["state"], run["reason"]) for run in listed] == [("ended", "interrupted")]
