"""Reading ahead changes how often the system is asked, and nothing else."""

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.link.read_ahead import READ_AHEAD_BYTES, ReadAhead


class Source:
    """A socket that gives its data in given pieces."""

    def __init__(self, pieces):
        self.pieces = list(pieces)
        self.calls = 0

    def recv(self, size):
        self.calls += 1
        if not self.pieces:
            raise BlockingIOError
        piece = self.pieces.pop(0)
        if len(piece) > size:
            self.pieces.insert(0, piece[size:])
        return piece[:size]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=8),
    st.lists(st.sampled_from([1, 2, 7, 60, READ_AHEAD_BYTES]), min_size=1, max_size=60),
)
def test_every_byte_comes_once_and_in_order(pieces, sizes):
    reader, got = ReadAhead(Source(pieces)), b""
    for size in sizes:
        try:
            chunk = reader.recv(size)
        except BlockingIOError:
            assert reader.pending() == 0
            assert got == b"".join(pieces)
            return
        assert 0 < len(chunk) <= size
        got += chunk
    assert b"".join(pieces).startswith(got)


def test_small_reads_ask_the_system_once():
    source = Source([bytes(range(100))])
    reader = ReadAhead(source)
    assert b"".join(reader.recv(1) for _ in range(100)) == bytes(range(100))
    assert source.calls == 1


def test_pending_tells_what_needs_no_system():
    reader = ReadAhead(Source([b"abcd"]))
    assert reader.pending() == 0
    reader.recv(1)
    assert reader.pending() == 3


def test_pending_counts_what_tls_holds():
    source = Source([b"ab"])
    source.pending = lambda: 5
    reader = ReadAhead(source)
    assert reader.pending() == 5
    reader.recv(1)
    assert reader.pending() == 1


def test_the_end_and_errors_come_through():
    reader = ReadAhead(Source([b"a", b""]))
    assert reader.recv(2) == b"a"
    assert reader.recv(2) == b""
    with pytest.raises(BlockingIOError):
        reader.recv(1)


def test_everything_else_is_the_sockets_own():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = ReadAhead(ours)
        assert reader.fileno() == ours.fileno()
        reader.send(b"x")
        assert theirs.recv(10) == b"x"
