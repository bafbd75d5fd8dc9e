"""Learners that see images: their updates, their float networks, and what a run makes of an environment of pixels."""

import dataclasses

import numpy as np
import pytest
from frames_factory import Fleet

from quarl_device.contract import ActionSpec, Head, ObservationSpec, PolicyContract
from quarl_device.errors import UnsupportedSpace, UsageError
from quarl_device.frame_stack import input_shape
from quarl_device.testing.identity import PIXELS_ID
from quarl_device.wire.block import BlockCodec
from quarl_edge.algorithms import ALGORITHMS
from quarl_edge.bench.float_policy import FloatPolicy
from quarl_edge.config import TrainConfig
from quarl_edge.configure import config_from_json, make_config, preset_names, usual_algorithm
from quarl_edge.learner.gate import PushGate
from quarl_edge.learner.head_range import fit_head_range
from quarl_edge.learner.networks import FloatNetwork, compiles_well
from quarl_edge.learner.normalization import ObservationNormalizer, to_unit_range
from quarl_edge.replay.journal import Journal
from quarl_edge.replay.recorded import recorded_observations
from quarl_edge.replay.rollouts import Rollout
from quarl_edge.replay.transitions import Batch
from quarl_edge.task import look_at
from quarl_export.networks import NATURE, NetworkSpec
from quarl_export.qat import QatPolicy

PIXELS = f"quarl_device.testing.identity:{PIXELS_ID}"
SEEN = ObservationSpec(key="observation", shape=(8, 8, 1), dtype="uint8", stack=2)
ACTION = ActionSpec(kind="discrete", n=3)
CONVOLUTIONS = ((4, 4, 2), (6, 2, 1))


def network(head="q_values"):
    return NetworkSpec(observations=(SEEN,), action=ACTION, hidden=(8,), convolutions=CONVOLUTIONS, head=head)


def config(algorithm, **changes):
    small = {"hidden": (8,)}
    if algorithm == "dqn":
        small |= {"batch_size": 16, "updates_per_call": 4, "samples_per_insert": 64.0, "target_period_updates": 8}
    else:
        small |= {"value_hidden": (8,), "round_steps": 8, "actors": 1, "envs_per_actor": 4, "minibatches": 2}
    return make_config("QuarlCatch-v0", algorithm=algorithm, preset="default", asked={**small, **changes})


def images(lead, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*lead, *input_shape(SEEN)), dtype=np.uint8)


def batch(seed=0):
    """Episodes of one step, whose reward is for the action that the brighter half of the image shows."""
    seen = images((4, 16), seed)
    seen[:, ::2, :, :4] //= 4
    seen[:, 1::2, :, 4:] //= 4
    action = np.random.default_rng(seed).integers(0, 3, (4, 16)).astype(np.uint8)
    bright = (seen[..., 4:, :].mean(axis=(2, 3, 4)) > seen[..., :4, :].mean(axis=(2, 3, 4))).astype(np.uint8)
    return Batch(
        observation=seen,
        action=action,
        reward=(action == bright).astype(np.float32),
        discount=np.zeros((4, 16), np.float32),
        next_observation=seen,
        place=np.zeros((4, 16), np.int64),
        weight=np.ones((4, 16), np.float32),
    )


def rollout(seed=0):
    given = batch(seed)
    seen = given.observation.reshape(16, 4, *input_shape(SEEN))[:8]
    always = np.ones((8, 4), np.bool_)
    return Rollout(
        observation=seen,
        action=given.action.reshape(16, 4)[:8],
        reward=given.reward.reshape(16, 4)[:8],
        next_observation=seen,
        terminated=always,
        ended=always,
        valid=always,
        extra={"log_prob": np.full((8, 4), np.log(1 / 3), np.float32)},
    )


def test_a_target_sees_images_a_batch_at_a_time(monkeypatch):
    """All batches of a call at once, in float: 115 MB of K = 32 batches of Atari's."""
    monkeypatch.setattr("quarl_edge.algorithms.dqn.learner.at_once", lambda *_: pytest.fail("K batches in memory"))
    settings = config("dqn", target_tau=0.0, target_period_updates=4)
    ALGORITHMS["dqn"].build(settings, QatPolicy(network(), normalize=True)).update(batch())


def test_dqn_learns_what_an_image_shows():
    algorithm = ALGORITHMS["dqn"].build(config("dqn", learning_rate=3e-3), QatPolicy(network(), normalize=True))
    before = algorithm.arrays()
    algorithm.compile()
    for name, value in algorithm.arrays().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    for seed in range(40):
        learned = algorithm.update(batch(seed))
    assert learned.errors.shape == (4, 16)
    fresh = batch(1000)
    q_values = algorithm.policy.model(fresh.observation[0].astype(np.float32), training=False).numpy()
    bright = (np.arange(16) % 2 == 0).astype(int)
    assert (q_values.argmax(axis=1) == bright).mean() > 0.9
    assert algorithm.policy.snapshot().ranges[0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_on_policy_learners_update_from_rounds_of_images(algorithm):
    built = ALGORITHMS[algorithm].build(config(algorithm), QatPolicy(network("logits"), normalize=True))
    built.compile()
    before = built.arrays()
    learned = built.update(rollout())
    assert all(np.isfinite(value) for value in learned.metrics.values())
    after = built.arrays()
    moved = {name.split("/")[0] for name in after if not np.array_equal(after[name], before[name])}
    assert {"policy", "value"} <= moved
    restored = ALGORITHMS[algorithm].build(config(algorithm), QatPolicy(network("logits"), seed=9, normalize=True))
    restored.restore(after)
    for name, value in restored.arrays().items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)


