"""What agents say of themselves, environments that fit them or not, and everything that is refused by its name."""

import base64
import contextlib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sb3_factory import (
    POLICIES,
    SB3,
    Built,
    Call,
    Name,
    Raw,
    array,
    box,
    dict_space,
    discrete,
    doubled,
    dqn_settings,
    dqn_tensors,
    field,
    image,
    linear,
    nature,
    perceptron,
    pickled,
    torch_archive,
    write_agent,
)

from quarl_device.errors import (
    ModelFileError,
    NonFiniteError,
    QuarlError,
    SpaceMismatch,
    UnknownEnvironment,
    UnsafeSource,
    UnsupportedModel,
    UnsupportedSpace,
    UsageError,
)
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.sb3 import agent as agent_module
from quarl_export.importers.sb3 import read_sb3
from quarl_export.ir import run_reference
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.schemes import SchemeOptions

ACTIVATION = "torch.nn.modules.activation"
BOX = Name("gymnasium.spaces.box", "Box")
LAYERS = "stable_baselines3.common.torch_layers"


class Fixed(gymnasium.Env):
    """Has spaces and nothing else."""

    def __init__(self, observation, action=None):
        self.observation_space = observation
        self.action_space = action or spaces.Discrete(2)


def register(env_id, observation, action=None):
    gymnasium.register(env_id, entry_point=lambda **_: Fixed(observation, action))
    return ImportOptions(env_id=env_id)


@pytest.fixture(autouse=True)
def _registry():
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def read(path, **options):
    return read_sb3(path, options=ImportOptions(**options))


@pytest.fixture
def write(tmp_path):
    """Return what writes a DQN whose settings and tensors are changed."""
    return lambda tensors=None, **changed: write_agent(
        tmp_path / "agent.zip", tensors=tensors, settings=dqn_settings(**changed)
    )


def actor_critic(short="ActorCriticPolicy"):
    return field(Name(POLICIES, short))


def gaussian_tensors(inputs=4, outputs=2):
    weight, bias = linear(6, outputs)
    head = {"action_net.weight": weight, "action_net.bias": bias, "log_std": np.zeros(outputs, np.float32)}
    return perceptron("mlp_extractor.policy_net.", inputs, 6) | perceptron("value_net.", 6, 1) | head


def test_an_agent_made_by_hand_computes_what_its_weights_say(write):
    policy = read(write())
    tensors, rows = dqn_tensors(), np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    hidden = np.maximum(rows @ tensors["q_net.q_net.0.weight"].T + tensors["q_net.q_net.0.bias"], 0)
    wanted = hidden @ tensors["q_net.q_net.2.weight"].T + tensors["q_net.q_net.2.bias"]
    np.testing.assert_allclose(run_reference(policy, {"observation": rows})["q_values"], wanted, atol=1e-5)
    assert [layer.name for layer in policy.graph.layers] == ["q_net.q_net.0", "q_net.q_net.1", "q_net.q_net.2"]
    assert policy.golden_observations == {}
    spec = policy.contract.observations[0]
    assert (spec.low, spec.high, spec.dtype) == ((-1.0,), (1.0,), "float32")


# Algorithms and policies


@pytest.mark.parametrize(
    ("told", "algorithm"),
    [({"clip_range": None}, "ppo"), ({"cg_max_steps": 15}, "trpo"), ({"normalize_advantage": False}, "a2c")],
)
def test_algorithms_that_share_a_policy_are_told_apart(tmp_path, told, algorithm):
    data = dqn_settings(policy_class=actor_critic(), action_space=field(box([-1, -2], [1, 2])))
    path = write_agent(tmp_path / "a.zip", tensors=gaussian_tensors(), settings={**data, **told})
    assert read(path).contract.algorithm == algorithm


@pytest.mark.parametrize(
    "name",
    [
        ("sb3_contrib.qrdqn.policies", "QRDQNPolicy"),
        ("sb3_contrib.common.maskable.policies", "MaskableActorCriticPolicy"),
        ("__main__", "MyPolicy"),
        ("stable_baselines3.dqn.policies", "QNetwork"),
        ("os", "system"),
    ],
)
def test_other_policies_are_refused_by_name(write, name):
    with pytest.raises(UnsupportedModel, match=rf"{name[0]}\.{name[1]}.*MlpPolicy, CnnPolicy") as caught:
        read(write(policy_class=field(Name(*name))))
    assert caught.value.code == 16


