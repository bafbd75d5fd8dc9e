"""Payloads that somebody made on purpose: one refusal, no other exception, no memory (W4)."""

import contextlib
import json
import os
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import BadSignature, KeyFileError, PayloadRefused, PayloadTooLarge, SpaceMismatch
from quarl_device.wire.block import MAX_DROPPED_RANGES, Block, BlockCodec, BlockSpec
from quarl_device.wire.keys import LearnerKey, PublicKey
from quarl_device.wire.limits import MAX_BLOCK_BYTES, MAX_BLOCK_HEADER_BYTES
from quarl_device.wire.messages import Ack, LearnerBirth
from quarl_device.wire.topics import Topics

DISCRETE = ActionSpec(kind="discrete", n=3)
VECTOR = BlockSpec(observations=(ObservationSpec(key="o", shape=(2,)),), action=DISCRETE)
PIXELS = BlockSpec(observations=(ObservationSpec(key="o", shape=(84, 84, 4), dtype="uint8"),), action=DISCRETE)
GOLDEN = Path(__file__).parent.parent / "golden"


def block(steps=4, envs=2, *, spec=VECTOR, ends=(), next_step=False, **changes):
    """A block of zeros in which episodes end at `ends`."""
    flags = {name: np.zeros((steps, envs), bool) for name in ("terminated", "truncated", "start")}
    valid = np.ones((steps, envs), bool)
    for t, n in ends:
        flags["terminated"][t, n] = True
        if t + 1 < steps:
            flags["start"][t + 1, n] = not next_step
            valid[t + 1, n] = not next_step
    index = np.array([] if next_step else ends, np.int32).reshape(-1, 2)
    fields = {
        "boot_id": "0123456789abcdef",
        "sequence": 7,
        "base": 3,
        "observation": {s.key: np.zeros((steps + s.stack, envs, *s.shape), s.dtype) for s in spec.observations},
        "action": np.zeros((steps, envs, *spec.action.shape), spec.action.dtype),
        "reward": np.zeros((steps, envs), np.float32),
        **flags,
        "valid": valid,
        "policy_epoch": np.zeros(steps, np.uint32),
        "policy_version": np.zeros(steps, np.uint32),
        "final_index": index,
        "final_observation": {s.key: np.zeros((len(index), *s.shape), s.dtype) for s in spec.observations},
    }
    return Block(**{**fields, **changes})


def with_header(payload, change):
    """The payload with its header text changed and its lengths made right again."""
    size = int.from_bytes(payload[:8], "little")
    head = change(payload[8 : 8 + size])
    return struct.pack("<Q", len(head)) + head + payload[8 + size :]


MANY_RANGES = [b"%d-%d" % (number, number) for number in range(10, 10 + 2 * (MAX_DROPPED_RANGES + 1), 2)]
GOOD = BlockCodec(VECTOR).encode(block(ends=[(1, 0)]))


def refused(payload, spec=VECTOR, match=None):
    with pytest.raises(PayloadRefused, match=match):
        BlockCodec(spec).decode(payload)


@pytest.mark.parametrize("sizes", [(1000, 1000), (65535, 16), (1, 65535), (65535, 65535), (999999, 1), (99999, 99999)])
@pytest.mark.parametrize("spec", [VECTOR, PIXELS], ids=["vector", "pixels"])
def test_w4_a_header_of_absurd_sizes_is_refused_without_memory(sizes, spec):
    steps, envs = sizes
    head = (
        f'{{"reward":{{"dtype":"F32","shape":[{steps},{envs}],"data_offsets":[0,4]}},'
        f'"final_index":{{"dtype":"I32","shape":[9999999,2],"data_offsets":[0,0]}},"__metadata__":{{}}}}'
    )
    for text in (head, head.replace("9999999", "0")):
        tracemalloc.start()
        try:
            refused(struct.pack("<Q", len(text)) + text.encode(), spec)
            assert tracemalloc.get_traced_memory()[1] < 200_000
        finally:
            tracemalloc.stop()


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**8)),
    body=st.binary(max_size=64),
    pixels=st.booleans(),
)
@example(sizes=(1000, 1000, 0), body=b"", pixels=True)
def test_w4_no_claimed_size_raises_anything_else(sizes, body, pixels):
    steps, envs, finals = sizes
    head = b'{"reward":{"dtype":"F32","shape":[%d,%d]},"final_index":{"dtype":"I32","shape":[%d,2]},"__metadata__":{}}'
    text = head % (steps, envs, finals)
    refused(struct.pack("<Q", len(text)) + text + body, PIXELS if pixels else VECTOR)


