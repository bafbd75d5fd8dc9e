"""Reading with a cap and writing whole: never a half-written file, never an unbounded read."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from quarl_device.errors import ModelError, ModelFileError, QuarlError

_PIPE_TIMEOUT_S = 5.0
_PIECE_BYTES = 1024 * 1024
_PREFIX_CHARS = 48  # of a temporary name, so that a name of 255 bytes can be written too


def read_capped(path: Path, *, cap_bytes: int, error: type[QuarlError], what: str) -> bytes:
    """Return the content of a file of at most `cap_bytes`.

    Raises:
        QuarlError: of class `error`: missing, a directory, unreadable, or over the cap.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            waits = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
            data = _read_pipe(file.fileno(), cap_bytes + 1) if waits else file.read(cap_bytes + 1)
    except TimeoutError:
        raise error(f"{what} is a pipe that nothing came out of for {_PIPE_TIMEOUT_S:.0f} s: {path}") from None
    except FileNotFoundError:
        raise error(f"{what} not found: {path}") from None
    except IsADirectoryError:
        raise error(f"{what} is a directory: {path}") from None
    except OSError as cause:
        raise error(f"{what} cannot be read: {path}: {cause.strerror}") from cause
    if len(data) > cap_bytes:
        raise error(f"{what} is over its cap of {cap_bytes:,} bytes: {path}")
    return data


def is_there(path: Path) -> bool:
    """Return whether there is a file, without ever raising: only "not found" is none, where `exists` raises EIO."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the name of a file before what is said of its content."""
    try:
        yield
    except ModelError as error:
        error.message = f"{path}: {error.message}"
        raise


def _open_without_waiting(path: str, flags: int) -> int:
    # A pipe (a password by process substitution) would wait here for its writer, for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def _read_pipe(handle: int, cap_bytes: int) -> bytes:
    data = b""
    while len(data) < cap_bytes:
        if not select.select([handle], [], [], _PIPE_TIMEOUT_S)[0]:
            raise TimeoutError
        chunk = os.read(handle, min(65_536, cap_bytes - len(data)))
        if not chunk:
            break
        data += chunk
    return data


def write_atomic(
    path: Path,
    data: bytes,
    *,
    error: type[QuarlError],
    what: str,
    mode: int = 0o644,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Write `data` to `path` whole or not at all: temp file beside it, fsync, rename, directory fsync.

    A symbolic link is followed: what it points at is replaced.

    Args:
        path: where to.
        data: all of it.
        error: class of what is raised.
        what: it is, for messages.
        mode: of the file.
        check: is given the temporary file before it takes its place; what it raises leaves `path` as it was.

    Raises:
        QuarlError: of class `error`; an existing file at `path` is then untouched.
    """
    temporary = ""
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:_PREFIX_CHARS]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(Path(temporary))
        Path(temporary).replace(path)
        temporary = ""
        sync_directory(path.parent)
    except OSError as cause:
        raise error(f"{what} cannot be written: {path}: {cause.strerror}") from cause
    finally:
        if temporary:
            # A disk that refused the write may refuse this too, and the first error is the one to tell.
            with contextlib.suppress(OSError):
                Path(temporary).unlink(missing_ok=True)


def check_target(path: Path) -> None:
    """Refuse a model file that cannot be written, before the work that makes its content.

    A folder that is missing is refused too: more often it is a typing error than meant.

    Raises:
        ModelFileError: a directory, no regular file, or a folder that is missing or not writable.
    """
    folder = path.parent
    if path.is_dir():
        raise ModelFileError(f"model cannot be written: {path} is a directory", hint="name a file: model.tflite")
    if path.exists() and not path.is_file():
        raise ModelFileError(f"model cannot be written: {path} is no regular file", hint="name a file: model.tflite")
    if not folder.is_dir():
        raise ModelFileError(f"model cannot be written: there is no directory {folder}", hint=f"mkdir -p {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ModelFileError(f"model cannot be written: no permission to write in {folder.absolute()}")


def sync_directory(path: Path) -> None:
    """Make a rename in `path` survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_at(file: int, data: bytes, offset: int) -> None:
    """Write all of `data` at an offset of an open file; raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def write_again(file: int, begin: int, end: int) -> None:
    """Write the bytes from `begin` to `end` of an open file over themselves, after an fsync that failed.

    A kernel that could not write pages back may hold them for clean: the next fsync succeeds and means nothing. Written
    once more they are dirty, and an fsync is about them again. What was lost from the page cache meanwhile stays lost.

    Args:
        file: open for reading and writing, not for appending: those writes would go to its end.
        begin: first byte.
        end: one behind the last byte.

    Raises:
        OSError: the disk refuses.
    """
    for offset in range(begin, end, _PIECE_BYTES):
        write_at(file, os.pread(file, min(_PIECE_BYTES, end - offset), offset), offset)
