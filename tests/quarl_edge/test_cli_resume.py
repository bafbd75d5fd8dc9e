"""What a resume may change, and what it says when it may not."""

from __future__ import annotations

import json
import os

import pytest

from quarl_device.errors import CheckpointError, UsageError
from quarl_edge.cli.resume import next_budget, resumed_config, steps_done
from quarl_edge.configure import make_config
from quarl_edge.runs import RunDirectory

CONFIG = make_config("CartPole-v1", settings=["steps=1200", "evaluate_period_pushes=2"])
NOTHING = {"env": "", "algorithm": "", "preset": "", "asked": {}, "settings": []}


@pytest.fixture
def run(tmp_path):
    run = RunDirectory.create(CONFIG, path=tmp_path / "r")
    (run.checkpoints / "ckpt-000000000832").mkdir(parents=True)
    (run.checkpoints / "ckpt-000000001216").mkdir()
    return run


def resumed(run, **said):
    return resumed_config(run, **{**NOTHING, **said})


def test_budget_and_actors_may_change(run):
    assert resumed(run, asked={"steps": 2000, "actors": 1}) == CONFIG.replace(steps=2000, actors=1)
    assert resumed(run, settings=["steps=2000", "actors=0"]) == CONFIG.replace(steps=2000, actors=0)


def test_what_is_compiled_may_change(run):
    wanted = CONFIG.replace(steps=2000, edge_tpu=True, edge_tpu_period_pushes=5)
    assert resumed(run, asked={"steps": 2000, "edge_tpu": True}, settings=["edge_tpu_period_pushes=5"]) == wanted


def test_what_the_run_has_anyway_may_be_said_again(run):
    said = {"env": "CartPole-v1", "algorithm": "dqn", "settings": ["hidden=64,64"]}
    assert resumed(run, asked={"steps": 2000, "seed": 0}, **said) == CONFIG.replace(steps=2000)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"env": "Acrobot-v1"}, r"env_id = Acrobot-v1, but the run .*r has env_id = CartPole-v1"),
        ({"algorithm": "ppo"}, r"--algorithm ppo .* has algorithm = dqn"),
        ({"preset": "Acrobot-v1"}, r"--preset Acrobot-v1 asks for hidden = 128,128, but .* hidden = 64,64"),
        ({"preset": "CartPole-v1"}, r"evaluate_period_pushes = 8, but .* = 2"),
        ({"preset": "CartPol-v1"}, "did you mean 'CartPole-v1'"),
        ({"settings": ["hidden=32"]}, r"--set hidden asks for hidden = 32, but .* 64,64"),
        ({"settings": ["double_q=true"]}, r"double_q = True, but .* = False"),
        ({"asked": {"seed": 3}}, r"--seed asks for seed = 3, but .* seed = 0"),
        ({"asked": {"envs_per_actor": 4}}, r"--envs-per-actor asks for .* = 4, but .* = 1"),
        ({"asked": {"lockstep": True, "actors": 1}}, r"lockstep = True, but .* = False"),
    ],
)
def test_a_contradiction_names_both_values(run, said, message):
    asked = {"steps": 2000, **said.pop("asked", {})}
    with pytest.raises(UsageError, match=message):
        resumed(run, asked=asked, **said)


def test_a_module_that_only_the_runs_files_name_is_not_imported(tmp_path):
    own = make_config("quarl_none:My-v0", settings=["steps=1200"])
    run = RunDirectory.create(own, path=tmp_path / "r")
    (run.checkpoints / "ckpt-000000000832").mkdir(parents=True)
    with pytest.raises(UsageError, match="a module that a command line must name") as caught:
        resumed(run)
    assert caught.value.hint == f"quarl-edge train quarl_none:My-v0 --resume --run {tmp_path / 'r'}"
    assert resumed(run, env="quarl_none:My-v0", asked={"steps": 2000}).env_id == "quarl_none:My-v0"
    with pytest.raises(UsageError, match="env_id = other:My-v0, but the run"):
        resumed(run, env="other:My-v0")


def test_a_budget_that_is_used_up_says_what_makes_sense(run):
    with pytest.raises(UsageError, match=r"has done 1,216 steps, and --steps 1,000 .*all sessions.*\(--steps 2400\)"):
        resumed(run, asked={"steps": 1000})
    with pytest.raises(UsageError, match=r"has done 1,216 steps, and its budget of 1,200 .*\(--steps 2400\)"):
        resumed(run)


@pytest.mark.parametrize(("done", "usual", "wanted"), [(0, 100, 100), (99, 100, 100), (100, 100, 200), (350, 100, 400)])
def test_the_next_budget_leaves_something_to_do(done, usual, wanted):
    assert next_budget(done, usual) == wanted


def test_without_a_checkpoint(tmp_path):
    run = RunDirectory.create(CONFIG, path=tmp_path / "r")
    with pytest.raises(CheckpointError, match=r"no checkpoint to resume from .*quarl-edge train CartPole-v1"):
        steps_done(run)


def test_a_run_that_cannot_be_written_is_named(run, monkeypatch):
    run.check_writable()
    monkeypatch.setattr(os, "access", lambda path, _mode: path != run.checkpoints)
    with pytest.raises(UsageError, match=r"no permission in .*checkpoints"):
        run.check_writable()


def test_the_steps_of_a_second_checkpoint_at_one_step_are_read_too(tmp_path):
    from quarl_edge.checkpoint import Checkpoint, save_checkpoint
    from quarl_edge.cli.resume import steps_done

    run = RunDirectory(tmp_path)
    for _ in range(2):
        save_checkpoint(run.checkpoints, Checkpoint(state={}), env_steps=1_000)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["ckpt-000000001000", "ckpt-000000001000.1"]
    assert steps_done(run) == 1_000


def solve(run, return_mean):
    run.policy.mkdir()
    said = {"provenance": {"judged": {"result": {"return_mean": return_mean}}}}
    (run.policy / "policy.json").write_text(json.dumps(said))


def test_a_run_that_has_reached_its_goal_says_how_to_go_on(run):
    solve(run, 480.0)
    with pytest.raises(UsageError, match=r"480.0 of 475.*--set goal_return=none --steps 2400"):
        resumed(run, asked={"steps": 2000})
    beyond = resumed(run, asked={"steps": 2400}, settings=["goal_return=none"])
    assert beyond == CONFIG.replace(steps=2400, goal_return=None)
    assert resumed(run, asked={"steps": 2400}, settings=["goal_return=490"]).goal_return == 490


def test_a_run_below_its_goal_goes_on(run):
    solve(run, 470.0)
    assert resumed(run, asked={"steps": 2000}).goal_return == 475


def test_lockstep_judges_again_what_came_after_its_checkpoint(tmp_path):
    """So what it has kept says nothing of what the resume will find."""
    run = RunDirectory.create(CONFIG.replace(lockstep=True, actors=1), path=tmp_path / "r")
    (run.checkpoints / "ckpt-000000000832").mkdir(parents=True)
    solve(run, 480.0)
    assert resumed(run, asked={"steps": 2000}).steps == 2000
