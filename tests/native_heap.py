"""What a process's allocator has handed out, which resident memory only follows in steps."""

import ctypes

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def in_use_bytes():
    """Return the bytes in use of glibc's heap."""
    mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo2.restype = _MallInfo
    return mallinfo2().uordblks


def growth_bytes(act, *, times, warm_up):
    """Return how many bytes more are in use after `act` was called with each of `times` numbers, behind a warm-up."""
    for number in range(warm_up):
        act(number)
    before = in_use_bytes()
    for number in range(warm_up, warm_up + times):
        act(number)
    return in_use_bytes() - before
