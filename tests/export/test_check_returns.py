"""Q13: a file is judged by what it returns beside the float policy, neither passed nor failed by chance."""

import dataclasses
import importlib
import math
import re

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_factory import mlp, rows

from quarl_device.environments import EnvSpec
from quarl_device.errors import CheckFailed, ConversionError, UsageError
from quarl_export.calibration import CalibrationData
from quarl_export.checks import returns as returns_module
from quarl_export.checks.agreement import check_parity
from quarl_export.checks.chance import random_returns
from quarl_export.checks.paired import MAX_LOSS, Comparison
from quarl_export.checks.returns import Play, judge_returns
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.schemes import SchemeOptions

evaluate_module = importlib.import_module("quarl_device.evaluate")

# ------------------------------------------------------------------ the rule


def verdict(theirs, ours, chance=None):
    return Comparison.of(theirs, ours, [0.0] * len(theirs) if chance is None else chance).verdict


def test_equal_returns_hold_and_far_lower_ones_do_not():
    theirs = [100.0, 101.0, 99.0, 100.0]
    assert verdict(theirs, theirs) == "held"
    assert verdict(theirs, [value + 50 for value in theirs]) == "held"
    assert verdict(theirs, [value - 4.9 for value in theirs]) == "held"
    assert verdict(theirs, [value - 5.1 for value in theirs]) == "lost"


def test_a_loss_is_measured_against_what_the_policy_has_learned():
    """Of -300 where random actions return -1200, 45 may be lost; of -300 where they return -310, half a point."""
    theirs = [-300.0] * 10
    assert Comparison.of(theirs, theirs, [-1200.0] * 10).limit == pytest.approx(45.0)
    assert verdict(theirs, [-340.0] * 10, [-1200.0] * 10) == "held"
    assert verdict(theirs, [-350.0] * 10, [-1200.0] * 10) == "lost"
    assert verdict(theirs, [-301.0] * 10, [-310.0] * 10) == "lost"


def test_a_loss_within_the_limit_is_undecided_while_chance_may_hide_a_larger_one():
    """Over twenty starts two failures cost 10 % on average, with a standard error of 7 %: that proves nothing."""
    few = Comparison.of([500.0] * 20, [500.0] * 18 + [0.0] * 2, [0.0] * 20)
    assert few.verdict == "undecided"
    many = Comparison.of([500.0] * 2000, [500.0] * 1800 + [0.0] * 200, [0.0] * 2000)
    assert many.verdict == "lost"
    assert 20 < few.episodes_needed < 2000
    assert math.isinf(dataclasses.replace(few, excess=0.0).episodes_needed)


@pytest.mark.parametrize("theirs", [[0.0] * 10, [-5.0] * 10, [-1.0, 1.1] * 5])
@pytest.mark.parametrize("less", [0.0, 1.0])
def test_where_float_returns_no_more_than_random_actions_there_is_nothing_to_keep(theirs, less):
    found = Comparison.of(theirs, [value - less for value in theirs], [0.0] * 10)
    assert (found.has_learned, found.verdict) == (False, "undecided")


def test_chance_in_what_was_learned_is_chance_in_what_may_be_lost():
    """A loss of 4 % of the mean difference to random actions holds where that is sure, and not where it is not."""
    theirs = np.full(10, 100.0)
    assert verdict(theirs, theirs - 4.0) == "held"
    assert verdict(theirs, theirs - 4.0, [-120.0, 120.0] * 5) == "undecided"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("whose", [0, 1])
def test_returns_that_are_not_finite_never_pass(bad, whose):
    pair = [[1.0] * 12, [1.0] * 12]
    pair[whose][5] = bad
    assert verdict(*pair) == "lost"


RETURNS = st.integers(-8000, 8000).map(lambda eighths: eighths / 8)
TRIPLES = st.lists(st.tuples(RETURNS, RETURNS, RETURNS), min_size=2, max_size=30)
RANK = {"held": 0, "undecided": 1, "lost": 2}


def sides(triples):
    return tuple(np.array(side) for side in zip(*triples, strict=True))