def test_w4_two_hundred_thousand_tensors_are_refused_by_the_size_of_their_header():
    text = b"{" + b",".join(b'"t%d":{}' % number for number in range(60_000)) + b"}"
    payload = struct.pack("<Q", len(text)) + text
    assert MAX_BLOCK_HEADER_BYTES < len(payload) < MAX_BLOCK_BYTES
    refused(payload, match="header of")
    many = b"{" + b",".join(b'"t%d":{}' % number for number in range(200_000)) + b"}"
    refused(struct.pack("<Q", len(many)) + many, match="over its cap")


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head.replace(b"{", b'{"reward":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]},', 1),
        lambda head: head.replace(b'"__metadata__"', b'"__metadata__":{},"__metadata__"'),
        lambda head: head.replace(b'"F32"', b'"I32"'),
        lambda head: head.replace(b"[4,2]", b"[2,4]"),
        lambda head: head.replace(b"[4,2]", b"[4.0,2]"),
        lambda head: head.replace(b"[4,2]", b"[04,2]"),
        lambda head: head.replace(b'"sequence":"7"', b'"sequence":7'),
        lambda head: head.replace(b'"sequence":"7"', b'"sequence":"07"'),
        lambda head: head.replace(b'"base":"3"', b'"base":"8"'),
        lambda head: head.replace(b'"dropped":""', b'"dropped":"7-7"'),
        lambda head: head.replace(b'"dropped":""', b'"dropped":"4-5,2-3"'),
        lambda head: head.replace(b'"dropped":""', b'"dropped":","'),
        lambda head: head.replace(b'"dropped":""', b'"dropped":"%s"' % b",".join(MANY_RANGES)),
        lambda head: head + b" " * 8,
        lambda head: head[:-8],
        lambda head: b" " + head,
        lambda head: head.replace(b'"schema":"1"', b'"schema":"1","schema":"1"'),
        lambda head: head.replace(b'"boot_id":"0', b'"boot_id":"\xff'),
    ],
)  # fmt: skip
def test_w4_another_header_for_the_same_arrays_is_refused(change):
    changed = with_header(GOOD, change)
    assert changed != GOOD
    refused(changed)


def test_w4_bytes_missing_or_left_over_are_refused():
    refused(GOOD[:-1])
    refused(GOOD + b"\0")
    refused(b"")
    refused(bytes(8))


def flag_offset(name):
    size = int.from_bytes(GOOD[:8], "little")
    return 8 + size + json.loads(GOOD[8 : 8 + size])[name]["data_offsets"][0]


@pytest.mark.parametrize("name", ["terminated", "truncated", "start", "valid"])
def test_w4_a_byte_of_two_is_no_bool(name):
    payload = bytearray(GOOD)
    payload[flag_offset(name)] = 2
    refused(bytes(payload), match="bool")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["reward", "observation/o", "final_observation/o"])
def test_w4_a_number_that_is_none_is_refused_by_name(name, value):
    payload = bytearray(GOOD)
    payload[flag_offset(name) : flag_offset(name) + 4] = np.float32(value).tobytes()
    refused(bytes(payload), match=name)


@pytest.mark.parametrize(("count", "dtype", "bad"), [(3, np.uint8, 3), (300, np.int32, 300), (300, np.int32, -1)])
def test_w4_an_action_that_does_not_exist_is_refused(count, dtype, bad):
    spec = replace(VECTOR, action=ActionSpec(kind="discrete", n=count))
    for action, holds in ((count - 1, True), (bad, False)):
        payload = BlockCodec(spec).encode(block(spec=spec, action=np.full((4, 2), action, dtype)))
        if holds:
            assert BlockCodec(spec).decode(payload).action.max() == action
        else:
            refused(payload, spec, match="action")