def test_recurrent_agents_are_refused_with_what_to_do():
    with pytest.raises(UnsupportedModel, match=r"RecurrentActorCriticPolicy is recurrent.*VecFrameStack"):
        read(SB3 / "refused_recurrent.zip")


def test_a_policy_class_that_travels_by_value_is_refused_by_its_name(write):
    make = Name("cloudpickle.cloudpickle", "_make_skeleton_class")
    value = Call(make, (Name("builtins", "type"), "OurPolicy", (), {}, "id", None))
    with pytest.raises(UnsupportedModel, match="policy OurPolicy is none"):
        read(write(policy_class=field(value)))


def test_a_policy_class_that_calls_the_shell_is_refused_and_not_called(write, tmp_path):
    with pytest.raises(UnsupportedModel, match=r"posix\.system"):
        read(write(policy_class=field(Call(Name("posix", "system"), (f"touch {tmp_path / 'harmed'}",)))))
    assert not (tmp_path / "harmed").exists()


def test_what_is_not_needed_is_never_decoded(write, tmp_path):
    harm = field(Call(Name("posix", "system"), (f"touch {tmp_path / 'harmed'}",)))
    policy = read(write(lr_schedule=harm, exploration_schedule={":serialized:": "no base64"}, _last_obs=harm))
    assert policy.golden_observations == {}
    assert not (tmp_path / "harmed").exists()


def test_weights_that_call_the_shell_are_refused_by_name(tmp_path):
    harm = {"a": Call(Name("posix", "system"), (f"touch {tmp_path / 'harmed'}",))}
    policy = torch_archive(dqn_tensors(), **{"data.pkl": pickled(harm)})
    with pytest.raises(UnsafeSource, match=r"policy\.pth.*posix\.system"):
        read(write_agent(tmp_path / "a.zip", **{"policy.pth": policy}))
    assert not (tmp_path / "harmed").exists()


# Activations and extractors


@pytest.mark.parametrize(
    ("name", "kind"), [("ReLU", "relu"), ("ReLU6", "relu6"), ("Tanh", "tanh"), ("Sigmoid", "sigmoid"), ("ELU", "elu")]
)
def test_activations(write, name, kind):
    policy = read(write(policy_kwargs=field({"activation_fn": Name(ACTIVATION, name)})))
    assert [layer.kind for layer in policy.graph.layers] == ["dense", kind, "dense"]


def test_no_activation(write):
    policy = read(write(policy_kwargs=field({"activation_fn": Name("torch.nn.modules.linear", "Identity")})))
    assert [layer.kind for layer in policy.graph.layers] == ["dense", "dense"]


@pytest.mark.parametrize("name", ["GELU", "LeakyReLU", "SiLU", "Softplus", "Mish"])
def test_other_activations_are_refused_by_name(write, name):
    with pytest.raises(UnsupportedModel, match=rf"activation {name} cannot.*ReLU, ReLU6, Tanh.*activation_fn="):
        read(write(policy_kwargs=field({"activation_fn": Name(ACTIVATION, name)})))


def test_an_activation_that_is_made_by_a_call_is_refused_and_not_called(write, tmp_path):
    for target in (Name("functools", "partial"), Name(ACTIVATION, "ReLU"), Name("posix", "system")):
        made = Call(target, (f"touch {tmp_path / 'harmed'}",))
        with pytest.raises(UnsupportedModel, match="activation"):
            read(write(policy_kwargs=field({"activation_fn": made})))
    assert not (tmp_path / "harmed").exists()


def test_other_extractors_are_refused_by_name(write):
    for value in (
        Name("__main__", "MyCnn"),
        Call(Name("cloudpickle.cloudpickle", "_make_skeleton_class"), (Name("builtins", "type"), "MyCnn", ())),
    ):
        with pytest.raises(UnsupportedModel, match=r"features extractor .*MyCnn is none"):
            read(write(policy_kwargs=field({"features_extractor_class": value})))


