"""An npz is read as plain arrays under caps, or refused in one clear line."""

import io
import zipfile

import numpy as np
import pytest

import quarl_export.npz as module
from quarl_device.errors import UsageError
from quarl_export.npz import read_npz


def read(path):
    return read_npz(path, what="calibration file")


def test_arrays_come_by_name(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.arange(3), b=np.eye(2))
    found = read(tmp_path / "two.npz")
    assert found["a"].tolist() == [0, 1, 2]
    assert found["b"].shape == (2, 2)


def test_npz_files_that_do_not_hold_are_refused(tmp_path, monkeypatch):
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "whole.npz", observation=np.zeros((4, 4)))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-40])
    np.savez(tmp_path / "pickled.npz", observation=np.array([{"a": 1}, None], dtype=object))
    np.savez_compressed(tmp_path / "bomb.npz", observation=np.zeros((50_000, 4)))
    for name in ("empty", "text", "cut", "pickled"):
        with pytest.raises(UsageError, match=r"is not an \.npz"):
            read(tmp_path / f"{name}.npz")
    for path in (tmp_path / "missing.npz", tmp_path):
        with pytest.raises(UsageError, match="calibration file"):
            read(path)
    monkeypatch.setattr(module, "MAX_UNPACKED_BYTES", 100_000)
    with pytest.raises(UsageError, match="unpacks to"):
        read(tmp_path / "bomb.npz")
    monkeypatch.setattr(module, "MAX_NPZ_BYTES", 100)
    with pytest.raises(UsageError, match="over its cap"):
        read(tmp_path / "whole.npz")


def test_flipped_bytes_in_a_compressed_npz_are_one_clear_error(tmp_path):
    np.savez_compressed(tmp_path / "good.npz", observation=np.arange(400.0).reshape(100, 4))
    data = (tmp_path / "good.npz").read_bytes()
    start = 30 + len("observation.npy") + int.from_bytes(data[28:30], "little")
    for at in range(start, start + 60):
        (tmp_path / "flipped.npz").write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        with pytest.raises(UsageError):
            read(tmp_path / "flipped.npz")


def header_of(description):
    """An npz whose only array has this text for a header."""
    header = description.encode().ljust(117) + b"\n"
    npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("observation.npy", npy)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "description",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), } \\",
        "__import__('os').system('false')",
    ],
)
def test_an_npz_with_a_hostile_header_is_one_clear_error(tmp_path, description):
    (tmp_path / "rows.npz").write_bytes(header_of(description))
    with pytest.raises(UsageError, match=r"is not an \.npz"):
        read(tmp_path / "rows.npz")
