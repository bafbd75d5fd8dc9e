"""Policy files: what is read, and that nothing hostile comes through or costs much."""

import base64
import contextlib
import dataclasses
import hashlib
import json
import tracemalloc
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quarl_device.errors import ContractError, ModelError, ModelFileError
from quarl_device.policy_file import (
    MAX_METADATA_BYTES,
    METADATA_NAME,
    GoldenVectors,
    decode_metadata,
    encode_metadata,
    read_policy,
    read_policy_path,
)
from quarl_device.wire.limits import MAX_POLICY_BYTES

DATA = Path(__file__).parent.parent / "data"
CARTPOLE = (DATA / "cartpole.tflite").read_bytes()


def with_metadata(content, name=METADATA_NAME):
    model = schema.ModelT.InitFromPackedBuf(CARTPOLE, 0)
    for entry in list(model.metadata):
        if entry.name == METADATA_NAME.encode():
            model.metadata.remove(entry)
    if content is not None:
        buffer, entry = schema.BufferT(), schema.MetadataT()
        buffer.data = np.frombuffer(content, np.uint8)
        entry.name, entry.buffer = name, len(model.buffers)
        model.buffers.append(buffer)
        model.metadata.append(entry)
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def fields():
    return json.loads(bytes(read_policy(CARTPOLE).graph.metadata_bytes(METADATA_NAME)))


def changed(change):
    data = fields()
    change(data)
    return with_metadata(json.dumps(data).encode())


def test_reads_the_golden_files():
    for name, n, width in (("cartpole", 2, 4), ("acrobot", 3, 6)):
        file = read_policy_path(DATA / f"{name}.tflite")
        assert file.contract.action.n == n
        assert file.contract.observations[0].shape == (width,)
        assert file.sha256 == hashlib.sha256(file.data).hexdigest()
        assert file.golden.rows == 4
        assert file.golden.outputs["q_values"].shape == (4, n)
        assert file.provenance == {"made_by": "tests/data/make_policies.py"}


def test_the_golden_files_stay_as_they_are():
    """The format must stay readable: these bytes were written once and are never regenerated to please a reader."""
    assert hashlib.sha256(CARTPOLE).hexdigest() == "ad453b8456000ee43bce50d70b61b9e49ecaa5af0721577f7456448a9dbd5a62"


def test_a_path_may_be_a_string():
    assert read_policy_path(str(DATA / "cartpole.tflite")).contract.env_id == "CartPole-v1"


def test_metadata_round_trip():
    file = read_policy(CARTPOLE)
    content = encode_metadata(file.contract, file.golden, {"run": "r", "env_steps": 7})
    contract, golden, provenance = decode_metadata(content)
    assert contract == file.contract
    assert provenance == {"run": "r", "env_steps": 7}
    assert golden.to_json() == file.golden.to_json()


arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.uint8, np.int64, np.bool_]),
    st.tuples(st.just(2), st.integers(1, 3), st.integers(1, 3)),
    elements={"allow_nan": False, "allow_infinity": False},
)
outputs = hnp.arrays(np.float32, (2, 3), elements={"allow_nan": False, "allow_infinity": False})


@given(arrays, outputs, st.floats(1e-6, 10), st.integers(0, 32))
def test_golden_vectors_round_trip(observation, output, lsb, tolerance):
    golden = GoldenVectors(
        observations={"x": observation}, outputs={"q": output}, lsb={"q": lsb}, tolerance_lsb=tolerance
    )
    again = GoldenVectors.from_json(json.loads(json.dumps(golden.to_json())))
    assert again.observations["x"].dtype == observation.dtype
    np.testing.assert_array_equal(again.observations["x"], observation)
    np.testing.assert_array_equal(again.outputs["q"], output)
    assert (again.lsb, again.tolerance_lsb) == ({"q": lsb}, tolerance)


