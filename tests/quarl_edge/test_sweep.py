"""`train --seeds`: which seeds, one run each, what one failure costs, and where an end is clean."""

import json

import pytest
from run_factory import judged, make_run

from quarl_device.errors import BrokerUnreachable, NonFiniteError, QuarlError, UsageError
from quarl_edge.cli import main
from quarl_edge.cli.output import Format
from quarl_edge.cli.sweep import left_by_seed, note_unfinished, parse_seeds, show_sweep, sweep
from quarl_edge.configure import make_config
from quarl_edge.learner.result import StopReason, TrainResult
from quarl_edge.runs import RunDirectory

CONFIG = make_config("CartPole-v1")


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-4", (0, 1, 2, 3, 4)), ("0,1,2", (0, 1, 2)), ("7", (7,)), ("0-2, 7,5-5", (0, 1, 2, 7, 5))]
)
def test_seeds_as_they_are_written(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["x", "1-", "-1", "4-0", "1,,2", "0-3,2", "1.5", "2147483648", "0-1000", "0-9,10-1009", "9" * 500, "٣"]
)
def test_seeds_that_cannot_be(text):
    with pytest.raises(UsageError, match="--seeds"):
        parse_seeds(text)


def result(mean, reason=StopReason.BUDGET):
    return TrainResult(
        reason=reason, env_steps=500, session_env_steps=500, updates=70, session_updates=70, pushes=3, train_s=1.0,
        prepare_ms_p50=None, push_ms_p50=None, actor_act_us_p50=None, best=judged(400, mean), judgements=2,
        last_return_mean=mean - 1, devices=1, samples_per_insert=1.0, audited=0,
    )  # fmt: skip


class Trainer:
    """Ends each run as `ends` says: a mean return, or an error."""

    def __init__(self, root, ends, stop_after=None):
        self.root, self.ends, self.stop_after, self.trained = root, iter(ends), stop_after, []
        self.went_on = []

    def train(self, config, directory, goes_on):
        self.trained.append((config.seed, directory.config.seed))
        self.went_on += [config.seed] if goes_on else []
        end = next(self.ends)
        if isinstance(end, Exception):
            raise end
        return end if isinstance(end, TrainResult) else result(end)

    def run(self, seeds, left=None):
        return sweep(
            CONFIG, seeds, make=lambda config: RunDirectory.create(config, root=self.root), train=self.train,
            stopped=lambda: len(self.trained) == self.stop_after, left=left,
        )  # fmt: skip


def summary(run, ended):
    return {"seed": run.config.seed, "reason": ended.reason.value}


def test_one_run_per_seed_in_a_directory_of_its_own(tmp_path, capsys):
    trainer = Trainer(tmp_path, [10.0, 20.0, 30.0])
    done = trainer.run((4, 0, 2))
    assert trainer.trained == [(4, 4), (0, 0), (2, 2)]
    assert len({run.directory.path for run in done}) == 3
    show_sweep(done, 3, Format.TEXT, summary)
    out = capsys.readouterr().out
    assert "3 of 3 seeds" in out
    assert f"quarl-edge plot {' '.join(str(run.directory.path) for run in done)} --out CartPole-v1-dqn.png" in out
    # By hand: 20 ± 4.303 × 10 / √3.
    assert "20.0 (-4.8 .. 44.8)" in out
    show_sweep(done, 3, Format.JSON, summary)
    said = json.loads(capsys.readouterr().out)
    assert said["runs"] == [{"seed": seed, "reason": "budget"} for seed in (4, 0, 2)]
    assert (said["int8_return_mean"], said["seeds_not_begun"]) == (20.0, 0)


def test_a_seed_that_fails_is_a_row_and_the_next_one_is_trained(tmp_path, capsys):
    done = Trainer(tmp_path, [10.0, NonFiniteError("weights are NaN"), 30.0]).run((0, 1, 2))
    with pytest.raises(NonFiniteError):
        show_sweep(done, 3, Format.JSON, summary)
    said = json.loads(capsys.readouterr().out)
    assert said["runs"][1]["error"]["code"] == 15
    assert said["int8_return_mean"] == 20.0
    done = Trainer(tmp_path, [NonFiniteError("a"), NonFiniteError("b")]).run((0, 1))
    with pytest.raises(QuarlError, match="2 of 2 runs failed"):
        show_sweep(done, 2, Format.TEXT, summary)
    assert "failed: NonFiniteError" in " ".join(capsys.readouterr().out.split())


