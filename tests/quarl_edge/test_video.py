"""`evaluate --video`: a film of the very episodes that are judged, written whole or not at all."""

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import ClassVar

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image, ImageSequence

from quarl_device.errors import EnvironmentMisbehaved, MissingExtra, UnsupportedSpace, UsageError
from quarl_edge import video as module
from quarl_edge.cli import main
from quarl_edge.video import Film

CARTPOLE = str(Path(__file__).parent.parent / "data" / "cartpole.tflite")


class Pictures(gymnasium.Env):
    """CartPole's spaces; the picture's brightness is the number of the step, its size odd."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 50}
    observation_space = gymnasium.spaces.Box(-9, 9, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None, fault=""):
        self.render_mode, self.fault, self.count = render_mode, fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(4, np.float32), 1.0, self.count == 5, False, {}

    def render(self):
        picture = np.full((33, 47, 3), 40 * self.count, np.uint8)
        if self.count == 3 and self.fault:
            if self.fault == "raise":
                raise OSError("no screen")
            if self.fault == "package":
                raise gymnasium.error.DependencyNotInstalled("pygame is not installed, run `pip install pygame`")
            if self.fault == "module":
                raise ModuleNotFoundError("no", name="drawing")
            return {"none": None, "grey": picture[..., 0], "float": picture / 255.0, "grown": picture[:10]}[self.fault]
        return picture


class Blind(Pictures):
    """Draws nothing, and says so."""

    metadata: ClassVar = {"render_modes": []}

    def __init__(self, render_mode=None):
        super().__init__(None)


gymnasium.register("QuarlPictures-v0", Pictures)
gymnasium.register("QuarlBlind-v0", Blind)


def film(path, world=None, episodes=1, played=1):
    """Film as `evaluate` does."""
    world = world or Pictures("rgb_array")
    with Film(path, episodes=episodes) as made:
        for episode in range(played):
            world.reset()
            made.watch(episode, world)
            done = False
            while not done:
                done = world.step(0)[2]
                made.watch(episode, world)
    return made


def frames(path):
    """Return every frame as uint8 [height, width, 3]."""
    if path.suffix == ".gif":
        with Image.open(path) as image:
            return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
    words = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-loglevel",
        "error",
        "-i",
        path,
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    decoded = subprocess.run(words, capture_output=True, check=True, timeout=60).stdout
    return list(np.frombuffer(decoded, np.uint8).reshape(-1, 34, 48, 3))


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_every_step_is_a_frame_in_order(tmp_path, kind):
    path = tmp_path / f"film.{kind}"
    made = film(path, played=3, episodes=2)
    assert (made.frames, made.filmed, made.fps, made.cut) == (12, 2, 50.0, False)
    shown = frames(path)
    assert [float(frame.mean()) for frame in shown] == pytest.approx([0, 40, 80, 120, 160, 200] * 2, abs=6)
    assert shown[0].shape == (34, 48, 3)


def test_a_gif_plays_at_the_environments_pace(tmp_path):
    path = tmp_path / "film.gif"
    film(path)
    with Image.open(path) as image:
        assert (image.info["duration"], image.info["loop"]) == (20, 0)


@pytest.mark.parametrize(("said", "fps"), [(30, 30.0), (None, 30.0), (0, 30.0), (float("nan"), 30.0), (10_000, 240.0)])
def test_the_pace_of_an_mp4_is_the_environments(tmp_path, said, fps):
    world = Pictures("rgb_array")
    world.metadata = {"render_fps": said}
    assert film(tmp_path / "film.mp4", world).fps == fps


def test_a_film_that_is_full_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(module.MAX_FRAMES, "gif", 4)
    made = film(tmp_path / "film.gif")
    assert (made.frames, made.cut) == (4, True)
    monkeypatch.setitem(module.MAX_FRAMES, "gif", 6)
    assert film(tmp_path / "film.gif").cut is False


@pytest.mark.parametrize("kind", ["mp4", "gif"])
@pytest.mark.parametrize(
    ("fault", "kind_of_error", "says"),
    [
        ("raise", EnvironmentMisbehaved, "no screen"), ("package", MissingExtra, "pygame"),
        ("module", MissingExtra, "'drawing'"), ("none", EnvironmentMisbehaved, "NoneType"),
        ("grey", EnvironmentMisbehaved, r"uint8\[33, 47\]"), ("float", EnvironmentMisbehaved, "float64"),
        ("grown", EnvironmentMisbehaved, "was"),
    ],
)  # fmt: skip
def test_a_fault_in_the_middle_leaves_the_old_film(tmp_path, kind, fault, kind_of_error, says):
    path = tmp_path / f"film.{kind}"
    path.write_bytes(b"the old one")
    with pytest.raises(kind_of_error, match=says):
        film(path, Pictures("rgb_array", fault))
    assert path.read_bytes() == b"the old one"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_an_environment_without_pictures_is_refused(tmp_path):
    with pytest.raises(UnsupportedSpace, match="rgb_array"):
        film(tmp_path / "film.mp4", Blind())


def test_no_picture_is_no_film(tmp_path):
    with Film(tmp_path / "film.mp4"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "says"), [("f.avi", ".mp4 or .gif"), ("none/f.gif", "mkdir -p"), ("d.mp4", "directory")]
)
def test_a_place_that_cannot_be(tmp_path, name, says):
    (tmp_path / "d.mp4").mkdir()
    with pytest.raises(UsageError, match=says):
        Film(tmp_path / name)


@pytest.mark.parametrize(("name", "missing"), [("f.gif", "imageio"), ("f.mp4", "imageio"), ("f.mp4", "imageio_ffmpeg")])
def test_what_is_missing_is_named_with_its_extra(tmp_path, monkeypatch, name, missing):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda each, *a: None if each == missing else found(each, *a))
    with pytest.raises(MissingExtra, match=r"quarl-edge\[video\]"):
        Film(tmp_path / name)


def test_a_gif_needs_no_ffmpeg(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda each, *a: None if "ffmpeg" in each else found(each, *a))
    assert film(tmp_path / "film.gif").frames == 6


def test_evaluate_films_and_returns_what_it_returns_without(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(module.MAX_FRAMES, "mp4", 40)
    words = ["evaluate", CARTPOLE, "--episodes", "2", "--seed", "3", "--format", "json"]
    assert main(words) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*words, "--video", str(tmp_path / "film.mp4")]) == 0
    filmed = json.loads(capsys.readouterr().out)
    assert filmed["returns"] == plain["returns"]
    assert plain["returns"][0] > 40
    assert filmed["video"] == {
        "path": str(tmp_path / "film.mp4"), "frames": 40, "episodes": 1, "fps": 50.0, "cut": True
    }  # fmt: skip
    assert (tmp_path / "film.mp4").stat().st_size > 1_000


def test_evaluate_of_an_environment_of_ones_own(tmp_path, capsys):
    out = tmp_path / "film.mp4"
    env = f"{__name__}:QuarlPictures-v0"
    words = ["--episodes", "3", "--video", str(out), "--video-episodes", "3"]
    assert main(["evaluate", CARTPOLE, "--env", env, *words]) == 0
    assert "18 frames at 50/s, 3 episodes" in " ".join(capsys.readouterr().out.split())
    out.unlink()
    assert main(["evaluate", CARTPOLE, "--env", f"{__name__}:QuarlBlind-v0", "--video", str(out)]) == 21
    assert "rgb_array" in capsys.readouterr().err
    assert not out.exists()