def test_a_float_network_of_images_divides_pixels_and_is_its_seeds():
    shape = input_shape(SEEN)
    one, other = (FloatNetwork(shape, convolutions=CONVOLUTIONS, hidden=(8,), outputs=1, seed=3) for _ in range(2))
    seen = images((5,)).astype(np.float32)
    np.testing.assert_array_equal(one(seen), other(seen))
    kernel, bias = (variable.numpy() for variable in one.trainable_variables[:2])
    assert kernel.shape == (4, 4, 2, 4)
    white = one(np.full((1, *shape), 255, np.float32)).numpy()
    assert np.isfinite(white).all()
    assert one.variables[-1].numpy().tolist() == [np.float32(1 / 255)]
    assert bias.shape == (4,)


def test_convolutions_are_not_compiled_and_vectors_are():
    assert not compiles_well(network())
    vector = NetworkSpec(observations=(ObservationSpec(key="observation", shape=(3,)),), action=ACTION)
    assert compiles_well(vector)


def test_the_float_twin_has_the_same_layers():
    policy, twin = QatPolicy(network(), normalize=True), FloatPolicy(network())
    shapes = [variable.shape for variable in policy.trainable_variables]
    assert [variable.shape for variable in twin.trainable_variables] == shapes
    assert twin.model(images((3,)).astype(np.float32)).shape == (3, 3)


def test_the_gate_looks_at_few_images_and_names_convolutions():
    fleet = Fleet(2, shape=(8, 8, 1))
    spec = dataclasses.replace(network(), observations=(fleet.seen,))
    policy = QatPolicy(spec, normalize=True)
    asked = []

    class Experience:
        def __len__(self):
            return 100

        def spread_observations(self, count):
            asked.append(count)
            return images((count,))

    gate = PushGate(Experience(), spec.convolutions)
    policy.calibrate(images((32,)))
    health = gate.judge(policy.snapshot(), updates=1)
    assert health.healthy
    assert asked == [8]
    assert [name for name in gate.bounds if name.endswith("high")] == [
        "input_high", "convolution_1_high", "convolution_2_high", "hidden_1_high", "head_high",
    ]  # fmt: skip


def test_nothing_of_an_images_normaliser_comes_from_data():
    algorithm = ALGORITHMS["dqn"].build(config("dqn"), QatPolicy(network(), normalize=True))
    normalizer = ObservationNormalizer(config("dqn"), SEEN)
    normalizer.begin(algorithm, images((5,)))
    assert not normalizer.follow(None, algorithm)
    assert normalizer.arrays() == {}
    normalizer.restore({})
    assert algorithm.policy.snapshot().scale.tolist() == [np.float32(1 / 255)]


def test_stacked_vectors_have_constants_for_every_frame():
    spec = ObservationSpec(key="observation", shape=(2,), low=(-2.0, -8.0), high=(2.0, 8.0), stack=2)
    offset, scale = to_unit_range(np.array([-1.0, 0.0] * 2), np.array([1.0, 0.0] * 2), spec)
    assert offset.tolist() == [0.0] * 4
    assert scale.tolist() == [1.0, 0.125, 1.0, 0.125]
    assert ObservationNormalizer(make_config("CartPole-v1", preset="default"), spec).arrays()["ends"].shape == (2, 4)


def test_the_head_of_images_is_fitted_on_fewer():
    policy, asked = QatPolicy(network(), normalize=True), []

    class Experience:
        def __len__(self):
            return 64

        def recent_observations(self, count):
            asked.append(count)
            return images((count,))

    experience = Experience()
    before = policy.head_range
    fit_head_range(policy, experience, in_rounds=False)
    assert asked == [64]
    assert policy.head_range != before


# -- a run's task and settings -----------------------------------------------------------------------------------------


def test_the_task_of_pixels_has_convolutions_and_stacked_goldens():
    task = look_at(make_config(PIXELS, asked={"stack": 2}))
    assert (task.observation.shape, task.observation.stack) == ((12, 12, 1), 2)
    assert task.convolutions == ((16, 4, 2), (32, 4, 2))
    golden = task.golden_observations
    assert (golden.shape, golden.dtype) == ((8, 2, 12, 12, 1), np.uint8)
    assert any((old != new).any() for old, new in golden)
    catch = look_at(make_config("QuarlCatch-v0"))
    assert catch.convolutions == ((16, 4, 4), (32, 3, 2))
    vector = look_at(make_config("CartPole-v1", asked={"stack": 3}))
    assert (vector.observation.stack, vector.convolutions) == (3, ())
    assert vector.golden_observations.shape == (8, 3, 4)
    assert vector.golden_observations.dtype == np.float32


