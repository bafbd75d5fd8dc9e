"""`quarl-edge bench solve`: what it says of every seed, and that no seed costs the results of another."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from run_factory import judged

from quarl_device.errors import NonFiniteError, NotSolved
from quarl_device.evaluate import evaluate
from quarl_device.policy_file import read_policy_path
from quarl_edge.bench import solve as solve_bench
from quarl_edge.bench.solve import Paired, SeedReport, solve_seed
from quarl_edge.cli import main
from quarl_edge.configure import make_config
from quarl_edge.curves import t975
from quarl_edge.judgements import JudgementLog
from quarl_edge.learner.result import StopReason
from quarl_edge.learner.stop import StopSignal
from quarl_edge.progress import Silent

FILE = Path(__file__).parent.parent / "data" / "cartpole.tflite"


def test_pairs_are_compared_start_by_start():
    found = Paired.of([8.0, 12.0, 10.0], [10.0, 13.0, 13.0])
    assert (found.int8_return_mean, found.float_return_mean, found.difference) == (10.0, 12.0, -2.0)
    # By hand: the differences -2, -1, -3 have the deviation 1.
    half = t975(2) / np.sqrt(3)
    assert (found.difference_low, found.difference_high) == pytest.approx((-2 - half, -2 + half))
    assert found.difference_share == pytest.approx(-2 / 12)


def test_a_share_is_of_the_size_of_the_float_return():
    assert Paired.of([-110.0, -90.0], [-100.0, -100.0]).difference_share == 0.0
    assert Paired.of([-110.0, -110.0], [-100.0, -100.0]).difference_share == pytest.approx(-0.1)
    assert Paired.of([1.0, 1.0], [0.0, 0.0]).difference_share is None


@pytest.mark.parametrize(("file", "twin"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_what_is_no_pairs_is_refused(file, twin):
    with pytest.raises(ValueError, match="pairs"):
        Paired.of(file, twin)


def run(capfd, *words):
    code = main([str(word) for word in words])
    out, err = capfd.readouterr()
    return code, out, err


def report(seed, mean=480.0, *, solved=True):
    return SeedReport(
        seed=seed, solved=solved, reason="solved", wall_s=20.0, train_s=2.0 + seed, env_steps=3_000, updates=4_000,
        pushes=60, prepare_ms_p50=2.0, push_ms_p50=None, audited=1, audit_failures=0,
        picked_env_steps=2_900, judged_return_mean=490.0, confirmation_return_mean=485.0,
        fresh=Paired.of([mean, mean], [500.0, 490.0]), policy_bytes=9_000, curve=((1_000, 20.0), (2_900, 490.0)),
        runtime="litert 2",
    )  # fmt: skip


class Seeds:
    """In place of training: what each seed ends with, a report or an error."""

    def __init__(self, monkeypatch, **ends):
        self.ends = {int(name.removeprefix("s")): end for name, end in ends.items()}
        self.asked, self.after = [], lambda seed: None
        monkeypatch.setattr(solve_bench, "solve_seed", self)

    def __call__(self, config, *, target, episodes, progress, stop, runs):
        self.asked.append((config.algorithm, config.seed, config.steps, target, episodes))
        self.after(config.seed)
        end = self.ends[config.seed]
        if isinstance(end, Exception):
            raise end
        return end


def test_every_seed_is_trained_and_told(capfd, monkeypatch, tmp_path):
    seeds = Seeds(monkeypatch, s0=report(0), s1=report(1), s2=report(2))
    out = tmp_path / "solve.json"
    words = ["bench", "solve", "CartPole-v1", "--algorithm", "a2c", "--seeds", "0-2", "--steps", 900]
    code, said, _ = run(capfd, *words, "--set", "hidden=8", "--episodes", 7, "--out", out, "--format", "json")
    assert code == 0
    assert seeds.asked == [("a2c", seed, 900, 475.0, 7) for seed in (0, 1, 2)]
    told = json.loads(said.splitlines()[-1])
    assert told == json.loads(out.read_text())
    assert (told["env"], told["algorithm"], told["solved"], told["seeds"]) == ("CartPole-v1", "a2c", 3, [0, 1, 2])
    assert (told["settings"], told["budget_steps"], told["config"]["hidden"]) == (["hidden=8"], 900, [8])
    assert (told["goal_return"], told["target_return"], told["train_s_median"]) == (475.0, 475.0, 3.0)
    assert (told["judged_seeds_from"], told["fresh_seeds_from"], told["fresh_episodes"]) == (1_000, 11_000, 7)
    assert told["runs"][1]["fresh"]["difference"] == -15.0
    assert told["runs"][1]["curve"] == [[1_000, 20.0], [2_900, 490.0]]
    assert told["versions"]["numpy"] == np.__version__
    assert {"machine", "interval"} <= set(told)


def test_a_seed_that_fails_is_a_row_and_the_next_one_is_trained(capfd, monkeypatch, tmp_path):
    Seeds(monkeypatch, s0=report(0), s1=NonFiniteError("weights are NaN"), s2=report(2, 300.0, solved=False))
    out = tmp_path / "solve.json"
    code, said, err = run(capfd, "bench", "solve", "--seeds", "0,1,2", "--out", out)
    assert code == NotSolved.code
    assert "2 of 3 seeds were not solved" in err
    lines = said.splitlines()
    assert lines[0].startswith("seed 0: solved")
    assert "(float 495.0: -15.0" in lines[0]
    assert lines[1] == "seed 1: failed: weights are NaN"
    assert lines[2].startswith("seed 2: not solved")
    told = json.loads(out.read_text())
    assert [row["solved"] for row in told["runs"]] == [True, False, False]
    assert told["runs"][1]["error"]["kind"] == "NonFiniteError"


def test_what_is_known_is_written_before_the_next_seed_begins(capfd, monkeypatch, tmp_path):
    out = tmp_path / "solve.json"
    written = []
    seeds = Seeds(monkeypatch, s0=report(0), s1=report(1))
    seeds.after = lambda seed: written.append(json.loads(out.read_text())["seeds"] if seed else None)
    assert run(capfd, "bench", "solve", "--seeds", "0,1", "--out", out)[0] == 0
    assert written == [None, [0]]


def test_a_target_of_its_own_is_what_counts(capfd, monkeypatch):
    seeds = Seeds(monkeypatch, s3=report(3))
    code, said, _ = run(capfd, "bench", "solve", "--seeds", 3, "--target", 100, "--format", "json")
    assert (code, seeds.asked[0][3]) == (0, 100.0)
    assert json.loads(said.splitlines()[-1])["goal_return"] == 475.0


def test_an_end_that_is_asked_for_begins_no_other_seed(capfd, monkeypatch):
    stop = StopSignal()
    monkeypatch.setattr("quarl_edge.learner.stop.StopSignal", lambda: stop)
    seeds = Seeds(monkeypatch, s0=NotSolved("seed 0: interrupted"), s1=report(1))
    seeds.after = lambda _: stop.request()
    code, said, _ = run(capfd, "bench", "solve", "--seeds", "0,1")
    assert (code, len(seeds.asked)) == (NotSolved.code, 1)
    assert "0 of 2 seeds solved" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "goal_return=none"], "--target NUMBER"),
        (["--seeds", "1-0"], "--seeds"),
        (["--out", "/nowhere/x.json"], "mkdir -p /nowhere"),
        (["--algorithm", "dqm"], "dqn"),
        (["--set", "actors=0"], "actors = 0"),
    ],
)
def test_what_cannot_be_is_refused_before_any_training(capfd, monkeypatch, words, says):
    seeds = Seeds(monkeypatch)
    code, _, err = run(capfd, "bench", "solve", *words)
    assert code == 2
    assert says in err
    assert not seeds.asked


class Training:
    """In place of a run: it leaves judgements and ends as asked."""

    def __init__(self, monkeypatch, *, best, reason=StopReason.SOLVED):
        self.best, self.reason, self.run = best, reason, None
        monkeypatch.setattr(solve_bench, "run_training", self)
        monkeypatch.setattr(solve_bench, "export_policy", lambda policy, model: model.write_bytes(FILE.read_bytes()))
        monkeypatch.setattr(solve_bench, "float_policy", lambda policy: FILE.read_bytes())

    def __call__(self, config, run, **_):
        self.run = run
        for steps in (100, 200):
            JudgementLog(run.judgements).append(judged(steps, steps / 2))
        return SimpleNamespace(
            reason=self.reason, best=self.best, env_steps=210, updates=300, pushes=4, train_s=1.25, audited=1,
            audit_failures=0, prepare_ms_p50=1.5, push_ms_p50=None,
        )  # fmt: skip


def solved(target=0.0, **changes):
    config = make_config("CartPole-v1", asked={"seed": 5, "evaluate_seed": 50})
    return solve_seed(config, target=target, episodes=4, progress=Silent(), stop=StopSignal(), **changes)


def test_the_picked_file_plays_fresh_starts_and_its_own_mean_there_decides(monkeypatch):
    Training(monkeypatch, best=judged(200, 100.0, confirmation=90.0))
    fresh = evaluate(read_policy_path(FILE), episodes=4, seed=10_050)
    found = solved(fresh.return_mean)
    assert found.solved
    assert found.fresh == Paired.of(fresh.returns, fresh.returns)
    assert (found.seed, found.reason, found.train_s, found.env_steps, found.pushes) == (5, "solved", 1.25, 210, 4)
    assert (found.prepare_ms_p50, found.push_ms_p50) == (1.5, None)
    assert (found.picked_env_steps, found.judged_return_mean, found.confirmation_return_mean) == (200, 100.0, 90.0)
    assert found.curve == ((100, 50.0), (200, 100.0))
    assert found.policy_bytes == len(FILE.read_bytes())
    # Whatever the run's own starts said.
    assert not solved(fresh.return_mean + 0.5).solved


def test_a_run_is_thrown_away_unless_it_is_to_be_kept(monkeypatch, tmp_path):
    training = Training(monkeypatch, best=judged(200, 100.0))
    assert solved().confirmation_return_mean is None
    assert not training.run.path.exists()
    solved(runs=tmp_path)
    assert training.run.path.parent == tmp_path
    assert training.run.path.is_dir()


@pytest.mark.parametrize(
    ("ends", "says"), [({"best": None}, "before the first policy"), ({"reason": StopReason.INTERRUPTED}, "interrupted")]
)
def test_a_run_without_a_result_is_not_solved(monkeypatch, ends, says):
    Training(monkeypatch, **{"best": judged(200, 100.0), "reason": StopReason.BUDGET, **ends})
    with pytest.raises(NotSolved, match=says):
        solved()