def test_an_extractor_may_be_named(write):
    kwargs = field({"features_extractor_class": Name(LAYERS, "FlattenExtractor")})
    assert read(write(policy_kwargs=kwargs)).graph.layers[0].kind == "dense"


def test_kwargs_may_be_missing_or_wrong(write):
    assert read(write(policy_kwargs={})).contract.algorithm == "dqn"
    for wrong in ([1], field([1]), {"normalize_images": 3}, {"clip_mean": "much"}, {"use_sde": "yes"}):
        with pytest.raises(ModelFileError):
            read(write(policy_kwargs=wrong))


# Layers


def test_a_layer_norm_inside_the_perceptron_is_refused_by_name(write):
    tensors = perceptron("q_net.q_net.", 4, 6) | {"q_net.q_net.1.weight": np.ones(6, np.float32)}
    with pytest.raises(UnsupportedModel, match=r"q_net\.q_net\.1.*LayerNorm"):
        read(write(tensors))


def test_a_layer_of_other_axes_is_refused_by_name(write):
    tensors = dqn_tensors() | {"q_net.q_net.2.weight": np.ones((2, 6, 1), np.float32)}
    with pytest.raises(UnsupportedModel, match=r"q_net\.q_net\.2\.weight is float32\[2, 6, 1\]"):
        read(write(tensors))
    with pytest.raises(UnsupportedModel, match="int64"):
        read(write(dqn_tensors() | {"q_net.q_net.2.weight": np.ones((2, 6), np.int64)}))


def test_no_acting_tensor_is_left_out_in_silence(write):
    extra = {"q_net.gate.weight": np.ones((2, 2), np.float32), "q_net.gate.bias": np.ones(2, np.float32)}
    with pytest.raises(UnsupportedModel, match=r"q_net\.gate\.bias belongs to the acting network.*1 more"):
        read(write(dqn_tensors() | extra))


def test_missing_and_misfitting_weights(write):
    whole = dqn_tensors()
    for changed, says in (
        ({"q_net.q_net.0.weight": np.ones((6, 5), np.float32)}, "takes 5 features, before it are 4"),
        ({"q_net.q_net.0.bias": np.ones(5, np.float32)}, "5 biases for 6 units"),
        ({"q_net.q_net.2.weight": np.ones((3, 6), np.float32), "q_net.q_net.2.bias": np.ones(3, np.float32)}, "3 elem"),
    ):
        with pytest.raises(ModelFileError, match=says):
            read(write(whole | changed))
    del whole["q_net.q_net.0.weight"]
    with pytest.raises(ModelFileError, match=r"no tensor 'q_net\.q_net\.0\.weight'"):
        read(write(whole))
    with pytest.raises(ModelFileError, match=r"no layers q_net\.q_net"):
        read(write({"else.0.weight": np.ones((2, 2), np.float32)}))


def test_a_layer_without_bias(write):
    tensors = dqn_tensors()
    del tensors["q_net.q_net.0.bias"]
    assert not read(write(tensors)).weights["q_net.q_net.0/bias"].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(write, value):
    tensors = dqn_tensors()
    tensors["q_net.q_net.2.weight"][1, 3] = value
    with pytest.raises(NonFiniteError, match=r"q_net\.q_net\.2\.weight holds NaN or Inf") as caught:
        read(write(tensors))
    assert caught.value.code == 15
    # What does not act may be broken.
    tensors = dqn_tensors()
    tensors["q_net_target.q_net.0.bias"][:] = value
    read(write(tensors))


def test_a_constant_deviation_that_is_no_number_is_refused(tmp_path):
    data = dqn_settings(policy_class=actor_critic(), action_space=field(box([-1, -2], [1, 2])))
    tensors = gaussian_tensors() | {"log_std": np.array([0, np.nan], np.float32)}
    with pytest.raises(NonFiniteError, match="log_std"):
        read(write_agent(tmp_path / "a.zip", tensors=tensors, settings=data))


