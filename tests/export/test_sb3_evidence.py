"""Whose VecNormalize statistics are they? What an agent's archive tells of those that are given with it."""

import dataclasses

import numpy as np
import pytest
from sb3_factory import SB3, dqn_settings

from quarl_device.errors import SpaceMismatch, UsageError
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.sb3 import evidence, read_sb3
from quarl_export.importers.sb3.agent import read_agent
from quarl_export.importers.sb3.evidence import UNKNOWN, statistics_doubts
from quarl_export.importers.sb3.spaces import SINGLE
from quarl_export.importers.sb3.vecnormalize import Statistics, VecNormalize

TRAINED = SB3.parent / "trained"


def read(path, **options):
    return read_sb3(path, options=ImportOptions(**options))


def test_statistics_of_another_agents_observations_are_refused():
    with pytest.raises(SpaceMismatch, match="saved with this agent"):
        read(SB3 / "a2c_narrow.zip", vecnormalize=TRAINED / "ppo_cartpole.vecnormalize.pkl")


def test_an_agent_that_was_trained_without_vecnormalize_takes_no_statistics():
    # Of the same shape: only what the archive keeps tells.
    with pytest.raises(UsageError, match=r"a2c_cartpole\.zip was trained without.*leave --vecnormalize out"):
        read(TRAINED / "a2c_cartpole.zip", vecnormalize=TRAINED / "ppo_cartpole.vecnormalize.pkl")


def test_an_agents_own_statistics_are_known_by_its_last_observation():
    provenance = read(SB3 / "dqn_stacked.zip", vecnormalize=SB3 / "dqn_stacked.vecnormalize.pkl").provenance
    assert provenance["warnings"] == []
    assert not any("VecNormalize" in note for note in provenance["assumed"])


def test_statistics_that_do_not_fit_the_last_observation_are_warned_of():
    statistics = TRAINED / "ppo_pendulum.vecnormalize.pkl"
    for name in ("sac_pendulum.zip", "td3_pendulum.zip", "ddpg_pendulum.zip"):
        (warning,) = read(TRAINED / name, vecnormalize=statistics).provenance["warnings"]
        assert "another agent's" in warning


def test_where_an_archive_cannot_tell_whose_statistics_they_are_it_is_said():
    provenance = read(TRAINED / "ppo_pendulum.zip", vecnormalize=TRAINED / "ppo_pendulum.vecnormalize.pkl").provenance
    assert provenance["warnings"] == []
    assert UNKNOWN in provenance["assumed"]


def test_observations_beyond_the_clip_are_of_other_statistics(monkeypatch):
    agent = read_agent(dqn_settings(), what="a")
    agent = dataclasses.replace(agent, family="actor_critic", behind_vecnormalize=True)
    statistics = VecNormalize(
        statistics={SINGLE: Statistics(offset=np.zeros(4), scale=np.ones(4), count=1.0)}, clip=1.0
    )
    for size, warned in ((1.0, 0), (2.0, 1)):
        monkeypatch.setattr(evidence, "kept_observations", lambda *_, size=size, **__: {SINGLE: np.full((1, 4), size)})
        warnings, _ = statistics_doubts(agent, {}, statistics, what="a")
        assert len(warnings) == warned
