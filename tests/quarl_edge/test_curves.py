"""Learning curves as numbers: what is joined, what its interval is, and that no run is drawn beyond its end."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_factory import judged, make_run

from quarl_edge.curves import interval, make_curves, t975
from quarl_edge.judgements import JudgementLog
from quarl_edge.run_view import look_at_run


def curves(*runs):
    return make_curves([look_at_run(run.path) for run in runs])


def test_seeds_of_one_setting_become_a_mean_with_its_t_interval(tmp_path):
    runs = [
        make_run(tmp_path, seed=seed, points=((100, mean), (300, mean + 20.0)))
        for seed, mean in enumerate((10.0, 20.0, 30.0))
    ]
    (curve,) = curves(*runs)
    assert curve.label == "dqn (3 seeds)"
    assert curve.env_steps.tolist() == [100, 300]
    assert curve.mean.tolist() == [20.0, 40.0]
    # By hand: standard deviation 10, t(2 degrees, 97.5 %) = 4.303.
    half = 4.303 * 10.0 / math.sqrt(3)
    assert curve.low.tolist() == pytest.approx([20.0 - half, 40.0 - half])
    assert curve.high.tolist() == pytest.approx([20.0 + half, 40.0 + half])
    assert curve.goal_return == 475.0
    said = curve.to_json()
    assert (said["seeds"], said["env_steps"], said["return_mean"]) == ([0, 1, 2], 300, 40.0)
    assert said["best_of_runs"] == [30.0, 40.0, 50.0]


def test_runs_judged_elsewhere_meet_between_their_judgements_and_not_beyond(tmp_path):
    one = make_run(tmp_path, seed=0, points=((0, 0.0), (200, 20.0), (400, 40.0)))
    other = make_run(tmp_path, seed=1, points=((100, 30.0), (300, 50.0)))
    (curve,) = curves(one, other)
    assert curve.env_steps.tolist() == [100, 200, 300]
    assert curve.mean.tolist() == [20.0, 30.0, 40.0]
    assert [line.env_steps[-1] for line in curve.lines] == [400, 300]


def test_runs_that_never_overlap_have_lines_and_no_mean(tmp_path):
    (curve,) = curves(
        make_run(tmp_path, seed=0, points=((1, 1.0), (2, 2.0))), make_run(tmp_path, seed=1, points=((5, 3.0),))
    )
    assert len(curve.env_steps) == len(curve.mean) == len(curve.low) == 0
    assert curve.to_json()["return_mean"] is None


def test_other_settings_are_other_curves_and_the_budget_is_none(tmp_path):
    runs = [
        make_run(tmp_path, seed=0), make_run(tmp_path, seed=1, hidden=(8,)), make_run(tmp_path, seed=2, steps=5_000),
        make_run(tmp_path, env="Pendulum-v1", algorithm="ddpg"), make_run(tmp_path, env="Acrobot-v1"),
    ]  # fmt: skip
    found = curves(*runs)
    assert [curve.env_id for curve in found] == ["CartPole-v1", "CartPole-v1", "Pendulum-v1", "Acrobot-v1"]
    assert [len(curve.lines) for curve in found] == [2, 1, 1, 1]
    assert "hidden=8 (seed 1)" in found[1].label
    assert "hidden=" in found[0].label
    assert found[2].label == "ddpg (seed 0)"


def test_a_seed_that_was_run_twice_is_said_to_be_one(tmp_path):
    (curve,) = curves(*(make_run(tmp_path, seed=seed) for seed in (0, 0, 1)))
    assert curve.label == "dqn (3 runs of 2 seeds)"


def test_of_two_judgements_at_the_same_steps_the_mean_goes_on_from_the_last(tmp_path):
    run = make_run(tmp_path, points=((100, 5.0), (200, 10.0)))
    JudgementLog(run.judgements).append(judged(200, 30.0, version=2))
    (curve,) = curves(run, make_run(tmp_path, seed=1, points=((100, 5.0), (300, 25.0))))
    assert curve.env_steps.tolist() == [100, 200]
    assert curve.mean.tolist() == [5.0, (30.0 + 15.0) / 2]
    assert curve.lines[0].returns.tolist() == [5.0, 10.0, 30.0]


def test_a_single_run_has_no_interval(tmp_path):
    (curve,) = curves(make_run(tmp_path))
    assert (curve.low == curve.mean).all()
    assert (curve.high == curve.mean).all()


def test_runs_without_judgements_or_settings_are_left_out(tmp_path):
    damaged = make_run(tmp_path)
    (damaged.path / "config.json").write_text("{")
    assert curves(make_run(tmp_path, points=()), damaged) == []


def test_many_judgements_are_thinned_to_a_grid(tmp_path):
    run = make_run(tmp_path, points=[(step, float(step)) for step in range(1, 1001)])
    (curve,) = curves(run)
    assert len(curve.env_steps) == 200
    assert curve.mean == pytest.approx(curve.env_steps)
    assert len(curve.lines[0].returns) == 1000


# From the tables of Student's t; the last three are by the expansion.
@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (2, 4.303), (4, 2.776), (30, 2.042), (31, 2.0395), (60, 2.0003), (1_000, 1.9623)],
)
def test_quantiles_of_student(degrees, quantile):
    assert t975(degrees) == pytest.approx(quantile, abs=0.003)


def test_the_interval_covers_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for count in (2, 3, 5, 40):
        _, low, high = interval(rng.normal(3.0, 2.0, size=(count, 20_000)))
        assert ((low <= 3.0) & (high >= 3.0)).mean() == pytest.approx(0.95, abs=0.01)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=8))
def test_an_interval_holds_its_mean(values):
    mean, low, high = interval(np.array(values))
    slack = 1e-6 * (1 + np.abs(mean))
    assert (low <= mean + slack).all()
    assert (mean <= high + slack).all()