def test_agents_from_before_extractors_were_split(tmp_path):
    space = image((2, 36, 37))
    data = dqn_settings(policy_class=actor_critic("ActorCriticCnnPolicy"), observation_space=field(space))
    weight, bias = linear(7, 2)
    head = {"action_net.weight": weight, "action_net.bias": bias}
    old = read(write_agent(
        tmp_path / "old.zip", tensors=nature("features_extractor.", (2, 36, 37), 7) | head, settings=data
    ))  # fmt: skip
    split = nature("pi_features_extractor.", (2, 36, 37), 7) | nature("vf_features_extractor.", (2, 36, 37), 7, seed=1)
    new = read(write_agent(
        tmp_path / "new.zip", settings=data,
        tensors=nature("features_extractor.", (2, 36, 37), 7, seed=2) | split | head,
    ))  # fmt: skip
    rows = {"observation": np.random.default_rng(0).integers(0, 256, (2, 36, 37, 2)).astype(np.uint8)}
    np.testing.assert_array_equal(run_reference(old, rows)["logits"], run_reference(new, rows)["logits"])


def test_convolutions_that_do_not_fit_their_image(tmp_path):
    data = dqn_settings(
        policy_class=field(Name("stable_baselines3.dqn.policies", "CnnPolicy")),
        observation_space=field(image((2, 30, 37))),
    )
    tensors = nature("q_net.features_extractor.", (2, 36, 37), 7) | perceptron("q_net.q_net.", 7, 2)
    with pytest.raises(ModelFileError, match=r"cnn\.4 .*does not fit an image of \(2, 3, 4\)"):
        read(write_agent(tmp_path / "a.zip", tensors=tensors, settings=data))


def test_observation_keys_become_names_that_tensorflow_takes(tmp_path):
    space = dict_space(**{"my camera": image((1, 36, 37)), "b": box([-1], [1])})
    data = dqn_settings(
        policy_class=field(Name("stable_baselines3.dqn.policies", "MultiInputPolicy")), observation_space=field(space)
    )
    own = "q_net.features_extractor.extractors.my camera."
    tensors = nature(own, (1, 36, 37), 5) | perceptron("q_net.q_net.", 6, 2)
    policy = read(write_agent(tmp_path / "a.zip", tensors=tensors, settings=data))
    assert [item.key for item in policy.graph.inputs] == ["my camera", "b"]
    assert policy.graph.layers[0].name == "q_net.features_extractor.extractors.my_camera.cnn.0"
    assert {name.split("/")[0] for name in policy.weights} <= {layer.name for layer in policy.graph.layers}
    rows = {"my camera": np.zeros((1, 36, 37, 1), np.uint8), "b": np.ones((1, 1), np.float32)}
    assert run_reference(policy, rows)["q_values"].shape == (1, 2)


@pytest.mark.parametrize("key", ["k" * 100_000, "a/b", "é", ""])
def test_an_observation_key_that_no_contract_carries_is_refused_and_never_printed_whole(write, key):
    space = field(dict_space(**{key: box([-1], [1]), "b": box([-1], [1])}))
    with pytest.raises(UnsupportedSpace, match=r"of [\d,]+ characters; expected 1-64 ASCII") as refused:
        read(write(observation_space=space))
    assert len(str(refused.value)) < 300


def test_more_observation_keys_than_a_contract_carries_are_counted_and_not_listed(write):
    space = field(dict_space(**{f"key{number}": box([-1], [1]) for number in range(500)}))
    with pytest.raises(UnsupportedSpace, match="500 observation keys, allowed are") as refused:
        read(write(observation_space=space))
    assert len(str(refused.value)) < 200


