from __future__ import annotations

import io
import json

import numpy as np
import pytest
from export_factory import make_contract, make_spec, observations, random_snapshot

from quarl_device.errors import CheckpointError, RunNotFound
from quarl_export.checkpoint import load_policy, pack_arrays, save_policy, unpack_arrays

SPEC = make_spec(hidden=(5,), center_q=True)


def save(directory, *, seed=1, **changes):
    fields = {
        "snapshot": random_snapshot(SPEC, seed=seed, normalized=True),
        "spec": SPEC,
        "contract": make_contract(SPEC),
        "golden_observations": {"observation": observations(3)},
        "provenance": {"run": "r", "env_steps": 5},
    }
    save_policy(directory, **{**fields, **changes})


def test_round_trip(tmp_path):
    save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert loaded.spec == SPEC
    assert loaded.contract == make_contract(SPEC)
    assert loaded.provenance == {"run": "r", "env_steps": 5}
    assert np.array_equal(loaded.golden_observations["observation"], observations(3))
    wanted = random_snapshot(SPEC, seed=1, normalized=True).arrays()
    assert all(np.array_equal(value, wanted[name]) for name, value in loaded.snapshot.arrays().items())


def test_golden_observations_may_be_missing(tmp_path):
    save(tmp_path, golden_observations=None, provenance=None)
    assert load_policy(tmp_path).golden_observations == {}


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path):
    for seed in (1, 2, 3):
        save(tmp_path, seed=seed)
    assert len(list(tmp_path.iterdir())) == 2
    assert np.array_equal(load_policy(tmp_path).snapshot.kernels[0], random_snapshot(SPEC, seed=3).kernels[0])


def test_same_policy_gives_the_same_files(tmp_path):
    save(tmp_path / "a")
    save(tmp_path / "b")
    contents = [{f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in "ab"]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("stop_at", [1, 2])
def test_save_cut_off_anywhere_leaves_the_policy_before_it(tmp_path, monkeypatch, stop_at):
    save(tmp_path, seed=1)
    import quarl_export.checkpoint as module

    real, calls = module.write_atomic, []

    def failing(path, data, **options):
        calls.append(path)
        if len(calls) == stop_at:
            raise CheckpointError("power cut")
        real(path, data, **options)

    monkeypatch.setattr(module, "write_atomic", failing)
    with pytest.raises(CheckpointError, match="power cut"):
        save(tmp_path, seed=2)
    assert np.array_equal(load_policy(tmp_path).snapshot.kernels[0], random_snapshot(SPEC, seed=1).kernels[0])


def test_missing_policy_is_a_run_not_found(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "none", tmp_path / "file"):
        with pytest.raises(RunNotFound, match="no policy"):
            load_policy(path)


def test_missing_arrays_are_refused(tmp_path):
    save(tmp_path)
    next(tmp_path.glob("*.npz")).unlink()
    with pytest.raises(CheckpointError, match="not found"):
        load_policy(tmp_path)


@pytest.mark.parametrize("at", [0, 100, -30])
def test_damaged_arrays_are_refused(tmp_path, at):
    save(tmp_path)
    arrays = next(tmp_path.glob("*.npz"))
    data = bytearray(arrays.read_bytes())
    data[at] ^= 1
    arrays.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        load_policy(tmp_path)


def edit(directory, change):
    manifest = json.loads((directory / "policy.json").read_text())
    change(manifest)
    (directory / "policy.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(schema=2),
        lambda m: m.pop("network"),
        lambda m: m["network"].update(hidden=[6]),
        lambda m: m["contract"].pop("head"),
        lambda m: m.update(provenance=3),
        lambda m: m.update(sha256="../../etc/passwd"),
        lambda m: m["network"].update(observations=[]),
    ],
)
def test_manifest_that_does_not_hold_is_refused(tmp_path, change):
    save(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(CheckpointError):
        load_policy(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_manifest_of_another_kind_is_refused(tmp_path, text):
    save(tmp_path)
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(CheckpointError):
        load_policy(tmp_path)


def test_pickles_and_compressed_arrays_are_refused():
    compressed, pickled = io.BytesIO(), io.BytesIO()
    np.savez_compressed(compressed, a=np.zeros(1_000_000, np.float32))
    np.savez(pickled, a=np.array([{}], object))
    cut_off = pack_arrays({"a": np.ones(3)})[:-9]
    for data in (
        compressed.getvalue(),
        pickled.getvalue(),
        b"",
        b"PK",
        b"x" * 100,
        cut_off,
    ):
        with pytest.raises(CheckpointError):
            unpack_arrays(data)


def test_unwritable_directory_is_a_checkpoint_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save(tmp_path / "file" / "policy")
