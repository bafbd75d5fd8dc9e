"""What is no array is one vector where the policy observes one: the rule that learner, actor and evaluation share."""

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import EnvSpec, check_matches, is_one_vector, make_single, make_vector, spaces_to_specs
from quarl_device.environments.spaces import flattened
from quarl_device.errors import SpaceMismatch, UnsupportedSpace

VECTOR = ObservationSpec(key="observation", shape=(5,))
PARTS = {
    "zeta": Box(-1.0, 1.0, (2,), np.float64),
    "height": Box(0.0, 9.0, (), np.float64),
    "inner": Dict({"mode": Discrete(2)}),
}


class Creature(gymnasium.Env):
    """Observes numbers, vectors and a Discrete in a Dict, as suites of robots do."""

    action_space = Discrete(2)

    def __init__(self, space=None):
        self.observation_space = Dict(space or PARTS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(0), {}

    def step(self, action):
        return self._observe(int(action)), 1.0, False, False, {}

    def _observe(self, mode):
        return {"zeta": np.array([0.5, -0.5]), "height": np.float64(3.0), "inner": {"mode": mode}}


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register("QuarlCreature-v0", entry_point=Creature, max_episode_steps=4)
    yield
    del gymnasium.registry["QuarlCreature-v0"]


def test_the_rule():
    assert is_one_vector((VECTOR,))
    assert not is_one_vector((dataclasses.replace(VECTOR, shape=(5, 5)),))
    assert not is_one_vector((dataclasses.replace(VECTOR, shape=()),))
    assert not is_one_vector((dataclasses.replace(VECTOR, key="zeta"),))
    assert not is_one_vector((VECTOR, dataclasses.replace(VECTOR, key="zeta")))
    assert not is_one_vector(())
    assert EnvSpec.seen_as((VECTOR,), "QuarlCreature-v0", {"space": None}).flat
    assert not EnvSpec.seen_as((dataclasses.replace(VECTOR, key="zeta"),), "QuarlCreature-v0").flat


def test_the_vector_is_in_the_order_of_the_space():
    spec = EnvSpec.seen_as((VECTOR,), "QuarlCreature-v0")
    env = make_single(spec)
    # gymnasium sorts the keys of a Dict: height, inner, zeta.
    np.testing.assert_array_equal(env.reset(seed=0)[0], [3.0, 1.0, 0.0, 0.5, -0.5])
    np.testing.assert_array_equal(env.step(1)[0], [3.0, 0.0, 1.0, 0.5, -0.5])
    [found], _ = spaces_to_specs(env.observation_space, env.action_space)
    assert (found.key, found.shape, found.dtype) == ("observation", (5,), "float64")
    vector = make_vector(spec, 2)
    np.testing.assert_array_equal(vector.reset(seed=0), [[3.0, 1.0, 0.0, 0.5, -0.5]] * 2)
    assert vector.observations == (found,)


def test_time_limits_truncate_with_the_flattened_observation_as_the_last_one():
    adapter = make_vector(EnvSpec(env_id="QuarlCreature-v0", flat=True), 2)
    adapter.reset(seed=0)
    steps = [adapter.step(np.array([1, 0], np.uint8)) for _ in range(4)]
    assert [step.truncated.tolist() for step in steps] == [[False, False]] * 3 + [[True, True]]
    assert not any(step.terminated.any() for step in steps)
    np.testing.assert_array_equal(steps[-1].final_observation, [[3.0, 0.0, 1.0, 0.5, -0.5], [3.0, 1.0, 0.0, 0.5, -0.5]])


def test_what_observes_an_array_is_left_alone():
    spec = ObservationSpec(key="observation", shape=(4,))
    flat, plain = make_single(EnvSpec.seen_as((spec,), "CartPole-v1")), make_single(EnvSpec(env_id="CartPole-v1"))
    assert type(flat) is type(plain)
    assert make_vector(EnvSpec(env_id="CartPole-v1", flat=True), 2).mode == "next_step"


@pytest.mark.parametrize(
    ("env_id", "size"), [("FrozenLake-v1", 16), ("Taxi-v4", 500), ("Blackjack-v1", 32 + 11 + 2)], ids=str
)
def test_what_is_counted_becomes_float32_of_ones_and_zeros(env_id, size):
    env = make_single(EnvSpec(env_id=env_id, flat=True))
    [found], _ = spaces_to_specs(env.observation_space, env.action_space)
    assert (found.key, found.shape, found.dtype) == ("observation", (size,), "float32")
    shown = env.reset(seed=0)[0]
    assert shown.dtype == np.float32
    assert set(shown) == {0.0, 1.0}
    batch = make_vector(EnvSpec(env_id=env_id, flat=True), 2)
    assert batch.observations == (found,)
    np.testing.assert_array_equal(batch.reset(seed=0)[0], shown)


def test_a_policy_of_several_keys_sees_the_dict():
    keys = (ObservationSpec(key="height", shape=(), dtype="float64"), ObservationSpec(key="zeta", shape=(2,)))
    env = make_single(EnvSpec.seen_as(keys, "QuarlCreature-v0"))
    assert isinstance(env.observation_space, Dict)


def test_a_vector_of_another_size_is_told():
    env = make_single(EnvSpec.seen_as((dataclasses.replace(VECTOR, dtype="float64"),), "QuarlCreature-v0"))
    other = (dataclasses.replace(VECTOR, shape=(7,), dtype="float64"),)
    with pytest.raises(SpaceMismatch, match=r"the environment has float64\[5\], expected float64\[7\]"):
        check_matches(env, other, ActionSpec(kind="discrete", n=2))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"eye": Box(0, 255, (8, 8, 3), np.uint8)}, r"'observation.eye' is a Box space of shape \(8, 8, 3\)"),
        ({"a": Dict({"said": Text(4)})}, r"'observation.a.said' is a Text space"),
    ],
)
def test_a_part_that_is_no_vector_is_refused_by_name(parts, message):
    spec = EnvSpec(env_id="QuarlCreature-v0", kwargs={"space": parts}, flat=True)
    for make in (make_single, lambda spec: make_vector(spec, 2)):
        with pytest.raises(UnsupportedSpace, match=message) as caught:
            make(spec)
        assert "FilterObservation" in caught.value.hint