# Anything at all

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.just(":serialized:"), inner),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(
        ["policy_class", "policy_kwargs", "observation_space", "action_space", "_last_obs", "use_sde"]
    ),
    value=_values,
)
def test_any_value_of_any_setting_ends_in_a_policy_or_in_our_errors(tmp_path, name, value):
    with contextlib.suppress(QuarlError):
        read(write_agent(tmp_path / "agent.zip", settings=dqn_settings() | {name: value}))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["policy_class", "policy_kwargs", "observation_space", "action_space", "_last_obs"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_mutated_pickles_inside_the_settings_end_in_a_policy_or_in_our_errors(tmp_path, name, seed):
    data = dqn_settings(
        policy_kwargs=field({"activation_fn": Name(ACTIVATION, "Tanh"), "net_arch": [6]}),
        _last_obs=field(array(np.zeros((2, 4)))),
    )
    rng = np.random.default_rng(seed)
    changed = bytearray(base64.b64decode(data[name][":serialized:"]))
    for at in rng.integers(0, len(changed), rng.integers(1, 5)):
        changed[at] = rng.integers(256)
    data[name] = {":serialized:": base64.b64encode(changed).decode()}
    with contextlib.suppress(QuarlError):
        read(write_agent(tmp_path / "agent.zip", settings=data))


@pytest.mark.parametrize("name", ["dqn_cartpole", "ppo_mixed"])
def test_a_real_agent_that_was_cut_off_anywhere_is_refused(tmp_path, name):
    whole = (SB3 / f"{name}.zip").read_bytes()
    path = tmp_path / "a.zip"
    for part in np.linspace(0, len(whole) - 1, 12).astype(int):
        path.write_bytes(whole[:part])
        with pytest.raises(ModelFileError):
            read(path)


# Spaces


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (Built(Call(Name("gymnasium.spaces.multi_discrete", "MultiDiscrete"), ()), {}), "MultiDiscrete"),
        (Built(Call(Name("gymnasium.spaces.multi_binary", "MultiBinary"), ()), {}), "MultiBinary"),
        (discrete(2, start=1), "from 1"),
        (box([-np.inf], [np.inf]), "unbounded"),
        (box([-1, -1], [1, 1]), "DQN acts in Discrete"),
    ],
)
def test_action_spaces_that_are_not_exported(write, space, says):
    with pytest.raises(UnsupportedSpace, match=says):
        read(write(action_space=field(space)))


@pytest.mark.parametrize("family", ["sac", "td3"])
def test_continuous_algorithms_need_a_box(write, family):
    name = Name(f"stable_baselines3.{family}.policies", f"{family.upper()}Policy")
    with pytest.raises(UnsupportedSpace, match="acts in Box"):
        read(write(perceptron("actor.mu.", 4, 2), policy_class=field(name)))


@pytest.mark.parametrize(
    ("space", "says"),
    [(discrete(4), "is Discrete; expected Box"), (dict_space(a=box([0], [1]), b=discrete(3)), "'b' is Discrete")],
)
def test_observation_spaces_that_are_not_exported(write, space, says):
    with pytest.raises(UnsupportedSpace, match=rf"{says}.*FlattenObservation"):
        read(write(observation_space=field(space)))


@pytest.mark.parametrize(
    "space",
    [
        None,
        {},
        "Box",
        field(3),
        field(BOX),
        field(Call(BOX, ())),
        field(Built(Call(Name("gymnasium.spaces.box", "Box"), ()), {"low": array([0]), "high": array([1])})),
        field(
            Built(
                Call(Name("gymnasium.spaces.box", "Box"), ()), {"_shape": (2,), "low": array([0]), "high": array([1])}
            )
        ),
        field(dict_space()),
        {":serialized:": "%%%"},
        {":serialized:": 7},
        {":serialized:": "gAQ="},
    ],
)
def test_damaged_observation_spaces(write, space):
    with pytest.raises((ModelFileError, UnsupportedSpace)):
        read(write(observation_space=space))


def test_a_space_that_names_anything_else_is_refused_by_name(write, tmp_path):
    with pytest.raises(UnsafeSource, match=r"observation_space.*my_package\.MyBox"):
        read(write(observation_space=field(Call(Name("my_package", "MyBox"), ()))))
    harm = Call(Name("posix", "system"), (f"touch {tmp_path / 'harmed'}",))
    with pytest.raises(UnsafeSource, match=r"posix\.system"):
        read(write(action_space=field(Built(Call(Name("gymnasium.spaces.discrete", "Discrete"), ()), {"n": harm}))))
    assert not (tmp_path / "harmed").exists()


