"""Agents that Stable-Baselines3 trained act the same after import: observation in, its own action out.

The agents and what they did are in tests/data/sb3, made by tests/data/make_sb3.py.
"""

import functools
import pickle
import sys

import numpy as np
import pytest
from sb3_factory import SB3

from quarl_device.errors import ModelFileError
from quarl_export.importers import ImportOptions, import_policy
from quarl_export.importers.sb3 import read_sb3
from quarl_export.ir import run_reference

EXPECTED = np.load(SB3 / "expected.npz", allow_pickle=False)
AGENTS = {
    "a2c_cartpole": ("a2c", "logits"),
    "a2c_narrow": ("a2c", "gaussian"),
    "ddpg_asymmetric": ("ddpg", "action"),
    "dqn_cartpole": ("dqn", "q_values"),
    "dqn_cnn": ("dqn", "q_values"),
    "dqn_dict": ("dqn", "q_values"),
    "dqn_flat_image": ("dqn", "q_values"),
    "dqn_stacked": ("dqn", "q_values"),
    "ppo_acrobot": ("ppo", "logits"),
    "ppo_cnn": ("ppo", "logits"),
    "ppo_elu": ("ppo", "logits"),
    "ppo_linear": ("ppo", "logits"),
    "ppo_mixed": ("ppo", "gaussian"),
    "ppo_sde": ("ppo", "action"),
    "ppo_sde_squashed": ("ppo", "action"),
    "sac_asymmetric": ("sac", "gaussian"),
    "sac_cnn": ("sac", "gaussian"),
    "sac_sde": ("sac", "action"),
    "td3_asymmetric": ("td3", "action"),
}


@functools.cache
def imported(name):
    statistics = SB3 / f"{name}.vecnormalize.pkl"
    options = ImportOptions(vecnormalize=statistics if statistics.exists() else None)
    return read_sb3(SB3 / f"{name}.zip", options=options)


def observations(name):
    return {spec.key: EXPECTED[f"{name}/observation/{spec.key}"] for spec in imported(name).contract.observations}


def act(policy, outputs):
    """Return the greedy actions that the contract makes of outputs."""
    action, head = policy.contract.action, policy.contract.head
    if action.kind == "discrete":
        return outputs[head.kind].argmax(axis=1) + action.start
    values = outputs["mean" if head.kind == "gaussian" else "action"]
    values = np.tanh(values) if head.squash == "tanh" else values
    scaled = values * np.float32(action.scale) + np.float32(action.offset)
    return np.clip(scaled, np.float32(action.low), np.float32(action.high)).reshape(len(values), *action.shape)


def test_every_agent_is_here():
    assert {path.stem for path in SB3.glob("*.zip")} == {*AGENTS, "refused_recurrent"}
    assert sum(path.stat().st_size for path in SB3.iterdir()) < 1_500_000


