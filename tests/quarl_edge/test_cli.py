"""Every way in which a command can end: one line, its code, and never a traceback."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quarl_device.errors import ModelFileError
from quarl_device.files import check_target
from quarl_edge.cli import app as cli_app
from quarl_edge.cli import main
from quarl_edge.cli.interrupts import quit_at_interrupt
from quarl_edge.cli.output import _Logged, hint_where_none, write_table
from quarl_edge.configure import make_config
from quarl_edge.runs import RunDirectory

MODEL = Path(__file__).parents[1] / "data" / "cartpole.tflite"
EDGE = [sys.executable, "-m", "quarl_edge"]


def shell(line, **more):
    """Run a line of shell in which "$@" is the command; returns it with stdout and stderr as text."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *EDGE], capture_output=True, text=True, timeout=60, check=False, **more
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "CartPole-v1", "--stpes", "3"], "--steps"),
        (["train", "--actors", "x"], "'--actors'"),
        (["nonsense"], "nonsense"),
        (["evalute", "x"], "'evaluate'"),
        (["evaluate"], "quarl-edge evaluate --help"),
        (["evaluate", "x", "--seed", str(2**31 - 1)], "2146483647"),
        (["train", "CartPole-v1", "--actors", "0"], "--broker mqtt://"),
        (["train", "CartPole-v1", "--set", "actors=0"], "--broker mqtt://"),
        (["train", "CartPole-v1", "--set", "hidden=8192,8192"], "--set hidden=4096,4096"),
        (["train", "CartPole-v1", "--set", "hiden=64"], "'hidden'"),
        (["train", "CartPole-v1", "--algorithm", "dqm"], "'dqn'"),
        (["train", "CartPole-v1", "--preset", "cartpole"], "'CartPole-v1'"),
        (["train", "CartPole-v1", "--broker", "http://x"], "mqtt"),
    ],
)
def test_wrong_usage_is_one_line_and_an_object(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    plain = capsys.readouterr()
    assert plain.out == ""
    assert plain.err.startswith("quarl-edge: error: ")
    assert plain.err.count("\n") == 1
    assert says in plain.err
    assert main([*words, "--format", "json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["kind"]) == (2, "UsageError")
    # Nothing was begun.
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [[], ["bench"]])
def test_without_a_command_the_help_is_shown(words, capsys):
    assert main(words) == 2
    assert "Usage: quarl-edge" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["train", "--help"]])
def test_what_was_asked_for_is_no_error(words, capsys):
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.out
    assert captured.err == ""


def test_help_says_that_steps_are_a_total(capsys):
    main(["train", "--help"])
    assert "over all sessions" in " ".join(capsys.readouterr().out.split())


def test_a_missing_model_comes_with_the_command_that_makes_one(capsys, tmp_path):
    assert main(["evaluate", str(tmp_path / "none.tflite")]) == 10
    assert "quarl-edge export model.tflite" in capsys.readouterr().err
    (tmp_path / "bad.tflite").write_bytes(MODEL.read_bytes()[:3000])
    assert main(["evaluate", str(tmp_path / "bad.tflite")]) == 10
    assert "quarl-edge export model.tflite" in capsys.readouterr().err


def test_a_damaged_policy_comes_with_the_command_that_makes_one(capsys, tmp_path):
    run = RunDirectory.create(make_config("CartPole-v1"), path=tmp_path / "r")
    run.policy.mkdir()
    (run.policy / "policy.json").write_text("x")
    assert main(["export", str(tmp_path / "m.tflite"), "--from", str(run.path)]) == 71
    assert "quarl-edge demo" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["export"], ["demo", "--out"]])
def test_a_target_that_cannot_be_is_refused_before_any_work(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*command, "none/m.tflite"]) == 10
    assert "no directory none (mkdir -p none)" in capsys.readouterr().err
    assert main([*command, str(tmp_path)]) == 10
    assert "is a directory" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main([*command, "m.tflite"]) == 10
    assert f"no permission to write in {tmp_path}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_target_that_can_be(tmp_path):
    check_target(tmp_path / "m.tflite")
    (tmp_path / "m.tflite").write_text("older")
    check_target(tmp_path / "m.tflite")


