"""Whatever a stranger sends, a decoder gives back a value or one refusal (W4)."""

import contextlib
import json
import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import PayloadRefused, QuarlError

_MODULE = runpy.run_path(str(Path(__file__).parents[1] / "fuzz" / "decoders.py"))
DECODERS = {decoder.name: decoder for decoder in _MODULE["decoders"]()}
JSON = [name for name, decoder in DECODERS.items() if decoder.seeds[0].startswith(b"{")]

# One change: (place as a share of the payload, what is there now, what is put there).
changes = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(["flip", "cut", "insert", "double", "swap", "zero", "ones"]),
        st.binary(min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=4,
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def changed(payload, plan):
    data = bytearray(payload)
    for share, kind, junk in plan:
        at = int(share * len(data))
        if kind == "flip" and at < len(data):
            data[at] ^= junk[0] or 1
        elif kind == "cut":
            del data[at : at + junk[0]]
        elif kind == "insert":
            data[at:at] = junk
        elif kind == "double":
            data[at:at] = data[at : at + 64]
        elif kind == "swap":
            data[at : at + len(junk)] = junk
        else:
            data[at : at + 8] = (b"\x00" if kind == "zero" else b"\xff") * 8
    return bytes(data)


every_decoder = pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)


@every_decoder
def test_the_seeds_hold(decoder):
    assert decoder.seeds
    for seed in decoder.seeds:
        decoder.decode(seed)


@every_decoder
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_w4_a_damaged_payload_is_refused_or_holds(decoder, data):
    payload = changed(data.draw(st.sampled_from(decoder.seeds)), data.draw(changes))
    with contextlib.suppress(QuarlError):
        decoder.decode(payload)


@every_decoder
@settings(max_examples=25, deadline=None)
@given(noise=st.binary(max_size=300))
def test_w4_noise_is_refused(decoder, noise):
    with pytest.raises(QuarlError):
        decoder.decode(noise)


@every_decoder
@settings(max_examples=25, deadline=None)
@given(noise=st.binary(max_size=100), keep=st.integers(1, 200))
def test_w4_a_payload_that_goes_wrong_halfway_is_refused(decoder, noise, keep):
    with contextlib.suppress(QuarlError):
        decoder.decode(decoder.seeds[0][:keep] + noise)


@pytest.mark.parametrize("decoder", [one for one in DECODERS.values() if one.cap_bytes], ids=lambda one: one.name)
def test_w4_what_is_over_the_cap_is_refused_unread(decoder):
    for size in (decoder.cap_bytes + 1, 4 * decoder.cap_bytes):
        with pytest.raises(PayloadRefused, match="over its cap"):
            decoder.decode(decoder.seeds[0].ljust(size, b" "))


# The maker itself, and a chunk, which is compared with a sha256 and never decoded.
NO_SEEDS = {"make_golden.py", "chunk_200.bin"}


def test_every_golden_payload_is_a_seed():
    """A new kind of message comes with a golden file, and so with its decoder here."""
    seeds = {seed for decoder in DECODERS.values() for seed in decoder.seeds}
    golden = Path(__file__).parents[1] / "golden"
    missing = {path.name for path in golden.iterdir() if path.is_file() and path.read_bytes() not in seeds}
    assert missing == NO_SEEDS


@pytest.mark.parametrize("name", JSON)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_w4_any_field_may_hold_anything(name, data):
    decoder = DECODERS[name]
    fields = json.loads(data.draw(st.sampled_from(decoder.seeds)))
    field = data.draw(st.sampled_from(sorted(fields)))
    payload = json.dumps({**fields, field: data.draw(values)}).encode()
    with contextlib.suppress(QuarlError):
        decoder.decode(payload)


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"schema":' * 6_000,
        '{"schema":1,"schema":1}',
        '{"schema":1e999}',
        '{"schema":' + "9" * 5_000 + "}",
        '{"schema":NaN}',
        '"\ud800"',
        "null",
        "",
    ],
    ids=["deep array", "deep object", "twice", "huge float", "huge integer", "nan", "surrogate", "null", "empty"],
)
def test_w4_json_that_breaks_readers_is_refused(name, text):
    with pytest.raises(PayloadRefused):
        DECODERS[name].decode(text.encode("utf-8", "surrogatepass"))
