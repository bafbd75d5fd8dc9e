"""`quarl-edge bench push | act | schemes` as commands: their JSON, and what they refuse before any work."""

import json
from pathlib import Path

import pytest

from quarl_edge.bench.schemes import SCHEME_COLUMNS
from quarl_edge.cli import app

TRAINED = Path(__file__).parent.parent / "data" / "trained"


def run(capfd, *words):
    code = app.run([*map(str, words)])
    out, err = capfd.readouterr()
    return code, out, err


def test_bench_push_says_what_it_measured(capfd):
    words = ("--hidden", "8", "--pushes", 5, "--conversions", 1, "--format", "json")
    code, out, err = run(capfd, "bench", "push", *words)
    assert code == 0
    stages = ["loading", "converting", "timing 5 patches and 1 conversions", "measuring memory"]
    assert all(line.startswith(stage) for line, stage in zip(err.splitlines(), stages, strict=True)), err
    said = json.loads(out.splitlines()[-1])
    assert set(said) >= {"patch_ms_p50", "convert_ms_p50", "ratio", "identical", "audited", "machine"}
    assert said["identical"] is True


@pytest.mark.parametrize(("hidden", "chunks"), [("8", 0), ("640,640", 7)])
def test_bench_push_end_to_end_counts_every_actor(capfd, hidden, chunks):
    words = ("--end-to-end", "--hidden", hidden, "--actors", 2, "--pushes", 3, "--format", "json")
    code, out, err = run(capfd, "bench", "push", *words)
    assert code == 0, err
    stages = ["loading", "converting", "starting 2 actor processes and a Mosquitto", "timing 3 pushes"]
    assert [line for line in err.splitlines() if line.startswith(tuple(stages))] == err.splitlines()[: len(stages)]
    said = json.loads(out.splitlines()[-1])
    assert (said["actors"], said["pushes"], said["chunks"], said["broker"]) == (2, 3, chunks, "mosquitto")
    assert 0 < said["prepare_ms_p50"] < said["any_actor_ms_p50"] <= said["first_action_ms_p50"]
    assert said["first_action_ms_p50"] <= said["first_action_ms_p99"]
    stages = said["stages_ms_p50"]
    assert list(stages) == ["read", "patch", "examine", "seal", "travel", "start"]
    assert all(took > 0 for took in stages.values())
    assert chunks <= said["chunks_sent"] < 2 * chunks + 1
    assert {"bytes", "runtime", "machine"} <= set(said)


def test_bench_act_says_what_it_measured(capfd):
    code, out, _ = run(capfd, "bench", "act", "--hidden", "8", "--calls", 200, "--format", "json")
    assert code == 0
    said = json.loads(out.splitlines()[-1])
    assert set(said) >= {"act_us_p50", "raw_us_p50", "ratio", "runtime", "float_us_p50", "machine"}


def test_bench_act_takes_the_ends_of_the_file(capfd):
    words = ["bench", "act", "--hidden", "8", "--io", "int8", "--calls", 200]
    code, out, _ = run(capfd, *words)
    assert code == 0
    assert "float32 8 → 8, int8 ends: int8 " in out
    assert run(capfd, *words[:-3], "int4")[0] == 2


def test_bench_act_times_what_exploring_costs(capfd):
    words = ["bench", "act", "--hidden", "8", "--head", "logits", "--calls", 300]
    code, out, _ = run(capfd, *words)
    assert code == 0
    assert "logits, sample: " in out.splitlines()[-1]
    code, out, _ = run(capfd, *words, "--format", "json")
    assert set(json.loads(out)["explored"]) == {"exploration", "greedy_us_p50", "explored_us_p50", "ratio"}
    code, _, err = run(capfd, "bench", "act", "--pixels", "--head", "gaussian")
    assert code == 2
    assert "--pixels --head gaussian" in err


@pytest.mark.parametrize("text", ["", "64,", "a", "64;64", "1e3"])
@pytest.mark.parametrize("command", ["push", "act"])
def test_sizes_that_are_none_are_one_line(capfd, command, text):
    code, _, err = run(capfd, "bench", command, "--hidden", text)
    assert code == 2
    assert err.count("\n") == 1
    assert "sizes with commas" in err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "[[source]]"),
        ("source = 3", "needs name, path and env"),
        ("[[source]]\nname = 'a'", "needs name, path and env"),
        ("[[source]]\nname = 'a'\npath = 'b'\nenv = 'c'\nother = 1", "needs name, path and env"),
        ("\x00", "TOML"),
    ],
)
def test_a_manifest_that_does_not_hold_is_one_line(capfd, tmp_path, content, says):
    (tmp_path / "sources.toml").write_text(content)
    code, _, err = run(capfd, "bench", "schemes", tmp_path / "sources.toml")
    assert code == 2
    assert says in err
    assert "Traceback" not in err


def test_an_unknown_source_is_refused_by_name(capfd):
    code, _, err = run(capfd, "bench", "schemes", TRAINED / "sources.toml", "--only", "nobody")
    assert code == 2
    assert "nobody" in err


def test_a_trained_agent_is_played_in_every_scheme(capfd, monkeypatch):
    from quarl_edge.bench import schemes as scheme_table

    monkeypatch.setattr(scheme_table, "_JUDGED_EPISODES", 10)
    # One of those with which int8 holds: see docs/schemes.md.
    monkeypatch.setattr(scheme_table, "_CALIBRATION_SEED", 1)
    words = ["bench", "schemes", TRAINED / "sources.toml", "--only", "SB3 DQN", "--episodes", 3, "--format", "json"]
    code, out, err = run(capfd, *words)
    assert code == 0, err
    said = json.loads(out.splitlines()[-1])
    assert said["calibration"] == {
        "steps": 16_384, "seed": 1, "turns": ["policy", "noisy", "random"], "rule": "minmax",
    }  # fmt: skip
    assert said["version"]
    [row] = said["rows"]
    assert row["algorithm"] == "dqn"
    assert list(row["schemes"]) == list(SCHEME_COLUMNS)
    returns = {scheme: cell["return_mean"] for scheme, cell in row["schemes"].items()}
    assert returns["float32"] > 400
    assert returns["int8"] > 0.8 * returns["float32"]
    verdicts = {scheme: cell["returns_check"]["verdict"] for scheme, cell in row["schemes"].items()}
    assert (verdicts["float32"], verdicts["int8"], verdicts["dynamic"]) == ("not judged", "held", "lost")
    assert row["schemes"]["int8"]["failed_checks"] == []
    assert row["schemes"]["dynamic"]["failed_checks"] == ["Q13"]
    assert row["schemes"]["int8"]["bytes"] < row["schemes"]["float32"]["bytes"]
