"""Blocks: what goes in comes out, and nothing else gets in (W4)."""

import json
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import PayloadRefused, QuarlError, UnsupportedSpace
from quarl_device.wire.block import Block, BlockCodec, BlockSpec, ExtraSpec
from quarl_device.wire.limits import MAX_BLOCK_BYTES

SPEC = BlockSpec(
    observations=(ObservationSpec(key="observation", shape=(4,)),), action=ActionSpec(kind="discrete", n=2)
)
BOOT = "0123456789abcdef"
dtypes = st.sampled_from(["float32", "float64", "uint8", "int16", "int64", "bool"])
specs = st.builds(
    BlockSpec,
    observations=st.lists(
        st.builds(
            ObservationSpec,
            key=st.sampled_from(["a", "b", "observation", "pixels"]),
            shape=st.lists(st.integers(1, 3), max_size=3).map(tuple),
            dtype=dtypes,
            stack=st.integers(1, 3),
        ),
        min_size=1, max_size=3, unique_by=lambda spec: spec.key,
    ).map(tuple),
    action=st.one_of(
        st.integers(1, 300).map(lambda n: ActionSpec(kind="discrete", n=n)),
        st.integers(1, 3).map(lambda n: ActionSpec(kind="box", shape=(n,), low=(-1.0,) * n, high=(1.0,) * n)),
    ),
    extras=st.sampled_from([(), (ExtraSpec(name="log_prob"),), (ExtraSpec(name="mean", shape=(2,)),)]),
)  # fmt: skip


def make_block(spec, steps, envs, *, seed=0, same_step=True, **fields):
    """A block of noise that holds."""
    rng = np.random.default_rng(seed)

    def noise(shape, dtype):
        return (rng.normal(size=shape) * 3).astype(dtype) if dtype != "bool" else rng.random(shape) < 0.5

    terminated = rng.random((steps, envs)) < 0.2 if same_step else np.zeros((steps, envs), np.bool_)
    start = np.zeros((steps, envs), np.bool_)
    start[1:] = terminated[:-1]
    ends = np.argwhere(terminated).astype(np.int32)
    if spec.action.kind == "discrete":
        action = rng.integers(0, spec.action.n, (steps, envs)).astype(spec.action.dtype)
    else:
        action = noise((steps, envs, *spec.action.shape), "float32")
    return Block(
        **{
            "boot_id": BOOT, "sequence": 3, "base": 1, "first_step": 48, "dropped": (),
            "observation": {s.key: noise((steps + s.stack, envs, *s.shape), s.dtype) for s in spec.observations},
            "action": action, "reward": noise((steps, envs), "float32"), "terminated": terminated,
            "truncated": np.zeros((steps, envs), np.bool_), "start": start, "valid": np.ones((steps, envs), np.bool_),
            "policy_epoch": np.full(steps, 5, np.uint32), "policy_version": np.arange(steps, dtype=np.uint32),
            "final_index": ends,
            "final_observation": {s.key: noise((len(ends), *s.shape), s.dtype) for s in spec.observations},
            "extra": {e.name: noise((steps, envs, *e.shape), e.dtype) for e in spec.extras},
            **fields,
        }
    )  # fmt: skip


def arrays_of(block):
    named = {name: getattr(block, name) for name in ("action", "reward", "terminated", "truncated", "start", "valid")}
    named |= {name: getattr(block, name) for name in ("policy_epoch", "policy_version", "final_index")}
    for group in ("observation", "final_observation", "extra"):
        named |= {f"{group}/{key}": array for key, array in getattr(block, group).items()}
    return named


PAYLOAD = BlockCodec(SPEC).encode(make_block(SPEC, 6, 2))


@settings(max_examples=80, deadline=None)
@given(spec=specs, steps=st.integers(1, 9), envs=st.integers(1, 4), seed=st.integers(0, 99))
def test_what_goes_in_comes_out_and_the_library_reads_it(spec, steps, envs, seed):
    block = make_block(spec, steps, envs, seed=seed, dropped=((4, 4), (6, 9)))
    payload = BlockCodec(spec).encode(block)
    found, library = BlockCodec(spec).decode(payload), load(payload)
    assert (found.boot_id, found.sequence, found.base, found.dropped) == (BOOT, 3, 1, ((4, 4), (6, 9)))
    assert found.first_step == 48
    assert found.transitions == steps * envs
    for name, array in arrays_of(block).items():
        np.testing.assert_array_equal(arrays_of(found)[name], array, err_msg=name)
        np.testing.assert_array_equal(library[name], array, err_msg=name)


def test_arrays_that_are_not_contiguous_are_written_right():
    block = make_block(SPEC, 6, 2)
    strided = np.asfortranarray(np.repeat(block.observation["observation"], 2, axis=1))[:, ::2]
    assert not strided.flags.c_contiguous
    payload = BlockCodec(SPEC).encode(make_block(SPEC, 6, 2, observation={"observation": strided}))
    np.testing.assert_array_equal(BlockCodec(SPEC).decode(payload).observation["observation"], strided)


