"""The judgements of a run: each is kept, none is believed blindly, and no disk is worth a run."""

import json

import pytest
from run_factory import judged

from quarl_edge.judgements import JudgementLog, read_judgements

GOOD = {"env_steps": 7, "version": 1, "return_mean": 2.0, "return_std": 0.0, "episodes": 20}


def points(path):
    return [(each.env_steps, each.return_mean) for each in read_judgements(path).points]


def test_what_is_judged_is_read_back(tmp_path):
    path = tmp_path / "judgements.jsonl"
    log = JudgementLog(path)
    log.append(judged(100, 20.0, version=3, sha256="c" * 64))
    log.append(judged(250, 60.5, confirmation=58.25))
    first, second = read_judgements(path).points
    assert (first.env_steps, first.version, first.return_mean, first.return_std) == (100, 3, 20.0, 0.5)
    assert (first.episodes, first.sha256, first.runtime) == (20, "c" * 64, "double 1.0")
    assert (second.env_steps, second.return_mean) == (250, 60.5)
    assert (first.confirmation_mean, second.confirmation_mean) == (None, 58.25)


def test_what_a_resume_makes_again_takes_the_place_of_what_it_discarded(tmp_path):
    path = tmp_path / "judgements.jsonl"
    for env_steps, mean in ((100, 1.0), (200, 2.0), (300, 3.0), (200, 2.5), (250, 2.75)):
        JudgementLog(path).append(judged(env_steps, mean))
    assert points(path) == [(100, 1.0), (200, 2.5), (250, 2.75)]


def test_two_versions_at_the_same_steps_are_two_judgements(tmp_path):
    path = tmp_path / "judgements.jsonl"
    for version, mean in ((4, 1.0), (6, 2.0), (6, 2.5)):
        JudgementLog(path).append(judged(100, mean, version=version))
    assert points(path) == [(100, 1.0), (100, 2.5)]


@pytest.mark.parametrize(
    "change",
    [
        {"env_steps": -1}, {"env_steps": 10**18}, {"env_steps": None}, {"env_steps": "many"}, {"return_mean": None},
        {"return_mean": "nan"}, {"return_mean": 1e999}, {"return_std": []}, {"episodes": 0}, {"version": {}},
        {"env_steps": float("inf")}, {"confirmation_mean": "nan"}, {"confirmation_mean": []},
    ],
)  # fmt: skip
def test_a_line_that_does_not_hold_is_counted_and_left_out(tmp_path, change):
    path = tmp_path / "judgements.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (GOOD, {**GOOD, "env_steps": 9, **change})))
    found = read_judgements(path)
    assert [each.env_steps for each in found.points] == [7]
    assert found.damaged == 1


def test_a_disk_that_refuses_is_said_once(tmp_path, caplog):
    log = JudgementLog(tmp_path / "gone" / "judgements.jsonl")
    log.append(judged(1, 1.0))
    log.append(judged(2, 1.0))
    assert [record.message for record in caplog.records] == [
        f"judgements are not written to {tmp_path / 'gone' / 'judgements.jsonl'}: No such file or directory"
    ]


def test_a_full_file_is_said_once(tmp_path, caplog):
    path = tmp_path / "judgements.jsonl"
    with path.open("wb") as file:
        file.truncate(16 * 1024 * 1024)
    log = JudgementLog(path)
    log.append(judged(1, 1.0))
    log.append(judged(2, 1.0))
    assert len(caplog.records) == 1
    assert path.stat().st_size == 16 * 1024 * 1024
