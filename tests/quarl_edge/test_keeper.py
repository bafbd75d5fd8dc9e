"""What a run keeps: the best judged policy, even where the disk refuses for a while."""

import contextlib
import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from learner_factory import CONTRACT, batch, policy

from quarl_device.errors import CheckpointError, JournalError, NonFiniteError
from quarl_device.evaluate import Evaluation
from quarl_edge.checkpoint import load_latest
from quarl_edge.judgements import read_judgements
from quarl_edge.learner import keeper as module
from quarl_edge.learner.keeper import Keeper, better, judged_from_json, kept_judgement
from quarl_edge.learner.parts import Progression
from quarl_edge.local.evaluator import Judged
from quarl_edge.runs import RunDirectory


class Ingest:
    """A journal that may refuse."""

    fault = None
    is_paused = False

    def __init__(self):
        self.saved = []

    def sync(self):
        if self.fault is not None:
            raise self.fault

    @contextlib.contextmanager
    def paused(self):
        self.is_paused = True
        yield SimpleNamespace(journal_position=0, env_steps=7, samples=3, inserted=7)
        self.is_paused = False

    def checkpointed(self, cut):
        self.saved.append(cut.inserted)


@pytest.fixture
def made(tmp_path):
    network = policy()
    keeper = Keeper(
        RunDirectory(tmp_path), spec=network.spec, contract=CONTRACT,
        golden_observations={"observation": batch().observation[0]}, ingest=Ingest(),
        experience=SimpleNamespace(state=lambda: {"replay": "{}", "samples": 0}, arrays=dict),
        normalizer=SimpleNamespace(arrays=lambda: {"count": np.array(5)}), epoch=1, seed=0,
    )  # fmt: skip
    snapshot = network.snapshot()
    return keeper, lambda version: SimpleNamespace(version=version, env_steps=version, sha256="", snapshot=snapshot)


def evaluation(mean):
    return Evaluation(
        env_id="CartPole-v1", episodes=2, seed=0, returns=(mean, mean), return_mean=mean, return_std=0.0,
        runtime="double", sha256="", act_us_p50=1.0, steps=1,
    )  # fmt: skip


def judged(mean, version=1, *, confirmation=None):
    return Judged(
        version=version, env_steps=version, result=evaluation(mean),
        confirmation=None if confirmation is None else evaluation(confirmation),
    )  # fmt: skip


def version_on_disk(path):
    return json.loads((path / "policy" / "policy.json").read_text())["provenance"]["policy_version"]


def test_only_a_better_policy_replaces_the_one_that_is_kept(made, tmp_path):
    keeper, pushed = made
    for version, mean in enumerate([5.0, 9.0, 7.0, 9.0], start=1):
        keeper.consider(judged(mean, version), pushed(version))
    assert keeper.best == judged(9.0, 2)
    assert version_on_disk(tmp_path) == 2
    assert kept_judgement(tmp_path / "policy") == judged(9.0, 2)


def test_a_file_that_was_only_lucky_makes_place_for_one_that_was_confirmed(made, tmp_path):
    keeper, pushed = made
    for version, (mean, confirmation) in enumerate([(9.0, 4.0), (8.0, 7.5), (7.0, None)], start=1):
        keeper.consider(judged(mean, version, confirmation=confirmation), pushed(version))
    assert keeper.best == judged(8.0, 2, confirmation=7.5)
    assert kept_judgement(tmp_path / "policy") == keeper.best
    assert better(judged(9.0, confirmation=4.0), judged(5.0)) == judged(5.0)


def test_what_was_kept_before_there_were_confirmations_is_read():
    said = dataclasses.asdict(judged(5.0))
    del said["confirmation"]
    assert judged_from_json(said) == judged(5.0)


def test_a_disk_that_refuses_is_tried_again_and_said_once(made, tmp_path, monkeypatch, caplog):
    keeper, pushed = made
    real = module.save_policy

    def refuse(*_, **__):
        raise CheckpointError("policy checkpoint cannot be written: No space left on device")

    monkeypatch.setattr(module, "save_policy", refuse)
    keeper.consider(judged(5.0), pushed(1))
    keeper.consider(judged(6.0, 2), pushed(2))
    keeper.sync()
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert keeper.best == judged(6.0, 2)
    with pytest.raises(CheckpointError):
        keeper.finish()
    monkeypatch.setattr(module, "save_policy", real)
    keeper.sync()
    assert version_on_disk(tmp_path) == 2
    keeper.finish()


