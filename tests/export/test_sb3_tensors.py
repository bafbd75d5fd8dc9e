"""torch's tensor archive is read byte for byte without torch, and one that was built to harm harms nobody."""

import contextlib
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_factory import SB3, Call, Name, pickled, tensor, torch_archive, zipped

from quarl_device.errors import ModelFileError, QuarlError, UnsafeSource
from quarl_export.importers.sb3 import tensors as tensors_module
from quarl_export.importers.sb3.archive import Members
from quarl_export.importers.sb3.tensors import TensorArchive

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def everything(data):
    return TensorArchive(data, what="policy.pth").read(lambda _: True)


def with_pickle(value):
    return zipped({"archive/data.pkl": pickled(value), "archive/data/0": VALUES.tobytes()})


@given(arrays=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 99)), min_size=1, max_size=5))
@settings(max_examples=30)
def test_every_tensor_comes_out_as_it_went_in(arrays):
    given_ = {
        f"t{n}": np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
        for n, (rows, columns, seed) in enumerate(arrays)
    }
    found = everything(torch_archive(given_))
    assert list(found) == list(given_)
    for name, values in given_.items():
        np.testing.assert_array_equal(found[name], values)


def test_an_archive_of_torch_itself():
    with zipfile.ZipFile(SB3 / "dqn_cartpole.zip") as archive:
        stored = TensorArchive(archive.read("policy.pth"), what="policy.pth")
    names = [
        f"{net}.q_net.{n}.{kind}" for net in ("q_net", "q_net_target") for n in (0, 2, 4) for kind in ("weight", "bias")
    ]
    assert list(stored.names) == names
    found = stored.read(lambda name: name.startswith("q_net."))
    assert [array.shape for array in found.values()] == [(12, 4), (12,), (8, 12), (8,), (2, 8), (2,)]
    assert all(array.dtype == np.float32 for array in found.values())


def test_only_what_is_kept_is_read():
    # The second storage is not even there.
    data = torch_archive({"a": VALUES, "b": VALUES}, data__1=None)
    assert list(TensorArchive(data, what="x").read(lambda name: name == "a")) == ["a"]
    with pytest.raises(ModelFileError, match="data/1' is missing"):
        everything(data)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64"])
def test_other_number_types(dtype):
    found = everything(torch_archive({"a": VALUES.astype(dtype)}))["a"]
    np.testing.assert_array_equal(found, VALUES)
    assert found.dtype == (np.int64 if dtype == "int64" else np.float32)


def test_bfloat16_is_the_upper_half_of_a_float32():
    halves = (VALUES.view(np.uint32) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(everything(torch_archive({"a": halves}))["a"], VALUES)


def test_a_double_beyond_float32_is_infinite_and_left_to_whoever_uses_it():
    assert np.isinf(everything(torch_archive({"a": np.array([1e300])}))["a"]).all()


def test_big_endian_archives():
    state = {"a": tensor(VALUES, "0")}
    data = zipped({
        "x/data.pkl": pickled(state), "x/byteorder": b"big", "x/data/0": VALUES.astype(">f4").tobytes(),
    })  # fmt: skip
    np.testing.assert_array_equal(everything(data)["a"], VALUES)
    with pytest.raises(ModelFileError, match="byte order"):
        everything(torch_archive({"a": VALUES}, byteorder=b"middle"))


def test_windows_on_a_storage():
    transposed = tensor(VALUES, "0", shape=(4, 3), strides=(1, 4))
    row = tensor(VALUES, "0", offset=4, shape=(4,), strides=(1,))
    number = tensor(VALUES, "0", offset=11, shape=(), strides=())
    found = everything(with_pickle({"t": transposed, "r": row, "n": number}))
    np.testing.assert_array_equal(found["t"], VALUES.T)
    np.testing.assert_array_equal(found["r"], VALUES[1])
    assert found["n"] == 11


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 1},
        {"shape": (4, 4)},
        {"strides": (4, 2)},
        {"offset": -1},
        {"shape": (-3, 4)},
        {"strides": (-4, 1)},
        {"shape": (1 << 20, 1 << 20), "strides": (0, 0)},
        {"shape": (13,), "strides": (0,)},
        {"shape": (3,)},
        {"shape": (1,) * 9, "strides": (1,) * 9},
        {"elements": -12},
        {"elements": 1.5},
        {"shape": (True, 4)},
        {"storage": "ComplexFloatStorage"},
    ],
)
def test_a_tensor_that_does_not_lie_in_its_storage_is_refused(changes):
    error = UnsafeSource if "storage" in changes else ModelFileError
    with pytest.raises(error):
        everything(with_pickle({"a": tensor(VALUES, "0", **changes)}))