@pytest.mark.parametrize(
    ("env_id", "algorithm", "settings", "error", "says"),
    [
        (PIXELS, "dqn", ["convolutions=4x20/2"], UsageError, "does not fit in"),
        (PIXELS, "dqn", ["convolutions=()"], UsageError, "images, which need at least one"),
        (PIXELS, "dqn", ["convolutions=4-3"], UsageError, "filters x kernel / stride"),
        (PIXELS, "dqn", ["weight_bits=4"], UsageError, "convolutions are trained with 8"),
        (PIXELS, "dqn", ["observation_scale=1"], UsageError, "divided by 255"),
        (PIXELS, "dqn", ["stack=17"], UsageError, "at most 16"),
        (PIXELS, "dqn", ["hidden=8192,8192,8192"], UsageError, "a push carries"),
        ("CartPole-v1", "dqn", ["convolutions=4x2/1"], UsageError, "no images, which they are for"),
    ],
)
def test_what_does_not_go_with_an_image_is_said_before_anything_starts(env_id, algorithm, settings, error, says):
    with pytest.raises(error, match=says):
        look_at(make_config(env_id, algorithm=algorithm, settings=settings))


def test_a_round_of_lockstep_that_no_block_carries_is_refused():
    words = {"lockstep": True, "actors": 1, "envs_per_actor": 1, "block_steps": 1024, "round_steps": 1024}
    with pytest.raises(UsageError, match=r"at most (\d+) rows") as caught:
        look_at(make_config("QuarlCatch-v0", algorithm="ppo", asked=words))
    assert "round_steps=3" in caught.value.hint  # 1 MiB of 36x36 pixels, each perhaps an episode's last
    assert look_at(make_config("QuarlCatch-v0", algorithm="ppo", asked={**words, "lockstep": False}))


def test_algorithms_whose_critics_take_vectors_name_those_that_see_images(monkeypatch):
    info = dataclasses.replace(ALGORITHMS["dqn"], images=False)
    monkeypatch.setattr("quarl_edge.task.ALGORITHMS", {**ALGORITHMS, "dqn": info})
    with pytest.raises(UnsupportedSpace, match="dqn takes vectors alone") as caught:
        look_at(make_config(PIXELS))
    assert "ppo, a2c take images" in caught.value.hint
    assert [name for name, known in ALGORITHMS.items() if known.images] == ["dqn", "ppo", "a2c"]


def test_games_are_stacked_by_themselves_and_have_presets_in_a_folder():
    pong = make_config("ale_py:ALE/Pong-v5")
    assert (pong.frames_stacked, pong.goal_return) == (4, 18)
    assert make_config("ale_py:ALE/Breakout-v5").frames_stacked == 4
    assert make_config("ALE/Breakout-v5", preset="ALE/Pong-v5").convolutions == ("16x8/4", "32x4/2")
    assert make_config("CartPole-v1").frames_stacked == 1
    assert make_config("ALE/Pong-v5", asked={"stack": 2}).frames_stacked == 2
    assert "ALE/Pong-v5" in preset_names("dqn")
    assert usual_algorithm("ALE/Pong-v5") == "dqn"


def test_settings_of_images_are_read_written_and_may_be_missing_in_older_runs():
    given = make_config("QuarlCatch-v0", settings=["convolutions=8x4/4, 8x3/1", "stack=3"])
    assert given.convolutions == ("8x4/4", "8x3/1")
    assert config_from_json(given.to_json()) == given
    older = {name: value for name, value in given.to_json().items() if name not in ("convolutions", "stack")}
    assert config_from_json(older).frames_stacked == 1
    none = make_config("QuarlCatch-v0", settings=["convolutions=none"])
    assert none.convolutions is None
    assert isinstance(none, TrainConfig)
    assert len(NATURE) == 3


def test_a_journal_of_stacked_frames_gives_the_stacks_back(tmp_path):
    fleet = Fleet(3, shape=(2, 2, 3), seed=4)
    contract = PolicyContract(
        env_id="", algorithm="dqn", scheme="int8", observations=(fleet.seen,), action=fleet.spec.action,
        head=Head(kind="q_values", outputs={"q_values": ""}),
    )  # fmt: skip
    journal, codec = Journal(tmp_path / "journal", segment_bytes=2_000), BlockCodec(fleet.spec)
    make = fleet.device(1, envs=2, mode="next_step", rows=6)
    steps = 0
    for _ in range(4):
        block = make()
        steps += int(block.valid.sum())
        journal.append("pi-1", codec.encode(block))
    journal.close()
    found = recorded_observations(tmp_path / "journal", contract)
    stacks = found.observations["observation"]
    assert stacks.shape == (steps, 3, 2, 2, 3)
    joined = np.moveaxis(stacks, 1, -2).reshape(steps, 2, 2, 9)
    assert len(fleet.numbers(joined)) == len(found.episodes) == steps
