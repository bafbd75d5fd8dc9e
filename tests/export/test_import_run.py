"""Our own runs: the policy checkpoint as an imported policy, trained ranges and normaliser with it."""

import dataclasses

import numpy as np
import pytest
from export_factory import make_contract, make_spec, observations, random_snapshot

from quarl_device.contract import Normalizer
from quarl_device.errors import CheckpointError, NonFiniteError, RunNotFound
from quarl_export.checkpoint import save_policy
from quarl_export.export import float_policy
from quarl_export.importers import detect, import_policy
from quarl_export.ir import run_reference
from quarl_export.snapshot import for_export

SPEC = make_spec(hidden=(6, 5))


def trained(seed=3, *, spec=SPEC, normalized=True, seen=10.0):
    snapshot = random_snapshot(spec, seed=seed, normalized=normalized)
    return dataclasses.replace(snapshot, range_updates=np.full_like(snapshot.range_updates, seen))


def saved(path, snapshot, *, spec=SPEC, contract=None, **more):
    save_policy(path, snapshot=snapshot, spec=spec, contract=contract or make_contract(spec), **more)
    return path


def dense_network(snapshot, rows):
    """The float network, written out."""
    x = rows if snapshot.offset is None else (rows - snapshot.offset) * snapshot.scale
    for kernel, bias in zip(snapshot.kernels[:-1], snapshot.biases[:-1], strict=True):
        x = np.maximum(x @ kernel + bias, 0)
    return x @ snapshot.kernels[-1] + snapshot.biases[-1]


@pytest.mark.parametrize("normalized", [True, False])
def test_a_checkpoint_computes_what_it_computed(tmp_path, normalized):
    snapshot = trained(normalized=normalized)
    policy = import_policy(saved(tmp_path, snapshot))
    rows = observations(20)
    np.testing.assert_allclose(
        run_reference(policy, {"observation": rows})["q_values"], dense_network(snapshot, rows), rtol=1e-5, atol=1e-5
    )


def test_row_7_a_quantization_aware_policy_reloads_with_its_ranges(tmp_path):
    """tfmot models do not reload from .keras; our checkpoints round-trip, ranges included."""
    snapshot = trained()
    policy = import_policy(saved(tmp_path, snapshot))
    wanted = [*snapshot.ranges.tolist(), snapshot.head_range.tolist()]
    assert (
        list(policy.ranges)
        == list(policy.graph.range_sites())
        == ["observation", "hidden_0_relu", "hidden_1_relu", "q_values"]
    )
    np.testing.assert_array_equal(np.array(list(policy.ranges.values())), np.array(wanted))


def test_ranges_that_saw_no_data_are_left_out(tmp_path):
    assert import_policy(saved(tmp_path, trained(seen=0.0))).ranges == {}


def test_q_values_are_centred_where_the_run_centres_them(tmp_path):
    spec = make_spec(hidden=(6,), center_q=True)
    snapshot = trained(spec=spec)
    policy = import_policy(saved(tmp_path, snapshot, spec=spec))
    found = run_reference(policy, {"observation": observations(9)})["q_values"]
    np.testing.assert_allclose(found.mean(axis=1), 0, atol=1e-4)
    np.testing.assert_allclose(found, dense_network(for_export(spec, snapshot), observations(9)), rtol=1e-4, atol=1e-4)


def test_contract_normaliser_goldens_and_provenance_come_along(tmp_path):
    snapshot = trained()
    contract = dataclasses.replace(make_contract(SPEC), normalizer=Normalizer(clip=5.0))
    golden = {"observation": observations(3)}
    policy = import_policy(
        saved(tmp_path, snapshot, contract=contract, golden_observations=golden, provenance={"run": "a"})
    )
    assert policy.contract.env_id == "CartPole-v1"
    assert policy.contract.normalizer.clip == 5.0
    np.testing.assert_allclose(policy.contract.normalizer.offset["observation"], snapshot.offset)
    np.testing.assert_array_equal(policy.golden_observations["observation"], golden["observation"])
    assert policy.provenance["run"] == "a"


@pytest.mark.parametrize("given", ["run", "run/policy", "run/policy/policy.json"])
def test_a_run_its_policy_and_its_manifest_are_the_same(tmp_path, given):
    saved(tmp_path / "run" / "policy", trained())
    assert detect(tmp_path / given).kind == "run"
    assert import_policy(tmp_path / given).provenance["source"] == "quarl-edge checkpoint"


def test_a_run_without_a_policy_says_what_to_do(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunNotFound, match="--resume"):
        import_policy(tmp_path)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    saved(tmp_path, trained())
    [arrays] = tmp_path.glob("*.npz")
    arrays.write_bytes(arrays.read_bytes()[:-50])
    with pytest.raises(CheckpointError):
        import_policy(tmp_path)


def test_nan_is_refused(tmp_path):
    snapshot = trained()
    snapshot.kernels[0][0, 0] = np.nan
    with pytest.raises(NonFiniteError):
        import_policy(saved(tmp_path, snapshot))


def test_the_float_file_of_a_run_is_read_back_as_the_run(tmp_path):
    """Through TFLite and back: same contract, same network, the normaliser found again in the prologue."""
    policy = import_policy(saved(tmp_path / "policy", trained()))
    path = tmp_path / "float.tflite"
    path.write_bytes(float_policy(tmp_path / "policy"))
    again = import_policy(path)
    rows = {"observation": observations(12)}
    np.testing.assert_allclose(
        run_reference(again, rows)["q_values"], run_reference(policy, rows)["q_values"], rtol=1e-4, atol=1e-4
    )
    assert [layer.kind for layer in again.graph.layers] == [layer.kind for layer in policy.graph.layers]
    assert (again.contract.action, again.contract.env_id) == (policy.contract.action, policy.contract.env_id)
    np.testing.assert_allclose(
        again.contract.normalizer.offset["observation"], policy.contract.normalizer.offset["observation"], rtol=1e-5
    )
