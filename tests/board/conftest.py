"""One emulated board for all tests of this folder: booted at its first use, switched off at the end."""

import os
import time

import pytest
from board_emulation import NoBoard
from board_machine import Machine
from board_network import Cable
from board_recipe import RECIPES
from board_rootfs import copy_of, root_file_system, say
from board_wheels import device_wheel, wheelhouse

_INSTALL_S = 400


@pytest.fixture(scope="session")
def recipe():
    return RECIPES[os.environ.get("QUARL_BOARD_ARCH", "arm64")]


@pytest.fixture(scope="session")
def machine(recipe, tmp_path_factory):
    """A board with nothing of ours on it."""
    folder = tmp_path_factory.mktemp("board")
    try:
        tree = root_file_system(recipe)
    except NoBoard as missing:
        pytest.fail(str(missing))  # as a missing broker: never a skip
    began = time.monotonic()
    copy_of(tree, folder / "root")
    cable = Cable()
    try:
        board = Machine(folder / "root", folder=folder, cable=cable)
        try:
            board.boot()
            say(f"copied and booted in {time.monotonic() - began:.0f} s")
            yield board
        finally:
            board.power_off()
    finally:
        cable.close()


@pytest.fixture(scope="session")
def wheels(recipe):
    return wheelhouse(recipe)


@pytest.fixture(scope="session")
def python(machine, recipe, wheels, tmp_path_factory):
    """Python of an environment on the board with the device distribution, installed from wheels without any net."""
    began = time.monotonic()
    machine.put(wheels, "/srv/wheels")
    wheel = device_wheel(tmp_path_factory.mktemp("wheel"))
    machine.put(wheel, f"/srv/{wheel.name}")
    site = () if recipe.processor == "aarch64" else ("--system-site-packages",)
    machine.run("python3", "-m", "venv", "--without-pip", *site, "/srv/venv")
    [pip] = wheels.glob("pip-*.whl")
    machine.run(
        "env", f"PYTHONPATH=/srv/wheels/{pip.name}", "/srv/venv/bin/python", "-m", "pip", "install", "--quiet",
        "--no-index", "--no-compile", "--find-links=/srv/wheels", f"/srv/{wheel.name}", within_s=_INSTALL_S,
    )  # fmt: skip
    say(f"installed from wheels in {time.monotonic() - began:.0f} s")
    return "/srv/venv/bin/python"