@given(TRIPLES, st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter(triples, random):
    shuffled = list(triples)
    random.shuffle(shuffled)
    first, second = (Comparison.of(*sides(some)) for some in (triples, shuffled))
    for what in ("loss", "loss_error", "learned", "learned_error", "excess", "excess_error"):
        assert getattr(first, what) == pytest.approx(getattr(second, what), abs=1e-9)


@given(TRIPLES, st.integers(-10, 10))
def test_the_unit_of_reward_does_not_matter(triples, power):
    assert verdict(*sides(triples)) == verdict(*(side * 2.0**power for side in sides(triples)))


@given(st.data(), TRIPLES)
def test_a_constant_that_an_episode_pays_whatever_is_done_does_not_matter(data, triples):
    """The same one everywhere, or one of each start: verdict and figures but the means stay as they were."""
    constants = st.integers(-(10**6), 10**6)
    each = np.array(data.draw(st.lists(constants, min_size=len(triples), max_size=len(triples))))
    first = Comparison.of(*sides(triples))
    for constant in (each, data.draw(constants)):
        second = Comparison.of(*(side + constant for side in sides(triples)))
        means = {"float_mean": first.float_mean, "file_mean": first.file_mean, "random_mean": first.random_mean}
        assert dataclasses.replace(second, **means) == first
        assert second.verdict == first.verdict


def test_a_constant_of_each_step_matters_where_lengths_differ():
    """It pays for staying or for leaving, which is another task: no comparison of returns is free of it."""
    lengths = {"float": 100.0, "file": 90.0, "random": 20.0}
    theirs, ours, chance = (np.full(10, 50.0) for _ in lengths)
    assert verdict(theirs, ours, chance - 10.0) == "held"
    paid = [side + length for side, length in zip((theirs, ours, chance - 10.0), lengths.values(), strict=True)]
    assert verdict(*paid) == "lost"


@given(TRIPLES, st.data())
def test_fewer_random_episodes_make_a_verdict_no_surer_than_the_same_means_of_all(triples, data):
    theirs, ours, chance = sides(triples)
    some = chance[: data.draw(st.integers(2, len(chance)))]
    found = Comparison.of(theirs, ours, some)
    whole = Comparison.of(theirs, ours, chance)
    assert (found.loss, found.loss_error) == (whole.loss, whole.loss_error)
    if len(some) < len(chance):
        assert found.excess_error == found.loss_error + MAX_LOSS * found.learned_error
        assert found.excess == found.loss - MAX_LOSS * found.learned
    else:
        assert found == whole


@given(TRIPLES, st.integers(0, 10_000))
def test_a_file_that_returns_less_everywhere_is_never_judged_better(triples, less):
    theirs, ours, chance = sides(triples)
    assert RANK[verdict(theirs, ours - less, chance)] >= RANK[verdict(theirs, ours, chance)]


def test_luck_seldom_decides():
    """With a true loss of just the limit a file is passed by luck in one of 40 cases, and failed in as few."""
    rng = np.random.default_rng(0)
    theirs = 100.0 + rng.normal(0.0, 10.0, (4000, 50))
    chance = rng.normal(0.0, 30.0, theirs.shape)
    ours = theirs - 100.0 * MAX_LOSS + rng.normal(0.0, 20.0, theirs.shape)
    found = [verdict(a, b, c) for a, b, c in zip(theirs, ours, chance, strict=True)]
    assert found.count("held") / len(found) < 0.035
    assert found.count("lost") / len(found) < 0.035


def test_returns_must_be_triples():
    for theirs, ours, chance in (([1.0], [1.0], [1.0]), ([1.0, 2.0], [1.0], [1.0]), ([1.0, 2.0], [1.0, 2.0], [0.0])):
        with pytest.raises(ValueError, match="no triples"):
            Comparison.of(theirs, ours, chance)


# ------------------------------------------------------------------ playing


FIRST_HARD = 100_012


class Choice(gymnasium.Env):
    """One point a step for the index of the largest of three numbers, and `gift` at the end of an episode.

    `fault` is what goes wrong; "hard" is an environment where, from `FIRST_HARD` on, only 20 right actions end it.
    """

    seeds: tuple = ()

    def __init__(self, fault="", worth=1.0, gift=0.0):
        self.observation_space = gymnasium.spaces.Box(-4.0, 4.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.fault, self.worth, self.gift, self.left = fault, worth, gift, 0
        if fault == "constructor":
            raise RuntimeError("no licence")

    def _draw(self):
        self.now = self.np_random.uniform(-4.0, 4.0, 4).astype(np.float32)
        return self.now

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Choice.seeds += (seed,)
        self.left = 20
        self.hard = self.fault == "hard" and seed >= FIRST_HARD
        return self._draw(), {}

    def step(self, action):
        right = int(action) == int(self.now[:3].argmax())
        self.left -= right if self.hard else 1
        if self.fault == "step":
            raise RuntimeError("broken")
        reward = math.nan if self.fault == "nan" else self.worth * right
        if self.fault == "nan for others" and not right:
            reward = math.nan
        if self.fault == "four":
            return self._draw(), reward, False, {}
        if self.fault == "word":
            return self._draw(), "much", False, False, {}
        if self.fault == "arrays":
            return self._draw(), reward, np.zeros(2, bool), False, {}
        reward += self.gift if self.left == 0 else 0.0
        return self._draw(), reward, self.left == 0 and self.fault != "endless", False, {}


gymnasium.register("QuarlTestChoice-v0", Choice)


def chooser(wrong=False):
    """A policy that is right every time, or never."""
    policy = mlp(hidden=8, bounds={"observation": (-4.0, 4.0)})
    one = np.eye(4, 3, dtype=np.float32)
    policy.weights["a/kernel"][:] = np.concatenate([one, np.zeros((4, 1)), -one, np.zeros((4, 1))], axis=1)
    policy.weights["a/bias"][:] = 0.0
    sign = -1.0 if wrong else 1.0
    policy.weights["q/kernel"][:] = sign * np.concatenate([np.eye(4, 3), -np.eye(4, 3)])
    policy.weights["q/bias"][:] = 0.0
    return policy


def data_of(policy):
    spread = np.random.default_rng(0).uniform(-4, 4, (256, 4)).astype(np.float32)
    return CalibrationData.checked(policy.contract, {"observation": spread}, source="test")


def play(fault="", **changes):
    kwargs = {"fault": fault, "worth": changes.pop("worth", 1.0), "gift": changes.pop("gift", 0.0)}
    return Play(env=EnvSpec(env_id="QuarlTestChoice-v0", kwargs=kwargs), **{"episodes": 20, **changes})


@pytest.fixture(scope="module")
def right():
    return build_file(chooser(), ExportOptions(), data=data_of(chooser())).file


@pytest.fixture(scope="module")
def right_float():
    return build_file(chooser(), ExportOptions(scheme=SchemeOptions(scheme="float32"))).file


@pytest.fixture(scope="module")
def wrong():
    return build_file(chooser(wrong=True), ExportOptions(), data=data_of(chooser())).file


def test_a_right_file_holds_and_says_what_was_played(right, right_float):
    found = judge_returns(right, lambda: right_float, play(seed=7))
    assert (found.decided, found.result.passed, found.result.advisory) == (True, True, False)
    detail = found.result.detail
    assert (detail["verdict"], detail["episodes"], detail["seed"]) == ("held", 20, 7)
    assert detail["float_return_mean"] > 19
    assert detail["file_return_mean"] > 19
    assert found.result.value == pytest.approx(detail["loss"] / detail["scale"], abs=1e-5)
    assert found.result.limit == MAX_LOSS
    assert judge_returns(right, lambda: right_float, play(seed=7)).result == found.result


def test_a_wrong_file_fails_with_both_means(wrong, right_float):
    found = judge_returns(wrong, lambda: right_float, play())
    assert (found.decided, found.result.passed) == (True, False)
    assert found.result.detail["verdict"] == "lost"
    assert re.search(r"of the float policy and [\d.]+ of random actions over 20 episodes", found.result.message)


@pytest.mark.parametrize("gift", [-1e6, 1e6])
def test_a_gift_at_the_end_of_an_episode_changes_no_verdict(right, wrong, right_float, gift):
    """Beside a million 5 % of the mean return are 50,000, and everything would hold."""
    for file, said in ((right, "held"), (wrong, "lost")):
        assert judge_returns(file, lambda: right_float, play(gift=gift)).result.detail["verdict"] == said


def test_all_play_the_same_start_seeds(right, right_float):
    Choice.seeds = ()
    judge_returns(right, lambda: right_float, play(seed=500, episodes=10))
    assert Choice.seeds == (*range(500, 510),) * 3


@pytest.mark.parametrize(
    ("fault", "says"),
    [("nan", "reward is nan"), ("step", "broken")],
)
def test_an_environment_that_misbehaves_fails_the_file_and_says_how_to_go_on(right, right_float, fault, says):
    found = judge_returns(right, lambda: right_float, play(fault))
    assert (found.decided, found.result.passed) == (False, False)
    assert says in found.result.message
    assert "--episodes 0" in found.result.message


def test_a_file_that_brings_its_environment_to_nan_never_passes(wrong, right_float):
    found = judge_returns(wrong, lambda: right_float, play("nan for others"))
    assert not found.result.passed
    assert "reward is nan" in found.result.message


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (EnvSpec(env_id="CartPole-v99"), "CartPole-v99"),
        (EnvSpec(env_id="CartPole-v1"), "the environment has"),
        (EnvSpec(env_id="QuarlTestChoice-v0", kwargs={"fault": "constructor"}), "no licence"),
        (EnvSpec(env_id="no.such.module:Any-v0"), "names a module"),
    ],
)
def test_what_cannot_be_played_is_not_judged_and_the_reason_is_told(right, env, says):
    def never():
        raise AssertionError("nothing to compare with was asked for")

    found = judge_returns(right, never, Play(env=env, episodes=10))
    assert (found.decided, found.result.passed) == (False, True)
    assert found.result.message.startswith("not judged: ")
    assert says in found.result.message
    assert found.result.detail == {"verdict": "not judged"}


