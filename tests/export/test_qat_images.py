"""Networks of convolutions in training: the oracle of their files is the converter, that of their outputs Keras."""

import dataclasses

import numpy as np
import pytest
from export_factory import make_contract, make_image_spec, make_spec, pixels, random_snapshot
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from keras_twin import lsb_errors, twin_outputs

from quarl_device.contract import ObservationSpec
from quarl_device.errors import NonFiniteError, PatchError, UnsupportedSpace, UsageError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy
from quarl_export.audit import audit
from quarl_export.checkpoint import PolicyCheckpoint, load_policy, save_policy
from quarl_export.compare import difference
from quarl_export.converter import convert_snapshot
from quarl_export.export import float_twin, int8_bytes
from quarl_export.file_runner import output_step, run_file
from quarl_export.importers.run_checkpoint import import_checkpoint
from quarl_export.ir.reference import run_reference
from quarl_export.keras2 import keras, tf
from quarl_export.networks import NATURE, NetworkSpec, feature_shapes, kernel_shapes, usual_convolutions
from quarl_export.patcher import Patcher
from quarl_export.qat import QatPolicy
from quarl_export.qat_graph import snapshot_values, spec_graph, spec_plan, values_snapshot
from quarl_export.qat_template import QatTemplate
from quarl_export.range_health import range_health
from quarl_export.snapshot import PolicySnapshot, expected_shapes, for_export, initial_snapshot

_PATCHERS: dict[NetworkSpec, Patcher] = {}


def patcher_of(spec):
    if spec not in _PATCHERS:
        _PATCHERS[spec] = Patcher.build(spec, normalized=True)
    return _PATCHERS[spec]


def trained(spec, *, steps=12, seed=3):
    """A policy that has learned something of random pixels, and its snapshot."""
    policy = QatPolicy(spec, seed=seed, normalize=True)
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(policy.trainable_variables)
    seen = tf.constant(pixels(spec, 32, seed=seed).astype(np.float32))
    wanted = tf.constant(np.random.default_rng(seed).normal(size=(32, spec.head_units)).astype(np.float32))

    @tf.function
    def train():
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(policy.model(seen, training=True) - wanted))
            gradients = tape.gradient(loss, policy.trainable_variables)
            optimizer.apply_gradients(zip(gradients, policy.trainable_variables, strict=True))
        return loss

    first = float(tf.reduce_mean(tf.square(policy.model(seen, training=False) - wanted)))
    assert float(train()) < first
    policy.head_range_from(pixels(spec, 32, seed=seed))
    return policy


# -- what a network is -------------------------------------------------------------------------------------------------


def test_shapes_of_the_network_of_mnih_2015():
    seen = ObservationSpec(key="observation", shape=(84, 84, 1), dtype="uint8", stack=4)
    assert usual_convolutions(seen) == NATURE
    assert feature_shapes((84, 84, 4), NATURE) == ((20, 20, 32), (9, 9, 64), (7, 7, 64))
    assert kernel_shapes((84, 84, 4), NATURE, (512, 6)) == (
        (8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512), (512, 6),
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(84, 84, 1), (64, 64, 3), (36, 36, 1), (10, 10), (5, 7, 2), (3, 3)])
def test_the_usual_convolutions_fit_what_they_are_for(shape):
    seen = ObservationSpec(key="observation", shape=shape, dtype="uint8", stack=3)
    spec = dataclasses.replace(make_spec(), observations=(seen,), convolutions=usual_convolutions(seen))
    assert spec.sees_images
    assert spec.input_shape == (*shape[:2], (1 if len(shape) == 2 else shape[2]) * 3)
    assert usual_convolutions(ObservationSpec(key="observation", shape=(4,))) == ()


def test_json_round_trip_and_vectors_say_nothing_of_convolutions():
    spec = make_image_spec(dueling=True)
    assert NetworkSpec.from_json(spec.to_json()) == spec
    assert "convolutions" not in make_spec().to_json()
    assert NetworkSpec.from_json(make_spec().to_json()) == make_spec()


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"convolutions": ()}, UsageError, "images need at least one"),
        ({"convolutions": ((4, 30, 2),)}, UsageError, "does not fit in"),
        ({"convolutions": ((4, 2, 3),)}, UsageError, "a stride of at most that"),
        ({"convolutions": ((0, 2, 1),)}, UsageError, "expected 1"),
        ({"convolutions": ((2, 1, 1),) * 9}, UsageError, "at most 8"),
        ({"observations": (ObservationSpec(key="o", shape=(4,)),)}, UsageError, "vectors take none"),
        ({"observations": (ObservationSpec(key="o", shape=(4,), dtype="uint8"),)}, UnsupportedSpace, "image of uint8"),
        ({"observations": (ObservationSpec(key="o", shape=(9, 9, 1)),)}, UnsupportedSpace, "image of uint8"),
        ({"quantization": make_spec(weight_bits=4).quantization}, UsageError, "a scale per filter"),
    ],
)
def test_what_no_network_can_be_is_refused(changes, error, says):
    with pytest.raises(error, match=says):
        dataclasses.replace(make_image_spec(), **changes)


