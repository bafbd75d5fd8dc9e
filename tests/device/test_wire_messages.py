"""JSON payloads, pushes, keys and topics: strict both ways, nobody in who doesn't belong."""

import contextlib
import dataclasses
import hashlib
import json
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import (
    BadSignature,
    KeyFileError,
    PayloadRefused,
    PayloadTooLarge,
    UsageError,
    WireVersionMismatch,
)  # fmt: skip
from quarl_device.wire.keys import LearnerKey, PublicKey
from quarl_device.wire.limits import MAX_INLINE_PUSH_BYTES, MAX_JSON_BYTES, WIRE_VERSION
from quarl_device.wire.messages import Ack, DeviceState, LearnerBirth, Telemetry, check_wire_version
from quarl_device.wire.push import Exploration, PushHeader, decode_push, encode_push, newer
from quarl_device.wire.topics import Topics

BOOT = "0123456789abcdef"
BIRTH = LearnerBirth(
    status="online", epoch=9, env_id="CartPole-v1", algorithm="dqn", public_key="ab" * 32, mode="async", seed=0,
    observations=(ObservationSpec(key="observation", shape=(4,)),), action=ActionSpec(kind="discrete", n=2),
    block_steps=16, version="0.1.0",
)  # fmt: skip
ROUNDS = dataclasses.replace(BIRTH, mode="rounds", round_steps=128, extras=("log_prob",))
MESSAGES = [
    BIRTH,
    DeviceState(status="online", device="pi-1", boot_id=BOOT),
    Ack(boot_id=BOOT, epoch=9, inserted=4, durable=4, refused={2: 34}, credit=8),
    Telemetry(boot_id=BOOT, steps=4),
]
KEY = LearnerKey(bytes(32))
POLICY = b"policy bytes"


def header(**changes):
    fields = {"epoch": 3, "version": 4, "env_steps": 5, "exploration": Exploration(values=(0.5,))}
    return PushHeader(**{"sha256": hashlib.sha256(POLICY).hexdigest(), **fields, **changes})


PUSH = encode_push(header(), POLICY, KEY.sign)
each = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)


@each
def test_a_message_reads_back_equal(message):
    assert type(message).decode(message.encode()) == message


def test_a_birth_says_wrappers_where_there_are_some():
    behind = dataclasses.replace(BIRTH, wrappers=("TimeLimit(max_episode_steps=9)",))
    assert LearnerBirth.decode(behind.encode()) == behind
    assert "wrappers" not in json.loads(BIRTH.encode())


def test_a_birth_says_rounds_and_extras_where_there_are_some_and_else_is_what_it_always_was():
    assert LearnerBirth.decode(ROUNDS.encode()) == ROUNDS
    assert not {"round_steps", "extras"} & set(json.loads(BIRTH.encode()))
    assert (BIRTH.round_steps, BIRTH.extras) == (0, ())
    said = json.loads(ROUNDS.encode())
    assert (said["mode"], said["round_steps"], said["extras"]) == ("rounds", 128, ["log_prob"])


@each
def test_unknown_keys_are_ignored_so_that_a_newer_peer_may_say_more(message):
    data = {**json.loads(message.encode()), "later": {"x": [1]}}
    assert type(message).decode(json.dumps(data).encode()) == message


@each
def test_w4_a_missing_or_mistyped_key_is_refused(message):
    whole = json.loads(message.encode())
    for name in whole:
        rest = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(PayloadRefused):
            type(message).decode(json.dumps(rest).encode())
        for wrong in (None, [], "\x00" * 70_000, -(10**30), True, {"a": {}}):
            try:
                found = type(message).decode(json.dumps({**whole, name: wrong}).encode())
            except PayloadRefused:
                continue
            assert dataclasses.is_dataclass(found)


def test_only_a_goodbye_says_left_and_peers_of_before_it_read_and_write_births_as_ever():
    assert b"left" not in BIRTH.encode()
    gone = dataclasses.replace(BIRTH, status="gone", left=True)
    assert LearnerBirth.decode(gone.encode()) == gone
    assert not LearnerBirth.decode(dataclasses.replace(gone, left=False).encode()).left
    for wrong in (1, "true", None, [], {}):
        with pytest.raises(PayloadRefused, match="left"):
            LearnerBirth.decode(json.dumps({**json.loads(gone.encode()), "left": wrong}).encode())


@each
@pytest.mark.parametrize(
    "payload",
    [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 60_000, b'{"schema":2}', b'{"schema":1,"x":NaN}', b"9" * 60_000],
)
def test_w4_what_is_no_such_message_is_refused(message, payload):
    with pytest.raises(PayloadRefused):
        type(message).decode(payload)


@each
def test_w4_a_message_over_its_cap_is_refused(message):
    padded = message.encode()[:-1] + b" " * MAX_JSON_BYTES + b"}"
    with pytest.raises(PayloadRefused):
        type(message).decode(padded)


@settings(max_examples=150, deadline=None)
@given(message=st.sampled_from(MESSAGES), data=st.data())
def test_w4_damaged_messages_never_raise_anything_else(message, data):
    payload = bytearray(message.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PayloadRefused):
        type(message).decode(bytes(payload))


def test_numbers_that_json_does_not_know_are_not_written():
    with pytest.raises(PayloadRefused):
        dataclasses.replace(MESSAGES[3], return_mean=float("nan")).encode()
    with pytest.raises(PayloadTooLarge):
        dataclasses.replace(BIRTH, env_kwargs={"x": "y" * MAX_JSON_BYTES}).encode()


