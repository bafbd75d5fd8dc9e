from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import CheckpointError
from quarl_edge import checkpoint as module
from quarl_edge.checkpoint import Checkpoint, latest, load_checkpoint, load_latest, save_checkpoint


def example(number: int = 0) -> Checkpoint:
    return Checkpoint(
        state={"updates": number, "replay": "{}", "best": None, "nested": {"a": [1, 2.5]}},
        arrays={
            "algorithm": {
                "online/dense/kernel:0": np.full((3, 2), number, np.float32),
                "file": np.array(7, np.int64),
                "empty": np.zeros((0, 4), np.float16),
                "flags": np.array([True, False]),
            },
            "optimizer": {"m": np.arange(6, dtype=np.float64).reshape(2, 3).T},
        },
    )


def equal(one: Checkpoint, two: Checkpoint) -> bool:
    same_names = {g: list(a) for g, a in one.arrays.items()} == {g: list(a) for g, a in two.arrays.items()}
    return (
        one.state == two.state
        and same_names
        and all(
            array.dtype == two.arrays[group][name].dtype and np.array_equal(array, two.arrays[group][name])
            for group, arrays in one.arrays.items()
            for name, array in arrays.items()
        )
    )


def test_everything_comes_back(tmp_path):
    path = save_checkpoint(tmp_path, example(5), env_steps=1_234)
    assert path.name == "ckpt-000000001234"
    assert equal(load_checkpoint(path), example(5))
    assert equal(load_latest(tmp_path), example(5))


@settings(max_examples=30, deadline=None)
@given(
    names=st.lists(st.text(min_size=0, max_size=20).filter(lambda t: t < "\ud800"), unique=True, max_size=6),
    dtype=st.sampled_from(["f4", "f8", "i8", "u1", "?", "c8"]),
)
def test_any_name_and_dtype(tmp_path_factory, names, dtype):
    arrays = {name: np.ones((2, i), dtype) for i, name in enumerate(names)}
    kept = Checkpoint(state={}, arrays={"a": arrays})
    assert equal(load_checkpoint(save_checkpoint(tmp_path_factory.mktemp("c"), kept, env_steps=1)), kept)


def test_the_last_two_are_kept(tmp_path):
    for number in range(5):
        save_checkpoint(tmp_path, example(number), env_steps=number * 100)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt-000000000300", "ckpt-000000000400"]
    assert load_latest(tmp_path).state["updates"] == 4


def test_newest_is_by_number_not_by_text(tmp_path):
    save_checkpoint(tmp_path, example(1), env_steps=999_999_999_999)
    save_checkpoint(tmp_path, example(2), env_steps=1_000_000_000_000)
    assert load_latest(tmp_path).state["updates"] == 2


def test_a_second_one_of_the_same_step_comes_after_the_first_which_stays_whole(tmp_path):
    for number in range(1, 13):
        save_checkpoint(tmp_path, example(number), env_steps=7)
        assert load_latest(tmp_path).state["updates"] == number
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt-000000000007.10", "ckpt-000000000007.11"]
    save_checkpoint(tmp_path, example(20), env_steps=8)
    assert load_latest(tmp_path).state["updates"] == 20


def test_unfinished_ones_are_never_taken_and_are_cleared_away(tmp_path):
    good = save_checkpoint(tmp_path, example(1), env_steps=1)
    shutil.copytree(good, tmp_path / ".ckpt-000000000009.abc")
    (tmp_path / "ckpt-000000000010").write_text("a file")
    (tmp_path / "ckpt-x").mkdir()
    assert latest(tmp_path) == good
    save_checkpoint(tmp_path, example(2), env_steps=2)
    assert not list(tmp_path.glob(".ckpt-*"))


def test_none_at_all(tmp_path):
    assert latest(tmp_path / "none") is None
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        load_latest(tmp_path)


@pytest.mark.parametrize("part", ["state.json", "algorithm.npz", "optimizer.npz", "manifest.json"])
def test_a_missing_part_is_named(tmp_path, part):
    path = save_checkpoint(tmp_path, example(), env_steps=1)
    (path / part).unlink()
    with pytest.raises(CheckpointError, match=f"not found: .*{part}"):
        load_latest(tmp_path)