def test_spaces_of_old_gym(write):
    state = {"shape": (4,), "dtype": Name("numpy", "float32"), "low": array([-1] * 4), "high": array([1] * 4)}
    old = Built(Call(Name("gym.spaces.box", "Box"), ()), state)
    count = Built(Call(Name("gym.spaces.discrete", "Discrete"), ()), {"n": 2})
    policy = read(write(observation_space=field(old), action_space=field(count)))
    assert policy.contract.observations[0].shape == (4,)


def test_an_image_whose_axes_are_equal_is_refused(write):
    with pytest.raises(UnsupportedSpace, match="cannot be told apart"):
        read(write(observation_space=field(image((4, 4, 4)))))


def test_bounds_that_are_no_numbers_are_no_bounds(write):
    signalling = np.array([0x7F800001] * 4, np.uint32).view(np.float32)
    spec = read(write(observation_space=field(box(signalling, [1] * 4)))).contract.observations[0]
    assert (spec.low, spec.high) == (None, (1.0,))


def test_bounds_of_stacked_vectors_are_not_believed(write):
    runs = box(np.repeat([-1, -5], 2), np.repeat([1, 5], 2))
    spec = read(write(observation_space=field(runs))).contract.observations[0]
    assert (spec.low, spec.high) == (None, None)
    told = read(write(observation_space=field(box([-1, -5, -1, -5], [1, 5, 1, 5])))).contract.observations[0]
    assert told.low == (-1.0, -5.0, -1.0, -5.0)


# Environments


def test_the_environment_says_its_own_bounds_and_stays_in_the_contract(write):
    options = register("Fits-v0", spaces.Box(-2, 2, (4,)))
    contract = read_sb3(write(), options=options).contract
    assert contract.env_id == "Fits-v0"
    assert contract.observations[0].low == (-2.0,)


@pytest.mark.parametrize(
    ("observation", "action", "says"),
    [
        (spaces.Box(-1, 1, (5,)), None, "has shape"),
        (spaces.Box(-1, 1, (4,)), spaces.Discrete(3), "3 actions from 0"),
        (spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (2,)), "a box"),
        (spaces.Dict({"a": spaces.Box(-1, 1, (4,))}), None, "gives"),
    ],
)
def test_another_environment_is_refused(write, observation, action, says):
    with pytest.raises(SpaceMismatch, match=f"{says}.*leave --env out"):
        read_sb3(write(), options=register("Other-v0", observation, action))


def test_an_unknown_environment(write):
    with pytest.raises(UnknownEnvironment):
        read(write(), env_id="CartPool-v1")


def test_frames_of_the_environment_are_stacked(write):
    contract = read_sb3(write(), options=register("Frames-v0", spaces.Box(-1, 1, (2,)))).contract
    spec = contract.observations[0]
    assert (spec.shape, spec.stack, spec.stack_fill) == ((2,), 2, (0.0,))
    alone = read_sb3(write(), options=register("Frame-v0", spaces.Box(-1, 1, (4,)))).contract.observations[0]
    assert (alone.stack, alone.stack_fill) == (1, None)


def test_frames_without_an_environment_are_as_many_as_the_user_says(write):
    spec = read(write(), stack=4).contract.observations[0]
    assert (spec.shape, spec.stack, spec.low, spec.stack_fill) == ((1,), 4, (-1.0,), (0.0,))
    with pytest.raises(UsageError, match="3 frames do not divide"):
        read(write(), stack=3)