def test_a_float_policy_that_is_no_file_fails_the_check_and_is_not_called_unplayable(right):
    def broken():
        raise ConversionError("no float32 file of this")

    found = judge_returns(right, broken, play())
    assert (found.decided, found.result.passed) == (False, False)
    assert "no float32 file of this" in found.result.message
    assert found.result.detail == {"verdict": "lost"}


def test_an_episode_without_end_is_cut_and_undecided(right, right_float, monkeypatch):
    monkeypatch.setattr(returns_module, "MAX_STEPS_PER_EPISODE", 30)
    found = judge_returns(right, lambda: right_float, play("endless"))
    assert (found.decided, found.result.passed) == (False, True)
    assert "fewer than 10 episodes of the float policy ended within 600 steps" in found.result.message


@pytest.mark.parametrize("who", ["the float policy", "random actions"])
def test_one_endless_episode_is_cut_however_many_steps_were_asked_for(right, right_float, monkeypatch, who):
    """It raised in `evaluate` where all episodes together might take more steps than one, and the file was lost."""
    monkeypatch.setattr(returns_module, "MAX_EPISODE_STEPS", 40)
    monkeypatch.setattr(evaluate_module, "MAX_EPISODE_STEPS", 40)
    if who == "random actions":
        monkeypatch.setattr(returns_module, "_returns", lambda file, play, episodes, who: (10.0,) * episodes)
    found = judge_returns(right, lambda: right_float, play("endless"))
    assert found.result.detail == {"verdict": "undecided"}
    assert found.result.message == (
        f"undecided: fewer than 10 episodes of {who} ended within 80,000 steps, 40 an episode"
    )