@pytest.mark.parametrize("part", ["state.json", "algorithm.npz", "optimizer.npz"])
@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "empty"])
def test_a_damaged_part_is_named(tmp_path, part, damage):
    path = save_checkpoint(tmp_path, example(), env_steps=1)
    data = bytearray((path / part).read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    data = {"cut": data[:-1], "longer": data + b"x", "empty": b""}.get(damage, data)
    (path / part).write_bytes(data)
    with pytest.raises(CheckpointError, match=f"damaged: .*{part}"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"schema": 3}', '{"schema": 2}', '{"schema": 2, "parts": {}}', "\xff"]
)
def test_a_damaged_manifest_is_refused(tmp_path, text):
    path = save_checkpoint(tmp_path, example(), env_steps=1)
    (path / "manifest.json").write_text(text, "latin-1")
    with pytest.raises(CheckpointError, match=r"manifest|damaged|schema"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", ["../state.json", "/etc/passwd", "a/b.npz", "x.pkl"])
def test_a_part_outside_the_checkpoint_is_refused(tmp_path, name):
    path = save_checkpoint(tmp_path, example(), env_steps=1)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["parts"][name] = manifest["parts"]["state.json"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="manifest does not hold"):
        load_checkpoint(path)


def test_another_version_is_named(tmp_path):
    path = save_checkpoint(tmp_path, example(), env_steps=1)
    (path / "manifest.json").write_text(json.dumps({"schema": 9, "version": "3.2.1"}))
    with pytest.raises(CheckpointError, match=r"schema 9.*3\.2\.1"):
        load_checkpoint(path)


def test_a_damaged_newest_is_never_passed_over_in_silence(tmp_path):
    save_checkpoint(tmp_path, example(1), env_steps=1)
    newest = save_checkpoint(tmp_path, example(2), env_steps=2)
    (newest / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"go back to ckpt-000000000001: rm -r .*ckpt-000000000002"):
        load_latest(tmp_path)
    shutil.rmtree(newest)
    assert load_latest(tmp_path).state["updates"] == 1


def test_a_pickle_is_never_loaded(tmp_path):
    objects = np.array([print], dtype=object)
    with pytest.raises(CheckpointError, match="Python objects"):
        save_checkpoint(tmp_path, Checkpoint(state={}, arrays={"a": {"x": objects}}), env_steps=1)
    assert latest(tmp_path) is None
    path = save_checkpoint(tmp_path, Checkpoint(state={}, arrays={"a": {"x": np.zeros(2)}}), env_steps=1)
    np.savez(path / "a.npz", a0=objects)
    manifest = json.loads((path / "manifest.json").read_text())
    data = (path / "a.npz").read_bytes()
    manifest["parts"]["a.npz"] |= {"bytes": len(data), "sha256": module.hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"a\.npz.*pickle"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "bad",
    [
        Checkpoint(state={"x": float("nan")}),
        Checkpoint(state={"x": object()}),
        Checkpoint(state={}, arrays={"../up": {}}),
        Checkpoint(state={}, arrays={"State": {}}),
    ],
)
def test_what_no_checkpoint_can_hold(tmp_path, bad):
    with pytest.raises(CheckpointError):
        save_checkpoint(tmp_path, bad, env_steps=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", range(1, 9))
def test_a_full_disk_leaves_the_older_one(tmp_path, monkeypatch, call):
    save_checkpoint(tmp_path, example(1), env_steps=1)
    calls = 0
    fsync = os.fsync

    def failing(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr(os, "fsync", failing)
    refused = pytest.raises(CheckpointError, match=rf"{tmp_path}/ckpt-000000000002: No space left")
    with refused if call <= 6 else contextlib.nullcontext():
        save_checkpoint(tmp_path, example(2), env_steps=2)
    monkeypatch.undo()
    # Either the old one or the whole new one.
    assert load_latest(tmp_path).state["updates"] in (1, 2)
    assert not list(Path(tmp_path).glob(".ckpt-*"))


def test_an_unwritable_place(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_checkpoint(tmp_path / "file", example(), env_steps=1)