@pytest.mark.parametrize("index", [[(1, 1)], [(0, 0)], [(-1, 0)], [(1, 0), (1, 0)], [(2**31 - 1, 0)], []])
def test_w4_final_rows_must_be_those_that_ended(index):
    rows = np.array(index, np.int32).reshape(-1, 2)
    wrong = block(ends=[(1, 0)], final_index=rows, final_observation={"o": np.zeros((len(rows), 2), np.float32)})
    refused(BlockCodec(VECTOR).encode(wrong))


def test_w4_the_row_after_an_end_starts_an_episode():
    refused(BlockCodec(VECTOR).encode(block(ends=[(1, 0)], start=np.zeros((4, 2), bool))), match="start")


def test_with_next_step_autoreset_a_dummy_row_stands_for_the_final_observation():
    decoded = BlockCodec(VECTOR).decode(BlockCodec(VECTOR).encode(block(ends=[(1, 0), (3, 1)], next_step=True)))
    assert decoded.transitions == 7
    assert not decoded.valid[2, 0]
    refused(BlockCodec(VECTOR).encode(block(ends=[(1, 0)], next_step=True, valid=np.ones((4, 2), bool))), match="dummy")


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_w4_mutations_of_golden_blocks_are_refused_or_hold(data):
    payload = bytearray((GOLDEN / "block_same_step.safetensors").read_bytes())
    spec = BlockSpec(
        observations=(ObservationSpec(key="observation", shape=(4,)),), action=ActionSpec(kind="discrete", n=2)
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(payload) - 1))
        match data.draw(st.sampled_from(["set", "cut", "add"])):
            case "set":
                payload[place] = data.draw(st.integers(0, 255))
            case "cut":
                del payload[place : place + data.draw(st.integers(1, 9))]
            case "add":
                payload[place:place] = data.draw(st.binary(min_size=1, max_size=9))
        if not payload:
            break
    try:
        found = BlockCodec(spec).decode(bytes(payload))
    except PayloadRefused:
        return
    assert BlockCodec(spec).encode(found) == bytes(payload)


def test_w4_hostile_headers_do_not_fill_the_codecs_memory():
    codec = BlockCodec(VECTOR)
    for steps in range(1, 700):
        codec.decode(codec.encode(block(steps, 1)))
    assert len(codec._by_size) <= 512
    assert len(codec._by_prefix) <= 512
    assert codec.decode(GOOD).num_steps == 4


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"reward": np.zeros((4, 2))}, SpaceMismatch),
        ({"action": np.zeros((4, 2), np.int64)}, SpaceMismatch),
        ({"action": np.zeros((4, 1), np.uint8)}, SpaceMismatch),
        ({"observation": {}}, SpaceMismatch),
        ({"observation": {"o": np.zeros((4, 2, 2), np.float32)}}, SpaceMismatch),
        ({"reward": np.zeros(4, np.float32)}, SpaceMismatch),
        ({"reward": None}, SpaceMismatch),
        ({"boot_id": "nope"}, SpaceMismatch),
        ({"sequence": -1}, SpaceMismatch),
        ({"base": 8}, SpaceMismatch),
        ({"sequence": 2**53}, SpaceMismatch),
        ({"dropped": ((5, 4),)}, SpaceMismatch),
        ({"dropped": tuple((2 * i, 2 * i) for i in range(9, 10 + MAX_DROPPED_RANGES))}, SpaceMismatch),
    ],
)
def test_a_block_that_does_not_fit_is_not_written(changes, error):
    with pytest.raises(error):
        BlockCodec(VECTOR).encode(block(**changes))


def test_a_block_over_its_cap_is_not_written():
    with pytest.raises(PayloadTooLarge):
        BlockCodec(PIXELS).encode(block(64, 1, spec=PIXELS))
    with pytest.raises(SpaceMismatch):
        BlockCodec(VECTOR).encode(block(0, 1))
    with pytest.raises(SpaceMismatch):
        BlockCodec(VECTOR).encode(block(65_536, 1))