NUMBERS = st.one_of(
    st.integers(1, 4).map(lambda n: Box(-1.0, 1.0, (n,), np.float32)),
    st.just(Box(-5.0, 5.0, (), np.float64)),
    st.integers(1, 5).map(Discrete),
    st.integers(1, 3).map(lambda n: MultiDiscrete([2] * n)),
)
KEYS = st.sampled_from(["z", "a", "m", "b"])
DICTS = st.dictionaries(KEYS, st.one_of(NUMBERS, st.dictionaries(KEYS, NUMBERS, min_size=1).map(Dict)), min_size=1)


class Sampled(gymnasium.Env):
    """Shows samples of any space."""

    action_space = Discrete(2)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


@given(DICTS, st.integers(0, 1000))
def test_any_dict_of_numbers_is_a_vector_of_floats_and_what_it_holds(parts, seed):
    space = Dict(parts)
    env = flattened(Sampled(space))
    [spec], _ = spaces_to_specs(env.observation_space, env.action_space)
    assert is_one_vector((spec,))
    assert spec.dtype in ("float32", "float64")
    space.seed(seed)
    shown = env.reset()[0]
    space.seed(seed)
    np.testing.assert_array_equal(shown, gymnasium.spaces.flatten(space, space.sample()))
    assert (shown.shape, shown.dtype.name) == (spec.shape, spec.dtype)


class ManyCreatures(gymnasium.vector.VectorEnv):
    """A vector implementation of its own, which no wrapper flattens."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs, max_episode_steps, space=None):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Dict(space or PARTS), Discrete(2)


LEVEL = {"space": {"zeta": PARTS["zeta"]}}


def test_a_vector_implementation_that_observes_a_dict_gives_way_to_single_environments():
    gymnasium.registry["QuarlCreature-v0"].vector_entry_point = ManyCreatures
    assert make_vector(EnvSpec(env_id="QuarlCreature-v0", kwargs=LEVEL), 2).mode == "next_step"
    assert make_vector(EnvSpec(env_id="QuarlCreature-v0", kwargs=LEVEL, flat=True), 2).mode == "same_step"


def test_a_vector_implementation_with_other_actions_is_another_environment():
    class Others(ManyCreatures):
        def __init__(self, **named):
            super().__init__(**named)
            self.single_action_space = Discrete(3)

    gymnasium.registry["QuarlCreature-v0"].vector_entry_point = Others
    assert make_vector(EnvSpec(env_id="QuarlCreature-v0", kwargs=LEVEL), 2).mode == "same_step"
