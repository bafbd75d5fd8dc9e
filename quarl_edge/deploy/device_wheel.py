"""The device's wheel: package data of an installed quarl-edge, built on the spot from a checkout."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path

import quarl_device
from quarl_device.errors import MissingPart, MissingTool
from quarl_device.paths import cache_dir

DISTRIBUTION = "quarl_edge_device"
_BUILD_TIMEOUT_S = 300.0
_SKIPPED = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "build", "dist"}


def device_wheel(note: Callable[[str], None]) -> Path:
    """Return the wheel of the device package that this quarl-edge goes with.

    Args:
        note: is told before something takes seconds.

    Raises:
        MissingPart: neither is it packed into this installation, nor is this a checkout.
        MissingTool: it cannot be built.
    """
    packed = Path(str(resources.files("quarl_edge").joinpath("wheels")))
    found = sorted(packed.glob(f"{DISTRIBUTION}-*.whl")) if packed.is_dir() else []
    if found:
        return found[-1]
    root = Path(quarl_device.__file__).resolve().parent.parent
    if not (root / "pyproject.toml").is_file():
        raise MissingPart(
            "this installation of quarl-edge has no wheel of the device package with it",
            hint="pip install --force-reinstall quarl-edge",
        )
    return built_wheel(root, cache_dir() / "device", note)


def built_wheel(root: Path, cache: Path, note: Callable[[str], None]) -> Path:
    """Return the wheel of a source tree, built unless one of the same content was built before.

    Args:
        root: holds `pyproject.toml` and `quarl_device/`.
        cache: wheels by digest of what they were built from.
        note: is told before something takes seconds.

    Raises:
        MissingTool: pip or the build backend fails; its last words.
    """
    target = cache / tree_digest(root)
    found = sorted(target.glob("*.whl")) if target.is_dir() else []
    if found:
        return found[0]
    note("building the device's wheel")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".building-") as folder:
        made = Path(folder) / "made"
        build_wheel(root, made)
        wheel = next(iter(made.glob("*.whl")), None)
        if wheel is None:
            raise MissingTool("building the device's wheel made no wheel")
        if not target.exists():
            made.rename(target)
    return target / wheel.name


def tree_digest(root: Path) -> str:
    """Return the digest of all that a wheel is built from: names and content of its files."""
    digest = hashlib.sha256()
    for path in _sources(root):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:24]


def _sources(root: Path) -> Iterable[Path]:
    yield root / "pyproject.toml"
    for path in sorted((root / "quarl_device").rglob("*")):
        if path.is_file() and not _SKIPPED.intersection(path.parts) and path.suffix != ".pyc":
            yield path


def build_wheel(root: Path, out: Path) -> None:
    """Build the wheel of a source tree.

    Raises:
        MissingTool: pip or the build backend fails; its last words.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps", "-w", str(out)]
    if importlib.util.find_spec("hatchling") is not None:
        # The backend is here: nothing needs to be fetched.
        command.append("--no-build-isolation")
    try:
        subprocess.run([*command, str(root)], check=True, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise MissingTool(f"building a wheel took more than {_BUILD_TIMEOUT_S:.0f} s") from None
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise MissingTool(
            f"the wheel of {root} cannot be built: {said[-1][:300] if said else 'no reason given'}",
            hint=f"{sys.executable} -m pip install hatchling",
        ) from None
