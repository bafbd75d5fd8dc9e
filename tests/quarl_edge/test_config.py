from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import CheckpointError, UsageError
from quarl_device.evaluate import MAX_EPISODES
from quarl_edge.algorithms import ALGORITHMS
from quarl_edge.algorithms.dqn import DqnConfig
from quarl_edge.configure import (
    config_from_json,
    make_config,
    parse_setting,
    preset_names,
    read_preset,
    usual_algorithm,
)

MINIMAL = DqnConfig(env_id="CartPole-v1")
PRESETS = [(algorithm, name) for algorithm in ALGORITHMS for name in preset_names(algorithm)]


@pytest.mark.parametrize(("algorithm", "name"), PRESETS)
def test_every_preset_makes_a_valid_config_that_round_trips(algorithm, name):
    config = make_config("CartPole-v1", algorithm=algorithm, preset=name, settings=["seed=3"])
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.seed == 3
    assert config.env_id == "CartPole-v1"


@pytest.mark.parametrize(
    ("env_id", "dimensions"), [("CartPole-v1", 4), ("Acrobot-v1", 6), ("MountainCar-v0", 2), ("LunarLander-v3", 8)]
)
def test_presets_normalise_each_dimension(env_id, dimensions):
    config = make_config(env_id)
    assert len(config.observation_scale) == len(config.observation_offset) == dimensions


def test_layers_later_ones_win():
    assert make_config("Nothing-v0").batch_size == read_preset("default")["batch_size"]
    assert make_config("MountainCar-v0").learning_rate == 4e-3
    assert make_config("MountainCar-v0", preset="CartPole-v1").learning_rate == 1e-3
    assert make_config("Acrobot-v1", asked={"batch_size": 32}).batch_size == 32
    assert make_config("Acrobot-v1", asked={"batch_size": 32}, settings=["batch_size=16"]).batch_size == 16


def test_a_preset_of_an_id_with_a_slash_lies_in_a_folder():
    assert "dm_control/cartpole-balance-v0" in preset_names("d4pg")
    config = make_config("dm_control/cartpole-balance-v0")
    assert (config.algorithm, config.value_max) == ("d4pg", 10)
    with pytest.raises(UsageError, match="did you mean 'dm_control/cartpole-balance-v0'"):
        make_config("X-v0", algorithm="d4pg", preset="dm_control/cartpole-balance")


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'CartPole-v1'"):
        make_config("X-v0", preset="Cartpole-v1")
    with pytest.raises(UsageError, match="did you mean 'LunarLander-v3'"):
        make_config("X-v0", preset="LUNARLANDER")
    with pytest.raises(UsageError, match="unknown setting 'worms'"):
        make_config("X-v0", asked={"worms": 3})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hidden=128,128", (128, 128)),
        ("hidden=64", (64,)),
        ("hidden = (64, 32,)", (64, 32)),
        ("steps=50_000", 50_000),
        ("steps=1e5", 100_000),
        ("learning_rate=2.3e-3", 2.3e-3),
        ("huber_delta=1", 1.0),
        ("double_q=false", False),
        ("double_q=True", True),
        ("goal_return=none", None),
        ("goal_return=-100", -100.0),
        ("observation_scale=None", None),
        ("observation_scale=1,0.5", (1.0, 0.5)),
        ("error_buffer=", None),
    ],
)
def test_settings_are_read_by_the_type_of_the_field(text, value):
    name, found = parse_setting(text, DqnConfig)
    assert found == value
    assert type(found) is type(value)
    assert name == text.split("=", maxsplit=1)[0].strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hidden", "expected key=value"),
        ("hiden=64", "did you mean 'hidden'"),
        ("learning_rat=1", "did you mean 'learning_rate'"),
        ("zzzzzz=1", "unknown setting 'zzzzzz'"),
        ("foo=1", "there are activation_bits, actors, .*weight_bits"),
        ("steps=many", "expected a whole number"),
        ("steps=1.5", "expected a whole number"),
        ("steps=inf", "expected a whole number"),
        ("steps=none", "expected a whole number"),
        ("double_q=maybe", "expected true or false"),
        ("learning_rate=fast", "expected a number"),
        ("goal_return=high", "expected a number, or none"),
        ("hidden=64,x", "expected numbers with commas"),
        ("env_id=CartPole-v1", "argument"),
        ("algorithm=dqn", "--algorithm NAME"),
    ],
)
def test_a_bad_setting_says_what_was_expected(text, message):
    with pytest.raises(UsageError, match=message):
        parse_setting(text, DqnConfig)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env_id": ""}, "env_id"),
        ({"algorithm": "ddpg"}, "hyperparameters of 'dqn'"),
        ({"evaluate_seed": 2**31 - 1}, "evaluate_seed = 2147483647: expected at least 0 and at most 2,000,000,000"),
        ({"target_period_updates": 100}, r"multiple of updates_per_call = 32 .*=96 or 128"),
        ({"target_period_updates": 31}, r"target_period_updates = 31.*=32\)"),
        ({"lockstep": True, "actors": 1, "checkpoint_period_steps": 0}, "could not resume"),
        ({"seed": -1}, "seed = -1: expected at least 0"),
        ({"seed": True}, "seed = True: expected a whole number"),
        ({"steps": 0}, "steps = 0: expected at least 1"),
        ({"steps": 1.0}, "expected a whole number"),
        ({"hidden": ()}, "expected 1..16 layers"),
        ({"hidden": (64, 0)}, "hidden"),
        ({"hidden": [64]}, "expected numbers"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0: expected above 0"),
        ({"learning_rate": float("nan")}, "learning_rate = nan: expected a number"),
        ({"discount": 1.01}, "discount = 1.01: expected at least 0 and at most 1"),
        ({"exploration_final": -0.1}, "exploration_final"),
        ({"double_q": 1}, "expected true or false"),
        ({"learning_starts": 200_000}, "at most replay_capacity"),
        ({"target_period_updates": 0, "target_tau": 0.0}, "would never change"),
        ({"lockstep": True, "actors": 2}, "one actor"),
        ({"observation_offset": (0.0,)}, "both or neither"),
        ({"observation_scale": (1.0, 0.0)}, "other than 0"),
        ({"observation_scale": (1.0, 1.0), "observation_offset": (0.0,)}, "one value"),
        ({"observation_scale": (float("inf"),)}, "expected numbers"),
        ({"goal_return": float("inf")}, "goal_return"),
        ({"edge_tpu": True, "lockstep": True, "actors": 1}, "acts for one turn"),
        ({"edge_tpu": True, "max_lag_versions": 20}, r"every 20th policy .*edge_tpu_period_pushes=5\)"),
        ({"edge_tpu_period_pushes": 0}, "at least 1"),
        ({"edge_tpu_timeout_s": 0.0}, "above 0"),
        ({"worms": 3}, "unknown setting"),
    ],
)
def test_a_value_that_cannot_work_is_named_with_its_range(changes, message):
    with pytest.raises(UsageError, match=message):
        MINIMAL.replace(**changes)


