"""The root file system of an emulated board: built once, kept in the cache, copied for every boot."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from board_emulation import NoBoard, require_emulation
from board_recipe import Recipe, cache_folder, machine_mirror

_BUILD_S, _FINISH_S = 1200, 120
# What is built is thrown away when it does not come to its end, so nothing need be synced on the way.
_UNSYNCED = {**os.environ, "DPKG_FORCE": "unsafe-io", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}

# Mounts and processes of its own, which end with it: whatever is cut short, the tree can then be removed.
_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child")


def say(text):
    """Tell a person who waits what is going on."""
    print(f"board: {text}", file=sys.__stderr__, flush=True)


def root_file_system(recipe: Recipe) -> Path:
    """Return the cached tree, which nobody may write to; build it first where there is none.

    Raises:
        NoBoard: it cannot be built here; the text says why.
    """
    require_emulation(recipe.emulator)
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{recipe.architecture}-{recipe.digest}"
    with _lock(folder / "lock"):
        if not kept.exists():
            _build(recipe, kept)
    return kept


@contextlib.contextmanager
def _lock(path):
    """One builds, the others wait for it: debootstrap ends by its own deadlines."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(recipe, kept):
    address = os.environ.get("QUARL_DEBIAN_MIRROR") or machine_mirror()
    if address is None:
        raise NoBoard("apt of this machine names no mirror of Debian: QUARL_DEBIAN_MIRROR=http://... make test-pi")
    partial = kept.with_name(f"{kept.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    began = time.monotonic()
    try:
        say(f"building Debian {recipe.suite} for {recipe.architecture}, three minutes or so; kept as {kept}")
        # Without --foreign debootstrap itself runs natively, and emulated is only what runs inside of the new root.
        _step(
            ["debootstrap", f"--arch={recipe.architecture}", "--variant=minbase",
             f"--include={','.join(recipe.packages)}", recipe.suite, str(partial), address],
            _BUILD_S,
        )  # fmt: skip
        _step(["chroot", str(partial), "/bin/sh", "-c", recipe.finish], _FINISH_S)
        partial.rename(kept)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    say(f"built in {time.monotonic() - began:.0f} s")


def _step(words, timeout_s):
    """Run a part of the build.

    Raises:
        NoBoard: it failed, with the end of what it said, or took too long.
    """
    try:
        done = subprocess.run(
            [*_APART, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
            errors="replace", check=False, timeout=timeout_s, env=_UNSYNCED,
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        raise NoBoard(f"{words[0]} took more than {timeout_s} s") from expired
    if done.returncode != 0:
        raise NoBoard(f"{words[0]} failed with {done.returncode}: {done.stdout[-2000:]}")


def copy_of(tree, target):
    """Copy a tree with owners, modes and links; blocks are shared where the disk can."""
    subprocess.run(["cp", "-a", "--reflink=auto", str(tree), str(target)], check=True, timeout=300)