def test_many_episodes_may_take_more_steps_than_one(right, right_float, monkeypatch):
    monkeypatch.setattr(returns_module, "MAX_EPISODE_STEPS", 21)
    monkeypatch.setattr(evaluate_module, "MAX_EPISODE_STEPS", 21)
    assert judge_returns(right, lambda: right_float, play()).result.detail["verdict"] == "held"


def test_an_endless_episode_of_the_file_alone_is_a_loss(wrong, right_float, monkeypatch):
    monkeypatch.setattr(returns_module, "MAX_EPISODE_STEPS", 40)
    monkeypatch.setattr(evaluate_module, "MAX_EPISODE_STEPS", 40)
    found = judge_returns(wrong, lambda: right_float, play("hard"))
    assert (found.result.passed, found.result.detail["verdict"]) == (False, "lost")
    assert "the file ended 12 of 20 episodes" in found.result.message
    assert "within 160,000 steps, 40 an episode: episode 12 (seed 100012) did not end" in found.result.message


def test_an_episode_that_the_file_never_ends_counts_against_it(wrong, right_float, monkeypatch):
    """In the first twelve starts all is well: those alone would say nothing of the eight in which it is stuck."""
    monkeypatch.setattr(returns_module, "MAX_STEPS_PER_EPISODE", 100)
    found = judge_returns(wrong, lambda: right_float, play("hard"))
    assert (found.result.passed, found.result.detail["verdict"]) == (False, "lost")
    assert "the file ended 12 of 20 episodes" in found.result.message
    assert "within 4,000 steps: episode 12 (seed 100012) did not end" in found.result.message


