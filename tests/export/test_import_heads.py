"""What the outputs mean, how actions are scaled, and which input takes which observation."""

import dataclasses

import gymnasium
import numpy as np
import pytest
from draft_factory import run_draft

from quarl_device.errors import (
    ContractError,
    NonFiniteError,
    SourceMismatch,
    SpaceMismatch,
    UnknownEnvironment,
    UnsupportedModel,
    UsageError,
)
from quarl_device.heads import BoxHead, bind_outputs
from quarl_export.acting import greedy_actions
from quarl_export.importers.assemble import assemble
from quarl_export.importers.builder import MAX_STEPS, Builder, reshape, with_constant
from quarl_export.importers.equality import largest_difference, random_observations
from quarl_export.importers.heads import scaled_action
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.source import SourceNetwork
from quarl_export.ir import run_reference


class PixelEnv(gymnasium.Env):
    """Image and vector to observe, two bounded numbers to act with."""

    observation_space = gymnasium.spaces.Dict({
        "vector": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "image": gymnasium.spaces.Box(0, 255, (6, 6, 1), np.uint8),
    })  # fmt: skip
    action_space = gymnasium.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    gymnasium.register("ImportPixels-v0", PixelEnv)
    yield
    del gymnasium.registry["ImportPixels-v0"]


def network(make, *, run=None, dtypes=None, **inputs):
    """A source whose own outputs are those of the draft before folding, by construction of `make(builder)`."""
    builder = Builder(inputs)
    outputs = make(builder)
    draft = builder.draft(outputs)
    return SourceNetwork(
        kind="test",
        draft=draft,
        dtypes={name: (dtypes or {}).get(name, "float32") for name in inputs},
        run=run or (lambda given: interpret(draft, given)),
    )


def interpret(draft, given):
    return run_draft(draft, {name: values.astype(np.float32) for name, values in given.items()})


RNG = np.random.default_rng(4)


def dense(builder, name, tensor, units, activation="linear"):
    width = builder.shapes[tensor][-1]
    made = builder.layer("dense", name, [tensor], kernel=RNG.normal(size=(width, units)), bias=RNG.normal(size=units))
    return builder.activation(f"{name}_{activation}", made, activation)


def simple(units=2, activation="linear", name="out", **inputs):
    return network(lambda b: {name: dense(b, "d", "x", units, activation)}, **(inputs or {"x": (4,)}))


def head_of(source, **options):
    contract = assemble(source, ImportOptions(**options)).contract
    return contract.head.kind, contract


# Heads


def test_linear_outputs_for_discrete_actions_are_q_values_unless_said_otherwise():
    assert head_of(simple(), env_id="CartPole-v1")[0] == "q_values"
    assert head_of(simple(), env_id="CartPole-v1", head="logits")[0] == "logits"
    policy = assemble(simple(), ImportOptions(env_id="CartPole-v1"))
    assert any("taken for q_values" in note for note in policy.provenance["assumed"])


def test_a_softmax_means_logits_and_is_left_to_the_device():
    kind, contract = head_of(simple(3, "softmax"))
    assert (kind, contract.action.n) == ("logits", 3)
    policy = assemble(simple(3, "softmax"), ImportOptions())
    assert [layer.kind for layer in policy.graph.layers] == ["dense"]


def test_a_name_decides_between_several_outputs():
    source = network(
        lambda b: {"logits": dense(b, "p", "x", 2), "value": dense(b, "v", "x", 1)}, x=(4,)
    )  # fmt: skip
    policy = assemble(source, ImportOptions())
    assert policy.contract.head.kind == "logits"
    assert [layer.name for layer in policy.graph.layers] == ["p"]


def test_several_outputs_that_say_nothing_must_be_told_apart():
    source = network(lambda b: {"a": dense(b, "p", "x", 2), "b": dense(b, "v", "x", 1)}, x=(4,))
    with pytest.raises(UsageError, match=r"\['a', 'b'\].*--output q_values=NAME"):
        assemble(source, ImportOptions())
    assert head_of(source, outputs={"q_values": "a"})[0] == "q_values"
    assert head_of(source, head="logits", outputs={"logits": "a"})[0] == "logits"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": {"q_values": "nothing"}}, "no outputs"),
        ({"head": "logits", "outputs": {"q_values": "out"}}, "a logits head"),
        ({"head": "gaussian"}, "needs"),
        ({"inputs": {"y": "observation"}}, "no inputs"),
    ],
)
def test_options_that_do_not_fit_the_model(options, message):
    with pytest.raises(UsageError, match=message):
        assemble(simple(), ImportOptions(**options))


