"""Interrupted equals uninterrupted, and repeated equals both, to the bit, for every learner: processes in lockstep."""

import pytest
from runs_helper import edge
from test_run_lifecycle import NO_GOAL, digests

from quarl_edge.algorithms import ALGORITHMS

pytestmark = [pytest.mark.e2e, pytest.mark.learning, pytest.mark.timeout(280)]
LOCKSTEPS = [
    ("dqn", "CartPole-v1", ("dueling=true", "priority_exponent=0.6", "block_steps=16")),
    ("ddpg", "Pendulum-v1", ("critic_hidden=16", "noise=ornstein_uhlenbeck")),
    ("d4pg", "Pendulum-v1", ("critic_hidden=16",)),
    ("ppo", "CartPole-v1", ("round_steps=32",)),
    ("a2c", "Pendulum-v1", ("round_steps=32",)),
]
# What tells a repetition apart would tell a resumed run apart too; once is enough.
REPEATED = "dqn"


@pytest.mark.parametrize(("algorithm", "env_id", "settings"), LOCKSTEPS)
def test_lockstep_is_bit_identical_on_resume(tmp_path, algorithm, env_id, settings):
    """Of all that a checkpoint keeps in arrays: networks, optimizers, priorities, what the normaliser has learned."""
    settings = (
        "hidden=16",
        "evaluate_episodes=2",
        "block_steps=32",
        "checkpoint_period_steps=512",
        "observation_scale=none",
        *settings,
    )
    words = ["train", env_id, "--algorithm", algorithm, "--lockstep", "--actors", 1, "--envs-per-actor", 1, "--seed", 5]
    for setting in ("observation_offset=none", *settings):
        words += ["--set", setting]
    if algorithm not in ("ppo", "a2c"):
        words += ["--set", "learning_starts=256"]

    def run(name, steps):
        done = edge(*words, *NO_GOAL, "--steps", steps, "--run", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    run("whole", 1_024)
    # This one ends between two checkpoints, and makes what came after the last one again.
    run("broken", 700)
    done = edge("train", "--resume", "--run", "broken", "--steps", 1_024, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = digests(tmp_path / "whole")
    assert set(whole) == {512, 1_024}
    assert digests(tmp_path / "broken") == whole
    kept = {"algorithm.npz", "normalizer.npz"}
    kept |= {"experience.npz"} if algorithm in ("dqn", "ppo", "a2c") else set()
    assert all(set(parts) == kept for parts in whole.values())
    if algorithm == REPEATED:
        run("again", 1_024)
        assert digests(tmp_path / "again") == whole
        first, second = (
            sorted(path.name for path in (tmp_path / name / "policy").iterdir()) for name in ("whole", "again")
        )
        assert first == second
        assert first


def test_every_algorithm_is_in_this_test():
    assert {algorithm for algorithm, *_ in LOCKSTEPS} == set(ALGORITHMS)