def test_pixels_are_divided_by_255_and_none_is_rounded():
    spec = make_image_spec()
    policy = QatPolicy(spec, normalize=True)
    snapshot = policy.snapshot()
    assert snapshot.offset.tolist() == [0.0]
    assert snapshot.scale.tolist() == [np.float32(1 / 255)]
    policy.calibrate(np.full((4, *spec.input_shape), 17, np.uint8))
    after = policy.snapshot()
    assert after.ranges[0].tolist() == [0.0, 1.0]
    assert after.range_updates.tolist() == [1.0, 1.0, 1.0, 1.0]
    every = np.arange(256, dtype=np.float32) / np.float32(255)
    grid = tf.quantization.fake_quant_with_min_max_vars(every, 0.0, 1.0).numpy()
    np.testing.assert_allclose(grid, every, rtol=0, atol=1e-7)


def test_snapshots_of_images_have_their_arrays():
    spec = make_image_spec()
    shapes = {name: array.shape for name, array in initial_snapshot(spec, seed=0, normalized=True).arrays().items()}
    assert shapes == expected_shapes(spec, normalized=True)
    assert shapes["kernel_0"] == (4, 4, 2, 4)
    assert shapes["kernel_2"] == (4 * 3 * 6, 8)
    values = snapshot_values(spec, initial_snapshot(spec, seed=0, normalized=True))
    back = values_snapshot(spec, values)
    assert all(np.array_equal(a, b) for a, b in zip(back.kernels, (*values.weights.values(),)[::2], strict=True))
    assert spec_graph(spec).shapes["flatten"] == (72,)


# -- its files ---------------------------------------------------------------------------------------------------------


def bent(snapshot: PolicySnapshot, kind: str) -> PolicySnapshot:
    kernels, biases, ranges = list(snapshot.kernels), list(snapshot.biases), snapshot.ranges.copy()
    if kind == "zero biases":
        biases = [np.zeros_like(bias) for bias in biases]
    elif kind == "dead filter":
        kernels[0] = kernels[0].copy()
        kernels[0][..., 1] = 0.0
    elif kind == "spread filters":
        spread = np.geomspace(1e-3, 1e3, kernels[0].shape[-1])
        kernels[0] = (kernels[0] * spread).astype(np.float32)
    elif kind == "floors":
        ranges[1:] = 0.0, 1e-3
        biases = [bias * np.float32(1e-4) for bias in biases]
    elif kind == "pixels":
        ranges[0] = 0.0, 1.0
    return dataclasses.replace(snapshot, kernels=tuple(kernels), biases=tuple(biases), ranges=ranges)


SPECS = [
    make_image_spec(),
    make_image_spec(shape=(7, 9), stack=3, convolutions=((5, 3, 1),), hidden=(6, 4), actions=4, center_q=True),
    make_image_spec(shape=(16, 16, 3), stack=1, convolutions=((4, 8, 4), (3, 2, 1), (2, 1, 1)), dueling=True),
]


# A conversion takes a second: few examples, over architectures whose templates are kept.
@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    spec=st.sampled_from(SPECS),
    kind=st.sampled_from(["trained", "zero biases", "dead filter", "spread filters", "floors", "pixels"]),
    seed=st.integers(0, 2**20),
)
@example(spec=SPECS[0], kind="zero biases", seed=1)
@example(spec=SPECS[2], kind="dead filter", seed=2)
def test_a_patched_file_equals_a_converted_one_in_every_tensor(spec, kind, seed):
    snapshot = bent(random_snapshot(spec.in_file, seed=seed, normalized=True), kind)
    patched = patcher_of(spec).patch(snapshot)
    assert difference(patched, convert_snapshot(spec, for_export(spec, snapshot))) == ""


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[2]])
def test_a_trained_networks_file_computes_what_the_network_does(spec):
    policy = trained(spec)
    snapshot = policy.snapshot()
    patched = patcher_of(spec).patch(snapshot)
    assert difference(patched, convert_snapshot(spec, snapshot)) == ""
    assert audit(spec, snapshot, patched).identical
    contract, seen = make_contract(spec), pixels(spec, 256, seed=9)
    contract = dataclasses.replace(
        contract,
        observations=(dataclasses.replace(contract.observations[0], tensor="observation"),),
        head=dataclasses.replace(contract.head, outputs={"q_values": "q_values"}),
    )
    found = run_file(patched, contract, {"observation": split(spec, seen)})["q_values"]
    wanted = twin_outputs(spec, snapshot, seen.astype(np.float32))
    errors = lsb_errors(found, wanted, lsb=output_step(patched, "q_values"))
    # The facts of patching small networks of convolutions: one step, in less than one output of a hundred.
    assert errors.max() <= 1
    assert (errors > 0).mean() < 0.02