def test_a_gaussian_with_constant_deviation():
    kind, contract = head_of(simple(1, x=(3,)), env_id="Pendulum-v1", head="gaussian", log_std=(-0.5,))
    assert kind == "gaussian"
    assert dict(contract.head.outputs) == {"mean": ""}
    assert contract.head.log_std == (-0.5,)
    assert contract.action.scale == (1.0,)


@pytest.mark.parametrize(("env_id", "head"), [("CartPole-v1", "action"), ("Pendulum-v1", "q_values")])
def test_a_head_that_cannot_act_in_the_space_is_refused(env_id, head):
    with pytest.raises(SpaceMismatch, match="does not act in"):
        assemble(simple(2), ImportOptions(env_id=env_id, head=head))


def test_an_output_of_the_wrong_width_is_refused():
    with pytest.raises(SpaceMismatch, match=r"shape \(3,\).*2 elements"):
        assemble(simple(3), ImportOptions(env_id="CartPole-v1"))


# Actions


def acts(contract, values):
    return np.asarray(values) * contract.action.scale + contract.action.offset


def pixel_policy(activation="tanh", behind=None, **options):
    def make(builder):
        joint = builder.layer("concatenate", "j", [builder.layer("flatten", "f", ["image"]), "vector"])
        out = dense(builder, "a", joint, 2, activation)
        return {"action": behind(builder, out) if behind else out}

    source = network(make, dtypes={"image": "uint8"}, image=(6, 6, 1), vector=(3,))
    return assemble(source, ImportOptions(env_id="ImportPixels-v0", **options))


def test_tanh_is_scaled_to_the_bounds():
    contract = pixel_policy().contract
    np.testing.assert_allclose(acts(contract, [[-1, -1], [1, 1]]), [[-2, 0], [2, 10]])


@pytest.mark.parametrize("options", [{}, {"action_units": "unit"}])
def test_sigmoid_is_scaled_to_the_bounds_and_says_so(options):
    policy = pixel_policy("sigmoid", **options)
    np.testing.assert_allclose(acts(policy.contract, [[0, 0], [1, 1]]), [[-2, 0], [2, 10]])
    assert any("sigmoid" in note and "scaled" in note for note in policy.provenance["assumed"])


def test_sigmoid_without_an_environment_acts_as_it_is():
    policy = assemble(simple(2, "sigmoid"), ImportOptions(head="action"))
    np.testing.assert_allclose(acts(policy.contract, [[0, 0.3]]), [[0, 0.3]])
    assert (policy.contract.action.low, policy.contract.action.high) == ((0.0, 0.0), (1.0, 1.0))
    assert "no environment was named: actions are bounded to 0..1" in policy.provenance["assumed"]


def test_linear_is_in_the_environments_units():
    contract = pixel_policy("linear").contract
    np.testing.assert_allclose(acts(contract, [[0.5, 7]]), [[0.5, 7]])
    np.testing.assert_allclose(acts(pixel_policy("linear", action_units="unit").contract, [[1, -1]]), [[2, 0]])


def test_a_scaling_behind_tanh_leaves_the_network_for_the_contract():
    policy = pixel_policy(behind=lambda b, out: b.affine("bounds", out, [2.0, 5.0], [0.0, 5.0]))
    assert policy.graph.layers[-1].kind == "tanh"
    np.testing.assert_allclose(acts(policy.contract, [[-1, -1], [1, 1]]), [[-2, 0], [2, 10]])


def test_without_an_environment_a_scaling_says_the_bounds():
    def make(builder):
        return {"action": builder.affine("bounds", dense(builder, "a", "x", 2, "tanh"), [2.0, 5.0], [0.0, 5.0])}

    action = assemble(network(make, x=(3,)), ImportOptions()).contract.action
    assert (action.low, action.high) == ((-2.0, 0.0), (2.0, 10.0))


def test_without_an_environment_linear_actions_have_the_bounds_that_are_told():
    def make(builder):
        joint = builder.layer("add", "sum", [dense(builder, "a", "x", 2), dense(builder, "b", "x", 2)])
        return {"action": builder.affine("small", joint, 0.01, 0.0)}

    policy = assemble(network(make, x=(3,)), ImportOptions())
    assert (policy.contract.action.low, policy.contract.action.high) == ((-1.0, -1.0), (1.0, 1.0))
    assert "no environment was named: actions are bounded to -1..1" in policy.provenance["assumed"]