def test_a_file_that_ends_no_episode_is_lost_and_not_undecided(wrong, right_float, monkeypatch):
    monkeypatch.setattr(returns_module, "MAX_STEPS_PER_EPISODE", 100)
    found = judge_returns(wrong, lambda: right_float, play("hard", seed=200_000))
    assert (found.result.passed, found.result.detail["verdict"]) == (False, "lost")
    assert "the file ended 0 of 20 episodes" in found.result.message


def test_episodes_a_little_longer_than_those_of_a_float_policy_that_just_ended_are_no_endless_ones(
    right, right_float, monkeypatch
):
    monkeypatch.setattr(returns_module, "MAX_STEPS_PER_EPISODE", 20)
    played = returns_module.evaluate

    def longer(file, **asked):
        stop = asked["stop"]
        twice = (lambda: stop() or stop()) if file is right else stop
        return played(file, **{**asked, "stop": twice})

    monkeypatch.setattr(returns_module, "evaluate", longer)
    assert judge_returns(right, lambda: right_float, play()).result.detail["verdict"] == "held"


def test_where_random_actions_end_few_episodes_none_of_the_file_is_left_out(right, right_float, monkeypatch):
    """In the ten starts that random actions end the file keeps all, in the ten after them nothing."""
    returned = {"the float policy": (10.0,) * 20, "the file": (10.0,) * 10 + (0.0,) * 10}
    monkeypatch.setattr(returns_module, "_returns", lambda file, play, episodes, who: returned[who])
    monkeypatch.setattr(returns_module, "_chance", lambda play, episodes: (0.0,) * 10)
    found = judge_returns(right, lambda: right_float, play())
    assert (found.result.passed, found.result.detail["verdict"]) == (False, "lost")
    assert "over 20 (10 of random actions ended) episodes" in found.result.message
    assert (found.result.detail["episodes"], found.result.detail["random_episodes"]) == (20, 10)


def test_fewer_episodes_than_asked_for_are_compared_where_steps_run_out(right, right_float, monkeypatch):
    monkeypatch.setattr(returns_module, "MAX_STEPS_PER_EPISODE", 12)
    found = judge_returns(right, lambda: right_float, play())
    assert found.decided
    assert found.result.detail["episodes"] == 12


def test_a_slow_machine_gets_no_other_verdict(right, right_float, monkeypatch):
    """It is refused at a deadline that only a wait without end meets: 100 s for 20 episodes were "undecided" before."""
    at = {"now": 0.0}

    def tick():
        at["now"] += 100.0
        return at["now"]

    monkeypatch.setattr(returns_module.time, "monotonic", tick)
    assert judge_returns(right, lambda: right_float, play()).result.detail["verdict"] == "held"
    monkeypatch.setattr(returns_module, "MAX_S", -1.0)
    with pytest.raises(UsageError, match="20 episodes to compare returns took more than"):
        judge_returns(right, lambda: right_float, play())


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("step", "raised in step() in episode 0 of random actions, step 0: RuntimeError: broken"),
        ("nan", "reward is nan in episode 0 of random actions, step 0 (seed 100000)"),
        ("four", "raised in step() in episode 0 of random actions, step 0: ValueError: not enough values to unpack"),
        ("word", "raised in step() in episode 0 of random actions, step 0: ValueError: could not convert string"),
        ("arrays", "raised in step() in episode 0 of random actions, step 0: ValueError: The truth value"),
    ],
)
def test_what_random_actions_meet_is_no_fault_of_the_file(right, right_float, monkeypatch, fault, says):
    monkeypatch.setattr(returns_module, "_returns", lambda file, play, episodes, who: (10.0,) * episodes)
    found = judge_returns(right, lambda: right_float, play(fault))
    assert (found.decided, found.result.passed, found.result.standing) == (False, True, "undecided")
    assert says in found.result.message