def test_decoded_arrays_are_read_only_views():
    found = BlockCodec(SPEC).decode(PAYLOAD)
    assert not found.reward.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        found.reward[0, 0] = 1


def refused(payload, spec=SPEC):
    with pytest.raises(PayloadRefused):
        BlockCodec(spec).decode(payload)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_w4_random_bytes_are_refused(data):
    refused(data)


@settings(max_examples=300, deadline=None)
@given(cut=st.integers(0, len(PAYLOAD) - 1))
def test_w4_a_truncated_payload_is_refused(cut):
    refused(PAYLOAD[:cut])


@settings(max_examples=600, deadline=None)
@given(position=st.integers(0, len(PAYLOAD) - 1), bit=st.integers(0, 7))
def test_w4_a_flipped_bit_is_refused_or_leaves_a_block_that_holds(position, bit):
    data = bytearray(PAYLOAD)
    data[position] ^= 1 << bit
    try:
        found = BlockCodec(SPEC).decode(bytes(data))
    except PayloadRefused:
        return
    for array in arrays_of(found).values():
        assert array.dtype.kind != "f" or np.isfinite(array).all()
    assert found.action.max() < 2


def with_header(change):
    size = int.from_bytes(PAYLOAD[:8], "little")
    header = json.loads(PAYLOAD[8 : 8 + size])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + PAYLOAD[8 + size :]


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.pop("reward"),
        lambda h: h.update(other=h["reward"]),
        lambda h: h["reward"].update(dtype="F16"),
        lambda h: h["reward"].update(shape=[6, -2]),
        lambda h: h["reward"].update(shape=[0, 2**63 - 1]),
        lambda h: h["reward"].update(data_offsets=[0, 10**12]),
        lambda h: h["__metadata__"].update(schema="2"),
        lambda h: h["__metadata__"].update(sequence="-1"),
        lambda h: h["__metadata__"].update(sequence="9" * 5_000),
        lambda h: h["__metadata__"].update(boot_id="XYZ"),
        lambda h: h["__metadata__"].update(dropped="5-3"),
        lambda h: h["__metadata__"].pop("base"),
        lambda h: h.pop("__metadata__"),
        lambda h: h.update({f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(5_000)}),
    ],
)
def test_w4_a_changed_header_is_refused(change):
    refused(with_header(change))


def test_w4_deep_nesting_and_a_lying_header_length_are_refused():
    for text in (b"[" * 30_000, b"{" * 30_000, b"\xff" * 100, b'{"a":NaN}'):
        refused(struct.pack("<Q", len(text)) + text)
    refused(struct.pack("<Q", 2**63) + PAYLOAD[8:])
    refused(struct.pack("<Q", 0) + PAYLOAD[8:])


@pytest.mark.parametrize(
    "fields",
    [
        {"reward": np.full((6, 2), np.nan, np.float32)},
        {"reward": np.full((6, 2), np.inf, np.float32)},
        {"observation": {"observation": np.full((7, 2, 4), np.nan, np.float32)}},
        {"action": np.full((6, 2), 2, np.uint8)},
        {"final_index": np.zeros((0, 2), np.int32), "final_observation": {"observation": np.zeros((0, 4), np.float32)}},
        {"valid": np.full((6, 2), 2, np.uint8).view(np.bool_)},
    ],
    ids=["nan reward", "inf reward", "nan observation", "no such action", "final rows missing", "a bool of 2"],
)
def test_w4_values_that_no_environment_gives_are_refused(fields):
    try:
        payload = BlockCodec(SPEC).encode(make_block(SPEC, 6, 2, seed=1, **fields))
    except QuarlError:
        return
    refused(payload)


def test_w4_another_environments_block_is_refused():
    other = BlockSpec(observations=(ObservationSpec(key="observation", shape=(3,)),), action=SPEC.action)
    refused(PAYLOAD, other)
    refused(PAYLOAD, BlockSpec(observations=(ObservationSpec(key="x", shape=(4,)),), action=SPEC.action))


def test_w4_an_oversized_payload_is_refused_before_anything_is_allocated():
    huge = bytes(MAX_BLOCK_BYTES + 1)
    claim = struct.pack("<Q", 100) + b'{"reward":{"dtype":"F32","shape":[99999,99999],"data_offsets":[0,39999200004]}}'
    codec = BlockCodec(SPEC)
    tracemalloc.start()
    try:
        for payload in (huge, claim + bytes(30)):
            with pytest.raises(PayloadRefused):
                codec.decode(payload)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@given(envs=st.integers(1, 64), size=st.integers(1, 5_000))
@settings(max_examples=40, deadline=None)
def test_the_longest_block_fits_the_cap(envs, size):
    spec = BlockSpec(observations=(ObservationSpec(key="o", shape=(size,)),), action=SPEC.action)
    try:
        steps = spec.max_steps(envs)
    except UnsupportedSpace:
        return
    frame = 4 * size * envs
    worst = (steps + 1) * frame + steps * frame + steps * envs * (1 + 4 + 4 + 8) + 8 * steps + 32 * 1024
    assert worst <= MAX_BLOCK_BYTES + frame