def gaussian_policy(**options):
    def make(builder):
        mean = builder.affine("scaled", dense(builder, "m", "x", 1, "tanh"), 10.0, 0.5)
        return {"mean": mean} if "log_std" in options else {"mean": mean, "log_std": dense(builder, "s", "x", 1)}

    source = network(make, x=(3,))
    return source, assemble(source, ImportOptions(head="gaussian", **options))


@pytest.mark.parametrize("options", [{}, {"log_std": (0.25,)}])
def test_a_scaling_behind_the_mean_does_not_scale_the_noise(options):
    source, policy = gaussian_policy(**options)
    rows = random_observations(policy, rows=4000)
    ours, theirs = run_reference(policy, rows), source.run({"x": rows["observation"]})
    bindings = bind_outputs(policy.contract)
    results = [ours[binding.role] for binding in bindings]
    # Bounds out of the way: the noise alone.
    wide = dataclasses.replace(policy.contract.action, low=(-1e9,), high=(1e9,))
    head = BoxHead(dataclasses.replace(policy.contract, action=wide), bindings, shape=(4000, 1))
    sampled = head.sample(results if len(results) > 1 else results[0], np.random.default_rng(0))
    spread = np.exp(theirs.get("log_std", 0.25))
    assert 0.95 < ((sampled - theirs["mean"]) / spread).std() < 1.05


def test_a_scaling_behind_the_mean_stays_inside_a_squash():
    source, policy = gaussian_policy(squash="tanh", env_id="Pendulum-v1")
    rows = random_observations(policy)
    expected = 2 * np.tanh(source.run({"x": rows["observation"]})["mean"])
    np.testing.assert_allclose(greedy_actions(policy.contract, run_reference(policy, rows)), expected, atol=1e-4)


@pytest.mark.parametrize("change", [{"scale": (3.0,)}, {"offset": (0.5,)}])
def test_an_action_that_is_not_the_sources_is_noticed(change):
    source = simple(1, "tanh", x=(3,))
    policy = assemble(source, ImportOptions(head="action", env_id="Pendulum-v1"))
    given = dataclasses.replace(policy.contract.action, **change)
    with pytest.raises(SourceMismatch, match="greedy action"):
        largest_difference(policy, lambda rows: {"action": source.run({"x": rows["observation"]})["out"]}, given=given)


def test_noise_of_another_scale_is_noticed():
    """A mean that is scaled by the action instead of the network: outputs and greedy actions agree, samples do not."""
    source, policy = gaussian_policy(log_std=(0.0,))
    given = dataclasses.replace(policy.contract.action, low=(-1e9,), high=(1e9,))
    moved = scaled_action(given, np.array([10.0]), np.array([0.5]))
    policy = dataclasses.replace(policy, contract=dataclasses.replace(policy.contract, action=moved))
    last = policy.graph.layers[-1]
    assert last.kind == "dense"  # the scaling
    graph = dataclasses.replace(policy.graph, outputs={"mean": last.inputs[0]})
    with pytest.raises(SourceMismatch, match="sampled action"):
        largest_difference(
            dataclasses.replace(policy, graph=graph),
            lambda rows: source.run({"x": rows["observation"]}),
            finish={"mean": lambda values: values * 10 + np.float32(0.5)},
            given=given,
        )


# Observations


def test_dict_observations_are_in_the_environments_order_with_their_own_types():
    contract = pixel_policy().contract
    assert [(spec.key, spec.dtype) for spec in contract.observations] == [("image", "uint8"), ("vector", "float32")]
    assert contract.env_id == "ImportPixels-v0"


def test_inputs_with_other_names_are_bound_by_the_options():
    def make(builder):
        joint = builder.layer("concatenate", "j", [builder.layer("flatten", "f", ["camera"]), "state"])
        return {"action": dense(builder, "a", joint, 2, "tanh")}

    source = network(make, camera=(6, 6, 1), state=(3,))
    with pytest.raises(SpaceMismatch, match=r"'camera', 'state'.*'image', 'vector'"):
        assemble(source, ImportOptions(env_id="ImportPixels-v0"))
    policy = assemble(source, ImportOptions(env_id="ImportPixels-v0", inputs={"camera": "image", "state": "vector"}))
    assert [item.key for item in policy.graph.inputs] == ["image", "vector"]