@pytest.mark.parametrize("spec", [VECTOR, PIXELS], ids=["vector", "pixels"])
@pytest.mark.parametrize("envs", [1, 8])
def test_the_longest_block_of_ends_alone_is_written_and_read(spec, envs):
    if spec is PIXELS and envs == 8:
        spec = replace(spec, observations=(ObservationSpec(key="o", shape=(42, 42), dtype="uint8", stack=4),))
    steps = spec.max_steps(envs)
    ends = [(t, n) for t in range(steps) for n in range(envs)]
    payload = BlockCodec(spec).encode(block(steps, envs, spec=spec, ends=ends))
    # The whole header's cap is kept free, which a block of one pixel step cannot afford to be exact about.
    assert 0.5 * MAX_BLOCK_BYTES < len(payload) <= MAX_BLOCK_BYTES
    assert len(BlockCodec(spec).decode(payload).final_index) == steps * envs
    assert spec.max_steps(envs, every_row_may_end=False) > steps


def test_headers_that_no_peer_would_read_are_not_written():
    keys = tuple(ObservationSpec(key="\x01" * 60 + f"{number:04d}", shape=()) for number in range(64))
    spec = BlockSpec(observations=keys, action=DISCRETE)
    with pytest.raises(PayloadTooLarge, match="header"):
        BlockCodec(spec).encode(block(1, 1, spec=spec))


BIRTH = json.loads((GOLDEN / "learner_lockstep.json").read_bytes())


@pytest.mark.parametrize(
    "change",
    [
        {"action": {**BIRTH["action"], "shape": [3]}},
        {"action": {**BIRTH["action"], "shape": [-1, -2]}},
        {"action": {**BIRTH["action"], "shape": [10**9]}},
        {"action": {**BIRTH["action"], "low": [1e999]}},
        {"action": {"kind": "discrete", "n": 2, "shape": [2]}},
        {"action": {"kind": "discrete", "n": 2, "start": 10**400}},
        {"action": {"kind": "discrete", "n": 2, "start": 1.5}},
        {"action": {"kind": "discrete", "n": True}},
        {"action": {"kind": "other"}},
        {"action": {"kind": "discrete", "n": 2, "more": 1}},
        {"observations": []},
        {"observations": [BIRTH["observations"][0]] * 2},
        {"observations": [{"key": "a", "shape": [2**40]}]},
        {"observations": [{"key": "a", "shape": [], "stack": 17}]},
        {"observations": [{"key": "a", "shape": [], "dtype": "object"}]},
        {"observations": [{"key": "a", "shape": [], "tensor": 3}]},
        {"observations": [{"key": "a/b", "shape": []}]},
        {"observations": [7]},
        {"observations": [{"key": f"k{number}", "shape": []} for number in range(65)]},
        {"env_kwargs": [1]},
        {"block_steps": 0},
        {"public_key": "AB" * 32},
        {"epoch": 2**32},
        {"epoch": 1.0},
        {"mode": ["async"]},
        {"mode": "rounds"},
        {"mode": "rounds", "round_steps": 0},
        {"mode": "rounds", "round_steps": 10**6 + 1},
        {"mode": "rounds", "round_steps": 8.0},
        {"mode": "lockstep", "round_steps": 8},
        {"round_steps": 8},
        {"round_steps": "0"},
        {"extras": "log_prob"},
        {"extras": ["log_prob", "log_prob"]},
        {"extras": ["log/prob"]},
        {"extras": [""]},
        {"extras": ["x" * 65]},
        {"extras": [None]},
        {"extras": [f"e{number}" for number in range(17)]},
        {"wrappers": "ClipAction"},
        {"wrappers": [None]},
        {"wrappers": ["x" * 257]},
        {"wrappers": ["ClipAction"] * 17},
        {"status": "maybe"},
        {"schema": True},
        {"schema": 2},
    ],
    ids=str,
)
def test_w4_a_birth_of_an_impossible_task_is_refused(change):
    LearnerBirth.decode(json.dumps(BIRTH).encode())
    with pytest.raises(PayloadRefused):
        LearnerBirth.decode(json.dumps({**BIRTH, **change}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"durable": 42},
        {"inserted": -2},
        {"credit": -1},
        {"refused": {"x": 34}},
        {"refused": {"²": 34}},
        {"refused": {"1": 0}},
        {"refused": {"1": True}},
        {"refused": {str(number): 34 for number in range(1025)}},
        {"boot_id": "0" * 15},
    ],
    ids=lambda change: str(change)[:40],
)
def test_w4_an_ack_that_cannot_be_is_refused(change):
    good = json.loads((GOLDEN / "ack.json").read_bytes())
    with pytest.raises(PayloadRefused):
        Ack.decode(json.dumps({**good, **change}).encode())


