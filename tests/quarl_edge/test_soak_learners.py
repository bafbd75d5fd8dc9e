"""The command lines of a soak's learners, against the commands that read them."""

import itertools
import time

import pytest

from quarl_edge.configure import make_config
from quarl_edge.soak import learner as storing
from quarl_edge.soak.learners import Learner


def made(tmp_path, *, trains):
    return Learner(trains=trains, folder=tmp_path, url="mqtt://127.0.0.1:1", block_steps=16)


def test_one_that_stores_is_started_alike_each_time_but_for_its_epoch(tmp_path):
    learner = made(tmp_path, trains=False)
    assert learner.resumable
    options = storing._parser().parse_args(learner.words(7)[3:])
    assert (options.epoch, options.journal, options.block_steps) == (7, learner.journal, 16)
    assert options.key == learner.key


def test_one_that_trains_resumes_once_it_has_a_checkpoint(tmp_path):
    learner = made(tmp_path, trains=True)
    fresh = learner.words(1)
    assert "--resume" not in fresh
    assert not learner.resumable
    (tmp_path / "run" / "checkpoints" / "ckpt-3000").mkdir(parents=True)
    assert learner.resumable
    again = learner.words(2)
    assert "--resume" in again
    assert "--set" not in again
    assert learner.journal == tmp_path / "run" / "journal"


def test_one_that_trains_is_killed_after_it_has_kept_something_of_its_own(tmp_path):
    assert made(tmp_path, trains=False).has_served_since(time.time())
    learner = made(tmp_path, trains=True)
    assert not learner.has_served_since(0.0)
    (tmp_path / "run" / "checkpoints" / "ckpt-3000").mkdir(parents=True)
    assert learner.has_served_since(time.time() - 60)
    assert not learner.has_served_since(time.time() + 60), "that one is of the life before"


def test_the_settings_of_training_are_settings_and_its_goal_is_out_of_reach(tmp_path):
    words = made(tmp_path, trains=True).words(1)
    settings = [word for before, word in itertools.pairwise(words) if before == "--set"]
    config = make_config("CartPole-v1", settings=settings)
    assert config.goal_return > 500
    assert config.block_steps == 16


@pytest.mark.parametrize("trains", [False, True])
def test_no_command_line_carries_a_secret(tmp_path, trains):
    words = made(tmp_path, trains=trains).words(1)
    assert not [word for word in words if len(word) == 64]