def test_a_checkpoint_names_the_policy_that_is_on_disk(made, tmp_path, monkeypatch):
    """After a kill, one that could not be written must not keep others away from its place."""
    keeper, pushed = made
    keeper.consider(judged(5.0), pushed(1))
    real = module.save_policy

    def refuse(*_, **__):
        raise CheckpointError("policy checkpoint cannot be written: No space left on device")

    monkeypatch.setattr(module, "save_policy", refuse)
    keeper.consider(judged(9.0, 2), pushed(2))
    algorithm = SimpleNamespace(arrays=dict)
    keeper.checkpoint(algorithm, Progression())
    assert load_latest(tmp_path / "checkpoints").state["best"]["result"]["return_mean"] == 5.0
    monkeypatch.setattr(module, "save_policy", real)
    keeper.sync()
    keeper.checkpoint(algorithm, Progression())
    assert load_latest(tmp_path / "checkpoints").state["best"]["result"]["return_mean"] == 9.0


def test_a_journal_that_cannot_be_synced_ends_nothing(made, caplog):
    keeper, _ = made
    keeper._ingest.fault = JournalError("journal cannot be written")
    keeper.sync()
    keeper.sync()
    assert len(caplog.records) == 1


def test_a_damaged_policy_on_disk_is_no_reason_not_to_resume(made, tmp_path):
    keeper, pushed = made
    assert kept_judgement(tmp_path / "policy") is None
    keeper.consider(judged(5.0), pushed(1))
    (tmp_path / "policy" / "policy.json").write_text("{")
    assert kept_judgement(tmp_path / "policy") is None


def test_the_better_of_two():
    low, high = judged(1.0), judged(2.0)
    assert better(None, None) is None
    assert better(low, None) == better(None, low) == low
    assert better(low, high) == better(high, low) == high
    assert better(low, judged(1.0, 9)) == low


def test_weights_that_are_not_finite_are_in_no_checkpoint(made, tmp_path):
    keeper, _ = made
    weights = {"online/000": np.ones(3, np.float32), "updates": np.int64(4) * np.ones((), np.int64)}
    keeper.checkpoint(SimpleNamespace(arrays=lambda: weights), Progression())
    kept = sorted((tmp_path / "checkpoints").iterdir())
    assert len(kept) == 1
    weights["online/000"] = np.array([1, np.nan, 1], np.float32)
    with pytest.raises(NonFiniteError, match="online/000"):
        keeper.checkpoint(SimpleNamespace(arrays=lambda: weights), Progression())
    assert sorted((tmp_path / "checkpoints").iterdir()) == kept


def test_every_judgement_is_noted_whether_it_is_the_best_or_not(made, tmp_path):
    keeper, pushed = made
    for version, mean in enumerate((3.0, 9.0, 5.0), 1):
        keeper.consider(judged(mean, version), pushed(version))
    found = read_judgements(tmp_path / "judgements.jsonl").points
    assert [(point.env_steps, point.return_mean) for point in found] == [(1, 3.0), (2, 9.0), (3, 5.0)]
    assert version_on_disk(tmp_path) == 2


def test_a_checkpoint_counts_for_the_journal_once_it_is_saved(made, tmp_path, monkeypatch):
    keeper, _ = made
    algorithm, real = SimpleNamespace(arrays=dict), module.save_checkpoint

    def refuse(*_, **__):
        raise CheckpointError("checkpoint cannot be written: No space left on device")

    monkeypatch.setattr(module, "save_checkpoint", refuse)
    for _ in range(2):
        with pytest.raises(CheckpointError):
            keeper.checkpoint(algorithm, Progression())
    assert (keeper._ingest.saved, keeper.resumable) == ([], False)
    monkeypatch.setattr(module, "save_checkpoint", real)
    keeper.checkpoint(algorithm, Progression())
    assert (keeper._ingest.saved, keeper.resumable) == ([7], True)


def test_a_checkpoint_keeps_what_the_normaliser_has_learned_if_it_learns(made, tmp_path):
    keeper, _ = made
    keeper.checkpoint(SimpleNamespace(arrays=dict), Progression())
    assert load_latest(tmp_path / "checkpoints").arrays["normalizer"] == {"count": 5}
    keeper._normalizer = SimpleNamespace(arrays=dict)
    keeper.checkpoint(SimpleNamespace(arrays=dict), Progression())
    assert "normalizer" not in load_latest(tmp_path / "checkpoints").arrays


def test_no_block_waits_while_the_networks_are_copied(made):
    keeper, _ = made
    copied_while_paused = []

    def arrays():
        copied_while_paused.append(keeper._ingest.is_paused)
        return {"w": np.zeros(2)}

    keeper.checkpoint(SimpleNamespace(arrays=arrays), Progression())
    assert copied_while_paused == [False]
