from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta, timezone

import pytest

from quarl_device.errors import CheckpointError, RunNotFound, UsageError
from quarl_edge.algorithms.dqn import DqnConfig
from quarl_edge.runs import RunDirectory, latest, latest_policy, run_name

CONFIG = DqnConfig(env_id="CartPole-v1", seed=3)
NOON = datetime(2026, 1, 2, 12, 30, 5, tzinfo=UTC)


def with_policy(run: RunDirectory) -> RunDirectory:
    run.policy.mkdir()
    (run.policy / "policy.json").write_text("{}")
    return run


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("CartPole-v1", "CartPole-v1-dqn-20260102T123005Z-s3"),
        ("my.module:CartPole-v1", "CartPole-v1-dqn-20260102T123005Z-s3"),
        ("ALE/Pong-v5", "ALE_Pong-v5-dqn-20260102T123005Z-s3"),
        ("../../etc", "etc-dqn-20260102T123005Z-s3"),
        ("..", "env-dqn-20260102T123005Z-s3"),
        ("Ünder wörld", "nder_w_rld-dqn-20260102T123005Z-s3"),
    ],
)
def test_names(env_id, name):
    assert run_name(CONFIG.replace(env_id=env_id), NOON) == name


def test_time_in_the_name_is_utc():
    assert run_name(CONFIG, NOON.astimezone(timezone(timedelta(hours=9)))) == run_name(CONFIG, NOON)


def test_create_writes_the_config_and_open_reads_it(tmp_path):
    run = RunDirectory.create(CONFIG, root=tmp_path / "runs", now=NOON)
    assert run.path == tmp_path / "runs" / "CartPole-v1-dqn-20260102T123005Z-s3"
    again = RunDirectory.open(run.path)
    assert again.config == CONFIG
    parts = [again.checkpoints, again.policy, again.journal, again.tensorboard, again.logs]
    assert [part.name for part in parts] == ["checkpoints", "policy", "journal", "tb", "logs"]
    assert {part.parent for part in parts} == {run.path}


def test_two_runs_of_one_second_do_not_meet(tmp_path):
    paths = {RunDirectory.create(CONFIG, root=tmp_path, now=NOON).path for _ in range(3)}
    assert len(paths) == 3


def test_a_path_of_ones_own(tmp_path):
    run = RunDirectory.create(CONFIG, path=tmp_path / "a" / "mine")
    assert run.path == tmp_path / "a" / "mine"
    with pytest.raises(UsageError, match=r"not empty.*--resume"):
        RunDirectory.create(CONFIG, path=run.path)
    (tmp_path / "empty").mkdir()
    RunDirectory.create(CONFIG, path=tmp_path / "empty")


def test_a_path_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        RunDirectory.create(CONFIG, path=tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be made"):
        RunDirectory.create(CONFIG, root=tmp_path / "file" / "runs")


def test_open_without_a_run(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunNotFound, match="quarl-edge demo"):
            RunDirectory.open(path)


def test_a_damaged_config(tmp_path):
    run = RunDirectory.create(CONFIG, root=tmp_path)
    (run.path / "config.json").write_text("{")
    with pytest.raises(RunNotFound, match="damaged"):
        _ = RunDirectory.open(run.path).config
    (run.path / "config.json").write_text(json.dumps({**CONFIG.to_json(), "new": 1, "version": "7.0"}))
    with pytest.raises(CheckpointError, match=r"7\.0"):
        _ = RunDirectory.open(run.path).config
    (run.path / "config.json").write_bytes(b" " * 100_000)
    with pytest.raises(RunNotFound, match="cap"):
        _ = RunDirectory.open(run.path).config


def test_latest_is_the_newest_with_a_policy(tmp_path):
    old = with_policy(RunDirectory.create(CONFIG, root=tmp_path, now=NOON))
    new = with_policy(
        RunDirectory.create(CONFIG.replace(env_id="Acrobot-v1"), root=tmp_path, now=NOON + timedelta(hours=1))
    )
    RunDirectory.create(CONFIG, root=tmp_path, now=NOON + timedelta(hours=2))
    (tmp_path / "stray").write_text("")
    (tmp_path / "no-run").mkdir()
    # The time of the run decides, not when its policy was last touched.
    os.utime(old.policy / "policy.json", (2e9, 2e9))
    assert latest(tmp_path).path == new.path
    assert latest_policy(root=tmp_path) == new.policy


def test_latest_with_names_of_ones_own(tmp_path):
    with_policy(RunDirectory.create(CONFIG, root=tmp_path, now=NOON))
    mine = with_policy(RunDirectory.create(CONFIG, path=tmp_path / "mine"))
    os.utime(mine.path / "config.json", (NOON.timestamp() + 60, NOON.timestamp() + 60))
    assert latest(tmp_path).path == mine.path
    os.utime(mine.path / "config.json", (NOON.timestamp() - 60, NOON.timestamp() - 60))
    assert latest(tmp_path).path != mine.path


def test_no_run_says_how_to_make_one(tmp_path):
    RunDirectory.create(CONFIG, root=tmp_path)
    for root in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunNotFound, match="quarl-edge demo"):
            latest(root)


