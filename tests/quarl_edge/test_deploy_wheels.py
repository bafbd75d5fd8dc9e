"""What a board needs of packages: judged for it, fetched once, refused by name where there is no wheel."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from deploy_world import make_wheel

import quarl_device
from quarl_device.errors import BoardUnfit, DeployError, MissingPart, MissingTool, ModelFileError, UsageError
from quarl_edge.deploy import wheelhouse as house
from quarl_edge.deploy.device_wheel import build_wheel, built_wheel, device_wheel, tree_digest
from quarl_edge.deploy.requirements import BoardPython, missing_from, requirements_of

PI64 = BoardPython(machine="aarch64", glibc=(2, 36), python=(3, 11, 2))
PI32 = BoardPython(machine="armv7l", glibc=(2, 36), python=(3, 11, 2))
PC = BoardPython(machine="x86_64", glibc=(2, 31), python=(3, 12, 1))
ROOT = Path(__file__).parents[2]


def quiet(text):
    pass


def package(folder, name, version="1.0", needs=()):
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {n}\n" for n in needs
    )
    return make_wheel(folder, f"{name}-{version}-py3-none-any.whl", text, {f"{name}.py": ""})


@pytest.mark.parametrize(
    ("board", "has", "lacks"),
    [
        (PI64, {"ai-edge-litert>=1.2"}, {"tflite-runtime>=2.14", "numpy<2"}),
        (PI32, {"tflite-runtime>=2.14", "numpy<2"}, {"ai-edge-litert>=1.2"}),
        (PC, {"ai-edge-litert>=1.2"}, {"tflite-runtime>=2.14"}),
    ],
)
def test_markers_are_judged_for_the_board(tmp_path, board, has, lacks):
    found = set(requirements_of(make_wheel(tmp_path), board))
    assert has <= found
    assert not lacks & found
    assert not any(";" in text or "box2d" in text for text in found)


def test_extras_are_asked_for_by_name(tmp_path):
    wheel = make_wheel(tmp_path)
    assert "gymnasium[box2d]" in requirements_of(wheel, PI64, ["Box2D"])
    with pytest.raises(UsageError, match="there are box2d"):
        requirements_of(wheel, PI64, ["nothing"])


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("device")


def test_what_the_real_package_needs_on_a_board(cache):
    wheel = built_wheel(Path(quarl_device.__file__).parents[1], cache, quiet)
    assert "paho-mqtt<3,>=2.2" in requirements_of(wheel, PI64, ["box2d", "mujoco", "dm-control", "atari"])


def test_no_wheel_is_an_error(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"no zip")
    with pytest.raises(ModelFileError):
        requirements_of(tmp_path / "a.whl", PI64)


@pytest.mark.parametrize("board", [PI64, PC])
def test_platforms_are_those_that_pip_takes_there(board):
    from packaging import tags

    taken = set(board.platforms)
    assert f"manylinux_{board.glibc[0]}_{board.glibc[1]}_{board.machine}" == board.platforms[0]
    assert f"manylinux2014_{board.machine}" in taken
    assert f"manylinux_2_{board.glibc[1] + 1}_{board.machine}" not in taken
    if board.machine == "x86_64":
        named = {tag for tag in tags.platform_tags() if tag.endswith("x86_64")}
        assert taken <= named | {f"manylinux_2_{minor}_x86_64" for minor in range(5, 32)}


def test_a_wheelhouse_is_searched_through_for_what_the_board_lacks(tmp_path):
    wheels = [
        package(
            tmp_path, "one", needs=["two>=1; platform_machine == 'aarch64'", "three; platform_machine == 'x86_64'"]
        ),
        package(tmp_path, "two", needs=["four[fast]>2; python_version < '3.12'", "one"]),
    ]
    assert missing_from(wheels, ["one"], PI64) == ("four[fast]>2",)
    assert missing_from(wheels, ["one"], PC) == ("three",)
    wheels.append(package(tmp_path, "four", needs=["five; extra == 'fast'", "six; extra == 'slow'"]))
    assert missing_from(wheels, ["one"], PI64) == ("five",)


class Index:
    """A download that gives what it has, as pip would with the markers of this computer: dependencies left out."""

    def __init__(self, **packages):
        self.packages, self.asked = packages, []

    def __call__(self, asked, board, folder):
        self.asked.append(list(asked))
        for text in asked:
            if text not in self.packages:
                raise BoardUnfit(f"{text} has no wheel")
            package(folder, text, needs=self.packages[text])


def test_what_pip_leaves_out_is_fetched_in_another_round(tmp_path):
    index = Index(pip=(), one=["two[fast]; platform_machine == 'aarch64'"], two=["three; extra == 'fast'"], three=())
    wheels = house.wheelhouse(["one"], PI64, cache=tmp_path / "cache", note=quiet, download=index)
    assert [wheel.name.split("-")[0] for wheel in wheels] == ["one", "pip", "three", "two"]
    assert index.asked[-1] == ["one", "pip", "two", "three"]


def test_a_wheelhouse_is_fetched_once_for_what_was_asked(tmp_path):
    index, notes = Index(pip=(), one=()), []
    for board in (PI64, PI64, PC):
        house.wheelhouse(["one"], board, cache=tmp_path, note=notes.append, download=index)
    assert len(index.asked) == len(notes) == 2


def test_one_that_fails_half_way_leaves_nothing(tmp_path):
    index = Index(pip=(), one=["gone"])
    with pytest.raises(BoardUnfit, match="gone has no wheel"):
        house.wheelhouse(["one"], PI64, cache=tmp_path, note=quiet, download=index)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("ERROR: No matching distribution found for Box2D==2.3.10", BoardUnfit, "Box2D has no wheel for aarch64"),
        ("WARNING: Retrying after connection broken by x\nERROR: No matching distribution found for numpy", DeployError,
         "reaches no package index"),
        ("/usr/bin/python3: No module named pip", MissingTool, "needs pip"),
        ("ERROR: \x1b[31mother", DeployError, "other"),
        ("", DeployError, "no reason given"),
    ],
)  # fmt: skip
def test_what_pip_says_becomes_what_mends_it(monkeypatch, tmp_path, said, kind, words):
    def run(command, **_):
        return subprocess.CompletedProcess(command, 1, "", said)

    monkeypatch.setattr("subprocess.run", run)
    with pytest.raises(kind, match=words) as caught:
        house.pip_download(["one"], PI64, tmp_path)
    assert str(caught.value).isprintable()


def test_pip_is_asked_for_the_boards_wheels(monkeypatch, tmp_path):
    seen = []

    def run(command, **options):
        seen.append((command, options))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", run)
    house.pip_download(["one>=1"], PI64, tmp_path)
    ((command, options),) = seen
    assert command[0] == sys.executable
    assert command[command.index("--python-version") :][:4] == ["--python-version", "3.11", "--implementation", "cp"]
    assert command[-1] == "one>=1"
    assert "--only-binary=:all:" in command
    assert options["timeout"] > 0


def test_a_download_that_hangs_is_left(monkeypatch, tmp_path):
    def run(command, **_):
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr("subprocess.run", run)
    with pytest.raises(DeployError, match="took more than"):
        house.pip_download(["one"], PI64, tmp_path)


def test_a_checkout_builds_its_wheel_once(cache):
    root = Path(quarl_device.__file__).parents[1]
    notes = []
    first = built_wheel(root, cache, notes.append)
    assert built_wheel(root, cache, notes.append) == first
    assert len(notes) <= 1
    with zipfile.ZipFile(first) as archive:
        assert "quarl_device/errors.py" in archive.namelist()


def test_another_content_is_another_wheel(tmp_path):
    (tmp_path / "quarl_device" / "__pycache__").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    source = tmp_path / "quarl_device" / "a.py"
    source.write_text("1")
    first = tree_digest(tmp_path)
    (tmp_path / "quarl_device" / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    assert tree_digest(tmp_path) == first
    source.write_text("2")
    assert tree_digest(tmp_path) != first


def test_a_build_that_fails_says_why(tmp_path):
    (tmp_path / "quarl_device").mkdir()
    (tmp_path / "pyproject.toml").write_text("[build-system]\nrequires = []\nbuild-backend = 'nothing_there'\n")
    with pytest.raises(MissingTool, match="cannot be built"):
        built_wheel(tmp_path, tmp_path / "cache", quiet)
    assert list((tmp_path / "cache").iterdir()) == []


def test_neither_packed_nor_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr("quarl_device.__file__", str(tmp_path / "site" / "quarl_device" / "__init__.py"))
    with pytest.raises(MissingPart, match="no wheel of the device package"):
        device_wheel(quiet)


@pytest.mark.timeout(300)
def test_the_built_package_carries_the_devices_wheel(tmp_path):
    """Both wheels from a source tree, as a release is made."""
    tree = tmp_path / "tree"
    with tarfile.open(tmp_path / "tree.tar", "w") as archive:
        for name in ("pyproject.toml", "README.md", "LICENSE", "build_device_wheel.py", "device", "quarl_edge"):
            archive.add(ROOT / name, name, filter=lambda info: None if "__pycache__" in info.name else info)
    with tarfile.open(tmp_path / "tree.tar") as archive:
        archive.extractall(tree, filter="data")
    build_wheel(tree, tmp_path / "out")
    (wheel,) = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (packed,) = [name for name in archive.namelist() if name.startswith("quarl_edge/wheels/")]
        archive.extract(packed, tmp_path)
        assert "quarl_edge/deploy/board_probe.py" in archive.namelist()
    assert packed.endswith("-py3-none-any.whl")
    assert "paho-mqtt<3,>=2.2" in requirements_of(tmp_path / packed, PI64)
