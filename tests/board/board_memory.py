"""A limit on memory from outside of an emulated machine, which has no memory controller of its own."""

import contextlib
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A control group of the host's; a process that is put in takes all that it starts along.

    Args:
        name: of the group.
        mib: limit in MiB; the emulators' own memory counts too, so it is the stricter for it.

    Attributes:
        version: of the kernel's interface, 1 or 2.
    """

    def __init__(self, name, *, mib):
        self.version = 1 if (_ROOT / "memory").is_dir() else 2
        if self.version == 2:
            (_ROOT / "cgroup.subtree_control").write_text("+memory")
        self.folder = _ROOT / ("memory" if self.version == 1 else "") / name
        self.folder.mkdir()
        try:
            self._write("memory.limit_in_bytes" if self.version == 1 else "memory.max", mib << 20)
        except BaseException:
            self.folder.rmdir()
            raise

    def words(self, command):
        """Return a command that enters the group and becomes the one that is given."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command]

    def peak_bytes(self):
        """Return the most that was in use at once."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return int((self.folder / name).read_text())

    def limit_bytes(self):
        name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        return int((self.folder / name).read_text())

    def kills(self):
        """Return how often the kernel has killed a process for want of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return next(
            (int(line.split()[1]) for line in (self.folder / name).read_text().splitlines() if "oom_kill " in line), 0
        )

    def close(self):
        with contextlib.suppress(FileNotFoundError):
            self.folder.rmdir()

    def _write(self, name, value):
        (self.folder / name).write_text(str(value))
