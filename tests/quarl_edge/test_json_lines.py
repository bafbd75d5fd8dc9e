"""Files of JSON lines: whatever a kill, a disk or a stranger left in one, its good lines are read and none is torn."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import RunNotFound
from quarl_edge import json_lines
from quarl_edge.json_lines import append_line, read_lines


def write(path, *objects, **more):
    with path.open("a+b") as file:
        return [append_line(file, each, **more) for each in objects]


def test_what_is_appended_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    assert read_lines(path, what="lines").objects == ()
    assert write(path, {"a": 1}, {"b": "ü\n"}) == [True, True]
    write(path, {"c": float("nan")})
    assert read_lines(path, what="lines").objects == ({"a": 1}, {"b": "ü\n"}, {"c": None})


def test_a_torn_tail_is_left_out_and_ended_by_the_next_line(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, {"a": 1}, {"b": 2})
    path.write_bytes(path.read_bytes()[:-4])
    lines = read_lines(path, what="lines")
    assert (lines.objects, lines.damaged) == (({"a": 1},), 0)
    write(path, {"c": 3})
    lines = read_lines(path, what="lines")
    assert (lines.objects, lines.damaged) == (({"a": 1}, {"c": 3}), 1)


@settings(max_examples=60)
@given(cut=st.integers(0, 60))
def test_a_file_cut_anywhere_keeps_its_whole_lines(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    objects = [{"number": number} for number in range(4)]
    write(path, *objects)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    count = whole[:cut].count(b"\n")
    assert list(read_lines(path, what="lines").objects) == objects[:count]
    write(path, {"more": True})
    *kept, last = read_lines(path, what="lines").objects
    # A line that lacks nothing but its end is whole again.
    assert kept == objects[: len(kept)]
    assert len(kept) in (count, count + 1)
    assert last == {"more": True}


@pytest.mark.parametrize("line", [b"{", b"[1]", b"\xff\x00", b"[" * 60_000, b"1", b'{"a": "' + b"x" * 70_000 + b'"}'])
def test_a_line_that_is_no_object_is_counted(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n" + b'{"b": 2}\n')
    lines = read_lines(path, what="lines")
    assert (lines.objects, lines.damaged) == (({"a": 1}, {"b": 2}), 1)


def test_a_full_file_stays_as_it_is(tmp_path):
    path = tmp_path / "a.jsonl"
    room = len(json.dumps({"a": 1})) + 1
    assert write(path, {"a": 1}, {"a": 2}, cap_bytes=2 * room - 1) == [True, False]
    assert read_lines(path, what="lines").objects == ({"a": 1},)
    assert write(path, {"a": "x" * json_lines.MAX_LINE_BYTES}) == [False]


def test_a_file_over_the_cap_or_a_directory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    write(path, {"a": 1})
    monkeypatch.setattr(json_lines, "MAX_FILE_BYTES", 4)
    with pytest.raises(RunNotFound, match="cap"):
        read_lines(path, what="lines")
    with pytest.raises(RunNotFound, match="directory"):
        read_lines(tmp_path, what="lines")
