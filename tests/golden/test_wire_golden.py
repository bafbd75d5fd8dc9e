"""Wire version 1 stays what it is: encoders write the golden files byte for byte, decoders read them."""

import numpy as np
import pytest
from make_golden import (
    ACK,
    BIRTH,
    HEADER,
    HERE,
    KEY,
    POLICY,
    STACKED,
    STATE,
    TELEMETRY,
    VECTOR,
    next_step_block,
    payloads,
    same_step_block,
    stacked_block,
)  # fmt: skip
from safetensors.numpy import load

from quarl_device.wire.block import BlockCodec
from quarl_device.wire.messages import Ack, DeviceState, LearnerBirth, Telemetry
from quarl_device.wire.push import decode_push

BLOCKS = {
    "v1-block-same-step.safetensors": (VECTOR, same_step_block),
    "v1-block-next-step.safetensors": (VECTOR, next_step_block),
    "v1-block-stacked.safetensors": (STACKED, stacked_block),
}
FIELDS = (
    "action",
    "reward",
    "terminated",
    "truncated",
    "start",
    "valid",
    "policy_epoch",
    "policy_version",
    "final_index",
)


def golden(name):
    return (HERE / name).read_bytes()


@pytest.mark.parametrize("name", sorted(payloads()))
def test_todays_encoders_write_the_golden_bytes(name):
    assert payloads()[name] == golden(name)


def test_no_golden_file_is_without_a_test():
    kept = {path.name for path in HERE.iterdir() if path.name.startswith("v1-")}
    assert kept == set(payloads())


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("v1-learner.json", LearnerBirth, BIRTH),
        ("v1-state.json", DeviceState, STATE),
        ("v1-ack.json", Ack, ACK),
        ("v1-telemetry.json", Telemetry, TELEMETRY),
    ],
)
def test_json_golden_files_read_back_equal(name, kind, value):
    assert kind.decode(golden(name)) == value


def test_the_golden_push_opens_with_its_key():
    header, policy = decode_push(golden("v1-push.bin"), KEY.public.verify)
    assert policy == POLICY
    assert header.encode() == HEADER.encode()
    np.testing.assert_array_equal(header.golden_outputs["q_values"], HEADER.golden_outputs["q_values"])


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_golden_blocks_read_back_equal(name):
    spec, make = BLOCKS[name]
    found, wanted = BlockCodec(spec).decode(golden(name)), make()
    assert (found.boot_id, found.sequence, found.base, found.dropped) == (
        wanted.boot_id, wanted.sequence, wanted.base, wanted.dropped,
    )  # fmt: skip
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(found, field), getattr(wanted, field), err_msg=field)
    for group in ("observation", "final_observation", "extra"):
        assert set(getattr(found, group)) == set(getattr(wanted, group))
        for key, array in getattr(wanted, group).items():
            np.testing.assert_array_equal(getattr(found, group)[key], array)


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_the_safetensors_library_reads_golden_blocks(name):
    _, make = BLOCKS[name]
    block, arrays = make(), load(golden(name))
    np.testing.assert_array_equal(arrays["reward"], block.reward)
    np.testing.assert_array_equal(arrays["observation/observation"], block.observation["observation"])
    np.testing.assert_array_equal(arrays["policy_version"], block.policy_version)