def test_what_learns_from_rounds_has_nothing_to_compile():
    config = make_config("CartPole-v1", algorithm="ppo")
    with pytest.raises(UsageError, match="ppo learns from rounds"):
        config.replace(edge_tpu=True)


def test_the_edge_tpu_goes_with_a_lag_that_compiled_policies_can_keep():
    config = MINIMAL.replace(edge_tpu=True, max_lag_versions=21)
    assert config.edge_tpu_period_pushes == 20
    assert config_from_json(config.to_json()) == config
    stored = MINIMAL.to_json()
    for name in ("edge_tpu", "edge_tpu_period_pushes", "edge_tpu_timeout_s"):
        del stored[name]
    assert config_from_json(stored) == MINIMAL, "runs from before it was there"


def test_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        MINIMAL.seed = 3
    with pytest.raises(TypeError):
        DqnConfig("CartPole-v1")


def test_every_field_is_documented():
    for info in ALGORITHMS.values():
        said = "".join(cls.__doc__ or "" for cls in info.config.__mro__)
        for field in dataclasses.fields(info.config):
            assert f"        {field.name}: " in said, (info.name, field.name)


@given(steps=st.integers(0, 10**7))
def test_epsilon_falls_once_and_stays(steps):
    config = MINIMAL.replace(exploration_initial=1.0, exploration_final=0.04, exploration_steps=8_000)
    epsilon = config.epsilon(steps)
    assert 0.04 <= epsilon <= 1.0
    assert config.epsilon(steps + 100) <= epsilon