def test_golden_vectors_take_other_outputs():
    golden = read_policy(CARTPOLE).golden
    bare = dataclasses.replace(golden, outputs={}, lsb={}, tolerance_lsb=0)
    assert bare.rows == 4
    full = bare.with_outputs(golden.outputs, lsb=golden.lsb, tolerance_lsb=1)
    np.testing.assert_array_equal(full.outputs["q_values"], golden.outputs["q_values"])
    with pytest.raises(ContractError, match="rows"):
        bare.with_outputs({"q_values": np.zeros((3, 2), np.float32)}, lsb={"q_values": 1.0}, tolerance_lsb=0)


GOOD = {"observations": {"x": np.zeros((2, 3))}, "outputs": {"q": np.zeros((2, 1), np.float32)}, "lsb": {"q": 0.1}}


@pytest.mark.parametrize(
    "change",
    [
        {"observations": {}, "outputs": {}, "lsb": {}},
        {"observations": {"x": np.zeros((0, 3))}, "outputs": {}, "lsb": {}},
        {"observations": {"x": np.zeros((65, 3))}, "outputs": {}, "lsb": {}},
        {"observations": {"x": np.float64(1)}},
        {"observations": {"x": np.full((2, 3), np.nan)}},
        {"outputs": {"q": np.full((2, 1), np.inf, np.float32)}},
        {"lsb": {}},
        {"lsb": {"q": 0.0}},
        {"lsb": {"q": float("nan")}},
        {"tolerance_lsb": -1},
        {"tolerance_lsb": 33},
    ],
    ids=str,
)
def test_bad_golden_vectors(change):
    with pytest.raises(ContractError):
        GoldenVectors(**{**GOOD, **change})


@pytest.mark.parametrize(
    "array",
    [
        None,
        {},
        {"dtype": "float32", "shape": [2], "data": "AAAA"},
        {"dtype": "object", "shape": [1], "data": ""},
        {"dtype": ["float32"], "shape": [1], "data": "AAAAAA=="},
        {"dtype": "float32", "shape": [-1], "data": "AAAAAA=="},
        {"dtype": "float32", "shape": [True], "data": "AAAAAA=="},
        {"dtype": "float32", "shape": 1, "data": "AAAAAA=="},
        {"dtype": "float32", "shape": [2**40], "data": ""},
        {"dtype": "float32", "shape": [2**31 - 1] * 6, "data": ""},
        {"dtype": "float32", "shape": [1], "data": "A?AAAA=="},
        {"dtype": "float32", "shape": [1], "data": "AAAAAAä="},
        {"dtype": "float32", "shape": [1], "data": 7},
        {"dtype": "bool", "shape": [1], "data": base64.b64encode(b"\2").decode()},
        {"dtype": "float32", "shape": [1], "data": base64.b64encode(np.float32("nan").tobytes()).decode()},
    ],
    ids=str,
)
def test_bad_arrays_in_json(array):
    with pytest.raises(ContractError, match="golden vectors"):
        GoldenVectors.from_json({"observations": {"x": array}, "outputs": {}, "lsb": {}, "tolerance_lsb": 0})


@pytest.mark.parametrize("data", [None, [], {}, {"tolerance_lsb": 1.5}, {"tolerance_lsb": True}, {"tolerance_lsb": 1}])
def test_bad_golden_json(data):
    with pytest.raises(ContractError):
        GoldenVectors.from_json(data)


def golden_dtype(data):
    data["golden"]["observations"]["observation"]["dtype"] = "int32"


def golden_shape(data):
    data["golden"]["observations"]["observation"]["shape"] = [2, 8]


def double_output(data):
    data["golden"]["outputs"]["q_values"] = {
        "dtype": "float64",
        "shape": [4, 1],
        "data": base64.b64encode(b"\0" * 32).decode(),
    }


def second_observation(data):
    data["contract"]["observations"].append({**data["contract"]["observations"][0], "key": "twin"})


