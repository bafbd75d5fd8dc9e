"""Judging in a process of its own: the same returns as here, one at a time, latest wins."""

import dataclasses
from concurrent.futures import Future
from pathlib import Path

import pytest
from run_factory import judged

from quarl_device.errors import ModelError, SelfTestError
from quarl_device.evaluate import evaluate
from quarl_device.policy_file import read_policy_path
from quarl_edge.local.evaluator import Evaluator

FILE = read_policy_path(Path(__file__).parent.parent / "data" / "cartpole.tflite")


@pytest.fixture(scope="module")
def evaluator():
    made = Evaluator(env_id="CartPole-v1", episodes=3, seed=11)
    yield made
    made.close()


def test_it_returns_what_playing_here_returns(evaluator):
    assert evaluator.submit(FILE.data, FILE.golden, version=4, env_steps=640)
    # What comes while one is judged is skipped, not queued.
    assert not evaluator.submit(FILE.data, FILE.golden, version=5, env_steps=700)
    judged = evaluator.poll(timeout_s=60)
    assert (judged.version, judged.env_steps) == (4, 640)
    assert judged.result.returns == evaluate(FILE, episodes=3, seed=11).returns
    assert evaluator.poll() is None


def test_a_file_that_fails_its_goldens_is_an_error_and_the_next_one_is_judged(evaluator):
    wrong = {role: values + 100 for role, values in FILE.golden.outputs.items()}
    golden = dataclasses.replace(FILE.golden, outputs=wrong)
    assert evaluator.submit(FILE.data, golden, version=1, env_steps=0)
    with pytest.raises(SelfTestError):
        evaluator.poll(timeout_s=60)
    assert evaluator.submit(FILE.data, FILE.golden, version=2, env_steps=0)
    assert evaluator.poll(timeout_s=60).version == 2


@pytest.mark.parametrize(("goal", "confirmed_from"), [(500.0, 900), (500.5, None), (None, None)])
def test_a_file_that_reaches_the_goal_plays_other_starts_too(goal, confirmed_from):
    made = Evaluator(env_id="CartPole-v1", episodes=3, seed=11, goal_return=goal, confirm_seed=900)
    try:
        assert made.submit(FILE.data, FILE.golden, version=1, env_steps=0)
        found = made.poll(timeout_s=60)
    finally:
        made.close()
    assert (found.result.seed, found.result.return_mean) == (11, 500.0)
    assert confirmed_from == (None if found.confirmation is None else found.confirmation.seed)
    if found.confirmation is not None:
        assert found.confirmation.returns == evaluate(FILE, episodes=3, seed=900).returns


@pytest.mark.parametrize(("result", "confirmation", "counts"), [(9.0, None, 9.0), (9.0, 7.0, 7.0), (9.0, 11.0, 9.0)])
def test_a_file_counts_for_the_lower_of_its_means(result, confirmation, counts):
    assert judged(10, result, confirmation=confirmation).return_mean == counts


def kill(evaluator):
    for process in list((evaluator._pool._processes or {}).values()):
        process.kill()
        process.join(10)


def test_a_judge_that_dies_is_replaced():
    made = Evaluator(env_id="CartPole-v1", episodes=1, seed=0)
    try:
        assert made.submit(FILE.data, FILE.golden, version=1, env_steps=0)
        kill(made)
        # Killed while judging: that version is lost, or it was judged just before.
        lost = made.poll(timeout_s=60)
        assert lost is None or lost.version == 1
        kill(made)
        assert made.submit(FILE.data, FILE.golden, version=2, env_steps=0)
        judged = made.poll(timeout_s=60) or (
            made.submit(FILE.data, FILE.golden, version=2, env_steps=0) and made.poll(timeout_s=60)
        )
        assert judged.version == 2
    finally:
        made.close()


def test_one_that_takes_too_long_is_given_up_and_the_next_one_is_judged(evaluator):
    made = Evaluator(env_id="CartPole-v1", episodes=10_000, seed=0)
    try:
        assert made.submit(FILE.data, FILE.golden, version=1, env_steps=0)
        assert made.poll(timeout_s=0.1) is None
        assert made.busy
        made.cancel()
        assert not made.busy
        assert made.submit(FILE.data, FILE.golden, version=2, env_steps=0)
        made.cancel()
        made.cancel()
    finally:
        made.close()


@pytest.mark.parametrize("thrown", [TimeoutError("of its own"), ZeroDivisionError("in the environment")])
def test_whatever_is_thrown_while_judging_is_one_kind_of_error(evaluator, thrown):
    done = Future()
    done.set_exception(thrown)
    evaluator._running = (9, 0, done)
    with pytest.raises(ModelError, match=type(thrown).__name__):
        evaluator.poll()
    assert not evaluator.busy
