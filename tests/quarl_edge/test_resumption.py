"""What a session begins from, and that it says so plainly."""

from types import SimpleNamespace

import pytest

from quarl_device.errors import CheckpointError, JournalError
from quarl_edge.checkpoint import Checkpoint
from quarl_edge.configure import make_config
from quarl_edge.learner.parts import Progression
from quarl_edge.learner.result import StopReason
from quarl_edge.learner.resumption import Resumption
from quarl_edge.runs import RunDirectory


def checkpoint(*, updates=40, env_steps=1_000, **state):
    progression = {"version": 3, "updates": updates, "normalizer_version": 1, "reset_due": False}
    fields = {
        "algorithm": "dqn", "progression": progression, "epoch": 77, "journal_position": 500, "env_steps": env_steps,
        "samples": 9, "replay": {"seed": 1}, "best": None,
    }  # fmt: skip
    return Checkpoint(state={**fields, **state}, arrays={"algorithm": {"w": 1}, "normalizer": {"count": 5}})


def resumption(tmp_path, kept, *, lockstep=False):
    return Resumption(
        RunDirectory(tmp_path), kept, make_config("CartPole-v1", asked={"lockstep": lockstep, "actors": 1})
    )


class Ingest:
    """A journal of 800 bytes."""

    journal_position = 800

    def __init__(self):
        self.rebuilt, self.random, self.samples = [], None, None
        self.experience = SimpleNamespace(restore=self._restore)

    def _restore(self, state, arrays):
        self.random, self.samples = state["replay"], state["samples"]
        assert arrays == {}

    def rebuild(self, *, until):
        self.rebuilt.append(until)


def test_a_new_run_begins_from_nothing_and_says_nothing(tmp_path):
    start, ingest = resumption(tmp_path, None), Ingest()
    start.restore_experience(ingest)
    start.restore_learning(SimpleNamespace(), SimpleNamespace())
    assert (start.is_new, start.epoch, start.progression(), start.best()) == (True, 0, Progression(), None)
    assert ingest.rebuilt == []
    assert start.says(0) == ""


def test_a_resume_without_anything_learned_says_that_the_network_starts_anew(tmp_path):
    """The checkpoint of a run's very start: the learner was killed before its first push of something learned."""
    said = resumption(tmp_path, checkpoint(updates=0, env_steps=0)).says(15_000)
    assert said == (
        "resuming a run of which no update was kept: the network starts anew; 15,000 steps of experience are kept"
    )


@pytest.mark.parametrize(
    ("env_steps", "said"),
    [
        (1_000, "resuming from the checkpoint at 1,000 steps (40 updates)"),
        (1_700, "resuming from the checkpoint at 1,000 steps (40 updates) and the experience of 700 steps since"),
    ],
)
def test_a_resume_says_what_it_goes_on_from(tmp_path, env_steps, said):
    assert resumption(tmp_path, checkpoint()).says(env_steps) == said


@pytest.mark.parametrize(("lockstep", "until"), [(False, None), (True, 500)])
def test_experience_after_the_checkpoint_is_kept_but_not_in_lockstep(tmp_path, lockstep, until):
    ingest = Ingest()
    resumption(tmp_path, checkpoint(), lockstep=lockstep).restore_experience(ingest)
    assert (ingest.rebuilt, ingest.random, ingest.samples) == ([until], {"seed": 1}, 9)


def test_a_journal_that_ends_before_the_checkpoint_is_refused(tmp_path):
    ingest = Ingest()
    with pytest.raises(JournalError, match="ends 200 bytes before the checkpoint"):
        resumption(tmp_path, checkpoint(journal_position=1_000)).restore_experience(ingest)
    assert ingest.rebuilt == []


def test_what_was_learned_is_restored_with_its_normaliser(tmp_path):
    restored, normalised = [], []
    normalizer = SimpleNamespace(restore=normalised.append)
    start = resumption(tmp_path, checkpoint())
    start.restore_learning(SimpleNamespace(restore=restored.append), normalizer)
    assert (restored, normalised) == ([{"w": 1}], [{"count": 5}])
    assert start.progression() == Progression(version=3, updates=40, normalizer_version=1, reset_due=True)
    assert (start.is_new, start.epoch) == (False, 77)


@pytest.mark.parametrize("said", [{"algorithm": "a2c"}, {"algorithm": None}])
def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path, said):
    with pytest.raises(CheckpointError, match=r"the checkpoint is of .*, the run .* learns with dqn") as refused:
        resumption(tmp_path, checkpoint(**said))
    assert "start a new run" in refused.value.hint


def test_counters_of_another_version_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="another version"):
        resumption(tmp_path, checkpoint(progression={"laps": 3})).progression()


def test_a_session_that_never_began_tells_what_the_run_had(tmp_path):
    result = resumption(tmp_path, checkpoint()).nothing_happened()
    assert (result.reason, result.env_steps, result.updates, result.resumable) == (
        StopReason.INTERRUPTED, 1_000, 40, True,
    )  # fmt: skip
    assert not resumption(tmp_path, None).nothing_happened().resumable
