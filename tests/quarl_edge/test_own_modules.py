"""Where an id with a module goes: to what runs here, and no further."""

from types import SimpleNamespace

import pytest

from quarl_device.link import BrokerURL
from quarl_device.wire.keys import LearnerKey
from quarl_edge.configure import make_config
from quarl_edge.learner.fleet import Fleet
from quarl_edge.local.evaluator import Evaluator
from quarl_edge.local.training import _local_actors
from quarl_edge.runs import RunDirectory
from quarl_edge.task import look_at

ENV = "quarl_device.testing.identity:IdentityDiscrete-v0"
KEY = LearnerKey.generate()


def birth(env_id):
    config = make_config(env_id)
    task = look_at(config)
    fleet = Fleet(url=BrokerURL.parse("mqtt://localhost"), password=None, name="lab", key=KEY)
    return fleet.birth(config, observation=task.observation, action=task.action, epoch=1, head="q_values")


@pytest.mark.parametrize(("env_id", "name"), [(ENV, "IdentityDiscrete-v0"), ("CartPole-v1", "CartPole-v1")])
def test_by_wire_goes_the_name_alone(env_id, name):
    assert birth(env_id).env_id == name


@pytest.mark.parametrize(("env_id", "named"), [(ENV, ["--env", ENV]), ("CartPole-v1", [])])
def test_local_actors_are_told_the_module(tmp_path, env_id, named, monkeypatch):
    told = []
    monkeypatch.setattr("quarl_edge.local.training.ActorProcesses", lambda commands, log_dir: told.extend(commands))
    config = make_config(env_id)
    run = RunDirectory.create(config, path=tmp_path / "r")
    access = SimpleNamespace(
        actors=("actor-0", "actor-1"),
        actor_url=lambda name: BrokerURL.parse("mqtt://localhost"),
        actor_credentials={},
        passwords={},
    )
    _local_actors(config, run, access, fleet="lab", key=KEY)
    assert len(told) == 2
    for command in told:
        words = list(command.arguments)
        at = words.index("--env") if "--env" in words else None
        assert ([] if at is None else words[at : at + 2]) == named


def test_the_evaluator_plays_what_the_user_named(monkeypatch):
    handed = []
    monkeypatch.setattr("quarl_edge.local.evaluator._new_pool", lambda: SimpleNamespace(submit=handed.append))
    Evaluator(env_id=ENV, episodes=1, seed=0).submit(b"", None, version=1, env_steps=0)
    [work] = handed
    assert [part.env_id for part in work.keywords.values() if hasattr(part, "env_id")] == [ENV]
