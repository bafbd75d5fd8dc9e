"""What a board needs of packages: the wheel's own requirements, judged for the board and not for this computer.

pip judges markers (`platform_machine != 'armv7l'`) for the interpreter that runs it, whatever `--platform` says.
"""

from __future__ import annotations

import email.parser
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from quarl_device.errors import ModelFileError, UsageError
from quarl_edge.deploy.facts import BoardFacts

_OLDEST_GLIBC = {"aarch64": 17, "x86_64": 5, "armv7l": 17}
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_MAX_METADATA_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class BoardPython:
    """The interpreter that wheels are for.

    Attributes:
        machine: "aarch64", "armv7l" or "x86_64".
        glibc: (major, minor).
        python: full version.
    """

    machine: str
    glibc: tuple[int, int]
    python: tuple[int, int, int]

    @classmethod
    def of(cls, facts: BoardFacts) -> BoardPython:
        """Return that of a board that `verdicts` has nothing against."""
        return cls(machine=facts.machine, glibc=facts.glibc or (0, 0), python=facts.python)

    @property
    def version(self) -> str:
        """`major.minor`."""
        return f"{self.python[0]}.{self.python[1]}"

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags that it takes, the best first (PEP 600: every glibc up to its own)."""
        major, minor = self.glibc
        tags = []
        for older in range(minor, _OLDEST_GLIBC[self.machine] - 1, -1):
            tags.append(f"manylinux_{major}_{older}_{self.machine}")
            if older in _LEGACY and (older == 17 or self.machine == "x86_64"):
                tags.append(f"{_LEGACY[older]}_{self.machine}")
        return (*tags, f"linux_{self.machine}")

    def environment(self, extra: str = "") -> dict[str, str]:
        """Return what markers are judged by (PEP 508)."""
        full = ".".join(map(str, self.python))
        return {
            "implementation_name": "cpython",
            "implementation_version": full,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": full,
            "python_version": self.version,
            "sys_platform": "linux",
            "extra": extra,
        }


def requirements_of(wheel: Path, board: BoardPython, extras: Iterable[str] = ()) -> tuple[str, ...]:
    """Return what a wheel needs on a board, without markers, sorted.

    Raises:
        UsageError: it has no such extra.
        ModelFileError: it is no wheel.
    """
    metadata = _metadata(wheel)
    provided = {canonicalize_name(name) for name in metadata.get_all("Provides-Extra", [])}
    wanted = [canonicalize_name(extra) for extra in extras]
    for extra in wanted:
        if extra not in provided:
            raise UsageError(f"no such extra: {extra[:80]!r}; there are {', '.join(sorted(provided))}")
    found = {_bare(each) for each in _applying(metadata.get_all("Requires-Dist", []), board, wanted)}
    if any(canonicalize_name(Requirement(text).name) == "tflite-runtime" for text in found):
        # Its C extension was built against numpy 1, and dies in its first interpreter with numpy 2.
        found.add("numpy<2")
    return tuple(sorted(found))


def missing_from(wheels: Sequence[Path], asked: Sequence[str], board: BoardPython) -> tuple[str, ...]:
    """Return requirements, direct or of each other, that no wheel of a wheelhouse fulfils on the board.

    Args:
        wheels: the wheelhouse.
        asked: requirements without markers.
        board: that it is for.
    """
    there: dict[str, Path] = {}
    for wheel in wheels:
        try:
            there[parse_wheel_filename(wheel.name)[0]] = wheel
        except InvalidWheelFilename:
            continue
    missing: set[str] = set()
    seen: set[tuple[str, tuple[str, ...]]] = set()
    pending = [Requirement(text) for text in asked]
    while pending:
        each = pending.pop()
        key = (canonicalize_name(each.name), tuple(sorted(each.extras)))
        if key in seen:
            continue
        seen.add(key)
        if key[0] not in there:
            missing.add(_bare(each))
            continue
        wheel = there[key[0]]
        pending += _applying(_metadata(wheel).get_all("Requires-Dist", []), board, sorted(each.extras))
    return tuple(sorted(missing))


def _applying(lines: Iterable[str], board: BoardPython, extras: Sequence[str]) -> list[Requirement]:
    """Return the requirements whose markers hold on the board, with any of the extras or with none."""
    environments: list[Mapping[str, str]] = [board.environment(extra) for extra in ("", *extras)]
    found = []
    for line in lines:
        try:
            each = Requirement(line)
        except InvalidRequirement:
            continue
        if each.marker is None or any(each.marker.evaluate(dict(env)) for env in environments):
            found.append(each)
    return found


def _bare(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def _metadata(wheel: Path) -> email.message.Message:
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            if archive.getinfo(name).file_size > _MAX_METADATA_BYTES:
                raise ModelFileError(f"no wheel: {wheel}: its metadata are over {_MAX_METADATA_BYTES:,} bytes")
            text = archive.read(name).decode(errors="replace")
    except (OSError, StopIteration, zipfile.BadZipFile) as error:
        raise ModelFileError(f"no wheel: {wheel}: {error or 'it has no metadata'}") from error
    return email.parser.HeaderParser().parsestr(text)