@pytest.mark.parametrize("name", AGENTS)
def test_row_16_actions_are_the_agents_own(name):
    policy = imported(name)
    found = act(policy, run_reference(policy, observations(name)))
    np.testing.assert_allclose(found, EXPECTED[f"{name}/action"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", AGENTS)
def test_outputs_are_the_networks_own(name):
    policy = imported(name)
    outputs = run_reference(policy, observations(name))
    recorded = {key.rsplit("/", 1)[1] for key in EXPECTED.files if key.startswith(f"{name}/output/")}
    for role in recorded & set(outputs):
        wanted = EXPECTED[f"{name}/output/{role}"]
        np.testing.assert_allclose(outputs[role], wanted, rtol=1e-6, atol=1e-5, err_msg=role)
    assert recorded & set(outputs) or name in ("ppo_sde", "ppo_sde_squashed", "sac_sde")


@pytest.mark.parametrize("name", AGENTS)
def test_the_contract_says_who_acts_and_how(name):
    contract = imported(name).contract
    assert (contract.algorithm, contract.head.kind) == AGENTS[name]
    assert (contract.scheme, contract.env_id) == ("", "")


@pytest.mark.parametrize("name", AGENTS)
def test_only_what_acts_comes_along(name):
    policy = imported(name)
    assert not [each for each in policy.weights if "value_net" in each or "critic" in each or "target" in each]
    assert not [each for each in policy.weights if each.startswith("vf_") or "optimizer" in each]
    assert all(np.isfinite(array).all() for array in policy.weights.values())
    assert policy.provenance["version"] == "2.9.2"
    assert policy.provenance["kind"] == "stable-baselines3"


def test_the_recorded_actions_tell_agents_apart():
    # A policy that always acts the same proves little: most of these do not.
    varied = [name for name in AGENTS if len(np.unique(EXPECTED[f"{name}/action"])) > 1]
    assert len(varied) >= 15
    spreads = {key: np.ptp(EXPECTED[key]) for key in EXPECTED.files if "/output/" in key}
    assert min(spreads[key] for key in spreads if not key.endswith("log_std")) > 0.3


@pytest.mark.parametrize("name", ["dqn_cnn", "ppo_cnn", "sac_cnn", "ppo_mixed", "dqn_flat_image"])
def test_images_go_in_as_the_environment_gives_them(name):
    policy = imported(name)
    image = next(spec for spec in policy.contract.observations if len(spec.shape) == 3)
    shape = {"dqn_cnn": (36, 40, 4), "ppo_mixed": (36, 40, 1), "dqn_flat_image": (5, 6, 3)}.get(name, (36, 40, 3))
    assert (image.shape, image.dtype, image.low, image.high) == (shape, "uint8", (0.0,), (255.0,))
    assert policy.graph.shapes[image.key] == shape
    assert policy.contract.normalizer.offset[image.key] == (0.0,)
    assert policy.contract.normalizer.scale[image.key] == (1 / 255,)
    # Turned round, an image is another one: the order of the channels and of the flattened features counts.
    flipped = {**observations(name), image.key: observations(name)[image.key][:, ::-1]}
    outputs, others = run_reference(policy, observations(name)), run_reference(policy, flipped)
    assert any(np.abs(outputs[role] - others[role]).max() > 1e-3 for role in outputs)


def test_a_network_of_convolutions_has_the_layers_of_its_source():
    graph = imported("ppo_cnn").graph
    own = "pi_features_extractor."
    assert [layer.name for layer in graph.layers] == [
        *(f"{own}cnn.{n}" for n in range(7)), f"{own}linear.0", f"{own}linear.1", "action_net",
    ]  # fmt: skip
    assert [layer.kind for layer in graph.layers[:7]] == ["conv2d", "relu"] * 3 + ["flatten"]
    assert [graph.layer(f"{own}cnn.{n}").strides for n in (0, 2, 4)] == [(4, 4), (2, 2), (1, 1)]
    assert graph.weight_shapes[f"{own}cnn.0/kernel"] == (8, 8, 3, 32)


def test_the_critics_own_extractor_stays_behind():
    # It is filled with 0.25 there, see make_sb3.py.
    kernel = imported("ppo_cnn").weights["pi_features_extractor.cnn.0/kernel"]
    assert not (kernel == 0.25).all()


def test_row_17_dict_observations_keep_their_keys_and_their_order():
    policy = imported("dqn_dict")
    assert [item.key for item in policy.graph.inputs] == ["a", "z"]
    assert [(spec.key, spec.shape) for spec in policy.contract.observations] == [("a", (2, 3)), ("z", (5,))]
    given = observations("dqn_dict")
    backwards = dict(reversed(given.items()))
    np.testing.assert_array_equal(
        run_reference(policy, given)["q_values"], run_reference(policy, backwards)["q_values"]
    )


def test_row_20_an_image_and_a_vector_have_a_normaliser_each():
    normalizer = imported("ppo_mixed").contract.normalizer
    assert normalizer.scale["image"] == (1 / 255,)
    assert len(normalizer.scale["vector"]) == len(normalizer.offset["vector"]) == 5
    # Its elements have spreads of 1 to 300: so have their scales.
    assert max(normalizer.scale["vector"]) / min(normalizer.scale["vector"]) > 100
    assert (normalizer.where, normalizer.clip) == ("graph", 10.0)


def test_vecnormalize_clips():
    policy = imported("a2c_narrow")
    assert policy.contract.normalizer.clip == 1.5
    far = {"observation": np.full((1, 5), 1e6, np.float32)}
    further = {"observation": np.full((1, 5), 1e7, np.float32)}
    np.testing.assert_array_equal(run_reference(policy, far)["mean"], run_reference(policy, further)["mean"])


def test_vecnormalize_of_rewards_alone_changes_nothing():
    normalizer = imported("ppo_sde_squashed").contract.normalizer
    assert (normalizer.where, dict(normalizer.scale), normalizer.clip) == ("none", {}, 0.0)


def test_box_actions_are_scaled_to_their_bounds_or_clipped():
    for name in ("ddpg_asymmetric", "td3_asymmetric", "sac_asymmetric", "ppo_sde_squashed"):
        action = imported(name).contract.action
        assert (action.scale, action.offset) == ((2.0, 0.125), (1.0, 0.125))
    narrow = imported("a2c_narrow").contract.action
    assert (narrow.scale, narrow.offset, narrow.shape) == ((1.0, 1.0), (0.0, 0.0), (2,))
    assert abs(EXPECTED["a2c_narrow/output/mean"]).max() > 0.05 == pytest.approx(max(narrow.high))


def test_gaussian_heads_have_their_deviation():
    constant = imported("a2c_narrow").contract.head
    assert (len(constant.log_std), constant.squash, set(constant.outputs)) == (2, "none", {"mean"})
    given = imported("sac_asymmetric").contract.head
    assert (given.log_std, given.squash, set(given.outputs)) == ((), "tanh", {"mean", "log_std"})


def test_the_clipped_mean_of_sacs_state_dependent_noise_cuts():
    before = EXPECTED["sac_sde/output/before_tanh"]
    assert abs(before).max() == pytest.approx(2.0)
    assert np.ptp(before) > 3
    outputs = run_reference(imported("sac_sde"), observations("sac_sde"))
    np.testing.assert_allclose(outputs["action"], np.tanh(before), atol=1e-6)


def test_the_activation_that_was_chosen_is_used():
    kinds = {name: {layer.kind for layer in imported(name).graph.layers} for name in AGENTS}
    assert kinds["a2c_cartpole"] == {"dense", "tanh"}
    assert kinds["dqn_cartpole"] == kinds["ppo_acrobot"] == {"dense", "relu"}
    assert kinds["ppo_elu"] == {"dense", "elu"}
    assert kinds["ppo_linear"] == {"dense"}


@pytest.mark.parametrize("name", AGENTS)
def test_the_last_observations_of_training_come_along(name):
    policy = imported(name)
    rows = policy.golden_observations
    assert set(rows) == {spec.key for spec in policy.contract.observations}
    for spec in policy.contract.observations:
        array = rows[spec.key]
        assert array.shape[1:] == spec.shape
        # Where bounds are told, they hold; of stacked vectors Stable-Baselines3 has them in a wrong order.
        if spec.low is not None and spec.high is not None:
            flat = array.reshape(len(array), -1)
            assert ((flat >= np.array(spec.low) - 1e-6) & (flat <= np.array(spec.high) + 1e-6)).all()
            assert name != "dqn_stacked"
    assert {len(array) for array in rows.values()} <= {1, 2}
    run_reference(policy, rows)


def test_no_pickle_is_loaded_and_torch_is_not_needed(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    imported.__wrapped__("ppo_mixed")
    assert "torch" not in sys.modules
    assert "stable_baselines3" not in sys.modules


@pytest.mark.parametrize("name", ["dqn_cartpole", "ppo_mixed"])
def test_they_are_found_by_their_content(tmp_path, name):
    path = tmp_path / "agent"
    path.write_bytes((SB3 / f"{name}.zip").read_bytes())
    statistics = SB3 / f"{name}.vecnormalize.pkl"
    options = ImportOptions(vecnormalize=statistics if statistics.exists() else None)
    policy = import_policy(path, options=options)
    assert policy.contract == imported(name).contract
    path.write_bytes(path.read_bytes()[:5_000])
    with pytest.raises(ModelFileError, match="cut off"):
        import_policy(path, options=options)