@pytest.mark.parametrize("elements", [11, 13, 1 << 39])
def test_a_storage_of_another_size_than_is_claimed_is_refused(elements):
    shape = {"shape": (2,), "strides": (1,)}
    with pytest.raises(ModelFileError, match="storage has 48 bytes"):
        everything(with_pickle({"a": tensor(VALUES, "0", elements=elements, **shape)}))


@pytest.mark.parametrize("key", ["../../etc/passwd", "..", "0/1", ""])
def test_a_storage_key_leads_nowhere_else(key):
    with pytest.raises(ModelFileError, match="storage's key"):
        everything(with_pickle({"a": tensor(VALUES, key)}))


@pytest.mark.parametrize(
    "name",
    [
        ("os", "system"),
        ("builtins", "exec"),
        ("torch", "load"),
        ("torch._utils", "_rebuild_parameter"),
        ("torch.jit", "load"),
        ("numpy", "ndarray"),
        ("collections", "defaultdict"),
    ],
)
def test_any_other_global_is_refused_by_name(name):
    with pytest.raises(UnsafeSource, match=rf"policy\.pth.*{name[0]}\.{name[1]}"):
        everything(with_pickle({"a": Call(Name(*name), ("x",))}))


def test_an_ordered_dict_made_of_something_is_refused():
    with pytest.raises(ModelFileError, match="damaged"):
        everything(with_pickle(Call(Name("collections", "OrderedDict"), ([("a", 1)],))))


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, {"a": {"b": tensor(VALUES, "0")}}, {1: tensor(VALUES, "0")}, 7])
def test_what_is_no_state_dict_is_refused(value):
    with pytest.raises(ModelFileError):
        everything(with_pickle(value))


def test_old_archives_are_told_what_to_do():
    old = pickle.dumps(0x1950A86A20F9469CFC6C) + pickle.dumps(1001)
    with pytest.raises(ModelFileError, match="saved again"):
        everything(old)


@pytest.mark.parametrize("keep", [0, 1, 4, 100, 0.5, 0.9, -1])
def test_cut_off_archives(keep):
    data = torch_archive({"a": VALUES})
    with pytest.raises(ModelFileError):
        everything(data[: int(len(data) * keep) if isinstance(keep, float) else keep])


def test_an_archive_without_a_pickle():
    with pytest.raises(ModelFileError, match=r"one data\.pkl, found 0"):
        everything(torch_archive({"a": VALUES}, **{"data.pkl": None}))


def test_two_pickles_are_one_too_many():
    data = zipped({"a/data.pkl": pickled({}), "b/data.pkl": pickled({})})
    with pytest.raises(ModelFileError, match=r"one data\.pkl, found 2"):
        everything(data)


def test_the_number_of_weights_is_capped(monkeypatch):
    monkeypatch.setattr(tensors_module, "MAX_ELEMENTS", 20)
    assert len(everything(torch_archive({"a": VALUES}))) == 1
    with pytest.raises(ModelFileError, match="24 weights are over the cap of 20"):
        everything(torch_archive({"a": VALUES, "b": VALUES}))


def test_a_storage_is_inflated_once_for_all_its_tensors(monkeypatch):
    read, asked = Members.read, []
    monkeypatch.setattr(Members, "read", lambda self, name, **caps: (asked.append(name), read(self, name, **caps))[1])
    rows = {f"row{n}": tensor(VALUES, "0", offset=4 * n, shape=(4,), strides=(1,)) for n in range(3)}
    found = everything(with_pickle(rows))
    assert [found[name].tolist() for name in rows] == VALUES.tolist()
    assert asked.count("archive/data/0") == 1


def test_the_number_of_tensors_is_capped(monkeypatch):
    monkeypatch.setattr(tensors_module, "MAX_TENSORS", 1)
    assert len(everything(torch_archive({"a": VALUES}))) == 1
    with pytest.raises(ModelFileError, match="2 tensors are over the cap of 1"):
        everything(torch_archive({"a": VALUES, "b": VALUES}))


def test_the_pickle_is_capped(monkeypatch):
    monkeypatch.setattr(tensors_module, "MAX_PICKLE_BYTES", 50)
    with pytest.raises(ModelFileError, match="over the cap of 50"):
        everything(torch_archive({"a": VALUES}))


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32 - 1))
def test_mutated_archives_end_in_tensors_or_in_our_errors(seed):
    rng = np.random.default_rng(seed)
    data = bytearray(torch_archive({"a": VALUES, "b": VALUES[0]}))
    for at in rng.integers(0, len(data), rng.integers(1, 6)):
        data[at] = rng.integers(256)
    with contextlib.suppress(QuarlError):
        everything(bytes(data))
