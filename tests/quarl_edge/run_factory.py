"""Runs on disk, as training leaves them, without training."""

import json

from quarl_device.evaluate import Evaluation
from quarl_edge.configure import make_config
from quarl_edge.judgements import JudgementLog
from quarl_edge.local.evaluator import Judged
from quarl_edge.runs import RunDirectory
from quarl_edge.session_log import noted_session


def evaluation(mean, *, seed=1000, sha256="a" * 64):
    return Evaluation(
        env_id="CartPole-v1", episodes=20, seed=seed, returns=(mean,) * 20, return_mean=mean, return_std=0.5,
        runtime="double 1.0", sha256=sha256, act_us_p50=1.0, steps=100,
    )  # fmt: skip


def judged(env_steps, mean, *, version=1, sha256="a" * 64, confirmation=None):
    return Judged(
        version=version, env_steps=env_steps, result=evaluation(mean, sha256=sha256),
        confirmation=None if confirmation is None else evaluation(confirmation, seed=21_000, sha256=sha256),
    )  # fmt: skip


def make_run(root, *, env="CartPole-v1", points=((100, 20.0), (200, 60.0)), ended="budget", name=None, **asked):
    """Return the directory of a run whose int8 files were judged at `points`."""
    algorithm = asked.pop("algorithm", "")
    config = make_config(env, algorithm=algorithm, asked=asked)
    run = RunDirectory.create(config, path=None if name is None else root / name, root=root)
    log = JudgementLog(run.judgements)
    with noted_session(run.sessions) as session:
        for env_steps, mean in points:
            log.append(judged(env_steps, mean))
        if ended:
            session.ended(ended, env_steps=points[-1][0] if points else 0, train_s=2.0)
    return run


def keep_policy(run, mean, sha256="b" * 64):
    """Write what a kept policy says of itself."""
    run.policy.mkdir()
    said = {"provenance": {"pushed_sha256": sha256, "judged": {"result": {"return_mean": mean}}}}
    (run.policy / "policy.json").write_text(json.dumps(said))
