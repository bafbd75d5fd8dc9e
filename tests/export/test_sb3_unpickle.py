"""Pickles are read as data: nothing that they name is imported or called, and damage is one clear error."""

import collections
import pickle
import random
import struct
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_factory import Built, Call, Name, Persistent, Raw, array, assemble, doubled, pickled

from quarl_device.errors import ModelFileError, QuarlError, UnsafeSource
from quarl_export.importers.sb3 import evidence, spaces, vecnormalize
from quarl_export.importers.sb3.arrays import ARRAY_CALLS, ARRAY_NAMES, as_array
from quarl_export.importers.sb3.unpickle import Global, Record, Vocabulary, read_pickle, shown

NOTHING = Vocabulary()
ANYTHING = Vocabulary(names=("",))
ARRAYS = Vocabulary(calls=ARRAY_CALLS, names=ARRAY_NAMES)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


def read(data, vocabulary=NOTHING):
    return read_pickle(data, vocabulary, what="a file")


@given(value=plain, protocol=st.integers(3, 5))
def test_plain_data_comes_out_as_python_reads_it(value, protocol):
    assert read(pickle.dumps(value, protocol)) == value


def test_shared_and_long_parts_come_out():
    shared = ["x" * 300, b"y" * 300, 2**80, -(2**80)]
    assert read(pickle.dumps([shared, shared, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ()])) == [
        shared, shared, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), (),
    ]  # fmt: skip
    assert read(pickle.dumps(list(range(70_000))))[-1] == 69_999
    assert read(pickle.dumps(bytearray(b"abc"), 5)) == b"abc"
    assert sorted(read(pickle.dumps({3, 1}))) == [1, 3]
    assert sorted(read(pickle.dumps(frozenset((3, 1))))) == [1, 3]


