"""The tables of `train` and `demo` say how the best policy was chosen, and what is of this session alone."""

from __future__ import annotations

import dataclasses
import functools
import json

from quarl_device.evaluate import Evaluation
from quarl_edge.cli import train
from quarl_edge.cli.demo import DemoReport, _rows, _show
from quarl_edge.cli.output import Format
from quarl_edge.cli.summary import audit_rows, edge_tpu_rows, refused_rows, selection
from quarl_edge.configure import make_config
from quarl_edge.learner.edge_tpu_counters import EdgeTpuCounters
from quarl_edge.learner.result import StopReason, TrainResult
from quarl_edge.local.evaluator import Judged
from quarl_edge.runs import RunDirectory

CONFIG = make_config("CartPole-v1", settings=["steps=1000"])
PLAYED = Evaluation(
    env_id="CartPole-v1", episodes=20, seed=1000, returns=(480.0,) * 20, return_mean=480.0, return_std=0.0,
    runtime="litert", sha256="0" * 64, act_us_p50=1.0, steps=9_600,
)  # fmt: skip


train_rows = functools.partial(train._rows, wall_s=9.84)
show_run = functools.partial(train._show, wall_s=9.84)


def judged(env_steps):
    return Judged(version=3, env_steps=env_steps, result=PLAYED)


def result(**changes):
    values = {
        "reason": StopReason.BUDGET, "env_steps": 2016, "session_env_steps": 816, "updates": 4000,
        "session_updates": 1600, "pushes": 25, "train_s": 3.25, "prepare_ms_p50": 1.5, "push_ms_p50": None,
        "actor_act_us_p50": None, "best": judged(1500), "devices": 2, "samples_per_insert": 128.0, "audited": 3,
        "judgements": 12, "last_return_mean": 412.5,
    }  # fmt: skip
    return TrainResult(**{**values, **changes})


def test_the_rule_of_selection_is_said():
    assert selection(12, 20, 412.5) == "best of 12 judgements on the same 20 start seeds; the last one: 412.5"
    assert selection(1, 20, None) == "best of 1 judgement on the same 20 start seeds"
    assert "of an earlier session" in selection(2, 20, 9.0, earlier=True)


def test_this_session_and_the_whole_run_are_told_apart():
    rows = dict(train_rows(CONFIG, result()))
    assert rows["this session"] == "816 env steps, 1,600 updates, 25 pushes, 3.2 s"
    assert rows["total time"] == "9.8 s, with set-up and judging"
    assert rows["whole run"] == "2,016 env steps, 4,000 updates"
    assert rows["int8 return"] == "480.0 at 1,500 steps"
    assert rows["chosen as"].startswith("best of 12 judgements")
    assert "earlier session" in dict(train_rows(CONFIG, result(best=judged(900))))["chosen as"]
    assert dict(train_rows(CONFIG, result(best=None)))["int8 return"] == "none yet"


def test_what_is_wrong_has_a_row_and_what_is_right_has_none():
    assert not {"audits", "refused blocks"} & set(dict(train_rows(CONFIG, result())))
    rows = dict(train_rows(CONFIG, result(audit_failures=1, ingest_refused={"34": 2, "21": 1})))
    assert rows["audits"].startswith("1 of 3 pushes differed")
    assert rows["refused blocks"].startswith("1 with error 21, 2 with error 34")
    assert audit_rows(3, 0) == refused_rows({}) == []
    assert "too odd" in dict(train_rows(CONFIG, result(conversion_reason="too odd")))["converted"]


def test_the_line_to_resume_is_shown_where_it_works(tmp_path, capsys):
    run = RunDirectory(tmp_path)
    show_run(CONFIG, run, result())
    assert f"--resume --run {tmp_path} --steps 3000" in capsys.readouterr().out
    show_run(CONFIG, run, result(reason=StopReason.INTERRUPTED, env_steps=900, session_env_steps=900))
    assert "--steps 1000" in capsys.readouterr().out
    show_run(CONFIG, run, result(resumable=False))
    assert "--resume" not in capsys.readouterr().out
    show_run(CONFIG, run, result(reason=StopReason.SOLVED))
    assert f"--resume --run {tmp_path} --steps 3000 --set goal_return=none" in capsys.readouterr().out


