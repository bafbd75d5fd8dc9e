"""`quarl-edge bench soak` as a command: what it refuses, what it says, and that wrong books are never an exit 0."""

import json
import os
import signal

import pytest

from quarl_edge.cli.app import run
from quarl_edge.soak.books import DeviceBooks
from quarl_edge.soak.run import SoakReport


def report(**changes):
    books = DeviceBooks(
        device="soak-0", made=100, stored=90, declared_dropped=4, unfinished=6, forgotten=0, kills=1, lives=2, blocks=9,
        duplicates=0, faults=changes.pop("book_faults", ()),
    )  # fmt: skip
    return SoakReport(
        **{
            "seconds": 5.0, "recovery_s": 1.0, "faults": {"cut": 2}, "devices": (books,), "broker_kills": 1,
            "learner_kills": 2, "returns": 0, **changes,
        }
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _sigterm():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def soaked(monkeypatch):
    def put(result):
        def pretend(config, folder, *, say):
            (folder / "left").write_text(str(config.seed))
            return result

        monkeypatch.setattr("quarl_edge.soak.run.soak", pretend)

    return put


def test_right_books_are_shown_and_nothing_is_left(soaked, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    soaked(report())
    assert run(["bench", "soak", "--seconds", "1"]) == 0
    said = capsys.readouterr().out
    assert "made 100 = stored 90 + dropped 4 + forgotten 0 + unfinished 6 (1 kills)" in said
    assert "the books are right" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changes", [{"wrong": ("soak-0 ended with 1",)}, {"book_faults": ("stored twice",)}])
def test_wrong_books_fail_and_keep_what_is_left(soaked, capsys, tmp_path, monkeypatch, changes):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    soaked(report(**changes))
    assert run(["bench", "soak", "--seed", "7", "--format", "json"]) == 76
    told = capsys.readouterr()
    first, last = (json.loads(line) for line in told.out.splitlines())
    assert (first["ok"], first["seed"], last["error"]["kind"]) == (False, 7, "StreamFault")
    [kept] = tmp_path.iterdir()
    assert (kept / "left").exists()
    assert str(kept) in told.err


def test_the_result_is_written_as_a_whole_file(soaked, tmp_path):
    soaked(report())
    assert run(["bench", "soak", "--out", str(tmp_path / "soak.json"), "--work", str(_new(tmp_path))]) == 0
    told = json.loads((tmp_path / "soak.json").read_text())
    assert told["ok"]
    assert told["machine"]
    assert told["devices"][0]["stored"] == 90


def _new(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_sigterm_takes_the_way_out_that_stops_what_was_started(monkeypatch, tmp_path):
    stopped = []

    def endless(config, folder, *, say):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            stopped.append(folder)

    monkeypatch.setattr("quarl_edge.soak.run.soak", endless)
    assert run(["bench", "soak", "--work", str(_new(tmp_path))]) == 143
    assert stopped


@pytest.mark.parametrize("kind", ["file", "full"])
def test_a_folder_that_is_in_use_is_refused(soaked, capsys, tmp_path, kind):
    soaked(report())
    (tmp_path / "file").write_text("mine")
    assert run(["bench", "soak", "--work", str(tmp_path / "file" if kind == "file" else tmp_path)]) == 2
    assert "no empty folder" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_result_that_could_not_be_written_is_refused_before_the_soak(soaked, capsys, tmp_path):
    soaked(report())
    assert run(["bench", "soak", "--out", str(tmp_path / "no" / "soak.json")]) == 2
    assert "mkdir -p" in capsys.readouterr().err


def test_an_unknown_fault_is_refused(capsys, tmp_path):
    assert run(["bench", "soak", "--only", "flood", "--work", str(tmp_path)]) == 2
    assert "there are broker kill, " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