def test_w10_who_must_upgrade_is_said():
    check_wire_version(WIRE_VERSION, peer="the learner")
    with pytest.raises(WireVersionMismatch, match="the learner speaks wire version 0") as older:
        check_wire_version(0, peer="the learner")
    assert older.value.hint == "upgrade the learner"
    with pytest.raises(WireVersionMismatch) as later:
        check_wire_version(WIRE_VERSION + 1, peer="the learner")
    assert later.value.hint == "upgrade quarl-edge here"


@given(a=st.tuples(st.integers(0, 5), st.integers(0, 5)), b=st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_w3_only_a_later_epoch_or_version_replaces(a, b):
    assert newer(a, b) == (a[0] > b[0] or (a[0] == b[0] and a[1] > b[1]))


def test_a_push_reads_back_equal():
    found, policy = decode_push(PUSH, KEY.public.verify)
    assert policy == POLICY
    assert found.encode() == header().encode()


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, len(PUSH) - 1), bit=st.integers(0, 7))
def test_a_push_tampered_with_anywhere_is_refused(position, bit):
    data = bytearray(PUSH)
    data[position] ^= 1 << bit
    with pytest.raises((BadSignature, PayloadRefused)):
        decode_push(bytes(data), KEY.public.verify)


@given(cut=st.integers(0, len(PUSH) - 1))
@settings(deadline=None)
def test_a_truncated_push_is_refused(cut):
    with pytest.raises((BadSignature, PayloadRefused)):
        decode_push(PUSH[:cut], KEY.public.verify)


def test_the_signature_is_checked_before_anything_is_read():
    seen = []

    def verify(signature, signed):
        seen.append((len(signature), signed))
        raise BadSignature("no")

    junk = b"QPOL" + b"\xff" * 200
    with pytest.raises(BadSignature):
        decode_push(junk, verify)
    assert seen == [(64, junk[:-64])]


def test_a_push_of_another_key_another_file_or_over_the_cap_is_refused():
    with pytest.raises(BadSignature):
        decode_push(PUSH, LearnerKey(bytes([1]) * 32).public.verify)
    with pytest.raises(PayloadRefused, match="sha256"):
        decode_push(encode_push(header(), b"another policy", KEY.sign), KEY.public.verify)
    with pytest.raises(PayloadTooLarge):
        encode_push(header(), bytes(MAX_INLINE_PUSH_BYTES), KEY.sign)
    with pytest.raises(PayloadRefused):
        decode_push(bytes(MAX_INLINE_PUSH_BYTES + 1), KEY.public.verify)


@pytest.mark.parametrize(
    "changes",
    [
        {"exploration": Exploration(values=(float("nan"),))},
        {"golden_outputs": {"q": np.array([np.inf], np.float32)}, "lsb": {"q": 1.0}},
        {"lsb": {"q": 0.0}},
        {"epoch": 2**40},
        {"tolerance_lsb": -1},
    ],
)
def test_w4_a_signed_header_that_does_not_hold_is_refused(changes):
    try:
        push = encode_push(header(**changes), POLICY, KEY.sign)
    except PayloadRefused:
        return
    with pytest.raises(PayloadRefused):
        decode_push(push, KEY.public.verify)


def test_exploration_values_go_round_by_actor_index():
    assert [Exploration(values=(0.1, 0.2)).value_for(i) for i in range(4)] == [0.1, 0.2, 0.1, 0.2]


def test_a_learner_key_is_made_once_and_readable_by_its_owner_alone(tmp_path):
    path = tmp_path / "deep" / "learner.key"
    first = LearnerKey.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = LearnerKey.load_or_create(path)
    assert again.public == first.public
    first.public.verify(again.sign(b"x"), b"x")
    assert path.read_text().strip() not in repr(first) + str(vars(first).get("public"))


def test_key_files_that_do_not_hold_are_refused(tmp_path):
    path = tmp_path / "learner.key"
    for content in (b"", b"xyz", b"ab" * 31, b"zz" * 32, b"\xff" * 64, b"ab" * 600):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(KeyFileError):
            LearnerKey.load_or_create(path)
        with pytest.raises(KeyFileError):
            PublicKey.from_file(path)
    path.write_text("ab" * 32)
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600") as caught:
        LearnerKey.load_or_create(path)
    assert "ab" * 32 not in str(caught.value)
    with pytest.raises(KeyFileError):
        PublicKey.from_file(tmp_path / "missing")


def test_topics_of_a_device_lead_back_to_it():
    topics = Topics("lab")
    for topic in (topics.state("pi-1"), topics.xp("pi-1"), topics.telemetry("pi-1"), topics.ack("pi-1")):
        assert topics.device_of(topic) == "pi-1"
        assert topic.startswith("q/v1/lab/d/pi-1/")


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "Pi", "-a", "a" * 64, "a\n", "$SYS"])
def test_names_that_would_reach_other_topics_are_refused(name):
    with pytest.raises(UsageError):
        Topics(name)
    with pytest.raises(UsageError):
        Topics("lab").xp(name)


@pytest.mark.parametrize("topic", ["q/v1/other/d/a/up/xp", "q/v1/lab/d//up/xp", "q/v1/lab/d/a", "x", ""])
def test_a_topic_of_nobody_is_refused(topic):
    with pytest.raises(PayloadRefused):
        Topics("lab").device_of(topic)
