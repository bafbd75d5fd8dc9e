"""Wheels for another processor, fetched here and installed there without any net."""

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from board_recipe import Recipe, cache_folder
from board_rootfs import say
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parent.parent.parent
_PYTHON = "3.11"  # of Bookworm
_GLIBC = (36, 35, 34, 31, 28, 27, 17)  # 2.x, newest first; Bookworm has 2.36
_TIMEOUT_S = 300
# What has no wheel for a 32-bit ARM outside of Raspberry Pi's own index; Debian's packages stand in.
_WITHOUT_WHEELS = {"armv7l": {"numpy"}}
# What those wheels need is named there, since pip would want numpy too; a cryptography that takes Debian's cffi.
_NAMED = {"armv7l": ("cloudpickle", "farama-notifications", "typing-extensions", "cryptography<45")}


def requirements(recipe: Recipe) -> list[str]:
    """Return what the device distribution needs there, its markers decided for that processor."""
    project = tomllib.loads((REPOSITORY / "device/pyproject.toml").read_text())["project"]
    there = {"platform_machine": recipe.processor, "python_version": _PYTHON, "sys_platform": "linux"}
    needed = [Requirement(text) for text in project["dependencies"]]
    without = _WITHOUT_WHEELS.get(recipe.processor, set())
    chosen = [one for one in needed if one.marker is None or one.marker.evaluate(there)]
    named = [f"{one.name}{one.specifier}" for one in chosen if one.name not in without]
    return ["pip", *named, *_NAMED.get(recipe.processor, ())]


def wheelhouse(recipe: Recipe) -> Path:
    """Return the cached folder of all wheels that the device distribution needs there."""
    wanted = requirements(recipe)
    pinned = _pinned(recipe)
    digest = hashlib.sha256(json.dumps([wanted, pinned, recipe.processor]).encode()).hexdigest()[:12]
    kept = cache_folder() / f"wheels-{recipe.architecture}-{digest}"
    if not kept.exists():
        partial = kept.with_name(f"{kept.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        say(f"fetching wheels for {recipe.processor}")
        partial.mkdir(parents=True)
        constraints = partial.with_suffix(".txt")
        constraints.write_text(pinned)
        platforms = [f"manylinux_2_{minor}_{recipe.processor}" for minor in _GLIBC]
        platforms.append(f"manylinux2014_{recipe.processor}")
        _pip(
            "download", "--dest", partial, "--only-binary=:all:", "--python-version", _PYTHON, "--implementation", "cp",
            *(word for name in platforms for word in ("--platform", name)),
            *(() if recipe.processor == "aarch64" else ("--no-deps",)),
            "--constraint", constraints, *wanted,
        )  # fmt: skip
        partial.rename(kept)
    return kept


def device_wheel(folder: Path) -> Path:
    """Build the device distribution of this checkout and return its wheel."""
    _pip("wheel", "--no-deps", "--wheel-dir", folder, REPOSITORY / "device")
    [wheel] = folder.glob("quarl_edge_device-*.whl")
    return wheel


def _pinned(recipe):
    if recipe.processor == "aarch64":
        return (REPOSITORY / "constraints.txt").read_text()
    lines = (REPOSITORY / "constraints-tflite.txt").read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("cryptography"))


def _pip(*words):
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, words)],
        capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"pip {words[0]} on {platform.machine()}: {done.stderr[-3000:]}"