CHANGES = [
    (lambda d: d.pop("contract"), "contract"),
    (lambda d: d.pop("golden"), "golden"),
    (lambda d: d.update(schema=2), "schema 2 is not 1"),
    (lambda d: d.update(schema="x" * 5000), "schema"),
    (lambda d: d.update(provenance=[]), "provenance"),
    (lambda d: d["contract"]["observations"][0].update(tensor="nowhere"), "binds inputs"),
    (lambda d: d["contract"]["observations"][0].update(shape=[5]), "has 5 elements"),
    (lambda d: d["contract"]["observations"][0].update(stack=2), "has 8 elements"),
    (lambda d: d["contract"]["head"]["outputs"].update(q_values="nowhere"), "binds outputs"),
    (lambda d: d["contract"]["action"].update(n=3), "needs 3 elements"),
    (lambda d: d["contract"]["action"].update(n=0), "action count"),
    (lambda d: d["golden"]["observations"].update(other=d["golden"]["observations"]["observation"]), "are not of"),
    (golden_dtype, "is int32"),
    (golden_shape, "rows"),
    (double_output, "float32"),
    (second_observation, "binds inputs"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=range(len(CHANGES)))
def test_contracts_that_do_not_fit_the_file(change, message):
    with pytest.raises(ContractError, match=message) as caught:
        read_policy(changed(change))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"schema": NaN}',
        b'{"schema": 1' + b"0" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 50_000,
    ],
    ids=lambda content: repr(content[:16]),
)
def test_metadata_that_is_not_ours(content):
    with pytest.raises(ContractError, match="policy metadata"):
        decode_metadata(content)


def test_no_metadata():
    with pytest.raises(ContractError, match="no policy contract") as caught:
        read_policy(with_metadata(None))
    assert "export" in caught.value.hint


def test_huge_metadata_is_refused_before_it_is_decoded():
    data = with_metadata(b"[" + b"0," * MAX_METADATA_BYTES + b"0]")
    tracemalloc.start()
    with pytest.raises(ContractError, match="over its cap"):
        read_policy(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * MAX_METADATA_BYTES


def test_metadata_over_its_cap_is_not_written():
    file = read_policy(CARTPOLE)
    with pytest.raises(ContractError, match="over its cap"):
        encode_metadata(file.contract, file.golden, {"note": "x" * MAX_METADATA_BYTES})
    with pytest.raises(ContractError, match="JSON"):
        encode_metadata(file.contract, file.golden, {"note": float("nan")})
    with pytest.raises(ContractError, match="JSON"):
        encode_metadata(file.contract, file.golden, {"note": object()})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "not found"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_bytes(b""), "not a TFLite file"),
        (lambda path: path.write_bytes(CARTPOLE[:100]), "TFLite file"),
        (lambda path: path.write_text("<html>"), "not a TFLite file"),
    ],
    ids=["missing", "directory", "empty", "truncated", "text"],
)
def test_paths_that_are_no_policy(tmp_path, make, message):
    make(tmp_path / "policy.tflite")
    with pytest.raises(ModelFileError, match=message):
        read_policy_path(tmp_path / "policy.tflite")


def test_a_file_over_the_cap_is_not_read(tmp_path):
    path = tmp_path / "policy.tflite"
    with path.open("wb") as file:
        file.truncate(MAX_POLICY_BYTES + 1)
    with pytest.raises(ModelFileError, match="over its cap"):
        read_policy_path(path)


def test_bytes_over_the_cap(monkeypatch):
    monkeypatch.setattr("quarl_device.policy_file.MAX_POLICY_BYTES", 100)
    with pytest.raises(ModelFileError, match="over its cap of 100"):
        read_policy(CARTPOLE)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(CARTPOLE) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes_are_a_model_error_or_a_policy(changes):
    data = bytearray(CARTPOLE)
    for place, value in changes:
        data[place] = value
    with contextlib.suppress(ModelError):
        read_policy(bytes(data))


@settings(max_examples=50)
@given(st.integers(0, len(CARTPOLE) - 1))
def test_truncated_files_are_a_model_error(size):
    with contextlib.suppress(ModelError):
        read_policy(CARTPOLE[:size])