def split(spec, seen):
    """Return images as the environment gives them, frame by frame."""
    (observation,) = spec.observations
    if observation.stack == 1:
        return seen
    return np.stack(np.split(seen, observation.stack, axis=-1), 1).reshape(
        len(seen), observation.stack, *observation.shape
    )


@pytest.mark.parametrize("settings", [{"head": "logits"}, {"head": "action"}, {"head": "gaussian"},
                                      {"head_output": "float32"}, {"activation_bits": 4}])  # fmt: skip
def test_every_head_and_output_goes_with_convolutions(settings):
    spec = make_image_spec(convolutions=((3, 4, 3),), **settings)
    patcher = Patcher.build(spec, normalized=True)
    snapshot = random_snapshot(spec, seed=4, normalized=True)
    assert difference(patcher.patch(snapshot), convert_snapshot(spec, snapshot)) == ""


def test_a_live_push_is_acted_on_frame_by_frame_and_by_whole_stacks_alike():
    spec = SPECS[0]
    policy = trained(spec)
    golden = split(spec, pixels(spec, 3))
    template = QatTemplate.from_model(policy, make_contract(spec), golden)
    assert template.reason == ""
    file = read_policy(template.patch(policy.snapshot()))
    remembers, told = (Policy.load(file, batch_size=2, stacked=stacked, self_test=False) for stacked in (False, True))
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (40, 2, 12, 10, 1), dtype=np.uint8)
    for step in range(1, 40):
        acted = [remembers.act_batch(frames[step]), told.act_batch(frames[step - 1 : step + 1])]
        if step == 1:
            continue  # the first frame stood for the one before it
        np.testing.assert_array_equal(*acted)
        alone = told.act_index(frames[step - 1 : step + 1, 1])
        assert alone == acted[1][1]


def test_a_snapshot_of_another_network_is_refused():
    spec = SPECS[0]
    with pytest.raises(PatchError, match="kernels"):
        patcher_of(spec).patch(random_snapshot(make_image_spec(convolutions=((4, 4, 2),)), seed=0, normalized=True))
    broken = random_snapshot(spec, seed=0, normalized=True)
    broken.kernels[0][0, 0, 0, 0] = np.nan
    with pytest.raises(NonFiniteError, match="kernel_0"):
        patcher_of(spec).patch(broken)


def test_the_float_twin_is_the_network_without_quantization():
    spec = SPECS[0]
    checkpoint = checkpoint_of(spec, random_snapshot(spec, seed=6, normalized=True))
    seen = pixels(spec, 16)
    wanted = run_reference(import_checkpoint(checkpoint), {"observation": seen.astype(np.float32)})["q_values"]
    data = float_twin(checkpoint)
    found = run_file(data, read_policy(data).contract, {"observation": split(spec, seen)})["q_values"]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def checkpoint_of(spec, snapshot):
    return PolicyCheckpoint(spec=spec, snapshot=snapshot, contract=make_contract(spec))


def test_a_checkpoint_is_read_back_imported_and_exported(tmp_path):
    spec = SPECS[0]
    snapshot = trained(spec).snapshot()
    save_policy(tmp_path, snapshot=snapshot, spec=spec, contract=make_contract(spec))
    loaded = load_policy(tmp_path)
    assert loaded.spec == spec
    policy = import_checkpoint(loaded)
    assert [layer.kind for layer in policy.graph.layers] == [
        "conv2d", "relu", "conv2d", "relu", "flatten", "dense", "relu", "dense",
    ]  # fmt: skip
    values = snapshot_values(spec, snapshot)
    assert list(policy.ranges.values()) == [values.ranges[site] for site in spec_plan(spec).sites]
    file = read_policy(int8_bytes(loaded))
    assert file.contract.observations[0].stack == 2
    assert file.golden.observations["observation"].shape == (8, 2, 12, 10, 1)
    assert file.golden.observations["observation"].dtype == np.uint8


# -- its ranges --------------------------------------------------------------------------------------------------------


def test_range_health_follows_images_through_the_convolutions():
    spec = SPECS[0]
    policy = trained(spec)
    snapshot, seen = policy.snapshot(), pixels(spec, 16, seed=3)
    health = range_health(snapshot, seen, convolutions=spec.convolutions)
    assert health.healthy
    ranges = snapshot.ranges.copy()
    ranges[2] *= 100.0
    wide = range_health(dataclasses.replace(snapshot, ranges=ranges), seen, convolutions=spec.convolutions)
    assert wide.faults[0].startswith("the range of convolution 2 leaves")
    ranges[2] = snapshot.ranges[2]
    ranges[3] *= 1e-3
    narrow = range_health(dataclasses.replace(snapshot, ranges=ranges), seen, convolutions=spec.convolutions)
    assert narrow.faults[0].startswith("the range of hidden layer 1 clips")