class Harm:
    """Calls os.system when Python unpickles it."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        import os

        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_calls_the_shell_is_refused_by_the_name_it_calls(tmp_path, protocol):
    data = pickle.dumps(Harm(f"touch {tmp_path / 'harmed'}"), protocol)
    with pytest.raises(UnsafeSource, match=r"(posix|nt)\.system.*nothing of it was executed") as caught:
        read(data)
    assert caught.value.code == 18
    assert not (tmp_path / "harmed").exists()


def test_where_any_name_is_allowed_a_call_becomes_a_record(tmp_path):
    record = read(pickle.dumps(Harm(f"touch {tmp_path / 'harmed'}")), ANYTHING)
    assert isinstance(record, Record)
    assert record.name.endswith(".system")
    assert not (tmp_path / "harmed").exists()


def test_no_module_is_imported():
    assert "antigravity" not in sys.modules
    assert read(pickled(Name("antigravity", "geohash")), ANYTHING) == Global("antigravity.geohash")
    assert "antigravity" not in sys.modules


def test_a_global_without_call_is_refused_too():
    with pytest.raises(UnsafeSource, match=r"builtins\.eval"):
        read(pickled({"a": Name("builtins", "eval")}))


def test_names_are_exact_unless_they_end_in_a_dot():
    some = Vocabulary(names=("a.B", "c."))
    assert read(pickled([Name("a", "B"), Name("c.d", "E")]), some) == [Global("a.B"), Global("c.d.E")]
    for name in (Name("a", "BC"), Name("aa", "B"), Name("cc", "E")):
        with pytest.raises(UnsafeSource):
            read(pickled(name), some)


def test_objects_become_records_with_state_items_and_elements():
    counted = collections.OrderedDict(b=2, a=1)
    record = read(pickle.dumps(counted), ANYTHING)
    assert (record.name, record.items) == ("collections.OrderedDict", {"b": 2, "a": 1})
    deque = read(pickle.dumps(collections.deque([1, 2], 5)), ANYTHING)
    assert (deque.name, deque.arguments, deque.elements) == ("collections.deque", ((), 5), [1, 2])
    built = read(pickled(Built(Call(Name("m", "C"), (1,)), {"x": 2})), ANYTHING)
    assert (built.name, built.arguments, built.state) == ("m.C", (1,), {"x": 2})
    # What a record is called with is a record of its own, not a call of anything.
    assert read(pickled(Call(Call(Name("m", "f"), ()), (3,))), ANYTHING).arguments == (3,)


def test_new_object_with_keywords():
    data = b"\x80\x04" + assemble(Name("m", "C")) + assemble((1,)) + assemble({"k": 2}) + b"\x92."
    assert read(data, ANYTHING).arguments == (1, {"k": 2})
    assert read(data.replace(b"K\x02", b"N"), ANYTHING).arguments == (1, {"k": None})


def test_persistent_ids_are_refused_unless_somebody_takes_them():
    with pytest.raises(UnsafeSource, match="persistent"):
        read(pickled(Persistent((1,))))
    assert read(pickled(Persistent((1,))), Vocabulary(persistent=lambda identity: identity[0] + 1)) == 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x04",
        b"\x80\x04N",
        b"\x80\x04(.",
        b"\x80\x04NN.",
        b"\x80\x04R.",
        b"\x80\x04(0R.",
        b"\x80\x04t.",
        b"\x80\x04h\x07.",
        b"\x80\x04)}R.",
        b"\x80\x04NN\x93.",
        b"\x80\x04K\x01K\x02s.",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04K\x01K\x02a.",
        b"\x80\x04NK\x02b.",
        b"\x80\x04(a.",
        b"\x80\x04(2.",
        b"\x80\x04}(K\x01.",
        b"\x80\x04cjunk",
        b"\x80\x04X\xff\xff\xff\x7fabc",
        b"\x80\x04B\xff\xff\xff\x7fabc",
        b"\x80\x04\x8a\x05a.",
        b"\x80\x04\xff.",
        b"PK\x03\x04",
    ],
)
def test_damage_is_one_clear_error(data):
    with pytest.raises(ModelFileError, match="a file: the pickle"):
        read(data)


@pytest.mark.parametrize("opcode", [b"I1\n", b"L1L\n", b"S'x'\n", b"p0\n", b"P0\n", b"(ia\nb\n", b"(o", b"\x82\x01"])
def test_old_and_odd_opcodes_are_refused_by_name(opcode):
    with pytest.raises(UnsafeSource, match="opcode"):
        read(b"\x80\x02N" + opcode + b".")


def test_a_damaged_name_is_refused_without_a_warning():
    with pytest.raises(UnsafeSource):
        read(b"\x80\x02cos\\Rx\nsystem\n.")


def test_keys_that_would_take_for_ever_to_hash_are_refused():
    # Each tuple holds the one before it twice: hashing the last one takes 2**60 steps.
    doubled = b")q\x000" + b"".join(b"h%ch%c\x86q%c0" % (n, n, n + 1) for n in range(60))
    with pytest.raises(ModelFileError, match="key is a tuple"):
        read(b"\x80\x02}" + doubled + b"h\x3cNs.")


def test_what_refers_to_itself_is_no_trap():
    ring: list = []
    ring.append(ring)
    found = read(pickle.dumps(ring))
    assert found[0] is found


@pytest.mark.parametrize(
    "data",
    [
        b"]" * 20_000 + b"a" * 19_999,
        b")" + b"\x85" * 20_000,
        b"}K\x01" + b"]" * 20_000 + b"a" * 19_999 + b"s",
        # Filled from the outside in.
        b"]q\x00" + b"".join(b"]r" + struct.pack("<I", n) for n in range(1, 2_000))
        + b"0" * 2_000 + b"h\x00" + b"".join(b"j" + struct.pack("<I", n) + b"a0j" + struct.pack("<I", n)
        for n in range(1, 2_000)) + b"0h\x00",
    ],
)  # fmt: skip
def test_what_is_nested_too_deeply_is_refused(data):
    with pytest.raises(ModelFileError, match="levels"):
        read(b"\x80\x02" + data + b".")


def test_long_chains_of_shared_parts_are_no_bombs():
    found = read(b"\x80\x02" + doubled() + b".")
    assert shown(found) == "tuple"


@pytest.mark.parametrize("bytes_", [33, 3_000])
def test_integers_have_a_cap(bytes_):
    data = b"\x80\x02\x8b" + struct.pack("<I", bytes_) + b"\x7f" * bytes_ + b"."
    with pytest.raises(ModelFileError, match="an integer of"):
        read(data)


def test_what_is_shown_is_short():
    assert [shown(value) for value in (None, True, 2.5, 7, "x" * 99)] == ["None", "True", "2.5", "7", repr("x" * 40)]
    assert [shown(value) for value in ((1,), [], {}, b"x", 1 << 90)] == ["tuple", "list", "dict", "bytes", "int"]
    assert shown(Global("a.B")) == "a.B"


def test_names_and_arguments_have_caps():
    with pytest.raises(ModelFileError, match="endless name"):
        read(b"\x80\x02cm\n" + b"n" * 1_001 + b"\n.", ANYTHING)
    with pytest.raises(ModelFileError, match="arguments"):
        read(b"\x80\x02cm\nC\n(" + b"N" * 300 + b"tR.", ANYTHING)
    with pytest.raises(ModelFileError, match="arguments"):
        read(b"\x80\x04cm\nC\n(" + b"N" * 300 + b"t}(X\x01\x00\x00\x00kNu\x92.", ANYTHING)


@pytest.mark.parametrize("value", [doubled(), b"\x8a\x20" + b"\x7f" * 32])
def test_a_dtype_or_byte_order_that_is_a_bomb_is_one_short_error(value):
    dtype = b"\x80\x02cnumpy\ndtype\n"
    with pytest.raises(ModelFileError) as caught:
        read(dtype + value + b"\x85R.", ARRAYS)
    assert len(caught.value.message) < 200
    state = b"X\x02\x00\x00\x00f4\x85R(K\x03" + value + b"tb."
    with pytest.raises(ModelFileError) as caught:
        read(dtype + state, ARRAYS)
    assert len(caught.value.message) < 200


def test_axes_that_are_a_bomb_are_refused():
    head = b"\x80\x02cnumpy._core.numeric\n_frombuffer\n(B\x02\x00\x00\x00abcnumpy\ndtype\nX\x02\x00\x00\x00u1\x85R"
    with pytest.raises(ModelFileError, match="axes"):
        read(head + b"K\x01K\x02\x86X\x01\x00\x00\x00K(" + doubled() + doubled() + b"ttR.", ARRAYS)


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32 - 1))
def test_mutated_pickles_end_in_data_or_in_our_errors(seed):
    rng = random.Random(seed)
    data = bytearray(pickle.dumps({"a": np.arange(6.0).reshape(2, 3), "b": [1, "x", None, (2.5, b"y")]}, 4))
    for _ in range(rng.randint(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        found = read(bytes(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data), ARRAYS)
        as_array(found["a"], what="a")
    except (QuarlError, KeyError, TypeError):
        pass


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", ">f4", "uint8", "int64", "bool", "float16"])
def test_arrays_come_out_as_numpy_reads_them(dtype, protocol):
    values = (np.arange(24).reshape(2, 3, 4) * 1.5).astype(dtype)
    for each in (
        values,
        values.T,
        np.asfortranarray(values),
        values[1],
        values[:, :, 2].copy(),
        values[:0],
        values.swapaxes(0, 1),
    ):
        found = as_array(read(pickle.dumps(each, protocol), ARRAYS), what="it")
        np.testing.assert_array_equal(found, each)
        assert found.dtype.isnative


def test_scalars_come_out():
    for value in (np.float64(2.5), np.int64(-3), np.float32(0.5), np.bool_(True)):
        assert read(pickle.dumps(value), ARRAYS) == value


def test_arrays_of_numpy_1_are_known():
    old = pickle.dumps(np.arange(3), 4).replace(b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray")
    assert as_array(read(old, ARRAYS), what="it").tolist() == [0, 1, 2]


def test_object_arrays_are_refused():
    with pytest.raises(ModelFileError, match="plain numbers"):
        read(pickle.dumps(np.array([{}, None], object)), ARRAYS)
    with pytest.raises(ModelFileError, match="plain numbers"):
        read(pickle.dumps(np.array([(1, 2.0)], "i4,f4")), ARRAYS)


@pytest.mark.parametrize("shape", [(2,), (4,), (-3,), (3, 1 << 62), ("3",), (3.0,), (1,) * 9])
def test_a_shape_that_does_not_fit_the_bytes_is_refused(shape):
    good = array([1, 2, 3])
    bad = Built(good.target, (good.state[0], shape, *good.state[2:]))
    with pytest.raises(ModelFileError):
        read(pickled(bad), ARRAYS)


def test_an_array_that_never_got_its_bytes_is_refused():
    with pytest.raises(ModelFileError, match="no content"):
        as_array(read(pickled(array([1]).target), ARRAYS), what="it")
    with pytest.raises(ModelFileError, match="expected an array"):
        as_array([1], what="it")


VOCABULARIES = {
    "spaces": spaces._SPACES, "observations": evidence._OBSERVATIONS, "statistics": vecnormalize._VOCABULARY,
}  # fmt: skip
ORDERED = Name("collections", "OrderedDict")


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES)
def test_an_ordered_dict_begins_empty(vocabulary):
    filled = Raw(assemble(Call(ORDERED, ())) + b"(" + assemble("a") + assemble(1) + b"u")
    assert read(pickled(filled), vocabulary) == {"a": 1}


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES)
def test_an_ordered_dict_made_of_a_key_that_takes_long_to_hash_is_refused(vocabulary):
    """Made of pairs, it would hash a tuple that holds another one twice, and so on: at sixty times, for ever."""
    pair = b"]" + doubled(12) + assemble(1) + b"\x86a"
    bomb = assemble(ORDERED) + pair + b"\x85R"
    with pytest.raises(ModelFileError, match="made of something"):
        read(pickled(Raw(bomb)), vocabulary)


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES)
def test_an_ordered_dict_is_no_copier(vocabulary):
    """A few bytes a copy of one big dict: 132 KB made more than 1 GiB."""
    big = assemble({str(number): number for number in range(100)}) + b"q\x01"
    copies = b"".join(assemble(ORDERED) + b"h\x01\x85R" for _ in range(10))
    with pytest.raises(ModelFileError, match="made of something"):
        read(pickled(Raw(b"(" + big + copies + b"t")), vocabulary)
