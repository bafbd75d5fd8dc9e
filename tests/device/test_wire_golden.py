"""Wire version 1 stays what it is: today's encoders write the golden files, today's decoders read them."""

import dataclasses
import runpy
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

FOLDER = Path(__file__).parent.parent / "golden"
GOLDEN = {golden.name: golden for golden in runpy.run_path(str(FOLDER / "make_golden.py"))["golden_files"]()}


def assert_equal(left, right, at="value"):
    """Equal in type, dtype, shape and value, all the way down."""
    if isinstance(right, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape), at
        np.testing.assert_array_equal(left, right, at)
    elif dataclasses.is_dataclass(right):
        assert type(left) is type(right), at
        for field in dataclasses.fields(right):
            assert_equal(getattr(left, field.name), getattr(right, field.name), f"{at}.{field.name}")
    elif isinstance(right, Mapping):
        assert list(left) == list(right), at
        for key in right:
            assert_equal(left[key], right[key], f"{at}[{key!r}]")
    elif isinstance(right, tuple):
        assert len(left) == len(right), at
        for place, pair in enumerate(zip(left, right, strict=True)):
            assert_equal(*pair, f"{at}[{place}]")
    else:
        assert type(left) is type(right), at
        assert left == right, at


@pytest.mark.parametrize("name", GOLDEN)
def test_encoders_write_the_golden_bytes(name):
    golden = GOLDEN[name]
    assert golden.encode(golden.value) == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", GOLDEN)
def test_decoders_read_the_golden_bytes(name):
    golden = GOLDEN[name]
    assert_equal(golden.decode((FOLDER / name).read_bytes()), golden.value)


def test_no_golden_file_is_left_out():
    found = {path.name for path in FOLDER.iterdir() if path.is_file() and path.suffix != ".py"}
    assert found == set(GOLDEN)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("block_")])
def test_the_safetensors_library_reads_golden_blocks(name):
    block = GOLDEN[name].value
    arrays = load((FOLDER / name).read_bytes())
    assert_equal(arrays["reward"], block.reward)
    for key, array in block.observation.items():
        assert_equal(arrays[f"observation/{key}"], array)
