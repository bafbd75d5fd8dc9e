"""`quarl-edge bench solve` on the whole path: what it says of a seed is what its file does."""

import json

import pytest
from runs_helper import edge, last_json

pytestmark = [pytest.mark.e2e, pytest.mark.learning, pytest.mark.timeout(280)]


def test_a_seed_is_trained_confirmed_and_judged_on_fresh_starts(tmp_path):
    words = ["bench", "solve", "CartPole-v1", "--seeds", "3", "--runs", "kept", "--out", "solve.json"]
    done = edge(*words, "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = last_json(done)
    assert told == json.loads((tmp_path / "solve.json").read_text())
    [run] = told["runs"]
    assert run["solved"]
    assert run["reason"] == "solved"
    assert min(run["judged_return_mean"], run["confirmation_return_mean"], run["fresh"]["int8_return_mean"]) >= 475
    assert run["curve"][-1][1] >= 475
    assert run["audited"] >= 1
    assert run["audit_failures"] == 0
    # The run that was kept exports the same file, which returns the same on the same starts.
    [kept] = (tmp_path / "kept").iterdir()
    assert edge("export", "m.tflite", "--from", kept, cwd=tmp_path).returncode == 0
    assert (tmp_path / "m.tflite").stat().st_size == run["policy_bytes"]
    played = edge("evaluate", "m.tflite", "--episodes", 20, "--seed", 11_000, "--format", "json", cwd=tmp_path)
    assert last_json(played)["return_mean"] == pytest.approx(run["fresh"]["int8_return_mean"], abs=1e-6)
    points = [json.loads(line) for line in (kept / "judgements.jsonl").read_text().splitlines()]
    assert [point.get("confirmation_mean") for point in points][-1] == run["confirmation_return_mean"]