def test_random_actions_that_never_end_an_episode_leave_it_undecided(right, right_float, monkeypatch):
    monkeypatch.setattr(returns_module, "MAX_STEPS_PER_EPISODE", 30)
    monkeypatch.setattr(returns_module, "_returns", lambda file, play, episodes, who: (10.0,) * episodes)
    found = judge_returns(right, lambda: right_float, play("endless"))
    assert found.result.detail == {"verdict": "undecided"}
    assert found.result.message == "undecided: fewer than 10 episodes of random actions ended within 600 steps"


def test_random_actions_are_those_of_the_seed():
    def returns(seed):
        never, quiet = (lambda: False), (lambda done: None)
        return random_returns(play().env, episodes=10, seed=seed, stop=never, progress=quiet)

    assert returns(3) == returns(3)
    assert returns(3)[1:] == returns(4)[:-1]
    assert len(set(returns(3))) > 1


def test_undecided_says_how_many_episodes_would_tell(right, right_float, monkeypatch):
    returned = {"the float policy": [10.0] * 20, "the file": [10.0] * 18 + [0.0] * 2}
    monkeypatch.setattr(returns_module, "_returns", lambda file, play, episodes, who: tuple(returned[who]))
    monkeypatch.setattr(returns_module, "_chance", lambda play, episodes: (0.0,) * episodes)
    found = judge_returns(right, lambda: right_float, play())
    assert (found.decided, found.result.passed) == (False, True)
    assert found.result.message.startswith("undecided: 9 against 10")
    assert "; --episodes " in found.result.message
    assert found.result.message.endswith(" would tell")


def test_undecided_says_where_no_number_of_episodes_would_tell(right, right_float, monkeypatch):
    """Half a standard error from the limit after 50 episodes, 16 times as many tell; at the limit itself none do."""
    returned = {"the float policy": (100.0,) * 20, "the file": (90.0, 100.01) * 10}
    monkeypatch.setattr(returns_module, "_returns", lambda file, play, episodes, who: returned[who])
    monkeypatch.setattr(returns_module, "_chance", lambda play, episodes: (0.0,) * episodes)
    found = judge_returns(right, lambda: right_float, play())
    assert found.result.message.endswith("; no --episodes up to 10,000 would tell")


def test_a_float_policy_that_is_not_surely_better_than_random_is_told_in_numbers(right, right_float):
    found = judge_returns(right, lambda: right_float, play(worth=0.0))
    assert "no more than random actions by two standard errors in 20 episodes" in found.result.message
    assert "more --episodes may tell" in found.result.message


WHO = ("the float policy", "the file", "random actions")


def test_progress_is_told_at_the_start_and_then_every_two_seconds(right, right_float, monkeypatch):
    told = []
    judge_returns(right, lambda: right_float, play(tell=told.append))
    assert told == [f"playing 20 episodes of QuarlTestChoice-v0 with {who}" for who in WHO]
    told.clear()
    monkeypatch.setattr(returns_module, "_TELL_EVERY_S", 0.0)
    judge_returns(right, lambda: right_float, play(tell=told.append))
    assert told[1].endswith("with the float policy: 1 done")
    assert len(told) == 60


@pytest.mark.parametrize("episodes", [0, 9, 10_001])
def test_too_few_and_too_many_episodes_are_wrong_usage(episodes):
    with pytest.raises(UsageError, match="expected 10 to 10,000"):
        play(episodes=episodes)


# ------------------------------------------------------------------ with the other checks


def by_code(built):
    return {result.code: result for result in built.checks}


def coarse():
    """The chooser with values of a few thousand beside differences of 8: int8 sees some of them."""
    policy = chooser()
    policy.weights["q/bias"][:] = 1500.0
    return policy