@pytest.mark.parametrize("text", ['{"schema":1,"schema":1}', '{"schema":1e999}', '{"schema":Infinity}', "1" * 5_000])
def test_w4_json_that_readers_disagree_about_is_refused(text):
    with pytest.raises(PayloadRefused, match="not valid JSON"):
        Ack.decode(text.encode())


@pytest.mark.parametrize("device", ["UPPER", "a b", "+", "#", "-a", "a" * 64, "\x00", "ä", "..", "$SYS"])
def test_w4_a_device_of_a_name_that_none_may_have_is_nobody(device):
    with pytest.raises(PayloadRefused):
        Topics("lab").device_of(f"q/v1/lab/d/{device}/up/xp")


def test_a_key_path_that_cannot_be_looked_at_is_one_clear_error(tmp_path):
    for path in (tmp_path / ("x" * 300), tmp_path):
        with pytest.raises(KeyFileError):
            LearnerKey.load_or_create(path)
        with pytest.raises(KeyFileError):
            PublicKey.from_file(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError):
        LearnerKey.load_or_create(tmp_path / "file" / "key")


def test_no_secret_shows_in_a_keys_text():
    seed = os.urandom(32)
    key = LearnerKey(seed)
    assert seed.hex()[:16] not in repr(key) + str(key) + f"{key!s}{key.public!r}"
    with pytest.raises(KeyFileError) as caught:
        LearnerKey(seed[:31])
    assert seed.hex()[:16] not in str(caught.value)


@given(raw=st.binary(min_size=32, max_size=32), signature=st.binary(min_size=64, max_size=64))
@settings(max_examples=100, deadline=None)
def test_any_public_key_refuses_any_made_up_signature_and_raises_nothing_else(raw, signature):
    with pytest.raises(BadSignature):
        LearnerKey(raw).public.verify(signature, b"data")
    # These bytes may be a weak key, for which a few made-up signatures hold; whose key it is, pinning decides.
    with contextlib.suppress(BadSignature):
        PublicKey(raw).verify(signature, b"data")


@pytest.mark.parametrize("index", [(0, 2), (2, -2), (1, 0), (-1, 4), (2**31 - 1, 0), (0, 2**31 - 1)])
def test_w4_a_final_index_out_of_range_stands_for_no_other_row(index):
    """With two environments (0, 2) has the place of (1, 0), where an episode did end."""
    good = block(ends=[(1, 0)])
    payload = BlockCodec(VECTOR).encode(replace(good, final_index=np.array([index], np.int32)))
    if index == (1, 0):
        BlockCodec(VECTOR).decode(payload)
    else:
        refused(payload, match="final_index does not list")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [1e6, -1e6, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["observation", "reward"])
def test_w4_floats_over_the_bound_are_refused_by_name(dtype, value, field):
    spec = BlockSpec(observations=(ObservationSpec(key="o", shape=(2,), dtype=dtype),), action=DISCRETE)
    good = block(spec=spec)
    array = (good.observation["o"] if field == "observation" else good.reward).copy()
    array.reshape(-1)[3] = value
    changed = {"observation": {"o": array}} if field == "observation" else {"reward": array}
    payload = BlockCodec(spec).encode(replace(good, **changed))
    name = "observation/o" if field == "observation" else "reward"
    with pytest.raises(PayloadRefused, match=name):
        BlockCodec(spec, max_magnitude=1e5).decode(payload)
    if np.isfinite(value):
        BlockCodec(spec).decode(payload)
        BlockCodec(spec, max_magnitude=1e6).decode(payload)