@pytest.mark.parametrize(
    ("given", "frame", "stack"),
    [
        ((36, 37, 4), (36, 37, 4), 1),
        ((36, 37, 2), (36, 37, 2), 2),
        ((36, 37, 1), (36, 37, 1), 4),
        ((36, 37), (36, 37), 4),
        ((4, 36, 37), (4, 36, 37), 1),
        ((2, 36, 37), (2, 36, 37), 2),
    ],
)
def test_images_of_every_layout_reach_the_network_alike(tmp_path, given, frame, stack):
    tensors = nature("q_net.features_extractor.", (4, 36, 37), 7) | perceptron("q_net.q_net.", 7, 2)
    data = dqn_settings(
        policy_class=field(Name("stable_baselines3.dqn.policies", "CnnPolicy")),
        observation_space=field(image((4, 36, 37))),
    )
    path = write_agent(tmp_path / "a.zip", tensors=tensors, settings=data)
    policy = read_sb3(path, options=register("Images-v0", spaces.Box(0, 255, given, np.uint8)))
    spec = policy.contract.observations[0]
    assert (spec.shape, spec.stack, policy.graph.shapes["observation"]) == (frame, stack, (36, 37, 4))
    assert spec.stack_fill == ((0.0,) if stack > 1 else None)
    # [frames x channels, rows, columns] is what Stable-Baselines3 sees of them.
    seen = np.random.default_rng(0).integers(0, 256, (2, 4, 36, 37)).astype(np.uint8)
    if len(given) == 3 and given[0] in (2, 4):
        raw = seen.reshape(2, stack, *given)
    else:
        raw = np.moveaxis(seen.reshape(2, stack, 4 // stack, 36, 37), 2, -1).reshape(2, stack, *given)
    wanted = run_reference(read(path), {"observation": np.moveaxis(seen, 1, -1)})["q_values"]
    found = run_reference(policy, {"observation": raw if stack > 1 else raw[:, 0]})["q_values"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("stack", "frame"), [(1, (4, 36, 37)), (2, (2, 36, 37))])
def test_images_of_floats_have_channels_first_in_the_environment(tmp_path, stack, frame):
    # Stable-Baselines3 turns round uint8 images alone.
    tensors = nature("q_net.features_extractor.", (4, 36, 37), 7) | perceptron("q_net.q_net.", 7, 2)
    named = field(Name("stable_baselines3.dqn.policies", "CnnPolicy"))
    results = []
    for space, scale in ((image((4, 36, 37)), 255), (box(np.zeros((4, 36, 37)), np.ones((4, 36, 37))), 1)):
        data = dqn_settings(policy_class=named, observation_space=field(space))
        policy = read(write_agent(tmp_path / "a.zip", tensors=tensors, settings=data), stack=stack if scale == 1 else 1)
        rows = np.random.default_rng(0).integers(0, 256, (2, 4, 36, 37)).astype(np.float32) / 255 * scale
        rows = np.moveaxis(rows, 1, -1) if scale == 255 else rows
        if scale == 1:
            assert policy.contract.observations[0].shape == frame
            assert policy.contract.normalizer.where == "none"
            rows = rows.reshape(2, stack, *frame) if stack > 1 else rows
        results.append(run_reference(policy, {"observation": rows})["q_values"])
    np.testing.assert_allclose(*results, atol=1e-4)


def test_convolutions_on_no_image_are_refused(write):
    named = field(Name("stable_baselines3.dqn.policies", "CnnPolicy"))
    for shape in ((2,), (2, 3), (1, 2, 3, 4)):
        with pytest.raises(UnsupportedSpace, match="no image"):
            read(write(policy_class=named, observation_space=field(box(np.zeros(shape), np.ones(shape)))))


def test_an_image_of_other_rows_is_refused(tmp_path):
    tensors = nature("q_net.features_extractor.", (3, 36, 37), 7) | perceptron("q_net.q_net.", 7, 2)
    data = dqn_settings(
        policy_class=field(Name("stable_baselines3.dqn.policies", "CnnPolicy")),
        observation_space=field(image((3, 36, 37))),
    )
    path = write_agent(tmp_path / "a.zip", tensors=tensors, settings=data)
    for shape in ((84, 84, 3), (36, 37, 2), (2, 36, 37), (3, 37, 36), (36,)):
        with pytest.raises(SpaceMismatch):
            read_sb3(path, options=register(f"Images{len(shape)}{shape[0]}-v0", spaces.Box(0, 255, shape, np.uint8)))


# VecNormalize


def test_an_agent_that_was_trained_behind_vecnormalize_needs_its_statistics():
    with pytest.raises(UsageError, match=r"behind a VecNormalize.*--vecnormalize FILE"):
        read(SB3 / "a2c_narrow.zip")
    with pytest.raises(ModelFileError, match="not found"):
        read(SB3 / "a2c_narrow.zip", vecnormalize=SB3 / "none.pkl")


def test_what_was_assumed_is_said(write):
    assumed = read(write()).provenance["assumed"]
    assert len(assumed) == 2
    assert "without VecNormalize" in assumed[1]
    assert read(SB3 / "a2c_cartpole.zip").provenance["assumed"] == assumed[:1]
    fitted = read_sb3(write(), options=register("Fits-v0", spaces.Box(-2, 2, (4,))))
    assert fitted.provenance["assumed"] == assumed[1:]


def test_row_18_the_guide_names_the_whole_way_and_all_that_is_taken():
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "sb3.md").read_text()
    for name in (*agent_module._ACTIVATIONS, *agent_module._EXTRACTORS):
        assert name.rsplit(".", 1)[-1] in guide
    for algorithm in ("DQN", "A2C", "PPO", "TRPO", "DDPG", "TD3", "SAC"):
        assert algorithm in guide
    for step in ("model.save", "env.save", "quarl-edge export", "--vecnormalize", "quarl-edge evaluate", "--io int8"):
        assert step in guide
    assert f"exit code {UnsafeSource.code}" in guide


BOMBS = [Raw(doubled()), Raw(b"\x8a\x20" + b"\x7f" * 32), Raw(b"\x8b\xb8\x0b\0\0" + b"\x7f" * 3_000),
         Raw(b")" + b"\x85" * 20_000)]  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("bomb", BOMBS, ids=["shared", "integer", "huge integer", "deep"])
def test_values_that_are_bombs_are_one_short_error_wherever_they_are(write, bomb):
    by_value = Call(Name("cloudpickle.cloudpickle", "_make_skeleton_class"), (Name("builtins", "type"), bomb))
    bad_shape = Built(Call(BOX, ()), {"_shape": (bomb, bomb), "low": array([0.0]), "high": array([1.0])})
    for changed in (
        {"policy_class": field(by_value)},
        {"policy_class": field(bomb)},
        {"policy_kwargs": field({"normalize_images": bomb})},
        {"policy_kwargs": field({"use_sde": bomb})},
        {"policy_kwargs": field({"clip_mean": bomb})},
        {"policy_kwargs": field({"activation_fn": bomb})},
        {"policy_kwargs": field({"features_extractor_class": bomb})},
        {"action_space": field(discrete(2, bomb))},
        {"action_space": field(discrete(bomb))},
        {"observation_space": field(bad_shape)},
        {"observation_space": field(bomb)},
    ):
        with pytest.raises(QuarlError) as caught:
            read(write(**changed))
        assert len(caught.value.message) < 400


def test_settings_of_json_that_is_nested_deeply_are_one_short_error(write):
    nested = []
    for _ in range(900):
        nested = [nested]
    with pytest.raises(ModelFileError, match="use_sde is list"):
        read(write(use_sde=nested))


def test_keys_that_differ_in_what_tensorflow_refuses_stay_apart(tmp_path):
    keys, shape = ("cam 1", "cam_1"), (1, 36, 37)
    tensors = perceptron("q_net.q_net.", 12, 6, 2)
    for seed, key in enumerate(keys):
        tensors |= nature(f"q_net.features_extractor.extractors.{key}.", shape, 6, seed=seed)
    settings = dqn_settings(
        policy_class=field(Name("stable_baselines3.dqn.policies", "MultiInputPolicy")),
        observation_space=field(dict_space(**dict.fromkeys(keys, image(shape)))),
    )
    policy = read_sb3(write_agent(tmp_path / "a.zip", tensors=tensors, settings=settings), options=ImportOptions())
    assert [item.key for item in policy.graph.inputs] == list(keys)
    kernels = [policy.weights[f"{layer.name}/kernel"] for layer in policy.graph.layers if layer.name.count("cnn.0")]
    for seed, (kernel, key) in enumerate(zip(kernels, keys, strict=True)):
        weight = nature("", shape, 6, seed=seed)["cnn.0.weight"]
        np.testing.assert_array_equal(kernel, weight.transpose(2, 3, 1, 0), err_msg=key)
    file = build_file(policy, ExportOptions(scheme=SchemeOptions(scheme="float32"))).file
    assert [spec.key for spec in file.contract.observations] == list(keys)