def test_a_key_that_the_network_does_not_read_is_refused():
    source = network(lambda b: {"action": dense(b, "a", "vector", 2, "tanh")}, vector=(3,))
    with pytest.raises(SpaceMismatch, match="FilterObservation"):
        assemble(source, ImportOptions(env_id="ImportPixels-v0"))


def test_stacked_frames_are_said_by_the_user_and_hinted_at():
    source = simple(2, x=(16,))
    with pytest.raises(SpaceMismatch, match="--stack observation=4"):
        assemble(source, ImportOptions(env_id="CartPole-v1"))
    (spec,) = assemble(source, ImportOptions(env_id="CartPole-v1", stack=4)).contract.observations
    assert (spec.shape, spec.stack) == ((4,), 4)


def test_stacked_frames_without_an_environment():
    def make(builder):
        return {"out": dense(builder, "d", builder.layer("flatten", "f", ["x"]), 2)}

    (spec,) = assemble(network(make, x=(5, 5, 4)), ImportOptions(stack=4)).contract.observations
    assert (spec.shape, spec.stack, spec.stack_fill) == ((5, 5, 1), 4, None)
    filled = assemble(network(make, x=(5, 5, 4)), ImportOptions(stack={"observation": 4}, stack_fill=0.5))
    assert filled.contract.observations[0].stack_fill == (0.5,)
    with pytest.raises(SpaceMismatch, match="does not hold 3 frames"):
        assemble(network(make, x=(5, 5, 4)), ImportOptions(stack=3))


def test_one_frame_in_each_row_is_a_stack_of_flat_observations():
    def make(builder):
        return {"out": dense(builder, "d", builder.layer("flatten", "f", ["x"]), 2)}

    for options in (ImportOptions(stack=3), ImportOptions(stack=3, env_id="CartPole-v1")):
        policy = assemble(network(make, x=(3, 4)), options)
        (spec,) = policy.contract.observations
        assert (spec.shape, spec.stack) == ((4,), 3)
        rows = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
        weights = policy.weights["d/kernel"]
        np.testing.assert_allclose(
            run_reference(policy, {"observation": rows})["q_values"],
            rows.reshape(5, 12) @ weights + policy.weights["d/bias"],
            rtol=1e-5,
        )
    with pytest.raises(SpaceMismatch, match=r"first axis or in its last.*--env ID"):
        assemble(network(make, x=(3, 6)), ImportOptions(stack=3))


def test_a_stack_of_one_key_leaves_the_others_alone():
    def make(builder):
        joint = builder.layer("concatenate", "j", [builder.layer("flatten", "f", ["image"]), "vector"])
        return {"action": dense(builder, "a", joint, 2, "tanh")}

    options = ImportOptions(env_id="ImportPixels-v0", stack={"vector": 2}, stack_fill=0.0)
    specs = assemble(network(make, image=(6, 6, 1), vector=(6,)), options).contract.observations
    assert [(spec.key, spec.stack, spec.stack_fill) for spec in specs] == [("image", 1, None), ("vector", 2, (0.0,))]
    with pytest.raises(UsageError, match=r"no observations \['sound'\] to stack.*'image', 'vector'"):
        assemble(network(make, image=(6, 6, 1), vector=(6,)), ImportOptions(stack={"sound": 2}))


def test_a_fill_that_the_observations_cannot_hold_is_refused():
    def make(builder):
        joint = builder.layer("concatenate", "j", [builder.layer("flatten", "f", ["image"]), "vector"])
        return {"action": dense(builder, "a", joint, 2, "tanh")}

    options = ImportOptions(env_id="ImportPixels-v0", stack={"image": 2}, stack_fill=0.5)
    with pytest.raises(ContractError, match="does not hold the stack_fill"):
        assemble(network(make, image=(6, 6, 2), vector=(3,)), options)


def test_channels_first_images_are_refused():
    class ChannelsFirst(PixelEnv):
        observation_space = gymnasium.spaces.Box(0, 255, (3, 8, 8), np.uint8)

    gymnasium.register("ImportChannels-v0", ChannelsFirst)
    try:
        source = network(
            lambda b: {"action": dense(b, "d", b.layer("flatten", "f", ["x"]), 2, "tanh")}, x=(8, 8, 3)
        )  # fmt: skip
        with pytest.raises(SpaceMismatch, match="height, width, channels"):
            assemble(source, ImportOptions(env_id="ImportChannels-v0"))
    finally:
        del gymnasium.registry["ImportChannels-v0"]