def test_without_playing_a_coarse_head_is_refused_and_with_it_returns_decide():
    policy = coarse()
    with pytest.raises(CheckFailed, match=r"Q10 actions: .*--env ID"):
        build_file(policy, ExportOptions(), data=data_of(policy))
    with pytest.raises(CheckFailed, match=r"^Q13 returns: ") as caught:
        build_file(policy, ExportOptions(), data=data_of(policy), play=play())
    assert [entry["code"] for entry in caught.value.checks if not entry["passed"]] == ["Q13"]


def test_where_nothing_is_ever_returned_other_actions_stop_the_file_as_before():
    """And that the returns are undecided is told beside it: more episodes might have let it pass."""
    with pytest.raises(CheckFailed, match=r"^Q10 actions: .*Q11 regret: .*Q13 returns: undecided: .*more --episodes"):
        build_file(coarse(), ExportOptions(), data=data_of(coarse()), play=play(worth=0.0))


def test_where_other_actions_are_as_good_they_stop_no_file():
    """Q10 and Q11 are told beside their limits, and marked."""
    policy = coarse()
    policy.weights["q/bias"][:] = 6000.0, 6000.0, 0.0
    indifferent = Play(env=EnvSpec(env_id="QuarlTestIndifferent-v0"), episodes=20)
    built = build_file(policy, ExportOptions(), data=data_of(policy), play=indifferent)
    assert built.forced == ()
    checks = by_code(built)
    assert checks["Q13"].detail["verdict"] == "held"
    assert checks["Q10"].value < 0.75
    for code in ("Q10", "Q11"):
        assert checks[code].advisory
        assert checks[code].to_json()["advisory"]


class Indifferent(Choice):
    """Of three actions two are as good as each other; random ones take the third as well."""

    def step(self, action):
        observation, _, done, cut, info = super().step(action)
        return observation, float(action < 2), done, cut, info


gymnasium.register("QuarlTestIndifferent-v0", Indifferent)


def test_where_returns_do_not_tell_other_actions_stop_the_file_as_before(monkeypatch):
    monkeypatch.setattr(returns_module, "MAX_STEPS_PER_EPISODE", 1)
    policy = coarse()
    indifferent = Play(env=EnvSpec(env_id="QuarlTestIndifferent-v0"), episodes=10)
    with pytest.raises(CheckFailed, match="Q10 actions"):
        build_file(policy, ExportOptions(), data=data_of(policy), play=indifferent)


def test_a_float32_file_is_the_float_policy_and_is_not_played():
    def never(_):
        raise AssertionError("played")

    built = build_file(
        chooser(), ExportOptions(scheme=SchemeOptions(scheme="float32")), data=data_of(chooser()), play=play(tell=never)
    )
    assert by_code(built)["Q13"].message.startswith("not judged: a float32 file")


def test_nothing_to_play_in_is_told():
    built = build_file(
        mlp(), ExportOptions(), data=CalibrationData.checked(mlp().contract, rows(mlp(), 64), source="t")
    )
    assert by_code(built)["Q13"].message == "not judged: no environment to play in, or no episodes asked for"
    assert not by_code(built)["Q10"].advisory


@pytest.mark.parametrize(("scheme", "advisory"), [("dynamic", True), ("int16x8", True), ("float16", False)])
def test_what_has_no_exact_reference_is_judged_by_returns(scheme, advisory):
    """An error of 40 % of the mean output fails Q09, unless returns have judged a file whose weights are rounded."""
    policy = chooser()
    built = build_file(policy, ExportOptions(scheme=SchemeOptions(scheme=scheme)), data=data_of(policy))
    subject = dataclasses.replace(built.subject)
    subject.__dict__["file_outputs"] = {role: 1.4 * values for role, values in built.subject.file_outputs.items()}
    assert not check_parity(subject).passed
    assert not check_parity(subject).advisory
    decided = check_parity(subject, decided=True)
    assert (decided.passed, decided.advisory) == (advisory, advisory)
    assert decided.value == pytest.approx(0.4, abs=0.05)


def test_an_int8_file_must_repeat_its_reference_whatever_it_returns():
    policy = chooser()
    subject = dataclasses.replace(build_file(policy, ExportOptions(), data=data_of(policy)).subject)
    subject.__dict__["file_outputs"] = {role: 1.4 * values for role, values in subject.file_outputs.items()}
    assert not check_parity(subject, decided=True).passed