def test_the_object_of_train_is_json(tmp_path):
    report = json.loads(
        json.dumps(train._summary(CONFIG, RunDirectory(tmp_path), result(ingest_refused={"34": 1}), wall_s=9.84))
    )
    assert report["judgements"] == 12
    assert (report["train_s"], report["wall_s"]) == (3.25, 9.84)
    assert report["last_return_mean"] == 412.5
    assert (report["session_env_steps"], report["env_steps"]) == (816, 2016)
    assert report["refused"] == {"34": 1}
    assert report["resumable"] is True


REPORT = DemoReport(
    env="CartPole-v1", algorithm="dqn", seed=0, solved=True, wall_s=12.0, train_s=1.0, env_steps=3000, updates=4800,
    updates_per_s=4800.0, actor_steps_per_s=3000.0, pushes=76, audited=2, audit_failures=0, conversion_reason="",
    push_ms_p50=5.5, prepare_ms_p50=1.6, int8_return_mean=500.0, float_return_mean=500.0, fresh_return_mean=499.0,
    confirmation_return_mean=498.0,
    judgements=9, last_return_mean=500.0, episodes=20, episode_seed=1000, goal_return=475.0, policy_bytes=8864,
    float_bytes=21520, act_us_p50=1.6, runtime="litert", machine="this", model="model.tflite", run="runs/x",
)  # fmt: skip


def test_the_demo_says_how_its_file_was_chosen(capsys):
    assert dict(_rows(REPORT))["chosen as"].startswith("best of 9 judgements on the same 20 start seeds")
    assert "audits" not in dict(_rows(REPORT))
    assert dict(_rows(REPORT))["confirmed by"].startswith("498.0")
    assert "confirmed by" not in dict(_rows(dataclasses.replace(REPORT, confirmation_return_mean=None)))
    assert dict(_rows(REPORT))["pushes"] == "76  (5.5 ms p50 to ready on an actor, 1.6 ms in the learner)"
    untold = dataclasses.replace(REPORT, push_ms_p50=None, prepare_ms_p50=None)
    assert dict(_rows(untold))["pushes"] == "76  (- p50 to ready on an actor, - in the learner)"
    _show(REPORT, Format.JSON)
    report = json.loads(capsys.readouterr().out)
    assert (report["audited"], report["audit_failures"], report["judgements"]) == (2, 0, 9)


def test_the_line_to_resume_says_how_the_run_met_its_actors(tmp_path, capsys):
    given = {"--broker": "", "--fleet": "arms", "--credentials": tmp_path / "my learner", "--password-file": None}
    show_run(CONFIG, RunDirectory(tmp_path), result(), words=train._words(given))
    assert f"--fleet arms --credentials '{tmp_path}/my learner'" in capsys.readouterr().out


def test_a_run_that_left_nothing_says_so(tmp_path, capsys):
    show_run(CONFIG, RunDirectory(tmp_path), result(resumable=False), kept=False)
    assert "removed: it ended before its first checkpoint" in capsys.readouterr().out
    show_run(CONFIG, RunDirectory(tmp_path), result())
    assert "removed" not in capsys.readouterr().out


def test_compiled_pushes_have_a_row_where_some_were_asked_for():
    assert edge_tpu_rows(None) == []
    assert edge_tpu_rows(EdgeTpuCounters(published=7)) == [("Edge TPU", "7 compiled pushes")]
    failed = EdgeTpuCounters(published=1, failures=3, last_failure="died of signal 11")
    [row] = edge_tpu_rows(failed)
    assert row == ("Edge TPU", "1 compiled pushes; 3 were not compiled, the last: died of signal 11")
    assert row in train_rows(CONFIG, result(edge_tpu=failed))
