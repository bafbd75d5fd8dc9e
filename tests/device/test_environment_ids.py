"""Ids with a module, and ids of families that are installed separately: found, or refused with what mends it."""

import sys
from types import SimpleNamespace

import gymnasium
import pytest

from quarl_device.environments import EnvSpec, bare_name, check_registered, ids, make_single, make_vector, names_module
from quarl_device.environments.families import FAMILIES, Family, family_of_id
from quarl_device.errors import MissingExtra, UnknownEnvironment

WORLD = """
import gymnasium
import gymnasium.envs.classic_control
print("a greeting")

class World(gymnasium.envs.classic_control.CartPoleEnv):
    pass

class Other(World):
    pass

class Wheel:
    pass

gymnasium.register("QuarlOwn-v3", entry_point=World)
gymnasium.register("Other-v0", entry_point=Other)
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A module in the current directory, which is on no path."""
    (tmp_path / "quarl_own.py").write_text(WORLD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    for name in ("QuarlOwn-v3", "Other-v0", "World"):
        gymnasium.registry.pop(name, None)
    sys.modules.pop("quarl_own", None)


def refusal(env_id):
    with pytest.raises(UnknownEnvironment) as caught:
        check_registered(env_id, allow_module=True)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("env_id", "name", "with_module"),
    [
        ("CartPole-v1", "CartPole-v1", False),
        ("my.module:My-v0", "My-v0", True),
        ("m:ns/My-v0", "ns/My-v0", True),
        ("", "", False),
    ],
)
def test_the_name_is_what_follows_the_module(env_id, name, with_module):
    assert (bare_name(env_id), names_module(env_id)) == (name, with_module)


def test_a_module_in_the_current_directory_is_found_and_says_nothing_on_stdout(world, capsys):
    env = make_single(EnvSpec(env_id="quarl_own:QuarlOwn-v3"), allow_module=True)
    assert env.observation_space.shape == (4,)
    assert capsys.readouterr().out == ""
    # After all that is installed: a file of the user's shadows no package.
    assert sys.path[-1] == str(world)
    check_registered("quarl_own:QuarlOwn-v3", allow_module=True)
    assert sys.path.count(str(world)) == 1


def test_a_python_that_was_told_to_leave_the_directory_out_does(world, monkeypatch):
    monkeypatch.setattr(ids, "sys", SimpleNamespace(flags=SimpleNamespace(safe_path=True), path=sys.path, stderr=None))
    assert "No module named 'quarl_own'" in refusal("quarl_own:QuarlOwn-v3").message


