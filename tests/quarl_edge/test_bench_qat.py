"""`quarl-edge bench qat`: its variants, its sums, and what it refuses before any run."""

import json

import pytest

from quarl_device.errors import CheckFailed, NotSolved
from quarl_edge.bench import qat as qat_table
from quarl_edge.bench.qat import QAT_VARIANTS, summarize, train_variant
from quarl_edge.cli import main
from quarl_edge.configure import make_config


def run(capfd, *words):
    code = main([str(word) for word in words])
    out, err = capfd.readouterr()
    return code, out, err


def row(variant, seed, **changes):
    return {
        "variant": variant, "seed": seed, "solved": True, "env_steps": 1000 + seed, "updates": 10, "train_s": 2.0,
        "audited": 1, "audit_failures": 0, "policy_bytes": 9000, "agreement": 0.9, "file_return_mean": 480.0,
        "file_fresh_return_mean": 400.0 + seed, "float_return_mean": 490.0, "float_fresh_return_mean": 500.0,
        "act_us_p50": 2.0, "runtime": "litert 2", **changes,
    }  # fmt: skip


@pytest.mark.parametrize("variant", QAT_VARIANTS)
def test_every_variant_is_a_configuration_that_differs_from_the_base(variant):
    base = make_config("CartPole-v1")
    config = base.replace(**QAT_VARIANTS[variant])
    assert (config == base) == (variant == "base")


def test_sums_are_per_variant_and_count_what_failed():
    rows = [
        row("4 bits", 0),
        row("base", 0),
        row("base", 2, solved=False),
        {"variant": "base", "seed": 1, "error": "x"},
    ]
    first, second = summarize(rows)
    assert (first["variant"], first["seeds"], first["errors"], first["solved"]) == ("base", 3, 1, 1)
    assert first["env_steps_median"] == 1001
    assert first["file_fresh_return_mean_mean"] == 401.0
    assert (second["variant"], second["seeds"], second["errors"]) == ("4 bits", 1, 0)
    assert summarize([]) == summarize([{"variant": "base", "seed": 1, "error": "x"}]) == []


def test_a_run_that_fails_is_a_row_and_an_interrupt_ends_all(monkeypatch):
    def fails(*_, **__):
        raise CheckFailed("Q09 parity: off")

    monkeypatch.setattr(qat_table, "run_training", fails)
    found = train_variant("CartPole-v1", "base", seed=3, settings=[], episodes=1)
    assert (found["variant"], found["seed"]) == ("base", 3)
    assert found["error"].startswith("CheckFailed: Q09")

    def interrupted(*_, **__):
        raise NotSolved("interrupted")

    monkeypatch.setattr(qat_table, "run_training", interrupted)
    with pytest.raises(NotSolved):
        train_variant("CartPole-v1", "base", seed=3, settings=[], episodes=1)


def test_it_says_what_it_measured(capfd, monkeypatch):
    asked = []

    def trained(env, variant, *, seed, settings, episodes):
        asked.append((env, variant, seed, tuple(settings), episodes))
        return row(variant, seed)

    monkeypatch.setattr(qat_table, "train_variant", trained)
    words = ["bench", "qat", "--seeds", "0,1", "--only", "base", "--set", "steps=9", "--episodes", 5]
    code, out, _ = run(capfd, *words, "--format", "json")
    assert code == 0
    report = json.loads(out.splitlines()[-1])
    assert asked == [("CartPole-v1", "base", seed, ("steps=9",), 5) for seed in (0, 1)]
    assert [found["seed"] for found in report["runs"]] == [0, 1]
    assert report["summary"][0]["seeds"] == 2
    assert report["fresh_seeds_from"] == 11_000
    assert report["runtime"] == "litert 2"
    code, out, _ = run(capfd, *words)
    assert "base: 2 of 2 solved" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "9 bits"], "no variant"),
        (["--seeds", "a"], "expected seeds"),
        (["--set", "goal_return=none"], "no goal"),
        (["Nowhere-v9"], "Nowhere-v9"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(capfd, words, says):
    code, _, err = run(capfd, "bench", "qat", *words)
    assert code not in (0, 1)
    assert says in err
