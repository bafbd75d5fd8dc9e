"""A board in memory, for the installer: files, users, a service, and what goes wrong by order."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quarl_device.errors import InstallFailed
from quarl_device.install import layout
from quarl_device.install.host import Done, Entry, Kind

_FIRST_USER = "root"


class Killed(BaseException):
    """The installer was killed: nothing that it would still do happens."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A file (`data`), a directory, or a link (`target`)."""

    kind: Kind
    data: bytes = b""
    target: str = ""
    mode: int = 0o755
    owner: str = _FIRST_USER


@dataclass(frozen=True, kw_only=True)
class Life:
    """What an agent that runs was started from."""

    release: str
    config: bytes
    unit: bytes


@dataclass(kw_only=True)
class FakeHost:
    """See `quarl_device.install.host.Host`.

    Attributes:
        own_system: see there.
        nodes: what lies where.
        users: of the system.
        life: of the agent that runs, `None` where none does.
        enabled: the service starts with the board.
        loaded: the unit, as systemd has read it.
        starts: how often the service was started.
        broken: releases whose agent does not get ready.
        untried: releases that fail their self-test.
        refuses: exit code of `quarl-device activate`, 0 where it takes a policy.
        before: is told of everything that changes something, before it happens; may raise.
        ran: all commands.
    """

    own_system: bool = True
    nodes: dict[str, Node] = field(default_factory=lambda: {"/": Node(kind="directory")})
    users: set[str] = field(default_factory=lambda: {_FIRST_USER})
    life: Life | None = None
    failed: bool = False
    enabled: bool = False
    loaded: bytes = b""
    starts: int = 0
    broken: set[str] = field(default_factory=set)
    untried: set[str] = field(default_factory=set)
    refuses: int = 0
    before: Callable[[str], None] = lambda _: None
    ran: list[tuple[str, ...]] = field(default_factory=list)
    clock_s: float = 0.0

    def place(self, path: str) -> str:
        """Return the path itself."""
        return path

    def entry(self, path: str) -> Entry | None:
        """Return what lies at a path."""
        node = self.nodes.get(path)
        return None if node is None else Entry(kind=node.kind, mode=node.mode, owner=node.owner)

    def read(self, path: str) -> bytes | None:
        """Return a file's content, through links in its directories."""
        node = self.nodes.get(self._real(path))
        return node.data if node is not None and node.kind == "file" else None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory."""
        start = f"{path.rstrip('/')}/"
        return tuple(sorted({each[len(start) :].split("/")[0] for each in self.nodes if each.startswith(start)}))

    def write(self, path: str, data: bytes, *, mode: int, owner: str = "") -> None:
        """Write a file."""
        self.before(f"write {path}")
        self._parents(path)
        self._may_own(owner)
        if self.nodes.get(path, Node(kind="file")).kind == "directory":
            raise InstallFailed(f"{path} is a directory")
        self.nodes[path] = Node(kind="file", data=data, mode=mode, owner=owner or _FIRST_USER)

    def make_directory(self, path: str, *, mode: int = 0o755, owner: str = "") -> None:
        """Make a directory."""
        self.before(f"make {path}")
        self._parents(path)
        self._may_own(owner)
        if self.nodes.get(path, Node(kind="directory")).kind != "directory":
            raise InstallFailed(f"{path} is there and no directory")
        self.nodes[path] = Node(kind="directory", mode=mode, owner=owner or _FIRST_USER)

    def link_target(self, path: str) -> str | None:
        """Return what a link says."""
        node = self.nodes.get(path)
        return node.target if node is not None and node.kind == "link" else None

    def link(self, path: str, target: str) -> None:
        """Point a link."""
        self.before(f"link {path}")
        self._parents(path)
        self.nodes[path] = Node(kind="link", target=target, mode=0o777)

    def move(self, path: str, to: str) -> None:
        """Rename."""
        self.before(f"move {path}")
        if path not in self.nodes:
            raise InstallFailed(f"{path} cannot be renamed: not there")
        if self.names(to):
            raise InstallFailed(f"{path} cannot be renamed: {to} is not empty")
        for each in [each for each in self.nodes if each == path or each.startswith(f"{path}/")]:
            self.nodes[to + each[len(path) :]] = self.nodes.pop(each)

    def remove(self, path: str) -> None:
        """Remove what lies at a path, file by file: a kill may come between."""
        for each in sorted((each for each in self.nodes if each == path or each.startswith(f"{path}/")), reverse=True):
            self.before(f"remove {each}")
            del self.nodes[each]

    def sync(self) -> None:
        """Do nothing."""
        self.before("sync")

    def now_s(self) -> float:
        """Return a clock that `pause` moves."""
        return self.clock_s

    def pause(self, duration_s: float) -> None:
        """Let time pass."""
        self.clock_s += duration_s

    def has_user(self, name: str) -> bool:
        """Return whether there is such a user."""
        return name in self.users

    def run(
        self,
        words: Sequence[str],
        *,
        timeout_s: float,
        user: str = "",
        hear: Callable[[str], None] | None = None,
    ) -> Done:
        """Do what a command would."""
        self.ran.append(tuple(words))
        if user and user not in self.users:
            raise InstallFailed(f"this system has no user {user}")
        name, rest = posixpath.basename(words[0]), tuple(words[1:])
        if name == "systemctl" and rest[0] in ("show", "is-enabled"):
            return self._ask_systemctl(rest)
        if name == "journalctl":
            return Done(code=0, said="it ended because it was told to")
        self.before(f"run {name} {' '.join(word for word in rest if '/' not in word)}")
        act = {"systemctl": self._systemctl, "useradd": self._useradd, "userdel": self._userdel}.get(
            name, self._program
        )
        return act(tuple(words) if act == self._program else rest)

    def boot(self) -> None:
        """Start the service if it is enabled, as the board does when it comes up."""
        self.life, self.failed = None, False
        unit = self.read(layout.UNIT)
        self.loaded = unit or b""
        if self.enabled and unit is not None:
            self._start()

    def _ask_systemctl(self, words: tuple[str, ...]) -> Done:
        if words[0] == "is-enabled":
            return Done(code=0 if self.enabled else 1, said="")
        state = "active" if self.life is not None else "failed" if self.failed else "inactive"
        result = "exit-code" if self.failed else "success"
        return Done(
            code=0, said=f"ActiveState={state}\nResult={result}\nExecMainStatus=1\nNRestarts=0\nStatusText=acts"
        )

    def _systemctl(self, words: tuple[str, ...]) -> Done:
        if words[0] == "daemon-reload":
            self.loaded = self.read(layout.UNIT) or b""
        elif words[0] in ("enable", "disable"):
            if words[0] == "enable" and self.read(layout.UNIT) is None:
                return Done(code=1, said="no such unit")
            self.enabled = words[0] == "enable"
        elif words[0] == "stop":
            self.life, self.failed = None, False
        elif words[0] == "start":
            if not self.loaded:
                return Done(code=5, said="no such unit")
            self._start()
        return Done(code=0, said="")

    def _start(self) -> None:
        self.starts += 1
        release = (self.link_target(layout.CURRENT) or "").rpartition("/")[2]
        config = self.read(layout.DEVICE_TOML)
        works = config is not None and self.read(f"{layout.release_path(release)}/bin/python") is not None
        if not works or release in self.broken:
            self.life, self.failed = None, True
            return
        self.life = Life(release=release, config=config or b"", unit=self.loaded)

    def _useradd(self, words: tuple[str, ...]) -> Done:
        self.users.add(words[-1])
        return Done(code=0, said="")

    def _userdel(self, words: tuple[str, ...]) -> Done:
        self.users.discard(words[-1])
        return Done(code=0, said="")

    def _program(self, words: tuple[str, ...]) -> Done:
        if "venv" in words:
            self._parents(f"{words[-1]}/bin/python")
            self.nodes[f"{words[-1]}/bin/python"] = Node(kind="file")
        elif "install" in words and words[0].endswith("/bin/python"):
            self.nodes[f"{posixpath.dirname(words[0])}/quarl-device"] = Node(kind="file")
        elif words[-1].endswith("self_test"):
            release = words[0].split("/")[-3]
            return Done(code=1, said="no runtime runs a model") if release in self.untried else Done(code=0, said="")
        elif "activate" in words:
            if self.refuses:
                return Done(code=self.refuses, said="quarl-device: error: not newer")
            self._parents(f"{layout.SLOTS}/incoming.qpol")
            self.nodes[f"{layout.SLOTS}/incoming.qpol"] = self.nodes[words[2]]
        return Done(code=0, said="")

    def _parents(self, path: str) -> None:
        parent = posixpath.dirname(path)
        while parent not in self.nodes:
            self.nodes[parent] = Node(kind="directory")
            parent = posixpath.dirname(parent)

    def _may_own(self, owner: str) -> None:
        if owner and self.own_system and owner not in self.users:
            raise InstallFailed(f"this system has no user {owner}")

    def _real(self, path: str) -> str:
        target = self.link_target(layout.CURRENT)
        if target is not None and path.startswith(f"{layout.CURRENT}/"):
            return f"{layout.HOME}/{target}{path.removeprefix(layout.CURRENT)}"
        return path