def test_a_source_may_be_a_run_or_a_policy(tmp_path):
    run = with_policy(RunDirectory.create(CONFIG, root=tmp_path))
    assert latest_policy(source=run.path) == run.policy
    assert latest_policy(source=run.policy) == run.policy
    with pytest.raises(RunNotFound, match="no run and no policy"):
        latest_policy(source=tmp_path)
    bare = RunDirectory.create(CONFIG, path=tmp_path / "bare")
    with pytest.raises(RunNotFound, match="not kept a policy yet"):
        latest_policy(source=bare.path)


def fail(run):
    with pytest.raises(UsageError, match="no broker"), run.kept_if_begun():
        raise UsageError("no broker")


def test_a_start_that_fails_leaves_no_run(tmp_path):
    run = RunDirectory.create(CONFIG, root=tmp_path / "runs", now=NOON)
    run.tensorboard.mkdir()
    (run.tensorboard / "events").write_text("nothing of worth")
    run.logs.mkdir()
    (run.logs / "broker.log").touch()
    (run.path / "learner.pub").write_text("key")
    run.sessions.write_text("{}\n")
    fail(run)
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("part", ["checkpoints/ckpt-1", "policy/policy.json", "journal/segment", "logs/actor-0.log"])
def test_a_run_that_has_something_to_tell_is_kept_when_it_fails(tmp_path, part):
    run = RunDirectory.create(CONFIG, root=tmp_path / "runs", now=NOON)
    (run.path / part).parent.mkdir()
    (run.path / part).write_text("what was stored, learned or said")
    fail(run)
    assert (run.path / part).exists()
    assert RunDirectory.open(run.path).config == CONFIG


def test_what_else_lies_in_the_users_directory_stays_there(tmp_path):
    run = RunDirectory.create(CONFIG, path=tmp_path / "mine")
    (run.path / "notes.txt").write_text("the user's")
    fail(run)
    assert [path.name for path in run.path.iterdir()] == ["notes.txt"]


def test_nothing_is_taken_from_a_run_that_ends_well(tmp_path):
    run = RunDirectory.create(CONFIG, path=tmp_path / "mine")
    with run.kept_if_begun():
        pass
    assert RunDirectory.open(run.path).config == CONFIG


@pytest.mark.parametrize("part", [None, "logs/actor-0.log", "journal/segment", "checkpoints/ckpt-1"])
def test_an_interrupted_run_stays_only_where_something_was_stored_or_learned(tmp_path, part):
    run = RunDirectory.create(CONFIG, path=tmp_path / "mine")
    if part is not None:
        (run.path / part).parent.mkdir()
        (run.path / part).write_text("x")
    gone = part is None or part.startswith("logs")
    assert run.discard_if_untouched() == gone
    assert run.path.exists() != gone


@pytest.mark.parametrize("text", ["", "[]", "{", '{"provenance": {"judged": null}}', "[" * 10_000])
def test_a_kept_return_that_nothing_says_is_none(tmp_path, text):
    run = RunDirectory.create(CONFIG, path=tmp_path / "mine")
    assert run.kept_return() is None
    run.policy.mkdir()
    (run.policy / "policy.json").write_text(text)
    assert run.kept_return() is None