def test_without_a_home_the_option_for_the_key_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("quarl_edge.cli.train.config_dir", homeless)
    assert main(["train", "CartPole-v1"]) == 42
    assert "--learner-key FILE" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("quarl_edge.cli.train.config_dir", lambda: tmp_path / "file" / "x")
    assert main(["train", "CartPole-v1"]) == 42
    assert "--learner-key FILE" in capsys.readouterr().err
    # No run was made for nothing.
    assert not (tmp_path / "runs").exists()


def test_what_nobody_foresaw_of_the_system_is_one_line(capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "/data/x")

    monkeypatch.setattr(cli_app, "app", full)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "quarl-edge: error: /data/x: No space left on device\n"


@pytest.mark.parametrize("words", [["inspect", "x" * 300], ["export", "x" * 300, "--from", "policy.tflite"]])
def test_a_name_that_no_file_system_takes_is_wrong_usage(capsys, words):
    assert main(words) == 2
    assert capsys.readouterr().err == f"quarl-edge: error: {'x' * 77}...: File name too long (give another path)\n"


def test_an_interrupted_command_ends_with_130_quietly(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_app, "app", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("after_s", [0.15, 0.25, 0.4])
def test_an_interrupt_during_imports_is_quiet(after_s, tmp_path):
    # From the moment `main` is found; before it Python itself is starting.
    program = (
        "import sys; from quarl_edge.cli import main; sys.stderr.write('!'); sys.stderr.flush(); "
        "sys.exit(main(['demo', '--runs', '/dev/null/x']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr.read(1) == b"!"
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_the_handler_of_imports_is_gone_afterwards():
    before = signal.getsignal(signal.SIGINT)
    with quit_at_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with quit_at_interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_reader_that_leaves_gives_no_traceback(output):
    done = shell(f'"$@" evaluate {MODEL} --episodes 1 --format {output} | head -0; echo "${{PIPESTATUS[0]}}"')
    assert done.stdout == "1\n"
    assert done.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_give_no_traceback(closed):
    done = shell(f'"$@" evaluate {MODEL} --episodes 1 --format json {closed}')
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("words", ["--version", f"evaluate {MODEL} --episodes 1 --format json"])
def test_a_full_disk_under_stdout_is_one_line(words):
    done = shell(f'"$@" {words} >/dev/full')
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr


def test_warnings_read_like_errors_do(capsys):
    record = logging.LogRecord("quarl_device.link.paho", logging.WARNING, "f", 1, "link to %s lost", ("h:1",), None)
    _Logged().emit(record)
    assert capsys.readouterr().err == "quarl-edge: warning: link to h:1 lost\n"


def test_warnings_of_any_part_come_out_that_way():
    program = (
        "import logging; from quarl_edge.cli.output import log_for_people; log_for_people(); "
        "logging.getLogger('quarl_device.link.paho').warning('lost'); logging.getLogger('x').info('nothing')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "quarl-edge: warning: lost\n"


def test_a_hint_of_its_own_is_kept():
    for error, hint in ((ModelFileError("x"), "make one"), (ModelFileError("x", hint="own"), "own")):
        with contextlib.suppress(ModelFileError), hint_where_none("make one", ModelFileError):
            raise error
        assert error.hint == hint


def test_a_digest_stands_on_a_line_of_its_own(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    write_table("t", [("a", "b")], ["next"], below=["sha256 " + "0" * 64])
    assert "sha256 " + "0" * 64 in capsys.readouterr().out.splitlines()


def test_where_the_shell_does_not_find_the_command_the_way_to_it_comes_first(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    write_table("t", [("a", "b")], ["quarl-edge evaluate m"])
    assert "activate" not in capsys.readouterr().out
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text("")
    write_table("t", [("a", "b")], ["quarl-edge evaluate m"])
    assert capsys.readouterr().out.endswith("Next:\n  . .venv/bin/activate\n  quarl-edge evaluate m\n")
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/quarl-edge")
    write_table("t", [("a", "b")], ["quarl-edge evaluate m"])
    assert "activate" not in capsys.readouterr().out