def test_what_every_seed_would_meet_ends_the_sweep(tmp_path, capsys):
    trainer = Trainer(tmp_path, [10.0, BrokerUnreachable("nobody there"), 30.0])
    done = trainer.run((0, 1, 2))
    assert len(trainer.trained) == 2
    with pytest.raises(BrokerUnreachable):
        show_sweep(done, 3, Format.JSON, summary)
    assert json.loads(capsys.readouterr().out)["seeds_not_begun"] == 1


def test_an_end_that_is_asked_for_begins_no_other_run(tmp_path, capsys):
    trainer = Trainer(tmp_path, [10.0, 20.0, 30.0], stop_after=2)
    done = trainer.run((0, 1, 2))
    assert [seed for seed, _ in trainer.trained] == [0, 1]
    show_sweep(done, 3, Format.TEXT, summary)
    assert "2 of 3 seeds" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        show_sweep(Trainer(tmp_path, [], stop_after=0).run((0,)), 1, Format.TEXT, summary)


@pytest.fixture
def left(tmp_path):
    """Return what a sweep over 0-4 left: one done, one to go on with, one that kept nothing, one of other settings."""
    make_run(tmp_path, seed=0, ended="solved", points=((300, 90.0),))
    for seed, asked in ((1, {}), (2, {}), (3, {"steps": 77})):
        run = make_run(tmp_path, seed=seed, ended="interrupted" if seed != 1 else "", **asked)
        if seed != 2:
            (run.checkpoints / "ckpt-000000000832").mkdir(parents=True)
    return left_by_seed(CONFIG, range(5), tmp_path)


def test_a_sweep_that_goes_on_trains_what_is_not_done_alone(tmp_path, left, capsys):
    assert set(left) == {0, 1}
    trainer = Trainer(tmp_path, [20.0, 30.0, 40.0, 50.0])
    done = trainer.run((0, 1, 2, 3, 4), left=left)
    assert [seed for seed, _ in trainer.trained] == [1, 2, 3, 4]
    assert trainer.went_on == [1]
    assert done[1].directory.path == left[1].path
    assert f"seed 0, run 1 of 5: done in {left[0].path}" in capsys.readouterr().err
    show_sweep(done, 5, Format.JSON, summary)
    said = json.loads(capsys.readouterr().out)
    first = said["runs"][0]
    assert (first["seed"], first["reason"], first["earlier"], first["int8_return_mean"]) == (0, "solved", True, 90.0)
    assert said["int8_return_mean"] == (90 + 20 + 30 + 40 + 50) / 5
    show_sweep(done, 5, Format.TEXT, summary)
    said = capsys.readouterr()
    assert "solved, earlier" in said.out
    assert f"quarl-edge plot {left[0].path}" in said.out
    assert not said.err, "nothing is left to do"


def test_the_newest_run_of_a_seed_is_the_one_that_counts(tmp_path):
    for name, ended in (("20260101T000000Z-s0", "interrupted"), ("20260102T000000Z-s0", "budget")):
        run = make_run(tmp_path, seed=0, ended=ended, name=f"CartPole-v1-dqn-{name}")
        (run.checkpoints / "ckpt-000000000832").mkdir(parents=True)
    (tmp_path / "CartPole-v1-dqn-20260103T000000Z-s0").mkdir()
    (tmp_path / "CartPole-v1-dqn-20260103T000000Z-s0" / "config.json").write_text("{")
    assert left_by_seed(CONFIG, [0], tmp_path)[0].path == run.path


def test_what_is_begun_anew_though_it_could_go_on_is_named(left, capsys):
    note_unfinished(left)
    said = capsys.readouterr().err
    assert said.count("note:") == 1
    assert f"seed 1 was not finished in {left[1].path} (832 of {CONFIG.steps:,} steps)" in said
    assert "the same command with --resume" in said


def test_an_interrupted_sweep_names_its_run_and_says_how_it_goes_on(tmp_path, capsys):
    done = Trainer(tmp_path, [10.0, result(20.0, StopReason.INTERRUPTED)], stop_after=2).run((0, 1, 2))
    show_sweep(done, 3, Format.JSON, summary)
    said = capsys.readouterr().err
    assert f"seed 1 was interrupted in {done[1].directory.path}; 1 of 3 seeds were not begun" in said
    assert "the same command with --resume" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seeds", "0-1", "--seed", "3"], "--seed does not go"),
        (["--seeds", "0-1", "--set", "seed=3"], "--set seed does not go"),
        (["--seeds", "0-1", "--run", "r"], "--run does not go"),
        (["--seeds", "1-0"], "expected seeds"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_made(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", *words]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