def test_epsilon_by_hand():
    config = MINIMAL.replace(exploration_initial=1.0, exploration_final=0.2, exploration_steps=1_000)
    assert [config.epsilon(s) for s in (0, 500, 1_000, 9_999)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_a_stored_config_of_another_version_says_which():
    stored = {**MINIMAL.to_json(), "version": "9.9.9", "worms": 3}
    with pytest.raises(CheckpointError, match=r"unknown key 'worms'.*written by quarl-edge 9\.9\.9"):
        config_from_json(stored)
    with pytest.raises(CheckpointError, match=r"schema 2.*9\.9\.9"):
        config_from_json({**MINIMAL.to_json(), "schema": 2, "version": "9.9.9"})


def test_an_unknown_algorithm_names_the_nearest():
    with pytest.raises(UsageError, match=r"algorithm = 'DQM': expected one of dqn.*did you mean 'dqn'"):
        make_config("CartPole-v1", algorithm="DQM")
    with pytest.raises(CheckpointError, match="expected one of dqn"):
        config_from_json({**MINIMAL.to_json(), "algorithm": "worms"})


@pytest.mark.parametrize(
    ("env_id", "algorithm"),
    [("CartPole-v1", "dqn"), ("Nothing-v0", "dqn"), ("Pendulum-v1", "d4pg"), ("dm_control/walker-walk-v0", "d4pg")],
)
def test_without_an_algorithm_the_one_with_a_preset_is_taken(env_id, algorithm):
    assert usual_algorithm(env_id) == make_config(env_id).algorithm == algorithm


def test_a_setting_of_another_algorithm_is_unknown():
    with pytest.raises(UsageError, match="unknown setting 'double_q'"):
        make_config("Pendulum-v1", algorithm="ddpg", settings=["double_q=false"])
    assert make_config("Pendulum-v1", algorithm="ddpg", settings=["noise=ornstein_uhlenbeck"])


@pytest.mark.parametrize(
    ("algorithm", "setting", "message"),
    [
        ("d4pg", "value_min=200", "less than value_max"),
        ("d4pg", "atoms=1", "atoms = 1"),
        ("ddpg", "noise=pink", "expected one of gaussian"),
        ("ddpg", "critic_hidden=", "critic_hidden"),
        ("ddpg", "critic_hidden=9000", "critic_hidden"),
    ],
)
def test_values_of_each_algorithm_are_checked(algorithm, setting, message):
    with pytest.raises(UsageError, match=message):
        make_config("Pendulum-v1", algorithm=algorithm, settings=[setting])


@pytest.mark.parametrize("stored", [None, [], "x", {}, {"schema": 1}])
def test_a_stored_config_that_does_not_hold(stored):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        config_from_json(stored)


@pytest.mark.parametrize(
    ("stored", "missing"), [({}, "schema"), ({"schema": 1}, "env_id"), ({"schema": 1, "env_id": "X-v0"}, "algorithm")]
)
def test_a_stored_config_says_what_it_lacks(stored, missing):
    with pytest.raises(CheckpointError, match=rf"has no '{missing}'.*quarl-edge train"):
        config_from_json(stored)


def test_the_last_episode_of_a_judgement_has_a_valid_seed():
    config = MINIMAL.replace(evaluate_seed=2_000_000_000, evaluate_episodes=10_000)
    starts = [config.evaluate_seed, config.fresh_seed, config.confirm_seed]
    assert all(later - earlier >= config.evaluate_episodes for earlier, later in itertools.pairwise(starts))
    # As `evaluate` bounds the first start seed.
    assert starts[-1] <= 2**31 - 1 - MAX_EPISODES


def test_a_stored_value_that_does_not_hold_is_named():
    with pytest.raises(CheckpointError, match="steps = 'x'"):
        config_from_json({**MINIMAL.to_json(), "steps": "x"})


@pytest.mark.parametrize("name", ["head_output", "runtime"])
def test_choices_name_what_there_is(name):
    with pytest.raises(UsageError, match=f"{name} = 'int9': expected one of"):
        make_config("CartPole-v1", settings=[f"{name}=int9"])


@pytest.mark.parametrize("name", ["weight_bits", "activation_bits"])
@pytest.mark.parametrize("bits", [1, 9, "many"])
def test_bits_are_2_to_8(name, bits):
    with pytest.raises(UsageError, match=name):
        make_config("CartPole-v1", settings=[f"{name}={bits}"])


@pytest.mark.parametrize(
    ("setting", "says"), [("activation_bits=7", "whole level"), ("head_output=int16", "no kernel")]
)
def test_what_an_older_runtime_cannot_compute_is_refused_at_the_start(setting, says):
    assert make_config("CartPole-v1", settings=[setting])
    with pytest.raises(UsageError, match=says):
        make_config("CartPole-v1", settings=[setting, "runtime=tflite-2.14"])
    with pytest.raises(UsageError, match=says):
        make_config("CartPole-v1", settings=[setting]).check_kernels("tflite-2.14")
    assert make_config("CartPole-v1", settings=["weight_bits=2", "head_output=float32", "runtime=tflite-2.14"])