@pytest.mark.parametrize("module", ["quarl_none", "quarl_none.py", "dir/quarl_none", "quarl_none.sub"])
def test_a_module_that_is_not_found_says_how_modules_are_named(world, module):
    error = refusal(f"{module}:X-v0")
    assert "cannot be imported: ModuleNotFoundError" in error.message
    assert error.hint == "as `import` takes it: no path, no .py; installed, or in the current directory"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('no licence\\nfor you')", "OSError: no licence"),
        ("import sys; sys.exit('usage: world.py')", "SystemExit: usage: world.py"),
        ("import quarl_missing_too", "No module named 'quarl_missing_too'"),
        ("def", "SyntaxError"),
    ],
)
def test_a_module_that_fails(tmp_path, monkeypatch, code, said):
    (tmp_path / "quarl_failing.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    error = refusal("quarl_failing:X-v0")
    assert said in error.message
    # It was found: how modules are named is not what is wrong.
    assert error.hint == ""


@pytest.mark.parametrize("module", ["", ".relative", "..", "os."])
def test_a_name_of_no_module_is_refused(module):
    refusal(f"{module}:X-v0")


def test_an_id_that_the_module_does_not_register(world):
    error = refusal("quarl_own:QuarlOwn-v1")
    assert "quarl_own is imported, but registers no environment" in error.message
    assert error.hint == "did you mean quarl_own:QuarlOwn-v3?"
    assert "gymnasium.register('Zzzzzz-v0'" in refusal("quarl_own:Zzzzzz-v0").hint


def test_a_class_in_the_place_of_an_id(world):
    for _ in range(2):
        check_registered("quarl_own:World", allow_module=True)
    spec = gymnasium.registry["World"]
    assert (spec.id, spec.max_episode_steps, spec.entry_point.__name__) == ("World", None, "World")
    env = make_single(EnvSpec(env_id="quarl_own:World"), seed=1, allow_module=True)
    assert type(env.unwrapped).__name__ == "World"
    env.close()
    batch = make_vector(EnvSpec(env_id="quarl_own:World"), num_envs=2, allow_module=True)
    assert batch.num_envs == 2
    batch.env.close()
    # Who has it by wire or from a file gets what this machine's user has named, and nothing is imported for it.
    check_registered("World")


def test_a_class_that_is_no_environment(world):
    assert "names a class that is no gymnasium.Env" in refusal("quarl_own:Wheel").message


def test_a_class_in_a_package_and_by_nobody_elses_word(world):
    (world / "quarl_robots").mkdir()
    (world / "quarl_robots" / "__init__.py").write_text("")
    arm, _, _ = WORLD.replace("World", "QuarlArm").partition("class Other")
    (world / "quarl_robots" / "arm.py").write_text(arm)
    with pytest.raises(UnknownEnvironment, match="only this device's own --env"):
        check_registered("quarl_robots.arm:QuarlArm")
    assert "quarl_robots.arm" not in sys.modules
    try:
        check_registered("quarl_robots.arm:QuarlArm", allow_module=True)
        assert gymnasium.registry["QuarlArm"].entry_point.__module__ == "quarl_robots.arm"
    finally:
        gymnasium.registry.pop("QuarlArm", None)
        for name in ("quarl_robots", "quarl_robots.arm"):
            sys.modules.pop(name, None)


def test_an_id_from_elsewhere_that_is_not_registered_says_how_to_name_its_module():
    with pytest.raises(UnknownEnvironment) as caught:
        check_registered("Qqqqqqqq-v7")
    assert caught.value.hint == "one that a module registers is named with it: MODULE:Qqqqqqqq-v7"
    with pytest.raises(UnknownEnvironment) as caught:
        check_registered("CartPol-v1")
    assert caught.value.hint.startswith("did you mean CartPole-v1")
    assert caught.value.hint.endswith("MODULE:CartPol-v1")


# Families


def test_families_are_told_by_their_namespace():
    assert family_of_id("dm_control/cartpole-balance-v0").extra == "dm-control"
    assert family_of_id("ALE/Pong-v5").extra == "atari"
    assert family_of_id("dm_control") is None
    assert family_of_id("CartPole-v1") is None
    assert family_of_id("/CartPole-v1") is None


@pytest.fixture
def invented(monkeypatch):
    def add(**fields):
        family = Family(extra="invented", namespace="invented", **fields)
        monkeypatch.setattr("quarl_device.environments.families.FAMILIES", (*FAMILIES, family))

    return add


def test_a_family_that_is_not_installed(invented):
    invented(registrar="quarl_none", modules=("json", "quarl_none"))
    with pytest.raises(MissingExtra) as caught:
        check_registered("invented/Thing-v0")
    assert caught.value.message == (
        "environment 'invented/Thing-v0' needs the Python module 'quarl_none', which is not installed"
    )
    assert caught.value.hint == "pip install 'quarl-edge-device[invented]'"


def test_a_family_is_registered_when_an_id_of_it_is_asked_for(invented, tmp_path, monkeypatch, capsys):
    (tmp_path / "quarl_plugin.py").write_text(
        "import gymnasium\nprint('registered')\n"
        "gymnasium.register('invented/Thing-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    invented(registrar="quarl_plugin", modules=("quarl_plugin",))
    try:
        # No module is named by who gives the id, so it may come from anywhere.
        check_registered("invented/Thing-v0")
        with pytest.raises(UnknownEnvironment) as caught:
            check_registered("invented/Thin-v0")
        assert "invented/Thing-v0" in caught.value.hint
    finally:
        gymnasium.registry.pop("invented/Thing-v0", None)
        sys.modules.pop("quarl_plugin", None)
    assert capsys.readouterr().out == ""


def test_a_family_whose_package_is_broken(invented, tmp_path, monkeypatch):
    (tmp_path / "quarl_broken.py").write_text("raise OSError('libEGL.so: not found')")
    monkeypatch.syspath_prepend(tmp_path)
    invented(registrar="quarl_broken", modules=("quarl_broken",))
    with pytest.raises(MissingExtra, match=r"cannot be imported: OSError: libEGL\.so: not found"):
        check_registered("invented/Thing-v0")