def test_an_unknown_environment_is_named():
    with pytest.raises(UnknownEnvironment, match="CartPole-v1"):
        assemble(simple(), ImportOptions(env_id="CartPol-v1"))


def test_a_key_and_a_layer_of_one_name_stay_apart():
    source = network(lambda b: {"out": dense(b, "observation", "x", 2)}, x=(4,))
    policy = assemble(source, ImportOptions())
    assert policy.graph.inputs[0].key == "observation"
    assert policy.graph.layers[0].name == "observation_"
    rows = {"observation": np.ones((1, 4), np.float32)}
    assert run_reference(policy, rows)["q_values"].shape == (1, 2)


# Comparison with the source


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda x: np.zeros((len(x), 2)), SourceMismatch),
        (lambda x: np.full((len(x), 2), np.nan), NonFiniteError),
        (lambda x: np.zeros((len(x), 3)), SourceMismatch),
    ],
)
def test_a_source_that_answers_otherwise_is_noticed(answer, error):
    source = network(lambda b: {"out": dense(b, "d", "x", 2)}, x=(4,), run=lambda given: {"out": answer(given["x"])})
    with pytest.raises(error):
        assemble(source, ImportOptions())


@pytest.mark.parametrize("shift", [np.inf, np.nan, 1e300])
def test_a_normaliser_without_a_float32_value_is_refused_by_name(shift):
    source = network(lambda b: {"out": dense(b, "d", b.affine("n", "x", 1.0, shift), 2)}, x=(4,))
    with pytest.raises(NonFiniteError, match="normaliser of input 'x'"):
        assemble(source, ImportOptions())


def test_weights_that_float32_does_not_hold_are_refused_by_name():
    def make(builder):
        return {"out": builder.affine("huge", dense(builder, "d", "x", 2), 1e300, 0.0)}

    with pytest.raises(NonFiniteError, match="d/kernel"):
        assemble(network(make, x=(4,)), ImportOptions())


def test_compared_observations_look_like_the_environments():
    rows = random_observations(pixel_policy(), rows=200)
    assert rows["image"].dtype == np.uint8
    assert rows["image"].max() > 200
    policy = assemble(simple(), ImportOptions(env_id="CartPole-v1"))
    (row,), (again,) = (random_observations(policy, rows=300).values() for _ in range(2))
    assert 0.5 < row.std() < 2
    np.testing.assert_array_equal(row, again)


def test_compared_observations_follow_the_normaliser():
    def make(builder):
        return {"out": dense(builder, "d", builder.affine("n", "x", 0.01, -5.0), 2)}

    (rows,) = random_observations(assemble(network(make, x=(4,)), ImportOptions()), rows=300).values()
    assert abs(rows.mean() - 500) < 30
    assert 60 < rows.std() < 140


# The builder


def test_names_are_made_unique():
    builder = Builder({"x": (3,)})
    assert [builder.activation("t", "x", "tanh") for _ in range(3)] == ["t", "t_1", "t_2"]


def test_constants_must_fit():
    builder = Builder({"x": (3,)})
    assert builder.affine("ok", "x", np.ones((1, 1, 3)), 0.0) == "ok"
    with pytest.raises(UsageError, match="'bad'"):
        builder.affine("bad", "x", np.ones(4), 0.0)


def test_a_constant_over_a_tensor_is_refused():
    with pytest.raises(UnsupportedModel, match="'inverse'"):
        with_constant(Builder({"x": (3,)}), "inverse", "divide", np.ones(3), "x")


def test_an_input_is_reshaped_only_before_it_is_read():
    builder = Builder({"x": (12,)})
    assert reshape(builder, "image", "x", [2, 2, -1]) == "x"
    assert builder.shapes["x"] == (2, 2, 3)
    builder.activation("t", "x", "tanh")
    with pytest.raises(UnsupportedModel, match="'again'"):
        reshape(builder, "again", "x", [4, 1, 3])


def test_a_model_without_end_is_refused():
    builder = Builder({"x": (3,)})
    for _ in range(MAX_STEPS):
        builder.affine("n", "x", 1.0, 0.0)
    with pytest.raises(UnsupportedModel, match="more than"):
        builder.affine("n", "x", 1.0, 0.0)
